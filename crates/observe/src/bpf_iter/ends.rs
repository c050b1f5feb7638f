//! Reads the ring buffer in which the programs report the ends of connections (bpf/life.h).

use std::cell::RefCell;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::linux::fs::MetadataExt as _;
use std::rc::Rc;
use std::time::Duration;

use libbpf_rs::RingBuffer;
use taut_bpf::{CEnum as _, Error, Map, Object, Open, bytes, read_prefix};

use super::raw::{self, ConnectionFlags};

const RING: &str = "ends";
/// The size of a ring buffer that is not read, in bytes: the smallest that every kernel accepts.
const UNUSED: u32 = 64 << 10;

/// The lengths of a tick (CONFIG_HZ), in ticks per second.
const TICK_RATES: [u32; 4] = [100, 250, 300, 1000];
/// The most common one, for ends that are read before the length of a tick is known.
const USUAL_TICK_RATE: u32 = 250;
/// The least time between two readings of both clocks from which the length of a tick follows.
const CLOCK_SPAN: Duration = Duration::from_millis(100);

const FAMILY_INET: u16 = 2;

/// The ring buffer, and the length of a tick, in which its records count.
pub(crate) struct Ends {
    ring: RingBuffer<'static>,
    read: Rc<RefCell<Vec<raw::ConnectionEnd>>>,
    /// The variable that only the programs write.
    counted: Map<u32, raw::ConnectionCounted>,
    /// The count of lost ends at the last call.
    missed: u64,
    clock: Clock,
}

/// Derives the length of a tick from two readings of the kernel's clocks.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Clock {
    /// The first reading: nanoseconds and ticks.
    first: Option<(u64, u64)>,
    /// Ticks per second, one of [`TICK_RATES`]; `None` before the second reading.
    pub(super) rate: Option<u32>,
}

/// A connection that has ended, as a program reports it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct EndRecord {
    /// The socket's cookie.
    pub(crate) cookie: u64,
    /// Inode of its network namespace.
    pub(crate) netns: u32,
    pub(crate) local: SocketAddr,
    pub(crate) remote: SocketAddr,
    pub(crate) owner: Option<OwnerRecord>,
    pub(crate) uid: u32,
    pub(crate) cgroup: Option<u64>,
    pub(crate) flags: EndFlags,
    /// The state before its end, as the kernel's number.
    pub(crate) state: u8,
    /// The time since this end sent its SYN; `None` if the peer opened the connection, or if it was
    /// not followed by then.
    pub(crate) since_opened: Option<Duration>,
    /// The time since the end of the handshake; `None` if the handshake did not end, or if the
    /// connection was not followed by then.
    pub(crate) since_established: Option<Duration>,
    /// The round trip of a handshake that the peer began.
    pub(crate) handshake: Duration,
    /// The time between segments with data, less silences longer than a retransmission time-out.
    pub(crate) receiving: Duration,
    /// The time with data in flight, and the parts of it in which the peer's window or the send
    /// buffer limited the sender.
    pub(crate) busy: Duration,
    pub(crate) rwnd_limited: Duration,
    pub(crate) sndbuf_limited: Duration,
    /// The time from losses to the ends of their recoveries.
    pub(crate) recovering: Duration,
    pub(crate) bytes_acked: u64,
    pub(crate) bytes_received: u64,
    pub(crate) bytes_sent: u64,
    pub(crate) bytes_retrans: u64,
    pub(crate) data_segs_out: u32,
    pub(crate) retransmitted: u32,
    pub(crate) signals: u32,
    /// The congestion window is below its threshold: slow start has not ended.
    pub(crate) is_below_ssthresh: bool,
}

/// The process that connected, accepted or closed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct OwnerRecord {
    pub(crate) pid: u32,
    /// When it started, in ns after boot.
    pub(crate) began: u64,
    /// Its name, as the kernel has it.
    pub(crate) name: Vec<u8>,
}

/// Facts about an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EndFlags {
    /// It was followed from its SYN or its handshake on.
    pub(crate) followed: bool,
    /// This end opened it.
    pub(crate) opened_here: bool,
    pub(crate) fin_received: bool,
    /// Everything that was sent is acknowledged.
    pub(crate) all_acked: bool,
}

/// Makes the ring buffer small unless it is read.
///
/// # Errors
/// The object has no ring buffer.
pub(super) fn reserve(open: &mut Open, is_read: bool) -> Result<(), Error> {
    if is_read {
        return Ok(());
    }
    let set = open.map(RING)?.set_max_entries(UNUSED);
    set.map_err(Error::during("size a ring buffer"))
}

/// Returns the inode of the pid namespace of this process; 0 if it cannot be read.
pub(super) fn pid_namespace() -> u32 {
    let inode = std::fs::metadata("/proc/self/ns/pid").map(|meta| meta.st_ino());
    inode
        .ok()
        .and_then(|inode| inode.try_into().ok())
        .unwrap_or(0)
}

