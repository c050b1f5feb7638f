//! A new process takes interception over from the old one, without a connection that is lost or that passes by.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use taut_relay::config::Config;
use taut_relay::control::protocol::{Answer, Request, Status};
use taut_relay::intercept::Method;
use taut_relay::node::Node;
use taut_relay::{control, handover, serve};
use taut_sys::netns::Netns;

use super::cleanup::traces;
use super::rig::*;
use crate::killed::kill_when_it_says;

/// The environment variable that names the other process's namespace and its configuration file.
const ASKED: &str = "TAUT_RELAY_HANDOVER";

/// Clients of a storm.
const CLIENTS: usize = 8;

/// Connections of a storm before and after each handover.
const SOME: usize = 200;

/// Returns the namespace and the configuration of a process that another one has started.
fn asked() -> Option<(Netns, PathBuf)> {
    let asked = std::env::var(ASKED).ok()?;
    let (netns, file) = asked.split_once(' ').unwrap();
    Some((Netns::open(netns).unwrap(), file.into()))
}

fn intercepted_by(method: Method) -> String {
    format!("intercept_by = \"{method:?}\"").to_lowercase()
}

/// Runs a relay until it is told to stop.
#[test]
fn serve_when_asked_to() {
    let Some((netns, file)) = asked() else {
        return;
    };
    let config = Config::load(&file).unwrap();
    let reread = Box::new(move || Config::load(&file).map_err(|e| e.to_string()));
    let served = netns.run(|| serve::run(&config, serve::Beginning::default(), reread));
    println!("\n@{:?}", served.unwrap().map_err(|e| e.to_string()));
}

/// Sets interception up beside the relay that it is to replace, and waits to be killed.
#[test]
fn take_and_wait_when_asked_to() {
    let Some((netns, file)) = asked() else {
        return;
    };
    let config = Config::load(&file).unwrap();
    let mut taken = handover::take(&config.handover_path().unwrap()).unwrap();
    let inherited = taken.as_mut().unwrap().take_inherited();
    let start = || Node::start_with(&config, inherited);
    let _node = netns.run(start).unwrap().unwrap();
    println!("intercepting");
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
}

/// A relay in a process of its own.
struct Relay {
    child: Child,
    says: BufReader<ChildStdout>,
    control: PathBuf,
}

impl Relay {
    fn start(net: &Net, files: &Files) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "intercept::handover::serve_when_asked_to"])
            .arg("--nocapture")
            .env(ASKED, files.asked_in(&net.router))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let says = BufReader::new(child.stdout.take().unwrap());
        let control = files.control();
        Self {
            child,
            says,
            control,
        }
    }

    /// Waits until operators reach this process, which is after it has taken over.
    fn serves(mut self) -> Self {
        wait_until("a relay that serves", || {
            let ended = self.child.try_wait().unwrap();
            assert_eq!(ended, None, "the relay has ended");
            status(&self.control).is_some_and(|status| status.pid == self.child.id())
        });
        self
    }

    fn stop(self) -> String {
        kill_process(Pid::from_child(&self.child), Signal::TERM).unwrap();
        self.result()
    }

    /// Waits for its end, and returns how it has ended.
    fn result(mut self) -> String {
        let lines = (&mut self.says).lines().map_while(Result::ok);
        let result = lines.filter_map(|line| line.strip_prefix('@').map(str::to_owned));
        result.last().unwrap_or_default()
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn status(control: &Path) -> Option<Status> {
    match control::ask(control, &Request::Status).ok()? {
        Answer::Status(status) => Some(*status),
        _ => None,
    }
}

/// The files of the relays.
struct Files(tempfile::TempDir);

impl Files {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn config(&self) -> PathBuf {
        self.0.path().join("taut.toml")
    }

    fn control(&self) -> PathBuf {
        self.0.path().join("control")
    }

    /// The environment variable's value for a relay in a namespace.
    fn asked_in(&self, netns: &Netns) -> String {
        format!("{} {}", netns.name(), self.config().display())
    }

    /// Writes a configuration for the next relay that starts.
    fn write(&self, relay: &str, forwards: &str) {
        let (control, handover) = (self.control(), self.0.path().join("handover"));
        let text = format!(
            "[relay]\nworkers = 2\nmax_sessions = 256\nmax_sessions_per_source = 256\n\
             max_connects_per_source = 100000\ncontrol = {control:?}\nhandover = {handover:?}\n{relay}\n{forwards}"
        );
        std::fs::write(self.config(), text).unwrap();
    }
}

/// The text of a forward that intercepts connections to the server, with more lines of it.
fn intercepts(more: &str) -> String {
    format!(
        "[[relay.forward]]\ntransparent = true\nlisten = \":{LISTEN}\"\nports = [{PORT}]\n\
         destinations = [\"203.0.113.0/24\", \"2001:db8:113::/64\"]\ndevices = [\"{TO_CLIENT}\"]\n\
         allow = [\"203.0.113.0/24:*\", \"[2001:db8:113::]/64:*\"]\n{more}"
    )
}

/// Clients that connect to the server as fast as they can, while relays take over from each other.
struct Storm<'a> {
    net: &'a Net,
    /// Whether the server must see the client's address, at another port, instead of the relay's.
    borrows: bool,
    stop: AtomicBool,
    served: AtomicUsize,
}

