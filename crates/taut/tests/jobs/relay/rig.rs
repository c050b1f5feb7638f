//! Relays as processes, and the files and commands that the tests give them.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use taut_sys::listen::Listen;
use taut_sys_testing::network::enter_private_network;

/// The time limit of every wait in these tests.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) fn taut() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_taut"));
    command
        .arg("relay")
        .stdin(Stdio::null())
        .env_remove("TAUT_LOG");
    command
}

/// Runs the relay with this configuration until it exits by itself.
pub(crate) fn refused(config: &str) -> (Output, String) {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(&file, config).unwrap();
    let output = taut().arg("--config").arg(file.path()).output().unwrap();
    let said = String::from_utf8(output.stderr.clone()).unwrap();
    (output, said)
}

/// Checks that standard error has exactly one error message, and that it contains `part`.
pub(crate) fn assert_one_sentence(said: &str, part: &str) {
    let lines: Vec<&str> = said.lines().filter(|l| l.starts_with("taut: ")).collect();
    assert_eq!(lines.len(), 1, "{said}");
    assert!(lines[0].contains(part), "no `{part}` in: {said}");
    assert!(!said.contains("panicked"), "{said}");
}

/// A running relay.
pub(crate) struct Running {
    pub(crate) child: Child,
    pub(crate) listen: SocketAddr,
    /// Its standard error. `None` if the read end is closed.
    pub(crate) said: Option<BufReader<std::process::ChildStderr>>,
}

impl Running {
    /// Starts a relay from a free port to `to`.
    pub(crate) fn start(to: SocketAddr, more: &[&str]) -> Self {
        let to = to.to_string();
        let args = ["--listen", "127.0.0.1:0", "--to", &to];
        Self::run(taut().args(args).args(more))
    }

    /// Starts a relay with this configuration file.
    pub(crate) fn with_config(config: &Path) -> Self {
        Self::run(taut().arg("--config").arg(config))
    }

    pub(crate) fn run(command: &mut Command) -> Self {
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let said = child.stderr.take().map(BufReader::new);
        // From here on a failing test kills it.
        let mut relay = Self {
            child,
            listen: SocketAddr::from(([0; 4], 0)),
            said,
        };
        let mut seen = String::new();
        while relay.listen.port() == 0 {
            let mut line = String::new();
            let read = relay.said.as_mut().unwrap().read_line(&mut line).unwrap();
            assert_ne!(read, 0, "it ended: {seen}");
            if let Some((_, rest)) = line.split_once("listen=") {
                let listen: Listen = rest.split_whitespace().next().unwrap().parse().unwrap();
                relay.listen = listen.addrs()[0];
            }
            seen.push_str(&line);
        }
        relay
    }

    /// Reads its log up to a line that contains `part`.
    pub(crate) fn wait_for_log(&mut self, part: &str) -> String {
        let mut seen = String::new();
        loop {
            let mut line = String::new();
            let read = self.said.as_mut().unwrap().read_line(&mut line).unwrap();
            assert_ne!(read, 0, "it ended: {seen}");
            seen.push_str(&line);
            if line.contains(part) {
                return seen;
            }
        }
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, signal).unwrap();
    }

    pub(crate) fn end(mut self) -> (Option<i32>, String) {
        let mut said = String::new();
        self.said.take().unwrap().read_to_string(&mut said).unwrap();
        (self.child.wait().unwrap().code(), said)
    }

    /// Returns the number of its open sockets. (It keeps pipes for the next transfer.)
    pub(crate) fn sockets(&self) -> usize {
        let fds = fs::read_dir(format!("/proc/{}/fd", self.child.id())).unwrap();
        let links = fds.filter_map(|fd| fs::read_link(fd.ok()?.path()).ok());
        links
            .filter(|link| link.to_string_lossy().starts_with("socket:"))
            .count()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn pair(relay: &Running, server: &TcpListener) -> (TcpStream, TcpStream) {
    let client = TcpStream::connect(relay.listen).unwrap();
    let (far, _) = server.accept().unwrap();
    for s in [&client, &far] {
        s.set_read_timeout(Some(PATIENCE)).unwrap();
    }
    (client, far)
}

pub(crate) fn server() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    (listener, addr)
}

pub(crate) const FORWARD: &str =
    "[[relay.forward]]\nlisten = \"127.0.0.1:0\"\nto = \"127.0.0.1:9\"\n";

/// Runs a command to the relay with this control socket, and returns its exit status and output.
pub(crate) fn operate(control: &Path, args: &[&str]) -> (Option<i32>, String) {
    let control = control.to_str().unwrap();
    let command = taut()
        .args(args)
        .args(["--control", control])
        .output()
        .unwrap();
    let said = [command.stdout, command.stderr].concat();
    (command.status.code(), String::from_utf8(said).unwrap())
}

pub(crate) fn get(addr: SocketAddr, path: &str) -> String {
    let mut scraper = TcpStream::connect(addr).unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    scraper.write_all(request.as_bytes()).unwrap();
    let mut page = String::new();
    scraper.read_to_string(&mut page).unwrap();
    page
}

/// An address in the private network of a test where nothing listens until the test does. Its port is
/// below those that the kernel chooses, so that a relay that dials it cannot connect to itself.
pub(crate) const fn address(port: u16) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port)
}

/// The mesh address of the relay `next`, where nothing listens until the test does.
pub(crate) const NEXT: SocketAddr = address(7440);

/// A relay `own` that goes through `next`.
pub(crate) struct MeshFiles {
    pub(crate) dir: tempfile::TempDir,
    /// The public keys of `own`, `next` and `third`.
    pub(crate) keys: [String; 3],
}

impl MeshFiles {
    /// Moves the test into a private network and writes the files. Call it before anything listens.
    pub(crate) fn new() -> Self {
        enter_private_network();
        let dir = tempfile::tempdir().unwrap();
        let keys = ["own", "next", "third"].map(|name| {
            let mut keygen = Command::new(env!("CARGO_BIN_EXE_taut"));
            keygen.args(["mesh", "keygen"]).arg(dir.path().join(name));
            let made = keygen.output().unwrap();
            assert!(made.status.success());
            String::from_utf8(made.stdout)
                .unwrap()
                .trim_end()
                .to_owned()
        });
        let files = Self { dir, keys };
        files.list(&["own", "next"]);
        let path = |name| files.dir.path().join(name);
        let mesh = format!(
            "[relay.mesh]\nprivate_key_file = {:?}\nmembers_file = {:?}\n",
            path("own"),
            path("members.toml")
        );
        let config = format!("{FORWARD}via = \"next\"\n{mesh}");
        fs::write(path("taut.toml"), config).unwrap();
        files
    }

    pub(crate) fn config(&self) -> PathBuf {
        self.dir.path().join("taut.toml")
    }

    /// Writes the list of these members.
    pub(crate) fn list(&self, names: &[&str]) {
        self.list_at(&self.dir.path().join("members.toml"), names);
    }

    pub(crate) fn list_at(&self, path: &Path, names: &[&str]) {
        let member = |name: &&str| {
            let place = ["own", "next", "third"].iter().position(|n| n == name);
            let key = &self.keys[place.unwrap()];
            let addresses = match *name {
                "next" => format!("[\"{NEXT}\"]"),
                _ => "[]".to_owned(),
            };
            format!("[[member]]\nname = \"{name}\"\nkeys = [\"{key}\"]\naddresses = {addresses}\n")
        };
        let text: String = names.iter().map(member).collect();
        let new = self.dir.path().join("new");
        fs::write(&new, text).unwrap();
        fs::rename(new, path).unwrap();
    }
}
