//! A new process takes over from the old one, or from the service manager.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use taut_netlab::link::shape::{LinkSpec, Shape};
use taut_netlab::world::{World, WorldBuilder};
use taut_sys::plural::counted;
use taut_sys_testing::network::enter_private_network;
use taut_sys_testing::skip::skip;

use crate::relay::rig::{
    FORWARD, PATIENCE, Running, address, assert_one_sentence, operate, pair, server, taut,
};

/// Stops the clients and their server on drop, also if the test fails.
struct StopClients<'a> {
    stop: &'a AtomicBool,
    done: &'a AtomicBool,
    server: SocketAddr,
}

impl Drop for StopClients<'_> {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        self.done.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(self.server);
    }
}

#[test]
fn a_new_process_takes_over_under_load_without_losing_a_connection() {
    enter_private_network();
    let (server, addr) = server();
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("taut.toml");
    let (listen, metrics) = (address(8080), address(9464));
    let handover = dir.path().join("handover");
    let text = |workers| {
        format!(
            "[relay]\nworkers = {workers}\nmetrics = \"{metrics}\"\nhandover = {handover:?}\n\
             [[relay.forward]]\nlisten = \"{listen}\"\nto = \"{addr}\"\n"
        )
    };
    fs::write(&config, text(2)).unwrap();
    let old = Running::with_config(&config);
    let (mut client, mut far) = pair(&old, &server);

    let (stop, done) = (AtomicBool::new(false), AtomicBool::new(false));
    let (tell, served) = mpsc::channel();
    std::thread::scope(|s| {
        let server = server.try_clone().unwrap();
        let (stop, done) = (&stop, &done);
        s.spawn(move || {
            while !done.load(Ordering::SeqCst) {
                let (mut far, _) = server.accept().unwrap();
                let _ = far.write_all(b"welcome");
            }
        });
        let client_loop = |_| {
            let tell = tell.clone();
            s.spawn(move || {
                while !stop.load(Ordering::SeqCst) {
                    let mut client = TcpStream::connect(listen).unwrap();
                    client.set_read_timeout(Some(PATIENCE)).unwrap();
                    let mut got = Vec::new();
                    client.read_to_end(&mut got).unwrap();
                    assert_eq!(got, b"welcome");
                    tell.send(()).unwrap();
                }
            })
        };
        let stop_clients = StopClients {
            stop,
            done,
            server: addr,
        };
        let clients: Vec<_> = (0..8).map(client_loop).collect();
        let wait_for_more = || {
            while served.try_recv().is_ok() {}
            for _ in 0..50 {
                let one = served.recv_timeout(PATIENCE);
                one.expect("no client is served any more");
            }
        };
        wait_for_more();
        // First with fewer workers than sockets, later with more.
        fs::write(&config, text(1)).unwrap();
        let mut middle = Running::with_config(&config);
        middle.wait_for_log("took over");
        // The earlier session still belongs to the old process.
        client.write_all(b"still here").unwrap();
        client.shutdown(std::net::Shutdown::Write).unwrap();
        let mut got = Vec::new();
        far.read_to_end(&mut got).unwrap();
        assert_eq!(got, b"still here");
        drop(far);
        let (code, said) = old.end();
        assert_eq!(code, Some(0), "{said}");
        assert!(said.contains("another process has taken over"), "{said}");
        wait_for_more();
        fs::write(&config, text(3)).unwrap();
        let mut new = Running::with_config(&config);
        new.wait_for_log("took over");
        let (code, said) = middle.end();
        assert_eq!(code, Some(0), "{said}");
        wait_for_more();
        // The new process serves the metrics.
        let mut scraper = TcpStream::connect(metrics).unwrap();
        scraper
            .write_all(b"GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
            .unwrap();
        let mut page = String::new();
        scraper.read_to_string(&mut page).unwrap();
        assert!(page.contains("taut_relay_accepted_total"), "{page}");
        stop.store(true, Ordering::SeqCst);
        // The clients need the server until they have ended.
        for client in clients {
            client.join().unwrap();
        }
        drop(stop_clients);
        new.signal(Signal::TERM);
        assert_eq!(new.end().0, Some(0));
    });
}

#[test]
fn a_new_process_that_cannot_start_leaves_the_old_one_running() {
    enter_private_network();
    let (server, addr) = server();
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("taut.toml");
    let listen = address(8080);
    let handover = dir.path().join("handover");
    let text = |to: &str| {
        format!(
            "[relay]\nhandover = {handover:?}\n\
             [[relay.forward]]\nlisten = \"{listen}\"\nto = \"{to}\"\n"
        )
    };
    fs::write(&config, text(&addr.to_string())).unwrap();
    let old = Running::with_config(&config);
    fs::write(&config, text("nowhere.invalid:80")).unwrap();
    let output = taut().arg("--config").arg(&config).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let (mut client, mut far) = pair(&old, &server);
    far.write_all(b"as before").unwrap();
    drop(far);
    let mut got = Vec::new();
    client.shutdown(std::net::Shutdown::Write).unwrap();
    client.read_to_end(&mut got).unwrap();
    assert_eq!(got, b"as before");
}

/// Kills the process that an upgrade has started, which is no child of the test.
struct Upgraded(u32);

impl Drop for Upgraded {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
    }
}

