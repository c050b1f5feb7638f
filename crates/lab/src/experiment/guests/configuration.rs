//! What is done for a guest that waits for its core.

use super::guest::talk::Settings;

/// What is done for the guest that receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::experiment) enum Configuration {
    /// Nothing: a tap as `ip tuntap` makes it, a guest as its kernel boots.
    AsItComes,
    /// What can be had without acknowledging for it: a long ring, no queue before it, and room for
    /// what comes before the guest runs.
    Tuned,
    /// Tuned, and acknowledged within the window that the guest offers.
    Snoop,
    /// The same from the first segment.
    Early,
    /// Beyond that window.
    Grow,
    /// Both.
    GrowEarly,
}

/// What the guest's default receive buffer is tuned to, in bytes.
const BUFFER: u32 = 4 << 20;

/// How much of it a connection is sure to take, read or not, in bytes. The kernel counts what a
/// segment takes of its memory and not its bytes: see docs/design/lab-worlds.md.
pub(in crate::experiment) const GUEST_RCVBUF: u32 = 1 << 20;

/// Places of a tuned tap's ring.
pub(in crate::experiment) const RING: u32 = 4096;

/// The largest first window that the kernel takes (`ip route ... initrwnd`), in segments; it is a 16 bit field
/// in a SYN-ACK all the same.
const INITRWND: u32 = 65_535;

impl Configuration {
    pub(in crate::experiment) const ALL: [Self; 6] = [
        Self::AsItComes,
        Self::Tuned,
        Self::Snoop,
        Self::Early,
        Self::Grow,
        Self::GrowEarly,
    ];

    pub(in crate::experiment) fn label(self) -> &'static str {
        match self {
            Self::AsItComes => "as it comes",
            Self::Tuned => "tuned",
            Self::Snoop => "snoop",
            Self::Early => "snoop --start-early",
            Self::Grow => "snoop --grow",
            Self::GrowEarly => "snoop --grow --start-early",
        }
    }

    pub(in crate::experiment) fn is_tuned(self) -> bool {
        self != Self::AsItComes
    }

    /// How the guest receives.
    pub(in crate::experiment) fn settings(self) -> Settings {
        match self.is_tuned() {
            // The kernel's own.
            false => Settings {
                rmem: [4096, 131_072, 6_291_456],
                initrwnd: 0,
            },
            true => Settings {
                rmem: [4096, BUFFER, 6_291_456.max(BUFFER)],
                initrwnd: INITRWND,
            },
        }
    }

    /// What `taut snoop` is told beside the tap; `None`: it does not run.
    pub(in crate::experiment) fn snoop(self) -> Option<Vec<String>> {
        let mut args = vec!["--ring".to_owned(), RING.to_string()];
        let grow = [
            "--grow".to_owned(),
            "--guest-rcvbuf".to_owned(),
            GUEST_RCVBUF.to_string(),
        ];
        if !self.is_tuned() || self == Self::Tuned {
            return None;
        }
        if matches!(self, Self::Grow | Self::GrowEarly) {
            args.extend(grow);
        }
        if matches!(self, Self::Early | Self::GrowEarly) {
            args.push("--start-early".to_owned());
        }
        Some(args)
    }
}
