//! Downloads: their sizes, and their ways.

use taut_sys::socket::has_congestion_control;

/// The size of a file in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Size(pub(super) usize);

/// The way that a download takes to the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Way {
    /// One connection over the Internet's path: the paper's "e2e".
    EndToEnd,
    /// End to end with a large initial congestion window, a large initial receive window and large
    /// buffers: the paper's "Turbo-Start Cubic", end to end.
    EndToEndTurbo,
    /// End to end with the kernel's default buffers at the server, and BBR.
    EndToEndBbr,
    /// ssh port forwarding on both relays: the paper's "OCD Baseline".
    Ssh,
    /// Two `taut relay` with early SYN and ready connections, but Cubic between them, without turbo
    /// start.
    Cubic,
    /// Like `Cubic`, with BBR between them.
    Bbr,
    /// Like `Cubic`, with a large initial window between them: the "Turbo-Start Cubic" of
    /// figure 11.
    TurboCubic,
    /// Two `taut relay` with turbo start between them.
    Taut,
}

impl Size {
    pub(super) const KB10: Self = Self(10_000);
    pub(super) const KB100: Self = Self(100_000);
    pub(super) const MB1: Self = Self(1_000_000);
    /// The file of figure 2 (3.8 and 3.9 MB in 2.2).
    pub(super) const MB4: Self = Self(4_000_000);
    pub(super) const MB10: Self = Self(10_000_000);
    pub(super) const MB100: Self = Self(100_000_000);
    pub(super) const ALL: [Self; 6] = [
        Self::KB10,
        Self::KB100,
        Self::MB1,
        Self::MB4,
        Self::MB10,
        Self::MB100,
    ];

    pub(super) fn label(self) -> String {
        match self.0 {
            bytes if bytes < 1_000_000 => format!("{} kB", bytes / 1_000),
            bytes => format!("{} MB", bytes / 1_000_000),
        }
    }

    /// Returns the file's name on the server, and the size's name in the headline.
    pub(super) fn file(self) -> String {
        self.label().replace(' ', "").to_lowercase()
    }
}

impl Way {
    /// All ways, in the order of the figures.
    pub(super) const ALL: [Self; 8] = [
        Self::EndToEnd,
        Self::EndToEndTurbo,
        Self::EndToEndBbr,
        Self::Ssh,
        Self::Cubic,
        Self::Bbr,
        Self::TurboCubic,
        Self::Taut,
    ];

    /// The ways over the relays, which share a world.
    pub(super) const OVER_RELAYS: [Self; 5] = [
        Self::Ssh,
        Self::Cubic,
        Self::Bbr,
        Self::TurboCubic,
        Self::Taut,
    ];

    pub(super) fn label(self) -> &'static str {
        match self {
            Self::EndToEnd => "e2e",
            Self::EndToEndTurbo => "e2e-turbo",
            Self::EndToEndBbr => "e2e-bbr",
            Self::Ssh => "ssh",
            Self::Cubic => "mesh-cubic",
            Self::Bbr => "mesh-bbr",
            Self::TurboCubic => "mesh-turbo-cubic",
            Self::Taut => "taut",
        }
    }

    /// Returns whether the download goes over the relays.
    pub(super) fn is_over_relays(self) -> bool {
        Self::OVER_RELAYS.contains(&self)
    }

    /// Returns whether this kernel supports the way.
    pub(super) fn is_available(self) -> bool {
        !matches!(self, Self::EndToEndBbr | Self::Bbr) || has_congestion_control("bbr")
    }

    /// Returns whether a long download fills the client's link, so that it needs the machine's CPU.
    /// Loss keeps the others slow.
    pub(super) fn fills_its_link(self) -> bool {
        !matches!(self, Self::EndToEnd | Self::EndToEndTurbo)
    }
}