impl Upgraded {
    /// Reads what `taut relay upgrade` has printed.
    fn from(said: &str, old: u32, sessions: u64) -> Self {
        let sessions = counted(sessions, "session");
        let expected = format!(" has taken over from {old}, which drains {sessions}\n");
        let number = said
            .strip_prefix("process ")
            .and_then(|s| s.strip_suffix(&expected));
        let number = number.and_then(|number| number.parse().ok());
        Self(number.unwrap_or_else(|| panic!("{said}")))
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.0.cast_signed()).unwrap();
        let _ = kill_process(pid, signal);
    }
}

/// A configuration whose relay stays root's, with its control socket in `dir`.
fn upgradable(dir: &Path, relay: &str, forward: &str) -> String {
    let (control, log) = (dir.join("relay.sock"), dir.join("sessions"));
    format!(
        "[relay]\ncontrol = {control:?}\nsession_log = {log:?}\n{relay}\n[[relay.forward]]\n{forward}\n"
    )
}

/// Starts a relay and waits until operators reach it.
fn start_upgradable(config: &Path) -> Running {
    let relay = Running::with_config(config);
    let control = config.with_file_name("relay.sock");
    let deadline = Instant::now() + PATIENCE;
    while !control.exists() {
        assert!(Instant::now() < deadline, "there is no control socket");
        std::thread::yield_now();
    }
    relay
}

#[test]
fn an_upgrade_replaces_the_process_and_open_sessions_go_on() {
    enter_private_network();
    let (server, addr) = server();
    let dir = tempfile::tempdir().unwrap();
    let (config, control) = (dir.path().join("taut.toml"), dir.path().join("relay.sock"));
    let listen = address(8080);
    let text = upgradable(
        dir.path(),
        "",
        &format!("listen = \"{listen}\"\nto = \"{addr}\""),
    );
    fs::write(&config, text).unwrap();
    let old = start_upgradable(&config);
    let (client, far) = pair(&old, &server);
    let number = old.child.id();
    let (code, said) = operate(&control, &["upgrade"]);
    assert_eq!(code, Some(0), "{said}");
    let new = Upgraded::from(&said, number, 1);
    // A session of the new process, and the one of the old.
    for (mut client, mut far) in [pair(&old, &server), (client, far)] {
        client.write_all(b"goes on").unwrap();
        client.shutdown(std::net::Shutdown::Write).unwrap();
        let mut got = Vec::new();
        far.read_to_end(&mut got).unwrap();
        assert_eq!(got, b"goes on");
    }
    // It has the command line of the old one, so it can be replaced in turn.
    let has_sessions = || {
        let (_, status) = operate(&control, &["status", "--json"]);
        let status: serde_json::Value = serde_json::from_str(&status).unwrap();
        status["status"]["sessions"] != 0
    };
    while has_sessions() {
        std::thread::yield_now();
    }
    let (code, said) = operate(&control, &["upgrade"]);
    assert_eq!(code, Some(0), "{said}");
    let next = Upgraded::from(&said, new.0, 0);
    let status = operate(&control, &["status", "--json"]).1;
    assert!(status.contains(&format!("\"pid\": {}", next.0)), "{status}");
    next.signal(Signal::TERM);
    // All three log to the same pipe.
    let (code, said) = old.end();
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(
        said.matches("took over from the previous process").count(),
        2,
        "{said}"
    );
}

