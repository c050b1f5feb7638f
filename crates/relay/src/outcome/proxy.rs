//! Why a connection without a PROXY protocol header that is believed was reset.

/// Why a connection was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProxyRefusal {
    /// Its sender is none of those that are believed.
    Sender,
    /// It does not begin with a header that can be read.
    Malformed,
    /// The header was not there in time.
    TimedOut,
    /// The sender went away.
    Gone,
    /// Too many were waiting.
    Full,
}

// === impl Unproxied ===

impl ProxyRefusal {
    /// Every cause.
    pub(crate) const ALL: [Self; 5] = [
        Self::Sender,
        Self::Malformed,
        Self::TimedOut,
        Self::Gone,
        Self::Full,
    ];

    /// Its name in metrics and logs.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Sender => "sender",
            Self::Malformed => "malformed",
            Self::TimedOut => "timed_out",
            Self::Gone => "gone",
            Self::Full => "full",
        }
    }

    pub(crate) fn index(self) -> usize {
        self as usize
    }
}
