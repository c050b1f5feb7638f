//! How many system calls a worker makes for a short session, besides waits for events: how many sessions share
//! a wait depends on the machine.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};
use taut_relay::config::{Config, Forward};
use taut_relay::net::addr::Destination;
use taut_relay::node::Node;
use taut_sys_testing::skip::{has_programs, skip};

use crate::PATIENCE;
use crate::rig::listen;
use crate::wait::wait_until;

/// The sessions at a time.
const SESSIONS: usize = 32;

/// The system calls that a session may take: 20, and one that finds the queue of the listener empty.
const MOST: usize = 21;

#[derive(Clone, Copy, Debug)]
enum First {
    Client,
    Server,
}

/// strace, attached to the worker.
struct Strace {
    child: Child,
    summary: tempfile::NamedTempFile,
}

impl Strace {
    /// Returns `None` if strace may not trace this process.
    fn attach(thread: u32) -> Option<Self> {
        let summary = tempfile::NamedTempFile::new().unwrap();
        let mut child = Command::new("strace")
            .args(["-c", "-U", "calls,name", "-o"])
            .arg(summary.path())
            .args(["-p", &thread.to_string()])
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stderr.as_mut().unwrap())
            .read_line(&mut line)
            .unwrap();
        if !line.contains("attached") {
            skip(&line);
            child.wait().unwrap();
            return None;
        }
        Some(Self { child, summary })
    }

    /// Detaches and returns the number of calls by name.
    fn finish(mut self) -> BTreeMap<String, usize> {
        let pid = Pid::from_child(&self.child);
        rustix::process::kill_process(pid, Signal::INT).unwrap();
        self.child.wait().unwrap();
        let summary = std::fs::read_to_string(self.summary.path()).unwrap();
        let row = |line: &str| {
            let (calls, name) = line.trim().split_once(' ')?;
            Some((name.trim().to_owned(), calls.parse().ok()?))
        };
        let mut calls: BTreeMap<String, usize> = summary.lines().filter_map(row).collect();
        for other in ["total", "epoll_pwait2"] {
            calls.remove(other);
        }
        // Rust's library checks each descriptor that it closes, in builds with debug assertions.
        if cfg!(debug_assertions) {
            calls.remove("fcntl");
        }
        calls
    }
}

/// Returns the thread of the only worker in this test's network, which other tests of the process do not share.
fn worker() -> u32 {
    let network = |task: &Path| std::fs::read_link(task.join("ns/net")).ok();
    let own = network(Path::new("/proc/thread-self"));
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let mut workers = tasks.filter_map(|task| {
        let path = task.unwrap().path();
        let name = std::fs::read_to_string(path.join("comm")).ok()?;
        let id = path.file_name()?.to_str()?.parse().ok()?;
        (name.starts_with("relay-") && network(&path) == own).then_some(id)
    });
    let worker = workers.next().unwrap();
    assert_eq!(workers.next(), None, "a second worker");
    worker
}

fn node(server: &TcpListener) -> Node {
    let to = server.local_addr().unwrap();
    let to = Destination {
        host: to.ip().to_string(),
        port: to.port(),
    };
    let mut config = Config::new(vec![Forward::new(vec!["127.0.0.1:0".parse().unwrap()], to)]);
    config.workers = Some(1);
    config.max_sessions = Some(256);
    Node::start(&config).unwrap()
}

/// Runs sessions that carry a request and an answer.
fn run_sessions(node: &Node, server: &TcpListener, first: First) {
    let addr = node.listen_addrs()[0].0;
    let connect = |_| {
        let mut client = TcpStream::connect(addr).unwrap();
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        client.write_all(b"request").unwrap();
        client
    };
    let mut clients: Vec<_> = (0..SESSIONS).map(connect).collect();
    let mut servers: Vec<_> = (0..SESSIONS).map(|_| server.accept().unwrap().0).collect();
    let mut word = [0; 7];
    for server in &mut servers {
        server.read_exact(&mut word).unwrap();
        assert_eq!(&word, b"request");
    }
    for server in &mut servers {
        server.write_all(b"answer!").unwrap();
    }
    if let First::Server = first {
        servers.clear();
    }
    for client in &mut clients {
        client.read_exact(&mut word).unwrap();
        assert_eq!(&word, b"answer!");
    }
    let last = match first {
        First::Client => {
            drop(clients);
            servers
        }
        First::Server => clients,
    };
    let read_end = |mut stream: &TcpStream| assert_eq!(stream.read(&mut [0]).unwrap(), 0);
    last.iter().for_each(read_end);
    drop(last);
    wait_until("the end of the sessions", || node.metrics().sessions() == 0);
}

#[test]
fn a_session_takes_no_more_system_calls_than_this() {
    if !has_programs(&["strace"]) {
        return;
    }
    let server = listen();
    let node = node(&server);
    // What happens once a process is not a cost of a session.
    run_sessions(&node, &server, First::Client);
    for first in [First::Client, First::Server] {
        let Some(strace) = Strace::attach(worker()) else {
            return;
        };
        let began = Instant::now();
        run_sessions(&node, &server, first);
        // An upstream leg that is open for a second gets keepalive, which takes four calls.
        let most = match began.elapsed() < Duration::from_secs(1) {
            true => MOST,
            false => MOST + 4,
        };
        let calls = strace.finish();
        let all: usize = calls.values().sum();
        println!(
            "{first:?} first: {:.1} calls a session: {calls:?}",
            all as f64 / SESSIONS as f64
        );
        assert!(
            all > 10 * SESSIONS,
            "too few to be all of {SESSIONS} sessions: {calls:?}"
        );
        assert!(
            all <= most * SESSIONS,
            "{first:?} first: more than {most} calls a session: {calls:?}"
        );
    }
}