#[test]
fn an_upgrade_that_fails_says_why_and_the_old_process_continues() {
    enter_private_network();
    let (server, addr) = server();
    let dir = tempfile::tempdir().unwrap();
    let (config, control) = (dir.path().join("taut.toml"), dir.path().join("relay.sock"));
    let forward = format!("listen = \"{}\"\nto = \"{addr}\"", address(8080));
    let text = |relay: &str| upgradable(dir.path(), relay, &forward);
    fs::write(&config, text("")).unwrap();
    let old = start_upgradable(&config);
    let continues = format!(
        "the new process could not start; process {} continues",
        old.child.id()
    );
    for (mistake, status, why) in [
        ("worker = 2", 2, "relay.worker: unknown field"),
        ("user = \"no-such-user\"", 1, "no-such-user"),
    ] {
        fs::write(&config, text(mistake)).unwrap();
        let (code, said) = operate(&control, &["upgrade"]);
        assert_eq!(code, Some(status), "{said}");
        assert!(said.contains(why) && said.contains(&continues), "{said}");
        drop(pair(&old, &server));
    }
    // What no check finds: another process has the port by now.
    fs::write(&config, text(&format!("metrics = \"{}\"", address(9464)))).unwrap();
    let _other = TcpListener::bind(address(9464)).unwrap();
    let (code, said) = operate(&control, &["upgrade"]);
    assert_eq!(code, Some(1), "{said}");
    assert!(
        said.contains(&continues) && said.contains("log has the reason"),
        "{said}"
    );
    drop(pair(&old, &server));
    old.signal(Signal::TERM);
    let (code, said) = old.end();
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("cannot serve metrics"), "{said}");
}

#[test]
fn a_relay_that_hands_nothing_over_is_not_upgraded() {
    enter_private_network();
    let dir = tempfile::tempdir().unwrap();
    let (config, control) = (dir.path().join("taut.toml"), dir.path().join("relay.sock"));
    let forward = format!("listen = \"{}\"\nto = \"127.0.0.1:9\"", address(8080));
    fs::write(
        &config,
        upgradable(dir.path(), "handover = \"off\"", &forward),
    )
    .unwrap();
    let mut relay = start_upgradable(&config);
    let (code, said) = operate(&control, &["upgrade"]);
    assert_eq!(code, Some(1), "{said}");
    assert!(
        said.contains("does not hand its sockets over") && said.contains("restart it"),
        "{said}"
    );
    // `systemctl reload` does what it can.
    let (code, said) = operate(&control, &["upgrade", "--if-replaced"]);
    assert_eq!(code, Some(0), "{said}");
    relay.wait_for_log("has been read again");
    // A second relay takes nothing that it is not told to take.
    fs::write(&config, upgradable(dir.path(), "", &forward)).unwrap();
    let second = taut()
        .arg("--config")
        .arg(&config)
        .arg("--replace")
        .output()
        .unwrap();
    assert_eq!(second.status.code(), Some(1));
    let said = String::from_utf8(second.stderr).unwrap();
    assert_one_sentence(&said, "no relay hands its sockets over at");
}

