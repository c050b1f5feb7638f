//! What the kernel knows about a TCP connection (TCP_INFO).
//!
//! The kernel's structure grows at its end with every few releases. An older kernel fills less of
//! it, and what it does not fill is `None` here. Offsets are those of `struct tcp_info` in
//! linux/tcp.h, which never change.

use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use crate::Errno;

/// All that linux/tcp.h of Linux 6.18 has, and room to see that there is more.
const ROOM: usize = 512;

/// What Linux has filled since 2.6: without it there is nothing to report.
const LEAST: usize = 104;

/// A connection at one moment, from this end. Rates are in bytes a second, windows of the
/// congestion control in segments, all other amounts in bytes unless said otherwise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TcpInfo {
    /// Smoothed round-trip time (RFC 6298); `None` before the first sample.
    pub rtt: Option<Duration>,
    /// Its mean deviation; `None` before the first sample.
    pub rttvar: Option<Duration>,
    /// The least round-trip time within `net.ipv4.tcp_min_rtt_wlen`; `None` before the first
    /// sample, or Linux before 4.6.
    pub min_rtt: Option<Duration>,
    /// Round-trip time as the receiver sees it; `None` before the first sample.
    pub rcv_rtt: Option<Duration>,
    /// Congestion window, in segments.
    pub snd_cwnd: u32,
    /// Segment size for sending.
    pub snd_mss: u32,
    /// Segments now taken for lost.
    pub lost: u32,
    /// Segments by which the path is known to reorder.
    pub reordering: u32,
    /// Retransmissions of the segment that now waits, without an answer.
    pub retransmits: u8,
    /// Segments sent again, ever.
    pub total_retrans: u32,
    /// The receive buffer's target for a round trip.
    pub rcv_space: u32,
    /// The most that the receiver will advertise.
    pub rcv_ssthresh: u32,
    /// Rate at which segments are spaced; `None`: not paced, or Linux before 3.15.
    pub pacing_rate: Option<u64>,
    /// Rate at which the peer has received of late; Linux 4.9.
    pub delivery_rate: Option<u64>,
    /// Payload that the peer has acknowledged, FIN and SYN counted as a byte each; Linux 4.1.
    pub bytes_acked: Option<u64>,
    /// Payload received in order; Linux 4.1.
    pub bytes_received: Option<u64>,
    /// Payload sent, repeated bytes included; Linux 4.19.
    pub bytes_sent: Option<u64>,
    /// Payload sent again; Linux 4.19.
    pub bytes_retrans: Option<u64>,
    /// Segments that the peer has received; Linux 4.18.
    pub delivered: Option<u32>,
    /// Time with something to send or unacknowledged; Linux 4.10, as the next two.
    pub busy_time: Option<Duration>,
    /// Of it, time held back by the peer's window.
    pub rwnd_limited: Option<Duration>,
    /// Of it, time held back by the send buffer.
    pub sndbuf_limited: Option<Duration>,
    /// The peer's window; Linux 5.4.
    pub snd_wnd: Option<u32>,
    /// The window advertised to the peer; Linux 6.2.
    pub rcv_wnd: Option<u32>,
}

// === impl TcpInfo ===

impl TcpInfo {
    /// Asks the kernel about `socket`.
    ///
    /// # Errors
    /// `ENOPROTOOPT` or `EOPNOTSUPP`: not a TCP socket. `EINVAL`: the kernel's answer is shorter
    /// than any Linux gives.
    pub fn of(socket: impl AsFd) -> Result<Self, Errno> {
        let mut answer = [0u8; ROOM];
        #[expect(clippy::cast_possible_truncation, reason = "512 fits")]
        let mut len = ROOM as libc::socklen_t;
        // SAFETY: the pointer and the length describe `answer`, which outlives the call; the kernel
        // writes at most `len` bytes there and the number of them to `len`. A borrowed descriptor
        // is open.
        let rc = unsafe {
            libc::getsockopt(
                socket.as_fd().as_raw_fd(),
                libc::IPPROTO_TCP,
                libc::TCP_INFO,
                answer.as_mut_ptr().cast(),
                &mut len,
            )
        };
        if rc != 0 {
            let error = std::io::Error::last_os_error();
            return Err(Errno::from_io_error(&error).unwrap_or(Errno::INVAL));
        }
        let filled = answer.get(..len as usize).unwrap_or(&answer);
        Self::parse(filled).ok_or(Errno::INVAL)
    }

    /// Reads what the kernel has filled; `None` when that is less than any Linux fills.
    pub fn parse(answer: &[u8]) -> Option<Self> {
        if answer.len() < LEAST {
            return None;
        }
        let u32_at = |offset| number(answer, offset).map(u32::from_ne_bytes);
        let u64_at = |offset| number(answer, offset).map(u64::from_ne_bytes);
        let micros = |us: u32| Duration::from_micros(us.into());
        // No sample yet.
        let sample = |offset| u32_at(offset).filter(|&us| us != 0).map(micros);
        let time = |offset| u64_at(offset).map(Duration::from_micros);
        Some(Self {
            rtt: sample(68),
            rttvar: sample(68).and(u32_at(72)).map(micros),
            // ~0 stands for no sample.
            min_rtt: u32_at(148).filter(|&us| us != u32::MAX).map(micros),
            rcv_rtt: sample(92),
            snd_cwnd: u32_at(80)?,
            snd_mss: u32_at(16)?,
            lost: u32_at(32)?,
            reordering: u32_at(88)?,
            retransmits: *answer.get(2)?,
            total_retrans: u32_at(100)?,
            rcv_space: u32_at(96)?,
            rcv_ssthresh: u32_at(64)?,
            // ~0 stands for no limit.
            pacing_rate: u64_at(104).filter(|&rate| rate != u64::MAX),
            delivery_rate: u64_at(160),
            bytes_acked: u64_at(120),
            bytes_received: u64_at(128),
            bytes_sent: u64_at(200),
            bytes_retrans: u64_at(208),
            delivered: u32_at(192),
            busy_time: time(168),
            rwnd_limited: time(176),
            sndbuf_limited: time(184),
            snd_wnd: u32_at(228),
            rcv_wnd: u32_at(232),
        })
    }
}

