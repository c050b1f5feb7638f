//! The kernel's statistics of a TCP connection (TCP_INFO, tcp(7)).
//!
//! `struct tcp_info` (linux/tcp.h) grows at its end every few releases; existing offsets never
//! change. Fields that an older kernel does not fill are `None`.

use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use crate::Errno;

/// Size of the answer buffer: more than the structure of Linux 6.18.
const BUFFER: usize = 512;

/// The bytes that Linux has filled since 2.6; a shorter answer is malformed.
const MIN_LEN: usize = 104;

/// `tcpi_options` (linux/tcp.h).
const OPT_TIMESTAMPS: u8 = 1;
const OPT_SACK: u8 = 2;
const OPT_WSCALE: u8 = 4;
const OPT_ECN: u8 = 8;

/// `TCP_INFINITE_SSTHRESH` (net/tcp.h).
const INFINITE_SSTHRESH: u32 = 0x7fff_ffff;

/// The state of a connection at one moment, as seen by this end. Rates are in bytes per second, the
/// congestion window and the slow start threshold in segments, other amounts in bytes unless stated
/// otherwise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TcpInfo {
    /// Smoothed round-trip time (RFC 6298); `None` before the first sample.
    pub rtt: Option<Duration>,
    /// Mean deviation of the round-trip time; `None` before the first sample.
    pub rttvar: Option<Duration>,
    /// Smallest round-trip time within `net.ipv4.tcp_min_rtt_wlen`; `None` before the first sample
    /// and before Linux 4.6.
    pub min_rtt: Option<Duration>,
    /// Round-trip time estimated by the receiver; `None` before the first sample.
    pub rcv_rtt: Option<Duration>,
    /// Congestion window, in segments.
    pub snd_cwnd: u32,
    /// Maximum segment size for sending.
    pub snd_mss: u32,
    /// Estimated segment size of the peer.
    pub rcv_mss: u32,
    /// State of the congestion control (RFC 5681, RFC 6582).
    pub ca_state: CaState,
    /// Window scales of the peer's window and of the advertised window; `None` if window scaling is
    /// not in use (RFC 7323).
    pub window_scales: Option<(u8, u8)>,
    /// Whether timestamps are in use (RFC 7323).
    pub timestamps: bool,
    /// Whether selective acknowledgements are in use (RFC 2018).
    pub sack: bool,
    /// Whether ECN is in use (RFC 3168).
    pub ecn: bool,
    /// Whether the application, not the network, limited the last `delivery_rate` sample.
    pub delivery_rate_app_limited: bool,
    /// Retransmission time-out (RFC 6298).
    pub rto: Duration,
    /// Unanswered zero-window or keepalive probes.
    pub probes: u8,
    /// Number of times the retransmission time-out was doubled.
    pub backoff: u8,
    /// Segments sent but not acknowledged.
    pub unacked: u32,
    /// Unacknowledged segments that were selectively acknowledged.
    pub sacked: u32,
    /// Unacknowledged segments that were retransmitted.
    pub retrans: u32,
    /// Time since data was last sent, at tick resolution.
    pub last_data_sent: Duration,
    /// Time since data was last received, at tick resolution.
    pub last_data_recv: Duration,
    /// Time since an acknowledgement was last received, at tick resolution.
    pub last_ack_recv: Duration,
    /// Path MTU.
    pub pmtu: u32,
    /// Slow start threshold, in segments; `None` before the first congestion.
    pub snd_ssthresh: Option<u32>,
    /// Advertised maximum segment size.
    pub advmss: u32,
    /// Segments currently considered lost.
    pub lost: u32,
    /// Reordering distance of the path, in segments.
    pub reordering: u32,
    /// Unanswered retransmissions of the oldest unacknowledged segment.
    pub retransmits: u8,
    /// Segments retransmitted since the start of the connection.
    pub total_retrans: u32,
    /// Receive buffer space that the kernel aims at per round trip.
    pub rcv_space: u32,
    /// Largest window that the receiver will advertise.
    pub rcv_ssthresh: u32,
    /// Pacing rate; `None` if the connection is not paced, and before Linux 3.15.
    pub pacing_rate: Option<u64>,
    /// Upper limit of the pacing rate; `None` if there is no limit, and before Linux 3.15.
    pub max_pacing_rate: Option<u64>,
    /// Segments sent; Linux 4.2.
    pub segs_out: Option<u32>,
    /// Segments received; Linux 4.2.
    pub segs_in: Option<u32>,
    /// Bytes in the send buffer that have not been sent; Linux 4.6.
    pub notsent_bytes: Option<u32>,
    /// Segments with data received; Linux 4.6.
    pub data_segs_in: Option<u32>,
    /// Segments with data sent; Linux 4.6.
    pub data_segs_out: Option<u32>,
    /// Most recent rate of delivery to the peer; Linux 4.9.
    pub delivery_rate: Option<u64>,
    /// Payload acknowledged by the peer, with FIN and SYN counted as one byte each; Linux 4.1.
    pub bytes_acked: Option<u64>,
    /// Payload received in order; Linux 4.1.
    pub bytes_received: Option<u64>,
    /// Payload sent, including retransmissions; Linux 4.19.
    pub bytes_sent: Option<u64>,
    /// Payload retransmitted; Linux 4.19.
    pub bytes_retrans: Option<u64>,
    /// Segments delivered to the peer; Linux 4.18.
    pub delivered: Option<u32>,
    /// Delivered segments with an ECN congestion mark; Linux 4.18.
    pub delivered_ce: Option<u32>,
    /// Segments that the peer received twice (RFC 2883); Linux 4.19.
    pub dsack_dups: Option<u32>,
    /// Number of reordering events; Linux 4.19.
    pub reord_seen: Option<u32>,
    /// Segments received out of order; Linux 5.4.
    pub rcv_ooopack: Option<u32>,
    /// Retransmission time-outs since the start of the connection; Linux 6.7.
    pub total_rto: Option<u16>,
    /// Time spent recovering from time-outs; Linux 6.7.
    pub total_rto_time: Option<Duration>,
    /// Time with data to send or unacknowledged; Linux 4.10.
    pub busy_time: Option<Duration>,
    /// Part of the busy time limited by the peer's window; Linux 4.10.
    pub rwnd_limited: Option<Duration>,
    /// Part of the busy time limited by the send buffer; Linux 4.10.
    pub sndbuf_limited: Option<Duration>,
    /// Window advertised by the peer; Linux 5.4.
    pub snd_wnd: Option<u32>,
    /// Window advertised to the peer; Linux 6.2.
    pub rcv_wnd: Option<u32>,
}