#[test]
fn a_reload_of_a_unit_upgrades_only_if_the_program_was_replaced() {
    enter_private_network();
    let (server, addr) = server();
    let dir = tempfile::tempdir().unwrap();
    let (config, control) = (dir.path().join("taut.toml"), dir.path().join("relay.sock"));
    let forward = format!("listen = \"{}\"\nto = \"{addr}\"", address(8080));
    fs::write(&config, upgradable(dir.path(), "", &forward)).unwrap();
    let installed = dir.path().join("taut");
    let install = || {
        let new = dir.path().join("new");
        fs::copy(env!("CARGO_BIN_EXE_taut"), &new).unwrap();
        fs::rename(&new, &installed).unwrap();
    };
    let run = |args: &[&str]| {
        let mut command = Command::new(&installed);
        command.arg("relay").args(args).stdin(Stdio::null());
        command
    };
    install();
    let mut old = Running::run(run(&["--config"]).arg(&config));
    while !control.exists() {
        std::thread::yield_now();
    }
    let number = old.child.id();
    // As systemd does: it names the process, not its control socket.
    let reload = || {
        let output = run(&["upgrade", "--if-replaced"])
            .env("MAINPID", number.to_string())
            .output();
        let output = output.unwrap();
        let said = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8(said).unwrap())
    };
    let (code, said) = reload();
    assert_eq!(
        (code, &*said),
        (Some(0), "the configuration has been read again\n")
    );
    old.wait_for_log("has been read again");
    install();
    let (code, said) = reload();
    assert_eq!(code, Some(0), "{said}");
    let new = Upgraded::from(&said, number, 0);
    drop(pair(&old, &server));
    let status = operate(&control, &["status", "--json"]).1;
    assert!(status.contains(&format!("\"pid\": {}", new.0)), "{status}");
    new.signal(Signal::TERM);
    assert_eq!(old.end().0, Some(0));
}

#[test]
fn a_reload_of_a_unit_reaches_a_relay_that_takes_no_commands() {
    enter_private_network();
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("taut.toml");
    let text = format!("[relay]\ncontrol = \"off\"\n{FORWARD}");
    fs::write(&config, text).unwrap();
    let mut relay = Running::with_config(&config);
    let mut reload = taut();
    reload.args(["upgrade", "--if-replaced"]);
    reload.env("MAINPID", relay.child.id().to_string());
    let output = reload.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    relay.wait_for_log("SIGHUP: the configuration has been read again");
}

/// A client, a router with the relay on it, and a server.
fn routed_world() -> World {
    let link = || LinkSpec::both(Shape::delay(Duration::from_micros(100)));
    WorldBuilder::new("upgrade")
        .host("client")
        .host("router")
        .host("server")
        .link("client", "router", link())
        .link("router", "server", link())
        .build()
        .unwrap()
}

/// Answers each connection with the address that it comes from.
fn tell_addresses(listener: &TcpListener, done: &AtomicBool) {
    while let Ok((mut far, seen)) = listener.accept() {
        if done.load(Ordering::SeqCst) {
            return;
        }
        let _ = far.write_all(seen.to_string().as_bytes());
    }
}

