//! The attacker: a proxy between the near relay and the far one that knows the records of TLS.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use super::rig::PATIENCE;

/// The content type of a record that TLS 1.3 protects (RFC 8446 section 5.2).
const PROTECTED: u8 = 23;

/// What the attacker does with connections.
#[derive(Clone, Debug)]
pub(crate) enum Mode {
    /// It passes them on.
    Pass,
    /// It attacks the protected record with number `at` of each, and maybe those behind it.
    Attack {
        kind: Kind,
        direction: Direction,
        at: usize,
    },
    /// It leads them to another address.
    Redirect(SocketAddr),
    /// It answers with these bytes itself, and reads what comes.
    Answer(Vec<u8>),
}

/// The direction that the attacker touches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    ToFar,
    ToNear,
    Both,
}

/// What the attacker does with a record.
#[derive(Clone, Debug)]
pub(crate) enum Kind {
    /// Changes a bit of its last byte.
    Alter,
    /// Withholds it.
    Drop,
    /// Sends it twice.
    Duplicate,
    /// Sends it after the next one.
    Delay,
    /// Sends a FIN after it.
    CutBehind,
    /// Sends half of it and a FIN.
    CutWithin,
    /// Sends these bytes before it.
    Inject(Vec<u8>),
    /// Sends these bytes in its place.
    Replace(Vec<u8>),
    /// Sends it, resets its sender and goes on in the sender's place: with these bytes, and with all that
    /// the sender has sent.
    TakeOver(Vec<u8>),
    /// Sends it and all behind it back to their sender.
    Reflect,
}

/// The attacker's port, and its memory.
pub(crate) struct Path {
    addr: SocketAddr,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    far: SocketAddr,
    mode: Mutex<Mode>,
    /// Directions that are still open.
    open: AtomicU64,
    /// Connections made to the far relay.
    dialled: AtomicU64,
    /// Records that were attacked.
    attacked: AtomicU64,
    /// The records of the last connection, those to the far relay first.
    recorded: Mutex<[Vec<Vec<u8>>; 2]>,
    stopped: AtomicBool,
}

// === impl Path ===

impl Path {
    pub(crate) fn new(far: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            far,
            mode: Mutex::new(Mode::Pass),
            open: AtomicU64::new(0),
            dialled: AtomicU64::new(0),
            attacked: AtomicU64::new(0),
            recorded: Mutex::default(),
            stopped: AtomicBool::new(false),
        });
        let of_thread = shared.clone();
        let thread = std::thread::spawn(move || {
            for near in listener.incoming() {
                if of_thread.stopped.load(Ordering::SeqCst) {
                    return;
                }
                Shared::carry(&of_thread, near.unwrap());
            }
        });
        Self {
            addr,
            shared,
            thread: Some(thread),
        }
    }

    /// Returns the address at which the near relay takes the attacker for the far one.
    pub(crate) fn addr(&self) -> SocketAddr {
        self.addr
    }

    pub(crate) fn set(&self, mode: Mode) {
        *self.shared.mode.lock().unwrap() = mode;
    }

    /// Returns whether no connection is open.
    pub(crate) fn is_idle(&self) -> bool {
        self.shared.open.load(Ordering::SeqCst) == 0
    }

    pub(crate) fn dialled(&self) -> u64 {
        self.shared.dialled.load(Ordering::SeqCst)
    }

    pub(crate) fn attacked(&self) -> u64 {
        self.shared.attacked.load(Ordering::SeqCst)
    }

    /// Returns all that the near relay sent on the last connection, record by record.
    pub(crate) fn recorded_to_far(&self) -> Vec<Vec<u8>> {
        self.shared.recorded.lock().unwrap()[0].clone()
    }

    /// Returns all that the far relay sent on the last connection, record by record.
    pub(crate) fn recorded_to_near(&self) -> Vec<Vec<u8>> {
        self.shared.recorded.lock().unwrap()[1].clone()
    }
}