/// The state of a connection's congestion control: the kernel's `tcp_ca_state`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CaState {
    /// No loss or reordering is suspected.
    Open,
    /// Duplicate acknowledgements or SACKs arrive.
    Disorder,
    /// The window is being reduced after an ECN mark or a local queue drop.
    Cwr,
    /// Fast retransmission is in progress.
    Recovery,
    /// A retransmission time-out has occurred.
    Loss,
    /// A state unknown to this version.
    Other(u8),
}

impl CaState {
    /// Converts the kernel's number.
    pub fn of(number: u8) -> Self {
        match number {
            0 => Self::Open,
            1 => Self::Disorder,
            2 => Self::Cwr,
            3 => Self::Recovery,
            4 => Self::Loss,
            other => Self::Other(other),
        }
    }
}

/// The idle times of a connection: since data was last sent and received, and since the last
/// acknowledgement. Returned by [`TcpInfo::idle_times`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdleTimes([Duration; 3]);

// === impl IdleTimes ===

impl IdleTimes {
    /// Returns the idle times after another `by` without activity.
    #[must_use]
    pub fn aged(self, by: Duration) -> Self {
        Self(self.0.map(|time| time.saturating_add(by)))
    }

    /// Returns the idle times `by` earlier, if there was no activity between.
    #[must_use]
    pub fn before(self, by: Duration) -> Self {
        Self(self.0.map(|time| time.saturating_sub(by)))
    }
}