/// The whole program, with what it gives up after its start, ten times in a row.
#[test]
fn ten_upgrades_of_an_intercepting_relay_lose_no_connection() {
    const UPGRADES: usize = 10;
    const CLIENTS: usize = 8;
    /// Connections before, during and after each upgrade, at least.
    const SOME: usize = 1000;
    let world = routed_world();
    let [client, router, server] = ["client", "router", "server"].map(|name| world.host(name));
    let dir = tempfile::tempdir().unwrap();
    let (config, control) = (dir.path().join("taut.toml"), dir.path().join("relay.sock"));
    let to = SocketAddr::from((server.addr(), 80));
    let forward = format!(
        "transparent = true\nlisten = \":8443\"\nports = [80]\ndevices = [\"to-client\"]\n\
         allow = [\"{}/32:80\"]\nsource = \"client\"\nearly_syn = true",
        server.addr()
    );
    let limits = "max_sessions_per_source = 4000\nmax_connects_per_source = 100000";
    fs::write(&config, upgradable(dir.path(), limits, &forward)).unwrap();
    let listener = server.run(|| TcpListener::bind(to)).unwrap().unwrap();
    let first = router.run(|| start_upgradable(&config)).unwrap();
    let (stop, done, served) = (
        AtomicBool::new(false),
        AtomicBool::new(false),
        AtomicUsize::new(0),
    );
    let last = std::thread::scope(|scope| {
        let (stop, done, served, listener) = (&stop, &done, &served, &listener);
        scope.spawn(move || tell_addresses(listener, done));
        let connect = move || {
            while !stop.load(Ordering::SeqCst) {
                let mut client = TcpStream::connect_timeout(&to, PATIENCE).unwrap();
                client.set_read_timeout(Some(PATIENCE)).unwrap();
                let own = client.local_addr().unwrap();
                let mut seen = String::new();
                client.read_to_string(&mut seen).unwrap();
                let seen: SocketAddr = seen.parse().unwrap();
                // The client's address, at a port of the relay: with the client's own it would be routed.
                assert!(
                    seen.ip() == own.ip() && seen != own,
                    "{own} was seen as {seen}"
                );
                served.fetch_add(1, Ordering::SeqCst);
            }
        };
        let end = StopClients {
            stop,
            done,
            server: to,
        };
        let clients: Vec<_> = (0..CLIENTS)
            .map(|_| scope.spawn(move || client.run(connect).unwrap()))
            .collect();
        let go_on = || {
            let enough = served.load(Ordering::SeqCst) + SOME;
            while served.load(Ordering::SeqCst) < enough {
                assert!(
                    !clients.iter().any(|client| client.is_finished()),
                    "a client has failed"
                );
                std::thread::yield_now();
            }
        };
        go_on();
        let mut running = first.child.id();
        let mut upgraded = None;
        for _ in 0..UPGRADES {
            let (code, said) = router.run(|| operate(&control, &["upgrade"])).unwrap();
            assert_eq!(code, Some(0), "{said}");
            let (_, sessions) = said.split_once("drains ").unwrap();
            let sessions = sessions.split(' ').next().unwrap().parse().unwrap();
            let next = Upgraded::from(&said, running, sessions);
            running = next.0;
            // The process before it has no session any more, or ends with its last.
            std::mem::forget(upgraded.replace(next));
            go_on();
        }
        stop.store(true, Ordering::SeqCst);
        for client in clients {
            client.join().unwrap();
        }
        server.run(|| drop(end)).unwrap();
        upgraded.unwrap()
    });
    println!(
        "{} connections, {UPGRADES} upgrades, none lost",
        served.load(Ordering::SeqCst)
    );
    last.signal(Signal::TERM);
    let (code, said) = first.end();
    assert_eq!(code, Some(0), "{said}");
    for problem in ["ERROR", "WARN", "panicked"] {
        assert!(!said.contains(problem), "{said}");
    }
    let rules = router
        .run(|| Command::new("ip").args(["rule"]).output().unwrap())
        .unwrap();
    let rules = String::from_utf8(rules.stdout).unwrap();
    assert!(!rules.contains("29793"), "{rules}");
}

#[test]
fn a_socket_of_the_service_manager_is_taken_over_with_its_accept_queue() {
    let (server, addr) = server();
    let activated = TcpListener::bind("127.0.0.1:0").unwrap();
    let listen = activated.local_addr().unwrap();
    let mut early = TcpStream::connect(listen).unwrap();
    early.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut command = Command::new("sh");
    command
        .args(["-c", "LISTEN_PID=$$ LISTEN_FDS=1 exec \"$0\" \"$@\" 3<&0"])
        .arg(env!("CARGO_BIN_EXE_taut"))
        .args(["relay", "--listen", &listen.to_string()])
        .args(["--to", &addr.to_string()])
        .stdin(Stdio::from(std::os::fd::OwnedFd::from(activated)));
    let relay = Running::run(&mut command);
    assert_eq!(relay.listen, listen);
    let (mut far, _) = server.accept().unwrap();
    far.write_all(b"welcome").unwrap();
    drop(far);
    let mut got = Vec::new();
    early.shutdown(std::net::Shutdown::Write).unwrap();
    early.read_to_end(&mut got).unwrap();
    assert_eq!(got, b"welcome");
    drop(pair(&relay, &server));
}

/// Returns a command that starts a relay with a socket of the service manager.
fn with_socket(socket: TcpListener, config: &Path) -> Command {
    let mut command = Command::new("sh");
    command
        .args(["-c", "LISTEN_PID=$$ LISTEN_FDS=1 exec \"$0\" \"$@\" 3<&0"])
        .arg(env!("CARGO_BIN_EXE_taut"))
        .args(["relay", "--config"])
        .arg(config)
        .stdin(Stdio::from(std::os::fd::OwnedFd::from(socket)));
    command
}