fn number<const N: usize>(answer: &[u8], offset: usize) -> Option<[u8; N]> {
    answer.get(offset..offset + N)?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::mem::offset_of;
    use std::net::{TcpListener, TcpStream};

    use super::*;

    /// An answer in which the number at each offset tells the offset.
    fn told(len: usize) -> Vec<u8> {
        let mut answer = Vec::new();
        while answer.len() < len {
            #[expect(clippy::cast_possible_truncation, reason = "small")]
            let word = answer.len() as u32;
            answer.extend(word.to_ne_bytes());
        }
        answer.truncate(len);
        answer
    }

    fn u64_told(offset: u32) -> u64 {
        let [a, b] = [offset, offset + 4].map(u32::to_ne_bytes);
        u64::from_ne_bytes([a[0], a[1], a[2], a[3], b[0], b[1], b[2], b[3]])
    }

    #[test]
    fn offsets_are_those_of_the_c_library() {
        use libc::tcp_info as c;
        let info = TcpInfo::parse(&told(ROOM)).unwrap();
        let micros = |offset: usize| Some(Duration::from_micros(offset as u64));
        assert_eq!(info.rtt, micros(offset_of!(c, tcpi_rtt)));
        assert_eq!(info.rttvar, micros(offset_of!(c, tcpi_rttvar)));
        assert_eq!(info.rcv_rtt, micros(offset_of!(c, tcpi_rcv_rtt)));
        for (value, offset) in [
            (info.snd_cwnd, offset_of!(c, tcpi_snd_cwnd)),
            (info.snd_mss, offset_of!(c, tcpi_snd_mss)),
            (info.lost, offset_of!(c, tcpi_lost)),
            (info.reordering, offset_of!(c, tcpi_reordering)),
            (info.total_retrans, offset_of!(c, tcpi_total_retrans)),
            (info.rcv_space, offset_of!(c, tcpi_rcv_space)),
            (info.rcv_ssthresh, offset_of!(c, tcpi_rcv_ssthresh)),
        ] {
            assert_eq!(value as usize, offset);
        }
        // Beyond the C library's: linux/tcp.h.
        assert_eq!(info.min_rtt, micros(148));
        assert_eq!(info.delivered, Some(192));
        assert_eq!((info.snd_wnd, info.rcv_wnd), (Some(228), Some(232)));
        for (value, offset) in [
            (info.pacing_rate, 104),
            (info.bytes_acked, 120),
            (info.bytes_received, 128),
            (info.delivery_rate, 160),
            (info.bytes_sent, 200),
            (info.bytes_retrans, 208),
        ] {
            assert_eq!(value, Some(u64_told(offset)));
        }
        for (value, offset) in [
            (info.busy_time, 168),
            (info.rwnd_limited, 176),
            (info.sndbuf_limited, 184),
        ] {
            assert_eq!(value, Some(Duration::from_micros(u64_told(offset))));
        }
    }

    #[test]
    fn a_shorter_answer_leaves_out_what_it_lacks() {
        for len in 0..ROOM {
            let info = TcpInfo::parse(&told(len));
            assert_eq!(info.is_some(), len >= LEAST, "{len}");
            let Some(info) = info else { continue };
            assert_eq!(info.pacing_rate.is_some(), len >= 112);
            assert_eq!(info.min_rtt.is_some(), len >= 152);
            assert_eq!(info.bytes_retrans.is_some(), len >= 216);
            assert_eq!(info.snd_wnd.is_some(), len >= 232);
            assert_eq!(info.rcv_wnd.is_some(), len >= 236);
        }
    }

    #[test]
    fn what_has_no_sample_yet_is_nothing() {
        let mut answer = vec![0; 240];
        answer[104..112].fill(0xff);
        answer[148..152].fill(0xff);
        let info = TcpInfo::parse(&answer).unwrap();
        assert_eq!((info.rtt, info.rttvar, info.rcv_rtt), (None, None, None));
        assert_eq!((info.min_rtt, info.pacing_rate), (None, None));
    }

    #[test]
    fn the_kernel_tells_what_went_over_a_connection() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        client.write_all(&[7; 5000]).unwrap();
        server.read_exact(&mut [0; 5000]).unwrap();
        server.write_all(b"thanks").unwrap();
        client.read_exact(&mut [0; 6]).unwrap();

        let info = TcpInfo::of(&client).unwrap();
        assert!(info.rtt.unwrap() > Duration::ZERO);
        assert!(info.min_rtt.unwrap() <= info.rtt.unwrap() * 8);
        assert_eq!(info.bytes_sent, Some(5000));
        assert_eq!(info.bytes_received, Some(6));
        // The SYN counts as one; the reply acknowledged all of it.
        assert_eq!(info.bytes_acked, Some(5001));
        assert!(info.snd_cwnd > 0 && info.snd_mss > 500);
        assert!(info.snd_wnd.unwrap() > 0);
        assert!(info.busy_time.is_some());
        assert_eq!((info.total_retrans, info.bytes_retrans), (0, Some(0)));
    }

    #[test]
    fn what_is_no_tcp_socket_is_an_error() {
        let udp = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        assert!(TcpInfo::of(&udp).is_err());
    }
}
