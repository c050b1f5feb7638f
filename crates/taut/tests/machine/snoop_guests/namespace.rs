//! A guest whose kernel is this machine's: a network namespace, and a thread that carries frames between its device
//! and the guest's tap. What its kernel does with them is in the hands of the test, and so is when it gets them.

use std::io::{self, Read as _};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd as _;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver as Channel, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use taut_sys::netns::Netns;
use taut_sys::tap::Tap;

use crate::snoop_guests::stream::Sum;
use crate::snoop_guests::wait_until;
use crate::snoop_guests::world::{GUEST, GUEST_MAC, World, ip};

/// How often the thread looks whether it is to end.
const LOOK: Duration = Duration::from_millis(20);

pub(crate) struct Namespace {
    netns: Arc<Netns>,
    /// Whoever has it has the guest's processor.
    processor: Arc<Mutex<()>>,
    taken: Arc<AtomicU64>,
    over: Arc<AtomicBool>,
    pump: Option<JoinHandle<()>>,
}

/// Receives a stream in the guest.
pub(crate) struct Receiver {
    pub(crate) socket: TcpStream,
    /// Whoever has it keeps the application from reading.
    reading: Arc<Mutex<()>>,
    digest: Channel<String>,
}

// === impl Namespace ===

impl Namespace {
    /// A guest at a tap that does not exist yet.
    pub(crate) fn new(world: &World, tap: &str) -> Self {
        let ring = world.host.run(|| Tap::create(tap).unwrap()).unwrap();
        world.host_ip(&format!("link set {tap} master bridge up"));
        let netns = Netns::create(&format!("{}-guest", world.host.name())).unwrap();
        let device = netns.run(|| Tap::create("eth0").unwrap()).unwrap();
        ip(&netns, &format!("link set eth0 address {GUEST_MAC}"));
        ip(&netns, &format!("addr add {GUEST}/24 dev eth0"));
        ip(&netns, "link set eth0 up");
        let (taken, over) = (
            Arc::new(AtomicU64::new(0)),
            Arc::new(AtomicBool::new(false)),
        );
        let processor = Arc::new(Mutex::new(()));
        let pump = std::thread::spawn({
            let (processor, taken, over) = (processor.clone(), taken.clone(), over.clone());
            move || pump(&ring, &device, &processor, &taken, &over)
        });
        let guest = Self {
            netns: Arc::new(netns),
            processor,
            taken,
            over,
            pump: Some(pump),
        };
        guest.set("ipv4/tcp_rmem", "4096 1048576 6291456");
        guest
    }

    /// Sets a parameter of the guest's kernel.
    pub(crate) fn set(&self, key: &str, value: &str) {
        let path = format!("/proc/sys/net/{key}");
        self.netns
            .run(|| std::fs::write(path, value).unwrap())
            .unwrap();
    }

    /// Runs a command in the guest.
    pub(crate) fn run(&self, program: &str, line: &str) {
        let mut command = Command::new(program);
        command.args(line.split(' '));
        let output = self.netns.run(|| command.output().unwrap()).unwrap();
        assert!(output.status.success(), "{program} {line}: {output:?}");
    }

    /// Takes the processor from the guest: what comes stays in its ring until this is dropped.
    pub(crate) fn waits(&self) -> MutexGuard<'_, ()> {
        self.processor.lock().unwrap()
    }

    /// Waits until the guest has taken so many more frames from its ring.
    pub(crate) fn takes(&self, frames: u64) {
        let goal = self.taken.load(Ordering::Relaxed) + frames;
        wait_until("frames that the guest takes", || {
            (self.taken.load(Ordering::Relaxed) >= goal).then_some(())
        });
    }

    /// A receiver at a port of the guest, and what `connect` makes of the port meanwhile.
    pub(crate) fn receive<T>(&self, port: u16, connect: impl FnOnce() -> T) -> (Receiver, T) {
        let listen = || TcpListener::bind((GUEST, port)).unwrap();
        let listener = self.netns.run(listen).unwrap();
        let connected = connect();
        let socket = listener.accept().unwrap().0;
        let reading = Arc::new(Mutex::new(()));
        let (tell, digest) = sync_channel(1);
        std::thread::spawn({
            let (socket, reading) = (socket.try_clone().unwrap(), reading.clone());
            move || receive(socket, &reading, &tell)
        });
        let receiver = Receiver {
            socket,
            reading,
            digest,
        };
        (receiver, connected)
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        if let Some(pump) = self.pump.take() {
            let _ = pump.join();
        }
        let _ = Netns::delete(self.netns.name());
    }
}

// === impl Receiver ===

impl Receiver {
    /// Has the application read nothing until this is dropped.
    pub(crate) fn rests(&self) -> MutexGuard<'_, ()> {
        self.reading.lock().unwrap()
    }

    /// The digest of what was received, when the sender has ended.
    pub(crate) fn digest(self) -> String {
        self.digest.recv().unwrap()
    }
}

fn receive(mut socket: TcpStream, reading: &Mutex<()>, tell: &SyncSender<String>) {
    let mut sum = Sum::default();
    let mut bytes = vec![0; 64 * 1024];
    loop {
        // Whoever keeps it from reading is not to wait for data.
        let ready = socket.peek(&mut [0]);
        let _reading = reading.lock().unwrap();
        let read = ready.and_then(|_| socket.read(&mut bytes));
        match read {
            Ok(read @ 1..) => sum.update(&bytes[..read]),
            // A connection that breaks is what the sender's end reports.
            _ => break,
        }
    }
    let _ = tell.send(sum.text());
    let _ = socket.shutdown(std::net::Shutdown::Both);
}

/// Carries frames until it is over.
fn pump(ring: &Tap, device: &Tap, processor: &Mutex<()>, taken: &AtomicU64, over: &AtomicBool) {
    let mut frame = vec![0; Tap::MAX_READ];
    let look = Timespec::try_from(LOOK).unwrap();
    while !over.load(Ordering::Relaxed) {
        let (one, other) = (ring.as_fd(), device.as_fd());
        let mut fds = [&one, &other].map(|fd| PollFd::new(fd, PollFlags::IN));
        let _ = poll(&mut fds, Some(&look));
        let _processor = processor.lock().unwrap();
        taken.fetch_add(carry(ring, device, &mut frame), Ordering::Relaxed);
        carry(device, ring, &mut frame);
    }
}

/// Carries what there is from one to the other. Returns how many frames.
fn carry(from: &Tap, to: &Tap, frame: &mut [u8]) -> u64 {
    let mut carried = 0;
    loop {
        match from.read(frame) {
            Ok(read) => {
                // A device that is down takes none.
                let _ = to.write(&frame[..read]);
                carried += 1;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return carried,
        }
    }
}