// === impl Ends ===

impl Ends {
    pub(super) fn open(object: &Object) -> Result<Self, Error> {
        let read = Rc::new(RefCell::new(Vec::new()));
        let records = Rc::clone(&read);
        let ring = object.ring(RING, move |bytes| {
            let record = read_prefix::<raw::ConnectionEnd>(bytes);
            records.borrow_mut().extend(record.map(|(end, _)| end));
        })?;
        Ok(Self {
            ring,
            read,
            counted: object.map(super::COUNTED_SECTION)?,
            missed: 0,
            clock: Clock::default(),
        })
    }

    /// Passes the connections that have ended since the last call to `each`. Returns the number of
    /// ends that were lost because the ring buffer was full.
    pub(crate) fn read(&mut self, mut each: impl FnMut(EndRecord)) -> u64 {
        let counted = self.counted.get(&0).ok().flatten().unwrap_or_default();
        self.clock.read(counted.at, counted.ticks);
        // A failure leaves the records for the next call.
        let _ = self.ring.consume();
        for record in self.read.borrow_mut().drain(..) {
            each(parse(&record, self.clock));
        }
        let missed = counted.ends_missed;
        missed.saturating_sub(std::mem::replace(&mut self.missed, missed))
    }
}

impl std::fmt::Debug for Ends {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ends").finish_non_exhaustive()
    }
}

// === impl Clock ===

impl Clock {
    /// Takes a reading of both clocks.
    pub(super) fn read(&mut self, at: u64, ticks: u64) {
        if self.rate.is_some() || at == 0 {
            return;
        }
        let Some((first_at, first_ticks)) = self.first else {
            self.first = Some((at, ticks));
            return;
        };
        let span = Duration::from_nanos(at.saturating_sub(first_at));
        if span < CLOCK_SPAN {
            return;
        }
        let rate = ticks.saturating_sub(first_ticks) as f64 / span.as_secs_f64();
        let distance = |of: u32| (rate / f64::from(of)).ln().abs();
        let rates = TICK_RATES.into_iter();
        self.rate = rates.min_by(|a, b| distance(*a).total_cmp(&distance(*b)));
    }

    fn time(self, ticks: u32) -> Duration {
        Duration::from_secs(ticks.into()) / self.rate.unwrap_or(USUAL_TICK_RATE)
    }
}

fn parse(end: &raw::ConnectionEnd, clock: Clock) -> EndRecord {
    let since = |at: u64| (at > 0).then(|| Duration::from_nanos(end.at.saturating_sub(at)));
    let flag = |flag: ConnectionFlags| u32::from(end.flags) & flag.raw() != 0;
    let name = &end.name;
    let owner = &end.owner;
    EndRecord {
        cookie: end.cookie,
        netns: end.netns,
        local: SocketAddr::new(address(name.family, &name.local), name.local_port.get()),
        remote: SocketAddr::new(address(name.family, &name.remote), name.remote_port.get()),
        owner: (owner.began > 0).then(|| OwnerRecord {
            pid: owner.pid,
            began: owner.began,
            name: owner
                .name
                .iter()
                .copied()
                .take_while(|byte| *byte != 0)
                .collect(),
        }),
        uid: end.uid,
        cgroup: (end.cgroup > 0).then_some(end.cgroup),
        flags: EndFlags {
            followed: flag(ConnectionFlags::Followed),
            opened_here: flag(ConnectionFlags::OpenedHere),
            fin_received: flag(ConnectionFlags::FinReceived),
            all_acked: flag(ConnectionFlags::AllAcked),
        },
        state: end.state,
        since_opened: since(end.opened),
        since_established: since(end.established),
        handshake: Duration::from_micros(end.handshake_us.into()),
        receiving: clock.time(end.receiving_ticks),
        busy: clock.time(end.busy_ticks),
        rwnd_limited: clock.time(end.rwnd_ticks),
        sndbuf_limited: clock.time(end.sndbuf_ticks),
        recovering: clock.time(end.lost_ticks),
        bytes_acked: end.bytes_acked,
        bytes_received: end.bytes_received,
        bytes_sent: end.bytes_sent,
        bytes_retrans: end.bytes_retrans,
        data_segs_out: end.data_segs_out,
        retransmitted: end.retransmitted,
        signals: end.signals,
        is_below_ssthresh: end.cwnd < end.ssthresh,
    }
}

fn address(family: u16, words: &[u32; 4]) -> IpAddr {
    let octets: [u8; 16] = bytes(words);
    match family {
        FAMILY_INET => IpAddr::from([octets[0], octets[1], octets[2], octets[3]]),
        _ => Ipv6Addr::from(octets).to_canonical(),
    }
}