// === impl TcpInfo ===

impl TcpInfo {
    /// Returns the idle times, the only fields that grow without activity.
    pub fn idle_times(&self) -> IdleTimes {
        IdleTimes([self.last_data_sent, self.last_data_recv, self.last_ack_recv])
    }

    /// Replaces the [`Self::idle_times`].
    pub fn set_idle_times(&mut self, IdleTimes([sent, received, acked]): IdleTimes) {
        self.last_data_sent = sent;
        self.last_data_recv = received;
        self.last_ack_recv = acked;
    }

    /// Sets the slow start threshold to the kernel's number.
    pub fn set_ssthresh(&mut self, segments: u32) {
        self.snd_ssthresh = threshold(segments);
    }

    /// Reads the statistics of `socket`.
    ///
    /// # Errors
    /// `ENOPROTOOPT` or `EOPNOTSUPP` if the socket is not TCP; `EINVAL` if the kernel's answer is
    /// too short.
    pub fn of(socket: impl AsFd) -> Result<Self, Errno> {
        let mut answer = [0u8; BUFFER];
        #[expect(clippy::cast_possible_truncation, reason = "512 fits")]
        let mut len = BUFFER as libc::socklen_t;
        // SAFETY: the borrowed descriptor is open; the kernel writes at most `len` bytes, the size
        // of `answer`, and the length to `len`; both outlive the call.
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

    /// Parses the part of the structure that the kernel has filled. Returns `None` if it is shorter
    /// than on any supported kernel.
    pub fn parse(answer: &[u8]) -> Option<Self> {
        if answer.len() < MIN_LEN {
            return None;
        }
        let u32_at = |offset| number(answer, offset).map(u32::from_ne_bytes);
        let u64_at = |offset| number(answer, offset).map(u64::from_ne_bytes);
        let micros = |us: u32| Duration::from_micros(us.into());
        // 0 means no sample.
        let sample = |offset| u32_at(offset).filter(|&us| us != 0).map(micros);
        let time = |offset| u64_at(offset).map(Duration::from_micros);
        let millis = |offset| Some(Duration::from_millis(u32_at(offset)?.into()));
        let rate = |offset| u64_at(offset).filter(|&rate| rate != u64::MAX);
        let options = *answer.get(5)?;
        let scales = *answer.get(6)?;
        Some(Self {
            rtt: sample(68),
            rttvar: sample(68).and(u32_at(72)).map(micros),
            // ~0 means no sample.
            min_rtt: u32_at(148).filter(|&us| us != u32::MAX).map(micros),
            rcv_rtt: sample(92),
            snd_cwnd: u32_at(80)?,
            snd_mss: u32_at(16)?,
            rcv_mss: u32_at(20)?,
            ca_state: CaState::of(*answer.get(1)?),
            // Bit fields, in the order of little-endian machines.
            window_scales: (options & OPT_WSCALE != 0).then_some((scales & 0xf, scales >> 4)),
            timestamps: options & OPT_TIMESTAMPS != 0,
            sack: options & OPT_SACK != 0,
            ecn: options & OPT_ECN != 0,
            delivery_rate_app_limited: *answer.get(7)? & 1 != 0,
            rto: micros(u32_at(8)?),
            probes: *answer.get(3)?,
            backoff: *answer.get(4)?,
            unacked: u32_at(24)?,
            sacked: u32_at(28)?,
            retrans: u32_at(36)?,
            last_data_sent: millis(44)?,
            last_data_recv: millis(52)?,
            last_ack_recv: millis(56)?,
            pmtu: u32_at(60)?,
            snd_ssthresh: u32_at(76).and_then(threshold),
            advmss: u32_at(84)?,
            lost: u32_at(32)?,
            reordering: u32_at(88)?,
            retransmits: *answer.get(2)?,
            total_retrans: u32_at(100)?,
            rcv_space: u32_at(96)?,
            rcv_ssthresh: u32_at(64)?,
            // ~0 means no limit.
            pacing_rate: rate(104),
            max_pacing_rate: rate(112),
            segs_out: u32_at(136),
            segs_in: u32_at(140),
            notsent_bytes: u32_at(144),
            data_segs_in: u32_at(152),
            data_segs_out: u32_at(156),
            delivery_rate: u64_at(160),
            bytes_acked: u64_at(120),
            bytes_received: u64_at(128),
            bytes_sent: u64_at(200),
            bytes_retrans: u64_at(208),
            delivered: u32_at(192),
            delivered_ce: u32_at(196),
            dsack_dups: u32_at(216),
            reord_seen: u32_at(220),
            rcv_ooopack: u32_at(224),
            total_rto: number(answer, 240).map(u16::from_ne_bytes),
            total_rto_time: millis(244),
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

/// Returns a slow start threshold; `None` before the first congestion.
fn threshold(segments: u32) -> Option<u32> {
    (segments < INFINITE_SSTHRESH).then_some(segments)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::mem::offset_of;
    use std::net::{TcpListener, TcpStream};

    use super::*;

    /// Returns an answer in which the number at each offset is the offset.
    fn offsets(len: usize) -> Vec<u8> {
        let mut answer = Vec::new();
        while answer.len() < len {
            #[expect(clippy::cast_possible_truncation, reason = "small")]
            let word = answer.len() as u32;
            answer.extend(word.to_ne_bytes());
        }
        answer.truncate(len);
        answer
    }

    fn u64_offset(offset: u32) -> u64 {
        let [a, b] = [offset, offset + 4].map(u32::to_ne_bytes);
        u64::from_ne_bytes([a[0], a[1], a[2], a[3], b[0], b[1], b[2], b[3]])
    }

    #[test]
    fn offsets_are_those_of_the_c_library() {
        use libc::tcp_info as c;
        let info = TcpInfo::parse(&offsets(BUFFER)).unwrap();
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
            (info.rcv_mss, offset_of!(c, tcpi_rcv_mss)),
            (info.unacked, offset_of!(c, tcpi_unacked)),
            (info.sacked, offset_of!(c, tcpi_sacked)),
            (info.retrans, offset_of!(c, tcpi_retrans)),
            (info.pmtu, offset_of!(c, tcpi_pmtu)),
            (info.snd_ssthresh.unwrap(), offset_of!(c, tcpi_snd_ssthresh)),
            (info.advmss, offset_of!(c, tcpi_advmss)),
            (info.rcv_ssthresh, offset_of!(c, tcpi_rcv_ssthresh)),
        ] {
            assert_eq!(value as usize, offset);
        }
        let millis = |offset: usize| Duration::from_millis(offset as u64);
        assert_eq!(info.rto, micros(offset_of!(c, tcpi_rto)).unwrap());
        assert_eq!(
            info.last_data_sent,
            millis(offset_of!(c, tcpi_last_data_sent))
        );
        assert_eq!(
            info.last_data_recv,
            millis(offset_of!(c, tcpi_last_data_recv))
        );
        assert_eq!(
            info.last_ack_recv,
            millis(offset_of!(c, tcpi_last_ack_recv))
        );
        // Fields that the C library's struct lacks (linux/tcp.h).
        for (value, offset) in [
            (info.segs_out, 136),
            (info.segs_in, 140),
            (info.notsent_bytes, 144),
            (info.data_segs_in, 152),
            (info.data_segs_out, 156),
            (info.delivered_ce, 196),
            (info.dsack_dups, 216),
            (info.reord_seen, 220),
            (info.rcv_ooopack, 224),
        ] {
            assert_eq!(value, Some(offset));
        }
        assert_eq!(info.total_rto, Some(240));
        assert_eq!(info.total_rto_time, Some(millis(244)));
        assert_eq!(info.min_rtt, micros(148));
        assert_eq!(info.delivered, Some(192));
        assert_eq!((info.snd_wnd, info.rcv_wnd), (Some(228), Some(232)));
        for (value, offset) in [
            (info.pacing_rate, 104),
            (info.max_pacing_rate, 112),
            (info.bytes_acked, 120),
            (info.bytes_received, 128),
            (info.delivery_rate, 160),
            (info.bytes_sent, 200),
            (info.bytes_retrans, 208),
        ] {
            assert_eq!(value, Some(u64_offset(offset)));
        }
        for (value, offset) in [
            (info.busy_time, 168),
            (info.rwnd_limited, 176),
            (info.sndbuf_limited, 184),
        ] {
            assert_eq!(value, Some(Duration::from_micros(u64_offset(offset))));
        }
    }

    #[test]
    fn fields_beyond_a_short_answer_are_none() {
        for len in 0..BUFFER {
            let info = TcpInfo::parse(&offsets(len));
            assert_eq!(info.is_some(), len >= MIN_LEN, "{len}");
            let Some(info) = info else { continue };
            assert_eq!(info.pacing_rate.is_some(), len >= 112);
            assert_eq!(info.min_rtt.is_some(), len >= 152);
            assert_eq!(info.bytes_retrans.is_some(), len >= 216);
            assert_eq!(info.snd_wnd.is_some(), len >= 232);
            assert_eq!(info.rcv_wnd.is_some(), len >= 236);
        }
    }

    #[test]
    fn bit_fields_are_read_where_the_kernel_puts_them() {
        let mut answer = vec![0; 240];
        (answer[1], answer[5], answer[6], answer[7]) = (3, OPT_WSCALE | OPT_SACK, 0xa7, 1);
        answer[76..80].copy_from_slice(&INFINITE_SSTHRESH.to_ne_bytes());
        let info = TcpInfo::parse(&answer).unwrap();
        assert_eq!(info.ca_state, CaState::Recovery);
        assert_eq!(info.window_scales, Some((7, 10)));
        assert!(info.sack && !info.timestamps && !info.ecn);
        assert!(info.delivery_rate_app_limited);
        assert_eq!(info.snd_ssthresh, None);
        answer[5] = OPT_TIMESTAMPS | OPT_ECN;
        let info = TcpInfo::parse(&answer).unwrap();
        assert_eq!(info.window_scales, None);
        assert!(info.timestamps && info.ecn && !info.sack);
    }

    #[test]
    fn fields_without_a_sample_are_none() {
        let mut answer = vec![0; 240];
        answer[104..112].fill(0xff);
        answer[148..152].fill(0xff);
        let info = TcpInfo::parse(&answer).unwrap();
        assert_eq!((info.rtt, info.rttvar, info.rcv_rtt), (None, None, None));
        assert_eq!((info.min_rtt, info.pacing_rate), (None, None));
    }

    #[test]
    fn the_kernel_counts_the_bytes_of_a_connection() {
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
        // The SYN counts as one byte; the reply acknowledged all bytes.
        assert_eq!(info.bytes_acked, Some(5001));
        assert!(info.snd_cwnd > 0 && info.snd_mss > 500);
        assert!(info.snd_wnd.unwrap() > 0);
        assert!(info.busy_time.is_some());
        assert_eq!((info.total_retrans, info.bytes_retrans), (0, Some(0)));
    }

    #[test]
    fn a_socket_that_is_not_tcp_is_an_error() {
        let udp = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        assert!(TcpInfo::of(&udp).is_err());
    }
}
