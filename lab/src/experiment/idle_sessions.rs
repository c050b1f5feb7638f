//! `idle-sessions`: the memory of an idle session in a relay, and the memory that remains after the
//! session has ended.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::getxattr;

use super::descriptors::enough_descriptors;
use super::outcome::{Calibration, Check, Outcome, Series};
use super::progress::Progress;
use super::{Experiment, ExperimentError, Request};
use crate::peer::{Service, relay};
use taut_netlab::world::WorldBuilder;

/// The entry in the list of experiments.
pub const EXPERIMENT: Experiment = Experiment {
    name: "idle-sessions",
    about: "memory and descriptors of 8,000 idle sessions on one relay",
    has_parts: false,
    minutes: 1,
    run,
};

const SESSIONS: usize = 8_000;
const SESSIONS_QUICK: usize = 2_000;
const SESSIONS_SMOKE: usize = 100;
/// The address at which the servers of all sessions listen.
const SERVER: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 9000);
/// How long the relay may take to remove sessions whose ends have been closed.
const PATIENCE: Duration = Duration::from_secs(60);
/// How many reads in a row must find as many descriptors as the one before.
const STABLE: u32 = 25;
/// The pause between two reads of the relay's state.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// The resources that the relay and the kernel use at one moment.
#[derive(Clone, Copy)]
struct Holding {
    /// Connections of the relay that have a descriptor.
    connections: usize,
    /// Open descriptors of the relay.
    descriptors: usize,
    /// Resident memory of the relay, in bytes.
    resident: u64,
    /// The kernel's slabs of the whole machine, in bytes.
    slab: u64,
}

fn run(request: &Request) -> Result<Outcome, ExperimentError> {
    let sessions = request.form.pick(SESSIONS, SESSIONS_QUICK, SESSIONS_SMOKE);
    let machine = ExperimentError::machine;
    enough_descriptors(sessions).map_err(machine("hold both ends of every session"))?;

    let world = WorldBuilder::new("idle-sessions").host("relay").build()?;
    let host = world.host("relay");
    let server = host
        .run(|| TcpListener::bind(SERVER))?
        .map_err(machine("listen"))?;
    let node = relay::relay(host, &request.taut, SERVER, world.dir())?;
    let progress = Progress::new("idle-sessions: sessions opened", sessions as u64);

    let holdings = host.run(|| {
        // Drop the connection that tested whether the relay accepts.
        drop(server.accept()?);
        all_over()?;
        let empty = Holding::of(&node, 0)?;
        let mut open = Vec::with_capacity(sessions);
        for _ in 0..sessions {
            open.push(session(node.addr, &server)?);
            progress.step();
        }
        let full = Holding::of(&node, 2 * sessions)?;
        drop(open);
        all_over()?;
        Ok((empty, full, Holding::of(&node, 0)?))
    })?;
    drop(progress);
    let (empty, full, after) = holdings.map_err(machine("open idle sessions"))?;
    Ok(outcome(request, sessions, empty, full, after))
}

fn outcome(
    request: &Request,
    sessions: usize,
    empty: Holding,
    full: Holding,
    after: Holding,
) -> Outcome {
    let each = |full: u64, empty: u64| (full as f64 - empty as f64) / sessions as f64;
    let resident = each(full.resident, empty.resident);
    let slab = each(full.slab, empty.slab);
    let descriptors = each(full.descriptors as u64, empty.descriptors as u64);
    let left = after.descriptors as f64 - empty.descriptors as f64;
    let of = |metric, unit, value| Series::of("relay", metric, unit, vec![value]);
    Outcome {
        // Every session exists in the relay: each leg has one descriptor.
        calibration: Calibration::of([
            ("descriptors_per_session", Check::exactly(descriptors, 2.0)),
            ("descriptors_left", Check::exactly(left, 0.0)),
        ]),
        headline: BTreeMap::from([
            ("sessions".to_owned(), sessions as f64),
            ("resident_bytes_per_session".to_owned(), resident),
            ("kernel_bytes_per_session".to_owned(), slab),
            ("descriptors_left".to_owned(), left),
        ]),
        series: [
            of("resident memory per session", "B", resident),
            of("kernel memory per session", "B", slab),
        ]
        .into_iter()
        .flatten()
        .collect(),
        notes: vec![
            "Each session has carried a byte each way and is idle then. Resident memory is the \
             relay's; kernel memory is the growth of all slabs of the machine, half of which \
             belongs to the sockets of the client and the server."
                .to_owned(),
        ],
        ..Outcome::new(EXPERIMENT.name, request)
    }
}

/// Opens a session and sends a byte each way.
fn session(relay: SocketAddr, server: &TcpListener) -> io::Result<(TcpStream, TcpStream)> {
    let mut client = TcpStream::connect(relay)?;
    let (mut far, _) = server.accept()?;
    let mut byte = [0];
    client.write_all(&[1])?;
    far.read_exact(&mut byte)?;
    far.write_all(&byte)?;
    client.read_exact(&mut byte)?;
    Ok((client, far))
}

