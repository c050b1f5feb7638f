//! The figures of a changed connection, which the program over slots writes so that sock_diag need
//! not report them.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use libbpf_rs::{MapCore as _, MapFlags, MapHandle};
use taut_bpf::read_prefix;
use taut_sys::sock_diag::{Bbr, Connection, Memory};
use taut_sys::tcp_info::CaState;

use super::raw;
use super::record::{Details, details};

const PAGE: usize = raw::CONNECTION_PAGE as usize;
const FIGURES: usize = size_of::<raw::ConnectionFigures>();

/// The number of connections whose figures are written in a scan, 7 MB of kernel memory. The others
/// are read with sock_diag.
pub(super) const PLACES: u32 = 256 * raw::CONNECTION_PAGE;

/// Reads the figures of connections by their places, a page at a time.
pub(super) struct Pages {
    map: Arc<MapHandle>,
    /// Ticks per second.
    rate: u32,
    page: Vec<u8>,
    /// The number of the page; `None` if it may have changed.
    number: Option<usize>,
}

/// What may change while the TCP state, the owner and the congestion control of a connection stay
/// the same.
pub(crate) struct Figures {
    raw: raw::ConnectionFigures,
    rate: u32,
}

// === impl Pages ===

impl Pages {
    pub(super) fn new(map: Arc<MapHandle>, rate: u32) -> Self {
        Self {
            map,
            rate,
            page: Vec::new(),
            number: None,
        }
    }

    /// Forgets the page, to which the program may have written since it was read.
    pub(super) fn expire(&mut self) {
        self.number = None;
    }

    /// Returns the figures at a place, and the details of their connection.
    ///
    /// # Errors
    /// The page cannot be read; `InvalidData`: it does not have the place.
    pub(super) fn get(&mut self, place: usize) -> io::Result<(Details, Figures)> {
        let index = place.wrapping_sub(1);
        let number = index / PAGE;
        if self.number != Some(number) {
            let key = u32::try_from(number).map_err(io::Error::other)?;
            let page = self.map.lookup(&key.to_ne_bytes(), MapFlags::ANY);
            self.page = page.map_err(io::Error::other)?.unwrap_or_default();
            self.number = Some(number);
        }
        let bytes = self.page.get(index % PAGE * FIGURES..);
        let figures = bytes.and_then(read_prefix::<raw::ConnectionFigures>);
        let (raw, _) = figures.ok_or(io::ErrorKind::InvalidData)?;
        let rate = self.rate;
        Ok((details(&raw.seen), Figures { raw, rate }))
    }
}

// === impl Figures ===

