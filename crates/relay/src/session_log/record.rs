//! The record of a session. `docs/relay-session-log.md` describes every field.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde::{Serialize, Serializer};
use taut_sys::tcp_info::TcpInfo;

/// A session's identifier, the same at every relay on its route: 128 bits, written as 32
/// hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SessionId(pub u128);

/// The record of a session. Every field is always written; a missing value is `null`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SessionRecord {
    /// Taut's version.
    pub version: &'static str,
    /// The time at which the session ended, in UTC.
    #[serde(serialize_with = "rfc3339")]
    pub time: SystemTime,
    /// The session's identifier.
    pub session: SessionId,
    /// The forward: its `name`, or else the first address that it listens on.
    pub forward: Arc<str>,
    /// The client's address.
    pub client: SocketAddr,
    /// The address that the client connected to.
    pub listener: SocketAddr,
    /// The requested destination, `host:port`.
    pub destination: Option<Arc<str>>,
    /// The address that the upstream leg connected to; `None` if it did not connect.
    pub address: Option<SocketAddr>,
    /// The next relay, if the upstream leg leads to one.
    pub relay: Option<Arc<str>>,
    /// The connection attempts to addresses of the destination; `None` if this relay dialled none.
    pub attempts: Option<usize>,
    /// The cause of the end: a value of the label `cause` of `taut_relay_ended_total`.
    pub cause: &'static str,
    /// From accept until the upstream leg was ready; `None` if it never was.
    #[serde(rename = "setup_us", serialize_with = "micros_if_any")]
    pub setup: Option<Duration>,
    /// From accept to the end.
    #[serde(rename = "total_us", serialize_with = "micros")]
    pub total: Duration,
    /// From the client to the destination.
    pub to_upstream: DirectionRecord,
    /// From the destination to the client.
    pub to_client: DirectionRecord,
    /// The client leg at the end; `None` if the kernel no longer knew it.
    #[serde(serialize_with = "tcp_info")]
    pub client_tcp: Option<TcpInfo>,
    /// The upstream leg at the end; `None` if there was none or the kernel no longer knew it.
    #[serde(serialize_with = "tcp_info")]
    pub upstream_tcp: Option<TcpInfo>,
}

/// One direction of a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DirectionRecord {
    /// Bytes written to the receiving leg.
    pub bytes: u64,
    /// From accept until the first byte was written; `None` if none was.
    #[serde(rename = "first_byte_us", serialize_with = "micros_if_any")]
    pub first_byte: Option<Duration>,
    /// Whether any bytes were spliced; otherwise all were copied.
    pub spliced: bool,
}

impl Serialize for SessionId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{:032x}", self.0))
    }
}

fn rfc3339<S: Serializer>(time: &SystemTime, serializer: S) -> Result<S::Ok, S::Error> {
    // The formatter fails for years before 1970 and after 9999.
    let last = SystemTime::UNIX_EPOCH + Duration::from_secs(253_402_300_799);
    let time = (*time).clamp(SystemTime::UNIX_EPOCH, last);
    serializer.collect_str(&humantime::format_rfc3339_micros(time))
}

#[expect(clippy::cast_possible_truncation, reason = "584,000 years fit")]
fn in_micros(time: Duration) -> u64 {
    time.as_micros() as u64
}

fn micros<S: Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(in_micros(*time))
}

fn micros_if_any<S: Serializer>(time: &Option<Duration>, to: S) -> Result<S::Ok, S::Error> {
    time.map(in_micros).serialize(to)
}

fn tcp_info<S: Serializer>(info: &Option<TcpInfo>, serializer: S) -> Result<S::Ok, S::Error> {
    info.as_ref().map(Leg::from).serialize(serializer)
}

/// [`TcpInfo`] in the form of the log.
#[derive(Serialize)]
struct Leg {
    rtt_us: Option<u64>,
    rttvar_us: Option<u64>,
    min_rtt_us: Option<u64>,
    rcv_rtt_us: Option<u64>,
    snd_cwnd: u32,
    snd_mss: u32,
    lost: u32,
    reordering: u32,
    retransmits: u8,
    total_retrans: u32,
    delivered: Option<u32>,
    bytes_sent: Option<u64>,
    bytes_acked: Option<u64>,
    bytes_retrans: Option<u64>,
    bytes_received: Option<u64>,
    delivery_rate: Option<u64>,
    pacing_rate: Option<u64>,
    busy_us: Option<u64>,
    rwnd_limited_us: Option<u64>,
    sndbuf_limited_us: Option<u64>,
    snd_wnd: Option<u32>,
    rcv_wnd: Option<u32>,
    rcv_space: u32,
    rcv_ssthresh: u32,
}

impl From<&TcpInfo> for Leg {
    fn from(info: &TcpInfo) -> Self {
        Self {
            rtt_us: info.rtt.map(in_micros),
            rttvar_us: info.rttvar.map(in_micros),
            min_rtt_us: info.min_rtt.map(in_micros),
            rcv_rtt_us: info.rcv_rtt.map(in_micros),
            snd_cwnd: info.snd_cwnd,
            snd_mss: info.snd_mss,
            lost: info.lost,
            reordering: info.reordering,
            retransmits: info.retransmits,
            total_retrans: info.total_retrans,
            delivered: info.delivered,
            bytes_sent: info.bytes_sent,
            bytes_acked: info.bytes_acked,
            bytes_retrans: info.bytes_retrans,
            bytes_received: info.bytes_received,
            delivery_rate: info.delivery_rate,
            pacing_rate: info.pacing_rate,
            busy_us: info.busy_time.map(in_micros),
            rwnd_limited_us: info.rwnd_limited.map(in_micros),
            sndbuf_limited_us: info.sndbuf_limited.map(in_micros),
            snd_wnd: info.snd_wnd,
            rcv_wnd: info.rcv_wnd,
            rcv_space: info.rcv_space,
            rcv_ssthresh: info.rcv_ssthresh,
        }
    }
}
