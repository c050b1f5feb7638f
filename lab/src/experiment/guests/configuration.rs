//! The configurations of a guest that waits for its core.

use super::guest::talk::Settings;

/// A configuration of the receiving guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::experiment) enum Configuration {
    /// The defaults of `ip tuntap` for the tap, and of the kernel for the guest.
    AsItComes,
    /// The tuning that needs no early acknowledgement: a long ring, no queueing discipline, and a
    /// receive buffer for the segments that arrive before the guest runs.
    Tuned,
    /// Tuned, with early acknowledgement within the guest's window.
    Snoop,
    /// Tuned, with early acknowledgement within that window from the first segment.
    Early,
    /// Tuned, with early acknowledgement beyond that window.
    Grow,
    /// Tuned, with early acknowledgement beyond that window from the first segment.
    GrowEarly,
}

/// The guest's default receive buffer when tuned, in bytes.
const BUFFER: u32 = 4 << 20;

/// The number of bytes that a connection can always put into the buffer. It is less than the
/// buffer's size, because the kernel charges a segment's memory and not its bytes: see
/// docs/design/lab-worlds.md.
pub(in crate::experiment) const GUEST_RCVBUF: u32 = 1 << 20;

/// The length of a tuned tap's ring.
pub(in crate::experiment) const RING: u32 = 4096;

/// The largest initial window that the kernel accepts (`ip route ... initrwnd`), in segments. A
/// SYN-ACK limits the window to 16 bits.
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

    /// Returns the guest's settings for receiving.
    pub(in crate::experiment) fn settings(self) -> Settings {
        match self.is_tuned() {
            // The kernel's default.
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

    /// Returns the arguments of `taut snoop` besides the tap; `None` if it does not run.
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