#[test]
fn a_dual_stack_socket_of_the_service_manager_serves_both_families_of_a_bare_port() {
    enter_private_network();
    let (server, addr) = server();
    let dir = tempfile::tempdir().unwrap();
    let (config, log) = (dir.path().join("taut.toml"), dir.path().join("sessions"));
    let text = |more: &str| {
        format!(
            "[relay]\ncontrol = \"off\"\nsession_log = {log:?}\n[[relay.forward]]\nlisten = \":8080\"\n\
             to = \"{addr}\"\nfrom = [\"127.0.0.1/32\", \"::1/128\"]\n{more}"
        )
    };
    fs::write(&config, text("")).unwrap();
    // As ListenStream=8080 is bound.
    let socket = TcpListener::bind("[::]:8080").unwrap();
    let mut relay = Running::run(&mut with_socket(socket, &config));
    let serves_both = || {
        for host in ["127.0.0.1:8080", "[::1]:8080"] {
            let mut client = TcpStream::connect(host).unwrap();
            let (far, _) = server.accept().unwrap();
            drop(far);
            client.set_read_timeout(Some(PATIENCE)).unwrap();
            assert_eq!(client.read(&mut [0]).unwrap(), 0, "{host}");
        }
    };
    serves_both();
    fs::write(&config, text("not_from = [\"127.0.0.9/32\"]\n")).unwrap();
    relay.signal(Signal::HUP);
    relay.wait_for_log("has been read again");
    serves_both();
    relay.signal(Signal::TERM);
    let (code, said) = relay.end();
    assert_eq!(code, Some(0), "{said}");
    let log = fs::read_to_string(log).unwrap();
    let of = |client: &str| log.matches(&format!("\"client\":\"{client}:")).count();
    assert_eq!((of("127.0.0.1"), of("[::1]")), (2, 2), "{log}");
}

#[test]
fn a_socket_of_the_service_manager_at_another_address_is_named_in_the_error() {
    enter_private_network();
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("taut.toml");
    let text = "[relay]\ncontrol = \"off\"\n[[relay.forward]]\nlisten = \"127.0.0.1:8080\"\nto = \"127.0.0.1:9\"\n";
    fs::write(&config, text).unwrap();
    let socket = TcpListener::bind("[::]:8080").unwrap();
    let output = with_socket(socket, &config).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stderr).unwrap();
    assert_one_sentence(&said, "a socket at [::]:8080 has been passed");
}

#[test]
fn a_relay_that_switches_user_can_still_reload() {
    if !rustix::process::geteuid().is_root() {
        return skip("only root has privileges to drop");
    }
    let (server, addr) = server();
    let file = tempfile::NamedTempFile::new().unwrap();
    let permissions = std::os::unix::fs::PermissionsExt::from_mode(0o644);
    fs::set_permissions(file.path(), permissions).unwrap();
    let forward = format!("[[relay.forward]]\nlisten = \"127.0.0.1:0\"\nto = \"{addr}\"\n");
    fs::write(
        file.path(),
        format!("[relay]\nuser = \"nobody\"\n{forward}"),
    )
    .unwrap();
    let mut relay = Running::with_config(file.path());
    let status = fs::read_to_string(format!("/proc/{}/status", relay.child.id())).unwrap();
    let field = |name: &str| {
        let line = status.lines().find_map(|l| l.strip_prefix(name)).unwrap();
        line.trim_start_matches(':').trim().to_owned()
    };
    assert!(!field("Uid").starts_with('0'), "{status}");
    assert_eq!(field("NoNewPrivs"), "1");
    // Plain forwards on ports from 1024 on need none.
    assert_eq!(u64::from_str_radix(&field("CapEff"), 16), Ok(0), "{status}");
    drop(pair(&relay, &server));
    let more = forward.replace("127.0.0.1:0", "127.0.0.6:0");
    fs::write(
        file.path(),
        format!("[relay]\nuser = \"nobody\"\n{forward}{more}"),
    )
    .unwrap();
    relay.signal(Signal::HUP);
    relay.wait_for_log("has been read again");
    drop(pair(&relay, &server));
}
