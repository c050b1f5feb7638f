//! The thread that measures the connections between relays, from which the windows of the next ones
//! follow.

use std::collections::{HashMap, HashSet};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, PoisonError, TryLockError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use taut_mesh::members::MemberName;
use taut_sys::Errno;
use taut_sys::sock_diag::{Connection, SockDiag};
use taut_sys::socket::receive_buffer_for;

use super::handle::SharedHandle;
use super::next_hop::addrs_of;
use crate::turbo::windows::Scan;

/// The interval between scans.
const INTERVAL: Duration = Duration::from_secs(1);
/// A scan reads every TCP socket of the network namespace. The thread rests this many times as long, so it
/// takes at most 1 % of a CPU.
const REST: u32 = 100;

/// Measures until dropped.
#[derive(Debug)]
pub(super) struct WindowsThread {
    /// Dropped to stop the thread.
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

// === impl WindowsThread ===

impl WindowsThread {
    /// Starts to measure the connections of the calling thread's network namespace.
    ///
    /// # Errors
    /// The system cannot start a thread.
    pub(super) fn start(handle: Arc<SharedHandle>) -> io::Result<Self> {
        let (stop, stopped) = channel::<()>();
        let thread = std::thread::Builder::new()
            .name("turbo-windows".into())
            .spawn(move || {
                let mut pause = INTERVAL;
                while stopped.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
                    let begun = Instant::now();
                    if let Err(error) = scan(&handle) {
                        tracing::warn!(
                            "the connections between relays cannot be measured: {error}; \
                             their windows stay as they are"
                        );
                        return;
                    }
                    pause = INTERVAL.max(begun.elapsed() * REST);
                }
            })?;
        Ok(Self {
            stop: Some(stop),
            thread: Some(thread),
        })
    }
}

impl Drop for WindowsThread {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            // If the thread panicked, the panic hook has already reported it.
            let _ = thread.join();
        }
    }
}

/// Measures once, and sets what the mesh port grants from now on.
///
/// # Errors
/// The kernel has no sock_diag. A dump that fails is repeated the next time.
fn scan(handle: &SharedHandle) -> Result<(), Errno> {
    let setup = handle.shared.setup();
    let Some(mesh) = setup.mesh.as_ref().filter(|_| handle.turbo.sizes_windows()) else {
        return Ok(());
    };
    let legs = Legs {
        ports: mesh.listen.iter().map(|listen| listen.0.port()).collect(),
        dialled: addrs_of(&mesh.peers).collect(),
        members: handle
            .turbo
            .addresses()
            .into_iter()
            .map(|(m, ip)| (ip, m))
            .collect(),
    };
    let mut scan = Scan::default();
    // Opened each time: an answer that came too late would be taken for that of the next request.
    let dumped = SockDiag::open()?.dump(|connection| legs.add(&connection, &mut scan));
    match dumped {
        Ok(_) => {}
        Err(error @ (Errno::NOENT | Errno::PROTONOSUPPORT)) => return Err(error),
        Err(error) => {
            tracing::debug!(%error, "cannot measure the connections between relays");
            return Ok(());
        }
    }
    let (send, receive) = handle.turbo.on_scan(scan, Instant::now());
    if !mesh.sizes_window {
        return Ok(());
    }
    let present = match handle.present.try_lock() {
        Ok(present) => present,
        Err(TryLockError::Poisoned(present)) => PoisonError::into_inner(present),
        // A configuration is being adopted, which may take long.
        Err(TryLockError::WouldBlock) => return Ok(()),
    };
    let is_mesh = |actual| mesh.listen.iter().any(|listen| listen.0 == actual);
    for listener in present.holdings.listeners(is_mesh) {
        if let Err(error) = listener.set_buffers(send, receive) {
            tracing::debug!(%error, "cannot set the window of the mesh port");
        }
    }
    Ok(())
}

/// How connections between relays are recognised.
struct Legs {
    /// The ports on which other relays connect.
    ports: HashSet<u16>,
    dialled: HashSet<SocketAddr>,
    members: HashMap<IpAddr, MemberName>,
}

// === impl Legs ===

impl Legs {
    /// Adds a connection to `scan` if it is one between relays.
    fn add(&self, connection: &Connection, scan: &mut Scan) {
        let is_accepted = self.ports.contains(&connection.local.port());
        let ip = connection.remote.ip().to_canonical();
        let remote = SocketAddr::new(ip, connection.remote.port());
        if !is_accepted && !self.dialled.contains(&remote) {
            return;
        }
        let (Some(memory), Some(info)) = (connection.memory, &connection.info) else {
            return;
        };
        // The kernel doubles the buffer that was asked for.
        let overhead = 2 * receive_buffer_for(1) as u64;
        let window = u64::from(memory.rcvbuf) / overhead;
        let held = [memory.rmem_alloc, memory.wmem_queued, memory.fwd_alloc];
        scan.add(window, held.into_iter().map(u64::from).sum(), is_accepted);
        let Some(member) = self.members.get(&ip) else {
            return;
        };
        // A reader that has stopped empties its queue all at once, which says nothing of the path.
        let received = match u64::from(connection.recv_queue) < window / 2 {
            true => u64::from(info.rcv_space),
            false => 0,
        };
        let round_trip = info.min_rtt.unwrap_or_default();
        let sent = info.delivery_rate.unwrap_or(0);
        let sent = u128::from(sent) * round_trip.as_micros() / 1_000_000;
        let sent = u64::try_from(sent).unwrap_or(u64::MAX);
        scan.carried(member, window, received.max(sent));
    }
}