impl Drop for Path {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(self.addr);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

// === impl Shared ===

impl Shared {
    /// Starts to carry a connection of the near relay.
    fn carry(shared: &Arc<Self>, near: TcpStream) {
        near.set_read_timeout(Some(PATIENCE)).unwrap();
        let mode = shared.mode.lock().unwrap().clone();
        let far = match &mode {
            Mode::Answer(bytes) => {
                shared.attacked.fetch_add(1, Ordering::SeqCst);
                shared.open.fetch_add(1, Ordering::SeqCst);
                let (shared, bytes, mut near) = (shared.clone(), bytes.clone(), near);
                std::thread::spawn(move || {
                    let _ = near.write_all(&bytes);
                    let mut got = Vec::new();
                    let _ = near.read_to_end(&mut got);
                    *shared.recorded.lock().unwrap() = [vec![got], Vec::new()];
                    shared.open.fetch_sub(1, Ordering::SeqCst);
                });
                return;
            }
            Mode::Redirect(addr) => {
                shared.attacked.fetch_add(1, Ordering::SeqCst);
                *addr
            }
            Mode::Pass | Mode::Attack { .. } => {
                shared.dialled.fetch_add(1, Ordering::SeqCst);
                shared.far
            }
        };
        let Ok(far) = TcpStream::connect(far) else {
            return;
        };
        far.set_read_timeout(Some(PATIENCE)).unwrap();
        *shared.recorded.lock().unwrap() = Default::default();
        shared.open.fetch_add(2, Ordering::SeqCst);
        for (direction, from, to) in [
            (Direction::ToFar, &near, &far),
            (Direction::ToNear, &far, &near),
        ] {
            let mut flow = Flow {
                shared: shared.clone(),
                direction,
                from: from.try_clone().unwrap(),
                to: to.try_clone().unwrap(),
                attack: match &mode {
                    Mode::Attack {
                        kind,
                        direction: of,
                        at,
                    } if *of == direction || *of == Direction::Both => Some((kind.clone(), *at)),
                    _ => None,
                },
                seen: 0,
                delayed: None,
                sent: Vec::new(),
                cut: false,
            };
            std::thread::spawn(move || {
                if flow.run().is_err() {
                    let _ = flow.from.shutdown(Shutdown::Both);
                    let _ = flow.to.shutdown(Shutdown::Both);
                }
                flow.shared.open.fetch_sub(1, Ordering::SeqCst);
            });
        }
    }
}

/// One direction of a connection.
struct Flow {
    shared: Arc<Shared>,
    direction: Direction,
    from: TcpStream,
    to: TcpStream,
    attack: Option<(Kind, usize)>,
    /// The number of protected records so far.
    seen: usize,
    delayed: Option<Vec<u8>>,
    /// The records so far.
    sent: Vec<Vec<u8>>,
    /// The receiver got a FIN.
    cut: bool,
}

// === impl Flow ===

impl Flow {
    fn run(&mut self) -> io::Result<()> {
        loop {
            let (record, whole) = read_record(&mut self.from)?;
            if whole {
                self.record(record)?;
                continue;
            }
            self.pass(&record)?;
            return self.cut();
        }
    }

    fn record(&mut self, record: Vec<u8>) -> io::Result<()> {
        let place = usize::from(self.direction == Direction::ToNear);
        self.shared.recorded.lock().unwrap()[place].push(record.clone());
        let number = self.seen;
        if record[0] == PROTECTED {
            self.seen += 1;
        }
        self.sent.push(record.clone());
        let (kind, at) = match &self.attack {
            Some((kind, at)) if record[0] == PROTECTED && number >= *at => (kind.clone(), *at),
            _ => return self.pass(&record),
        };
        if number == at {
            self.shared.attacked.fetch_add(1, Ordering::SeqCst);
        }
        match kind {
            Kind::Reflect => return self.from.write_all(&record),
            Kind::Delay if number == at => {
                self.delayed = Some(record);
                return Ok(());
            }
            Kind::Delay => {
                self.pass(&record)?;
                if let Some(delayed) = self.delayed.take() {
                    self.pass(&delayed)?;
                }
                return Ok(());
            }
            _ if number > at => return self.pass(&record),
            _ => {}
        }
        match kind {
            Kind::Alter => {
                let mut record = record;
                *record.last_mut().unwrap() ^= 1;
                self.pass(&record)
            }
            Kind::Drop => Ok(()),
            Kind::Duplicate => {
                self.pass(&record)?;
                self.pass(&record)
            }
            Kind::CutBehind => {
                self.pass(&record)?;
                self.cut()
            }
            Kind::CutWithin => {
                self.pass(&record[..record.len() / 2])?;
                self.cut()
            }
            Kind::Inject(bytes) => {
                self.pass(&bytes)?;
                self.pass(&record)
            }
            Kind::Replace(bytes) => self.pass(&bytes),
            Kind::TakeOver(bytes) => {
                self.pass(&record)?;
                // Disconnecting sends an RST, although other threads have the socket.
                rustix::net::connect_unspec(&self.from)?;
                self.pass(&bytes)?;
                for old in std::mem::take(&mut self.sent) {
                    self.pass(&old)?;
                }
                self.cut()
            }
            Kind::Reflect | Kind::Delay => Ok(()),
        }
    }

    fn pass(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.cut {
            return Ok(());
        }
        self.to.write_all(bytes)
    }

    fn cut(&mut self) -> io::Result<()> {
        self.cut = true;
        self.to.shutdown(Shutdown::Write)
    }
}

/// Reads a record. At the end of the stream, returns what there was and `false`.
fn read_record(from: &mut TcpStream) -> io::Result<(Vec<u8>, bool)> {
    const HEADER: usize = 5;
    let mut record = vec![0; HEADER];
    let mut got = 0;
    while got < record.len() {
        match from.read(&mut record[got..]) {
            Ok(0) => {
                record.truncate(got);
                return Ok((record, false));
            }
            Ok(n) => got += n,
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
        if got == HEADER && record.len() == HEADER {
            let len = u16::from_be_bytes([record[3], record[4]]);
            record.resize(HEADER + usize::from(len), 0);
        }
    }
    Ok((record, true))
}
