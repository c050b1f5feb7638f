//! A port passes from process to process while many clients connect, and no attempt is lost.

use std::io::{BufRead, BufReader, Read, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use crate::PATIENCE;
use taut_relay::handover::{self, Giver};
use taut_sys::Errno;
use taut_sys::epoll::{Interest, Poller, Waker};
use taut_sys::socket::{Keepalive, LegOptions, Listener};
use taut_sys_testing::network::enter_private_network;

/// Sockets that share the port, as those of workers do.
const SOCKETS: u64 = 3;

/// So many that the queues are hardly ever empty.
const CLIENTS: usize = 32;

fn options() -> LegOptions {
    LegOptions::new(Keepalive {
        idle: Duration::from_secs(60),
        interval: Duration::from_secs(15),
        probes: 4,
    })
}

/// Sends its process number to every client, until another process takes over.
#[test]
#[ignore = "the processes of the test below"]
fn a_server() {
    let path = std::env::var("TAUT_HANDOVER").unwrap();
    let role = std::env::var("TAUT_ROLE").unwrap();
    let mut taken = handover::take(Path::new(&path)).unwrap();
    let listeners: Vec<Listener> = match &mut taken {
        Some(taken) if role != "binds" => {
            let sockets = taken.take_inherited().sockets.into_iter();
            sockets
                .map(|s| Listener::from_fd(s.fd, &options()).unwrap())
                .collect()
        }
        _ => {
            let listen = std::env::var("TAUT_LISTEN").unwrap();
            assert_ne!(listen, "", "there was nobody to take from");
            let addr: SocketAddr = listen.parse().unwrap();
            let first = Listener::bind(addr, 1024, &options()).unwrap();
            let addr = first.local_addr().unwrap();
            let rest = (1..SOCKETS).map(|_| Listener::bind(addr, 1024, &options()).unwrap());
            std::iter::once(first).chain(rest).collect()
        }
    };
    assert_eq!(listeners.len() as u64, SOCKETS);
    say(&format!("has {}", listeners[0].local_addr().unwrap()));
    if role == "fails" {
        return;
    }

    let waker = Arc::new(Waker::new().unwrap());
    let poller = Poller::new().unwrap();
    poller.add(&*waker, SOCKETS, Interest::Read).unwrap();
    for (token, listener) in (0..).zip(&listeners) {
        poller.add(listener, token, Interest::Read).unwrap();
    }
    let _life = taken.map(|taken| taken.serving().unwrap());
    let sockets: Vec<OwnedFd> = listeners.iter().map(|l| l.duplicate().unwrap()).collect();
    let drain = Arc::new(AtomicBool::new(false));
    let _giver = Giver::start(Path::new(&path), sockets, Weak::new(), {
        let (drain, waker) = (drain.clone(), waker.clone());
        move |by| {
            drain.store(true, Ordering::SeqCst);
            waker.wake();
            by.draining();
        }
    })
    .unwrap();
    say("serves");

    let name = format!("{}", std::process::id());
    let mut reports = Vec::new();
    let draining = || drain.load(Ordering::SeqCst);
    while !draining() {
        poller.wait(None, &mut reports).unwrap();
        for listener in &listeners {
            // Connections in the queue at that moment are left to the next process.
            while !draining() {
                match listener.accept() {
                    Ok((stream, _)) => {
                        stream.send(name.as_bytes()).unwrap();
                        stream.end_gracefully();
                    }
                    Err(Errno::AGAIN) => break,
                    Err(e) => panic!("accept: {e}"),
                }
            }
        }
    }
    say("drained");
}

fn say(text: &str) {
    println!("\n@{text}");
    std::io::stdout().flush().unwrap();
}

struct Server {
    child: Child,
    says: BufReader<ChildStdout>,
}

impl Server {
    fn start(path: &Path, role: &str, listen: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "handover::a_server", "--ignored", "--nocapture"])
            .env("TAUT_HANDOVER", path)
            .env("TAUT_ROLE", role)
            .env("TAUT_LISTEN", listen)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let says = BufReader::new(child.stdout.take().unwrap());
        Self { child, says }
    }

    /// Returns what follows `word` in the process's next line.
    fn expect_line(&mut self, word: &str) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            assert_ne!(
                self.says.read_line(&mut line).unwrap(),
                0,
                "it ended before `{word}`"
            );
            if let Some(rest) = line
                .trim()
                .strip_prefix('@')
                .and_then(|l| l.strip_prefix(word))
            {
                return rest.trim().to_owned();
            }
        }
    }

    fn id(&self) -> String {
        self.child.id().to_string()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Clients that connect as fast as they can.
struct Storm {
    addr: SocketAddr,
    stop: AtomicBool,
    attempts: AtomicU32,
    /// The process that served last.
    last: Mutex<String>,
    lost: Mutex<Vec<String>>,
}

impl Storm {
    fn blow(&self) {
        while !self.stop.load(Ordering::SeqCst) {
            match attempt(self.addr) {
                Ok(name) => *self.last.lock().unwrap() = name,
                Err(e) => self.lost.lock().unwrap().push(e),
            }
            self.attempts.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Also when the test fails, the clients must not be waited for.
    fn ends(&self) -> impl Drop + '_ {
        struct Ends<'a>(&'a AtomicBool);
        impl Drop for Ends<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::SeqCst);
            }
        }
        Ends(&self.stop)
    }

    fn until(&self, what: &str, condition: impl Fn() -> bool) {
        let start = Instant::now();
        while !condition() {
            assert!(start.elapsed() <= PATIENCE, "{what}: it does not come");
            std::thread::yield_now();
        }
    }

    /// Waits for some more attempts.
    fn go_on(&self) {
        let now = self.attempts.load(Ordering::SeqCst);
        self.until("attempts", || {
            self.attempts.load(Ordering::SeqCst) > now + 500
        });
    }
}

