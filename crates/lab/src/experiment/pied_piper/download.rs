//! What is downloaded, which way, and under which condition.

use taut_sys::socket::has_congestion_control;

/// A file to be downloaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Size {
    Kb10,
    Kb100,
    Mb1,
    Mb10,
    /// For two flows at one bottleneck in the short form.
    Mb20,
    /// For two flows at one bottleneck, as in pied-piper 6.3.
    Mb50,
}

/// How a download goes. From [`Way::Split`] to [`Way::Taut`], each has one improvement more than the
/// one before it (pied-piper 3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Way {
    /// One connection, over a path that has none of the relays' hosts in it but the client's first
    /// router.
    EndToEnd,
    /// One connection, over the relays' hosts as routers: the paper's "Cloud NoSplit".
    Routed,
    /// ssh port forwarding on both relays: the paper's "OCD Baseline".
    Ssh,
    /// `taut relay` on both, each dialling onward when its client is there: the paper's "K-Split
    /// +TP".
    Split,
    /// Each dials when its client's SYN has come: "K-Split +TP+ES".
    EarlySyn,
    /// The near relay has connections to the far one ready: "K-Split +TP+ES+CP".
    Pool,
    /// Between relays, windows are large and slow start is left out: "Pied Piper".
    Taut,
    /// The same, and the near relay uses BBR towards the client.
    TautBbr,
}

/// What the client and its link do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Condition {
    Clean,
    /// One segment in a thousand is lost on the client's link, each way.
    Lossy,
    /// The client advertises 64 kB at most.
    Window,
}

impl Size {
    /// The sizes of figure 8. (Section 3.3 names 10 kB alone; these are section 2's, without the 100 MB.)
    pub(crate) const ALL: [Self; 4] = [Self::Kb10, Self::Kb100, Self::Mb1, Self::Mb10];

    pub(crate) fn bytes(self) -> usize {
        match self {
            Self::Kb10 => 10_000,
            Self::Kb100 => 100_000,
            Self::Mb1 => 1_000_000,
            Self::Mb10 => 10_000_000,
            Self::Mb20 => 20_000_000,
            Self::Mb50 => 50_000_000,
        }
    }

    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Kb10 => "10 kB",
            Self::Kb100 => "100 kB",
            Self::Mb1 => "1 MB",
            Self::Mb10 => "10 MB",
            Self::Mb20 => "20 MB",
            Self::Mb50 => "50 MB",
        }
    }

    /// Its name on the server.
    pub(crate) fn file(self) -> String {
        self.label().replace(' ', "")
    }
}

impl Way {
    /// In the order of the paper's figures.
    pub(crate) const ALL: [Self; 8] = [
        Self::EndToEnd,
        Self::Routed,
        Self::Ssh,
        Self::Split,
        Self::EarlySyn,
        Self::Pool,
        Self::Taut,
        Self::TautBbr,
    ];

    /// Whether this kernel has what the way needs.
    pub(crate) fn available(self) -> bool {
        self != Self::TautBbr || has_congestion_control("bbr")
    }

    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::EndToEnd => "e2e",
            Self::Routed => "routed",
            Self::Ssh => "ssh",
            Self::Split => "split",
            Self::EarlySyn => "split+es",
            Self::Pool => "split+es+pool",
            Self::Taut => "taut",
            Self::TautBbr => "taut-bbr",
        }
    }
}

impl Condition {
    pub(crate) const ALL: [Self; 3] = [Self::Clean, Self::Lossy, Self::Window];

    /// What is added to a series' name.
    pub(crate) fn suffix(self) -> &'static str {
        match self {
            Self::Clean => "",
            Self::Lossy => "/0.1 % loss",
            Self::Window => "/64 kB window",
        }
    }
}