/// Waits until the relay has no sessions.
fn all_over() -> io::Result<()> {
    let deadline = Instant::now() + PATIENCE;
    while relay::open_sessions()? > 0 {
        if Instant::now() > deadline {
            return Err(io::Error::other(
                "sessions with both ends closed do not end",
            ));
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    Ok(())
}

impl Holding {
    /// Returns what the relay holds once it has this many connections, or what it holds after
    /// [`PATIENCE`]: when the client of a scrape has its answer, the relay may still have to close
    /// the connection.
    fn of(node: &Service, connections: usize) -> io::Result<Self> {
        let deadline = Instant::now() + PATIENCE;
        let mut last = Self::at_once(node)?;
        let mut equal = 0;
        loop {
            std::thread::sleep(POLL_INTERVAL);
            let now = Self::at_once(node)?;
            // Descriptors that are not connections may be closed later: a relay that has just started
            // reads the addresses of its host, for one.
            let is_equal = now.descriptors == last.descriptors;
            equal = if is_equal { equal + 1 } else { 0 };
            if now.connections == connections && equal >= STABLE || Instant::now() > deadline {
                return Ok(now);
            }
            last = now;
        }
    }

    fn at_once(node: &Service) -> io::Result<Self> {
        let status = fs::read_to_string(format!("/proc/{}/status", node.id()))?;
        let meminfo = fs::read_to_string("/proc/meminfo")?;
        // Before the descriptors: no connection is made meanwhile, so one that is not counted here has no
        // descriptor there.
        let connections = connections(node.id())?;
        Ok(Self {
            connections,
            descriptors: node.descriptors()?,
            resident: kilobytes(&status, "VmRSS:")? * 1024,
            slab: kilobytes(&meminfo, "Slab:")? * 1024,
        })
    }
}

/// Counts the connections of a process, TCP over IPv4, that have a descriptor.
fn connections(process: u32) -> io::Result<usize> {
    let listeners = listeners(process)?;
    let descriptors = fs::read_dir(format!("/proc/{process}/fd"))?;
    Ok(descriptors
        .filter_map(|entry| is_connection(&entry.ok()?.path(), &listeners))
        .filter(|connection| *connection)
        .count())
}

/// Returns whether a descriptor, a file such as `/proc/PID/fd/5`, is a connection; `None` if it has
/// been closed or is no socket. The kernel's list of connections would not do: it leaves out those that
/// have ended before the process closes them.
fn is_connection(descriptor: &Path, listeners: &HashSet<u64>) -> Option<bool> {
    let mut protocol = [0; 16];
    let len = getxattr(descriptor, "system.sockprotoname", &mut protocol).ok()?;
    let inode = fs::metadata(descriptor).ok()?.ino();
    Some(&protocol[..len] == b"TCP\0" && !listeners.contains(&inode))
}

/// Returns the inodes of the sockets that listen in the process's network namespace.
fn listeners(process: u32) -> io::Result<HashSet<u64>> {
    Ok(fs::read_to_string(format!("/proc/{process}/net/tcp"))?
        .lines()
        .filter_map(|line| {
            let mut fields = line.split_whitespace().skip(3);
            let listens = fields.next()? == "0A";
            let inode = fields.nth(5)?.parse().ok()?;
            listens.then_some(inode)
        })
        .collect())
}

/// Returns the number in a line such as `VmRSS:     1234 kB`.
fn kilobytes(text: &str, key: &str) -> io::Result<u64> {
    text.lines()
        .find_map(|line| {
            line.strip_prefix(key)?
                .split_whitespace()
                .next()?
                .parse()
                .ok()
        })
        .ok_or_else(|| io::Error::other(format!("the kernel does not report {key}")))
}

#[cfg(test)]
mod tests {
    use std::net::Shutdown;
    use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd};
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_figure_is_found_by_its_key() {
        let text = "Name:\ttaut\nVmRSS:\t    1234 kB\nSlab:   5 kB\n";
        assert_eq!(kilobytes(text, "VmRSS:").unwrap(), 1234);
        assert_eq!(kilobytes(text, "Slab:").unwrap(), 5);
        assert!(kilobytes(text, "VmSwap:").is_err());
    }

    #[test]
    fn a_connection_is_one_until_its_descriptor_is_closed() {
        let is_one = |socket: BorrowedFd<'_>| {
            let path = format!("/proc/self/fd/{}", socket.as_raw_fd());
            is_connection(Path::new(&path), &listeners(std::process::id()).unwrap())
        };
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (server, _) = listener.accept().unwrap();
        assert_eq!(is_one(listener.as_fd()), Some(false));
        assert_eq!(is_one(client.as_fd()), Some(true));

        // The connection has ended, and its descriptor is open.
        drop(server);
        assert_eq!(client.read(&mut [0]).unwrap(), 0);
        client.shutdown(Shutdown::Both).unwrap();
        assert_eq!(is_one(client.as_fd()), Some(true));

        let (other, _) = UnixStream::pair().unwrap();
        assert_eq!(is_one(other.as_fd()), Some(false));
        let file = fs::File::open("/dev/null").unwrap();
        assert_eq!(is_one(file.as_fd()), None);
    }
}
