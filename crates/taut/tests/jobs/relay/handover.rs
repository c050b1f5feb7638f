//! A new process takes over from the old one, or from the service manager.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;

use rustix::process::Signal;
use taut_sys_testing::network::enter_private_network;
use taut_sys_testing::skip::skip;

use crate::relay::rig::{PATIENCE, Running, address, assert_one_sentence, pair, server, taut};

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