fn attempt(addr: SocketAddr) -> Result<String, String> {
    let mut stream = TcpStream::connect(addr).map_err(|e| format!("connect: {e}"))?;
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut name = String::new();
    match stream.read_to_string(&mut name) {
        Ok(0) => Err("closed without a word".to_owned()),
        Ok(_) => Ok(name),
        Err(e) => Err(format!("read: {e}")),
    }
}

#[test]
fn a_storm_of_connects_over_handovers_loses_none() {
    enter_private_network();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("handover");
    let mut first = Server::start(&path, "serves", "127.0.0.1:0");
    let addr = first.expect_line("has").parse().unwrap();
    first.expect_line("serves");
    let storm = Storm {
        addr,
        stop: AtomicBool::new(false),
        attempts: AtomicU32::new(0),
        last: Mutex::default(),
        lost: Mutex::default(),
    };
    // "binds" shows what is lost without passing sockets.
    let role = std::env::var("TAUT_STORM_ROLE").unwrap_or_else(|_| "serves".to_owned());
    let _last = std::thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| storm.blow());
        }
        let ends = storm.ends();
        storm.go_on();
        let mut serving = first;
        for _ in 0..5 {
            // A process that fails before it serves changes nothing.
            let mut failing = Server::start(&path, "fails", "");
            failing.expect_line("has");
            failing.child.wait().unwrap();
            storm.go_on();
            assert!(serving.child.try_wait().unwrap().is_none());

            let mut next = Server::start(&path, &role, &addr.to_string());
            next.expect_line("serves");
            serving.expect_line("drained");
            assert!(serving.child.wait().unwrap().success());
            let id = next.id();
            storm.until("the next", || *storm.last.lock().unwrap() == id);
            storm.go_on();
            serving = next;
        }
        drop(ends);
        // It outlives the clients that still talk to it.
        serving
    });
    let lost = storm.lost.lock().unwrap();
    let attempts = storm.attempts.load(Ordering::SeqCst);
    println!("{attempts} attempts over 5 handovers, {} lost", lost.len());
    assert!(
        lost.is_empty(),
        "{} of {attempts}: {:?}",
        lost.len(),
        &lost[..lost.len().min(5)]
    );
}
