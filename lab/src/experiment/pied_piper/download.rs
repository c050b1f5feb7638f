//! Downloads: the file, its path, and the condition of the client.

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

/// The way that a download takes to the client. From [`Way::Split`] to [`Way::Taut`], each way
/// adds one improvement to the previous one (pied-piper 3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Way {
    /// One connection over the Internet's own path. The only relay host on this path is the near
    /// one, which is the client's first router.
    EndToEnd,
    /// One connection, over the relays' hosts as routers: the paper's "Cloud NoSplit".
    Routed,
    /// ssh port forwarding on both relays: the paper's "OCD Baseline".
    Ssh,
    /// `taut relay` on both hosts; each dials upstream after accepting its client: the paper's
    /// "K-Split +TP".
    Split,
    /// Each relay dials upstream at its client's SYN: "K-Split +TP+ES".
    EarlySyn,
    /// The near relay keeps connections to the far one ready: "K-Split +TP+ES+CP".
    Pool,
    /// Between the relays, windows are large and slow start is skipped: "Pied Piper".
    Taut,
    /// Like [`Way::Taut`], and the near relay uses BBR towards the client.
    TautBbr,
}

/// The condition of the client and its link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Condition {
    Clean,
    /// One segment in a thousand is lost on the client's link, each way.
    Lossy,
    /// The client advertises at most 64 kB.
    Window,
}

impl Size {
    /// The sizes of figure 8. (Section 3.3 mentions only 10 kB; these sizes are section 2's,
    /// without the 100 MB.)
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

    /// Returns the file's name on the server.
    pub(crate) fn file(self) -> String {
        self.label().replace(' ', "")
    }
}

impl Way {
    /// All ways, in the order of the paper's figures.
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

    /// Returns whether this kernel supports the way.
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

    /// Returns the suffix of a series' name.
    pub(crate) fn suffix(self) -> &'static str {
        match self {
            Self::Clean => "",
            Self::Lossy => "/0.1 % loss",
            Self::Window => "/64 kB window",
        }
    }
}