impl Storm<'_> {
    fn client(&self, number: usize) {
        let of = number % 2;
        let to = SocketAddr::new(SERVER[of].parse().unwrap(), PORT);
        while !self.stop.load(Ordering::SeqCst) {
            let client = TcpStream::connect_timeout(&to, crate::PATIENCE);
            let mut client = client.unwrap_or_else(|e| panic!("connect to {to}: {e}"));
            client.set_read_timeout(Some(crate::PATIENCE)).unwrap();
            let own = client.local_addr().unwrap();
            let mut said = String::new();
            let read = client.read_to_string(&mut said);
            read.unwrap_or_else(|e| panic!("read from {to}: {e}"));
            let seen: SocketAddr = said.parse().unwrap();
            let relay: IpAddr = ROUTER_TO_SERVER[of].parse().unwrap();
            let expected = if self.borrows { own.ip() } else { relay };
            assert!(
                seen.ip() == expected && seen != own,
                "{own} was routed past the relay: the server sees {seen}"
            );
            self.served.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Waits for some more clients.
    fn go_on(&self) {
        let now = self.served.load(Ordering::SeqCst);
        let deadline = Instant::now() + crate::PATIENCE;
        while self.served.load(Ordering::SeqCst) < now + SOME {
            assert!(!self.stop.load(Ordering::SeqCst), "a client has failed");
            assert!(Instant::now() < deadline, "clients are no longer served");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Sets its flag when it is dropped, also by a panic.
struct Sets<'a>(&'a AtomicBool);

impl Drop for Sets<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Tells each client the address that it sees.
fn serve_clients(listener: &TcpListener, stop: &AtomicBool) {
    listener.set_nonblocking(true).unwrap();
    while !stop.load(Ordering::SeqCst) {
        match listener.accept() {
            // A client of a relay that was killed may be gone.
            Ok((mut far, seen)) => drop(far.write_all(seen.to_string().as_bytes())),
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}

/// Runs `meanwhile` while clients connect, and returns how many were served.
fn in_a_storm(net: &Net, borrows: bool, meanwhile: impl FnOnce(&Storm<'_>)) -> usize {
    let servers = SERVER.map(|ip| net.listen(&net.server, ip, PORT));
    let storm = Storm {
        net,
        borrows,
        stop: AtomicBool::new(false),
        served: AtomicUsize::new(0),
    };
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _ended = Sets(&ended);
        for server in &servers {
            scope.spawn(|| serve_clients(server, &ended));
        }
        std::thread::scope(|scope| {
            for number in 0..CLIENTS {
                let storm = &storm;
                scope.spawn(move || {
                    let _stop = Sets(&storm.stop);
                    storm.net.client.run(|| storm.client(number)).unwrap();
                });
            }
            let _stop = Sets(&storm.stop);
            storm.go_on();
            meanwhile(&storm);
        });
    });
    storm.served.load(Ordering::SeqCst)
}

/// A session to a port of the server that no client of a storm uses.
fn open_session(net: &Net, port: u16) -> (TcpStream, TcpStream) {
    let listener = net.listen(&net.server, SERVER[0], port);
    let client = net.connect(SERVER[0], port);
    let far = accepted(&listener).0;
    (client, far)
}

fn assert_goes_on((client, far): &mut (TcpStream, TcpStream)) {
    for (from, to) in [(&*client, &*far), (&*far, &*client)] {
        let (mut from, mut to) = (from, to);
        from.write_all(b"goes on").unwrap();
        let mut got = [0; 7];
        to.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"goes on");
    }
}

/// Waits until the server sees the client's own address and port.
fn assert_routed_at_last(net: &Net, port: u16) {
    let server = net.listen(&net.server, SERVER[0], port);
    let to = server.local_addr().unwrap();
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _ended = Sets(&ended);
        scope.spawn(|| serve_clients(&server, &ended));
        wait_until("a connection that is routed", || {
            // Until the old process drains, the new one may get the connection, which it does not allow.
            let connect = || TcpStream::connect_timeout(&to, crate::PATIENCE);
            let Ok(mut client) = net.client.run(connect).unwrap() else {
                return false;
            };
            client.set_read_timeout(Some(crate::PATIENCE)).unwrap();
            let mut said = String::new();
            let _ = client.read_to_string(&mut said);
            client.local_addr().is_ok_and(|own| said == own.to_string())
        });
    });
}

/// Intercepted beside the port of storms.
const SESSION_PORT: u16 = 81;

#[test]
fn clients_are_intercepted_while_processes_take_over_from_each_other() {
    for method in methods() {
        for borrows in [false, true] {
            let net = Net::new();
            let files = Files::new();
            let method = intercepted_by(method);
            let ports = format!("ports = [{PORT}, {SESSION_PORT}]");
            let more = if borrows { "source = \"client\"\n" } else { "" };
            let forward = intercepts(more).replace(&format!("ports = [{PORT}]"), &ports);
            files.write(&method, &forward);
            let mut serving = Relay::start(&net, &files).serves();
            let served = in_a_storm(&net, borrows, |storm| {
                for _ in 0..3 {
                    let mut session = open_session(&net, SESSION_PORT);
                    let next = Relay::start(&net, &files).serves();
                    storm.go_on();
                    assert_goes_on(&mut session);
                    drop(session);
                    assert_eq!(std::mem::replace(&mut serving, next).result(), "Ok(())");
                    storm.go_on();
                }
            });
            println!("{method}, source of the client {borrows}: {served} clients, 3 handovers");
            assert_eq!(serving.stop(), "Ok(())");
            assert_eq!(traces(&net.router), [""; 0]);
        }
    }
}

#[test]
fn the_method_and_the_mark_may_change_in_a_handover() {
    let net = Net::new();
    let files = Files::new();
    let forward = intercepts("");
    files.write("", &forward);
    let mut serving = Relay::start(&net, &files).serves();
    in_a_storm(&net, false, |storm| {
        for next in methods().into_iter().rev().chain(methods()) {
            files.write(&intercepted_by(next), &forward);
            let next = Relay::start(&net, &files).serves();
            assert_eq!(std::mem::replace(&mut serving, next).result(), "Ok(())");
            storm.go_on();
        }
        files.write("intercept_mark = 4711", &forward);
        let next = Relay::start(&net, &files).serves();
        assert_eq!(std::mem::replace(&mut serving, next).result(), "Ok(())");
        storm.go_on();
    });
    assert_eq!(serving.stop(), "Ok(())");
    assert_eq!(traces(&net.router), [""; 0]);
}

/// The new configuration borrows no addresses, but sessions of the old process do.
#[test]
fn sessions_go_on_although_the_next_process_intercepts_less() {
    for method in methods() {
        let net = Net::new();
        let files = Files::new();
        let method = intercepted_by(method);
        let ports = format!("ports = [{SESSION_PORT}]");
        let forward = intercepts("source = \"client\"\n");
        files.write(
            &method,
            &forward.replace(&format!("ports = [{PORT}]"), &ports),
        );
        let first = Relay::start(&net, &files).serves();
        let mut session = open_session(&net, SESSION_PORT);
        files.write(&method, &intercepts(""));
        let second = Relay::start(&net, &files).serves();
        assert_goes_on(&mut session);
        assert_routed_at_last(&net, SESSION_PORT);
        assert_goes_on(&mut session);
        drop(session);
        assert_eq!(first.result(), "Ok(())");
        in_a_storm(&net, false, |_| {});
        assert_eq!(second.stop(), "Ok(())");
        assert_eq!(traces(&net.router), [""; 0]);
    }
}

#[test]
fn a_new_process_that_dies_before_it_serves_changes_nothing() {
    for method in methods() {
        let net = Net::new();
        let files = Files::new();
        let method = intercepted_by(method);
        files.write(&method, &intercepts("source = \"client\"\n"));
        let first = Relay::start(&net, &files).serves();
        let mut session = open_session(&net, PORT);
        let take = "intercept::handover::take_and_wait_when_asked_to";
        let asked = (ASKED, files.asked_in(&net.router));
        kill_when_it_says("intercepting", take, asked, || ());
        // Another one ends by itself, because of a device that does not exist.
        files.write(&method, &intercepts("").replace(TO_CLIENT, "nowhere"));
        let ended = Relay::start(&net, &files).result();
        assert!(ended.contains("no network device `nowhere`"), "{ended}");
        assert_goes_on(&mut session);
        in_a_storm(&net, true, |_| {});
        assert!(status(&files.control()).is_some_and(|s| s.pid == first.child.id()));
        drop(session);
        assert_eq!(first.stop(), "Ok(())");
        assert_eq!(traces(&net.router), [""; 0]);
    }
}