impl Figures {
    /// Updates an earlier reading of the connection to what sock_diag would report now. Fields that
    /// the kernel does not report stay `None`. Returns `false` if only sock_diag has them: before the
    /// end of a handshake, and with a BBR that the program does not know.
    pub(crate) fn update(&self, connection: &mut Connection) -> bool {
        let now = &self.raw;
        let Some(info) = &mut connection.info else {
            return false;
        };
        if connection.bbr.is_some() && now.has_bbr == 0 {
            return false;
        }
        let bbr = Bbr {
            bandwidth: now.bbr_bandwidth,
            min_rtt_us: now.bbr_min_rtt_us,
            pacing_gain: now.bbr_pacing_gain.into(),
            cwnd_gain: now.bbr_cwnd_gain.into(),
        };
        set(&mut connection.bbr, bbr);
        let micros = |us: u32| Duration::from_micros(us.into());
        let sample = |us: u32| (us != 0).then(|| micros(us));
        let rate = |rate: u64| (rate != u64::MAX).then_some(rate);
        info.rtt = sample(now.srtt_us >> 3);
        info.rttvar = info.rtt.map(|_| micros(now.mdev_us >> 2));
        info.min_rtt = (now.min_rtt_us != u32::MAX).then(|| micros(now.min_rtt_us));
        info.rcv_rtt = sample(now.rcv_rtt_us >> 3);
        info.snd_cwnd = now.cwnd;
        info.snd_mss = now.mss;
        info.rcv_mss = now.rcv_mss.into();
        info.ca_state = CaState::of(now.ca_state);
        info.delivery_rate_app_limited = now.app_limited != 0;
        info.rto = self.micros(now.rto_ticks);
        info.probes = now.probes;
        info.backoff = now.backoff;
        info.unacked = now.packets_out;
        info.sacked = now.sacked_out;
        info.retrans = now.retrans_out;
        info.last_data_sent = self.millis(now.since_sent_ticks);
        info.last_data_recv = self.millis(now.since_received_ticks);
        info.last_ack_recv = self.millis(now.since_acked_ticks);
        info.pmtu = now.pmtu;
        info.set_ssthresh(now.ssthresh);
        info.lost = now.lost_out;
        info.reordering = now.reordering;
        info.retransmits = now.retransmits;
        info.total_retrans = now.total_retrans;
        info.rcv_space = now.rcv_space;
        info.rcv_ssthresh = now.rcv_ssthresh;
        info.pacing_rate = rate(now.pacing_rate);
        info.max_pacing_rate = rate(now.max_pacing_rate);
        set(&mut info.segs_out, now.segs_out);
        set(&mut info.segs_in, now.segs_in);
        set(&mut info.notsent_bytes, now.notsent_bytes);
        set(&mut info.data_segs_in, now.data_segs_in);
        set(&mut info.data_segs_out, now.data_segs_out);
        set(&mut info.delivery_rate, self.delivery_rate());
        set(&mut info.bytes_acked, now.bytes_acked);
        set(&mut info.bytes_received, now.bytes_received);
        set(&mut info.bytes_sent, now.bytes_sent);
        set(&mut info.bytes_retrans, now.bytes_retrans);
        set(&mut info.delivered, now.delivered);
        set(&mut info.delivered_ce, now.delivered_ce);
        set(&mut info.dsack_dups, now.dsack_dups);
        set(&mut info.reord_seen, now.reord_seen);
        set(&mut info.rcv_ooopack, now.rcv_ooopack);
        set(&mut info.total_rto, now.total_rto);
        let total_rto_time = Duration::from_millis(now.total_rto_ms.into());
        set(&mut info.total_rto_time, total_rto_time);
        set(&mut info.busy_time, self.account(now.busy_ticks));
        set(&mut info.rwnd_limited, self.account(now.rwnd_ticks));
        set(&mut info.sndbuf_limited, self.account(now.sndbuf_ticks));
        set(&mut info.snd_wnd, now.snd_wnd);
        set(&mut info.rcv_wnd, now.rcv_wnd);
        let memory = Memory {
            rmem_alloc: now.rmem_alloc,
            rcvbuf: now.rcvbuf,
            wmem_alloc: now.wmem_alloc,
            sndbuf: now.sndbuf,
            fwd_alloc: now.fwd_alloc,
            wmem_queued: now.wmem_queued,
            drops: now.drops,
        };
        set(&mut connection.memory, memory);
        connection.recv_queue = now.recv_queue;
        connection.send_queue = now.send_queue;
        true
    }

    /// As the kernel computes it (`tcp_compute_delivery_rate`).
    fn delivery_rate(&self) -> u64 {
        let now = &self.raw;
        let segments = u64::from(now.rate_delivered);
        let bytes = segments.wrapping_mul(now.mss.into());
        let bytes = bytes.wrapping_mul(1_000_000);
        bytes.checked_div(now.rate_interval_us.into()).unwrap_or(0)
    }

    // These round as the kernel does.

    /// `jiffies_to_usecs`.
    fn micros(&self, ticks: u32) -> Duration {
        Duration::from_micros(u64::from(ticks) * 1_000_000 / u64::from(self.rate))
    }

    /// `jiffies_to_msecs`.
    fn millis(&self, ticks: u32) -> Duration {
        Duration::from_millis((u64::from(ticks) * 1000).div_ceil(self.rate.into()))
    }

    /// `tcp_get_info_chrono_stats`.
    fn account(&self, ticks: u32) -> Duration {
        Duration::from_micros(u64::from(ticks) * (1_000_000 / u64::from(self.rate)))
    }
}

/// Sets a field if the kernel reports it.
fn set<T>(field: &mut Option<T>, value: T) {
    if let Some(field) = field {
        *field = value;
    }
}
