//! The kernel's account of a connection (TCP_INFO).

use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use crate::Errno;

/// As long as `struct tcp_info` has been since Linux 6.2; older kernels fill in less of it.
const LEN: usize = 240;

/// Windows and what becomes of them. Offsets are those of `struct tcp_info` in linux/tcp.h, which
/// only ever grows at its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpInfo {
    /// Bytes in a full segment that is sent.
    pub segment: u32,
    /// The congestion window, in segments.
    pub congestion_window: u32,
    /// What the peer is known to take, in bytes: the window it has announced. `None` before Linux 5.4.
    pub announced_window: Option<u32>,
    /// The receive window that the peer may use, in bytes. `None` before Linux 6.2.
    pub receive_window: Option<u32>,
    /// What the receive window may grow to for now, in bytes.
    pub receive_threshold: u32,
    /// The smoothed round-trip time.
    pub round_trip: Duration,
    /// Segments sent again, in all.
    pub retransmitted: u32,
    /// Segments that have arrived, those sent again included. 0 before Linux 4.18.
    pub delivered: u32,
    /// What it is paced at, in bytes a second; all ones when it is not.
    pub pacing_rate: u64,
}

impl TcpInfo {
    pub(super) fn of(socket: impl AsFd) -> Result<Self, Errno> {
        let mut raw = [0u8; LEN];
        let mut len = LEN as libc::socklen_t;
        // SAFETY: a borrowed descriptor is open; the kernel writes at most `len` bytes, which `raw`
        // has room for, and how many they are into `len`; both outlive the call.
        let result = unsafe {
            libc::getsockopt(
                socket.as_fd().as_raw_fd(),
                libc::IPPROTO_TCP,
                libc::TCP_INFO,
                raw.as_mut_ptr().cast(),
                &raw mut len,
            )
        };
        if result != 0 {
            return Err(super::last_error());
        }
        Ok(Self::parse(&raw[..LEN.min(len as usize)]))
    }

    /// Fields that the kernel has not filled in are 0 or `None`.
    fn parse(raw: &[u8]) -> Self {
        let word = |offset: usize| -> Option<u32> {
            Some(u32::from_ne_bytes(*raw.get(offset..)?.first_chunk()?))
        };
        let long = |offset: usize| -> Option<u64> {
            Some(u64::from_ne_bytes(*raw.get(offset..)?.first_chunk()?))
        };
        Self {
            segment: word(16).unwrap_or(0),
            receive_threshold: word(64).unwrap_or(0),
            round_trip: Duration::from_micros(word(68).unwrap_or(0).into()),
            congestion_window: word(80).unwrap_or(0),
            retransmitted: word(100).unwrap_or(0),
            pacing_rate: long(104).unwrap_or(0),
            delivered: word(192).unwrap_or(0),
            announced_window: word(228),
            receive_window: word(232),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_older_kernel_gives_what_it_has() {
        let all: Vec<u8> = (0..LEN as u8).collect();
        let of = |len| TcpInfo::parse(&all[..len]);
        assert_eq!(
            of(LEN).receive_window,
            Some(u32::from_ne_bytes([232, 233, 234, 235]))
        );
        assert_eq!(of(232).receive_window, None);
        assert_eq!(
            of(232).announced_window,
            Some(u32::from_ne_bytes([228, 229, 230, 231]))
        );
        assert_eq!(of(228).announced_window, None);
        assert_eq!(
            of(104).congestion_window,
            u32::from_ne_bytes([80, 81, 82, 83])
        );
        assert_eq!(of(104).pacing_rate, 0);
        assert_eq!(of(0).segment, 0);
    }
}
