//! `taut relay` as a process: errors of its configuration, reload, handover, draining, and being killed.
#![allow(clippy::unwrap_used, reason = "in a test, a panic is the report")]

use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// The time limit of every wait in these tests.
const PATIENCE: Duration = Duration::from_secs(30);

fn taut() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_taut"));
    command
        .arg("relay")
        .stdin(Stdio::null())
        .env_remove("TAUT_LOG");
    command
}

/// Runs the relay with this configuration until it exits by itself.
fn refused(config: &str) -> (Output, String) {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(&file, config).unwrap();
    let output = taut().arg("--config").arg(file.path()).output().unwrap();
    let said = String::from_utf8(output.stderr.clone()).unwrap();
    (output, said)
}

/// Checks that standard error has exactly one error message, and that it contains `part`.
fn assert_one_sentence(said: &str, part: &str) {
    let lines: Vec<&str> = said.lines().filter(|l| l.starts_with("taut: ")).collect();
    assert_eq!(lines.len(), 1, "{said}");
    assert!(lines[0].contains(part), "no `{part}` in: {said}");
    assert!(!said.contains("panicked"), "{said}");
}

/// A running relay.
struct Running {
    child: Child,
    listen: SocketAddr,
    /// Its standard error. `None` if the read end is closed.
    said: Option<BufReader<std::process::ChildStderr>>,
}

impl Running {
    /// Starts a relay from a free port to `to`.
    fn start(to: SocketAddr, more: &[&str]) -> Self {
        let to = to.to_string();
        let args = ["--listen", "127.0.0.1:0", "--to", &to];
        Self::run(taut().args(args).args(more))
    }

    /// Starts a relay with this configuration file.
    fn with_config(config: &Path) -> Self {
        Self::run(taut().arg("--config").arg(config))
    }

    fn run(command: &mut Command) -> Self {
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
                relay.listen = rest.split_whitespace().next().unwrap().parse().unwrap();
            }
            seen.push_str(&line);
        }
        relay
    }

    /// Reads its log up to a line that contains `part`.
    fn wait_for_log(&mut self, part: &str) -> String {
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

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, signal).unwrap();
    }

    fn end(mut self) -> (Option<i32>, String) {
        let mut said = String::new();
        self.said.take().unwrap().read_to_string(&mut said).unwrap();
        (self.child.wait().unwrap().code(), said)
    }

    /// Returns the number of its open sockets. (It keeps pipes for the next transfer.)
    fn sockets(&self) -> usize {
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

fn pair(relay: &Running, server: &TcpListener) -> (TcpStream, TcpStream) {
    let client = TcpStream::connect(relay.listen).unwrap();
    let (far, _) = server.accept().unwrap();
    for s in [&client, &far] {
        s.set_read_timeout(Some(PATIENCE)).unwrap();
    }
    (client, far)
}

fn server() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    (listener, addr)
}

const FORWARD: &str = "[[relay.forward]]\nlisten = \"127.0.0.1:0\"\nto = \"127.0.0.1:9\"\n";

#[test]
fn a_mistake_in_the_configuration_is_one_message_with_its_line() {
    for (config, part) in [
        (
            format!("[relay]\nworker = 2\n{FORWARD}"),
            ":2: relay.worker: unknown field `worker`",
        ),
        (
            "[[relay.forward]]\nlisten = \"here\"\nto = \"x:1\"\n".into(),
            ":2: relay.forward[0].listen[0]: `here`",
        ),
        (
            "[[relay.forward]]\nlisten = \":1\"\nto = \"x\"\n".into(),
            ":3: relay.forward[0].to: `x`",
        ),
        ("[relay]\nworkers = 2\n".into(), "no [[relay.forward]]"),
        (
            format!("{0}{0}", FORWARD.replace("127.0.0.1:0", "127.0.0.1:99")),
            ":5: relay.forward[1].listen[0]: 127.0.0.1:99 is in relay.forward[0].listen[0] already",
        ),
        (
            format!("{FORWARD}name = \"a\"\n{FORWARD}name = \"a\"\n"),
            ":8: relay.forward[1].name: `a` is the name of relay.forward[0] already",
        ),
        (
            format!("{FORWARD}name = \"mesh\"\n"),
            ":4: relay.forward[0].name: `mesh`",
        ),
        (
            format!("{FORWARD}upstream_dscp = 64\n"),
            ":4: relay.forward[0].upstream_dscp: must be from 0 to 63",
        ),
        ("[relay\n".into(), ":1: "),
    ] {
        let (output, said) = refused(&config);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert_one_sentence(&said, part);
    }
}

#[test]
fn a_file_that_is_not_text_is_refused() {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(&file, [0xff, 0xfe, 0x00]).unwrap();
    let output = taut().arg("--config").arg(file.path()).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert_one_sentence(&String::from_utf8(output.stderr).unwrap(), "cannot read");
}

#[test]
fn a_port_in_use_is_one_message() {
    let (_holder, addr) = server();
    let config = FORWARD.replace("127.0.0.1:0", &addr.to_string());
    let (output, said) = refused(&config);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert_one_sentence(
        &said,
        &format!("cannot listen on {addr}: the port is in use"),
    );
}

#[test]
fn a_metrics_port_in_use_is_one_message() {
    let (_holder, addr) = server();
    let (output, said) = refused(&format!("[relay]\nmetrics = \"{addr}\"\n{FORWARD}"));
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert_one_sentence(&said, &format!("cannot serve metrics on {addr}"));
}

#[test]
fn a_destination_without_an_address_is_one_message() {
    let (output, said) = refused(&FORWARD.replace("127.0.0.1:9", "nowhere.invalid:80"));
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert_one_sentence(&said, "cannot look up `nowhere.invalid:80`");
}

#[test]
fn too_few_descriptors_are_one_message() {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(&file, format!("[relay]\nmax_sessions = 1000\n{FORWARD}")).unwrap();
    let output = Command::new("sh")
        .args(["-c", "ulimit -n 256 && exec \"$0\" relay --config \"$1\""])
        .arg(env!("CARGO_BIN_EXE_taut"))
        .arg(file.path())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stderr).unwrap();
    assert_one_sentence(&said, "file descriptors and this process may open 256");
}

#[test]
fn a_second_relay_on_the_same_port_is_refused() {
    let (_server, addr) = server();
    let first = Running::start(addr, &[]);
    let output = taut()
        .args(["--listen", &first.listen.to_string(), "--to", "127.0.0.1:9"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert_one_sentence(
        &String::from_utf8(output.stderr).unwrap(),
        "the port is in use",
    );
}

#[test]
fn sigterm_lets_the_open_session_end_before_the_process() {
    let (server, addr) = server();
    let relay = Running::start(addr, &[]);
    let (mut client, mut far) = pair(&relay, &server);
    relay.signal(Signal::TERM);
    client.write_all(b"last words").unwrap();
    client.shutdown(std::net::Shutdown::Write).unwrap();
    let mut got = Vec::new();
    far.read_to_end(&mut got).unwrap();
    assert_eq!(got, b"last words");
    drop(far);
    assert_eq!(client.read(&mut [0]).unwrap(), 0);
    let (code, said) = relay.end();
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("all sessions have ended"), "{said}");
}

#[test]
fn sighup_reloads_the_configuration_and_sessions_continue() {
    let (server, addr) = server();
    let (other, other_addr) = self::server();
    let file = tempfile::NamedTempFile::new().unwrap();
    let forward = |listen: &str, to: SocketAddr| {
        format!("[[relay.forward]]\nlisten = \"{listen}\"\nto = \"{to}\"\n")
    };
    fs::write(file.path(), forward("127.0.0.1:0", addr)).unwrap();
    let mut relay = Running::with_config(file.path());
    let (mut client, mut far) = pair(&relay, &server);

    // A mistake changes nothing and is logged with its line.
    fs::write(file.path(), "[relay]\nworker = 2\n").unwrap();
    relay.signal(Signal::HUP);
    let said = relay.wait_for_log("keeping the former configuration");
    assert!(said.contains(":2: relay.worker: unknown field"), "{said}");
    drop(pair(&relay, &server));

    let text = "[relay]\nworkers = 13\nmax_pipes = 3\n".to_owned()
        + &forward("127.0.0.1:0", addr)
        + &forward("127.0.0.5:0", other_addr);
    fs::write(file.path(), text).unwrap();
    relay.signal(Signal::HUP);
    let said = relay.wait_for_log("has been read again");
    for part in ["relay.workers cannot be changed", "max_pipes cannot be"] {
        assert_eq!(said.matches(part).count(), 1, "no `{part}` in: {said}");
    }
    let (_, rest) = said.split_once("listen=127.0.0.5:").unwrap();
    let port: u16 = rest.split_whitespace().next().unwrap().parse().unwrap();
    let through_new = TcpStream::connect(("127.0.0.5", port)).unwrap();
    other.accept().unwrap();
    drop(through_new);

    fs::write(file.path(), forward("127.0.0.5:0", other_addr)).unwrap();
    relay.signal(Signal::HUP);
    relay.wait_for_log("has been read again");
    let deadline = Instant::now() + PATIENCE;
    while TcpListener::bind(relay.listen).is_err() {
        assert!(Instant::now() < deadline, "the old port stays open");
    }
    client.write_all(b"still here").unwrap();
    client.shutdown(std::net::Shutdown::Write).unwrap();
    let mut got = Vec::new();
    far.read_to_end(&mut got).unwrap();
    assert_eq!(got, b"still here");
}

#[test]
fn a_check_exits_without_a_relay_and_says_what_prevents_one() {
    let (_holder, taken) = server();
    let check = |config: &str| {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(&file, config).unwrap();
        let args = [Path::new("--check"), Path::new("--config"), file.path()];
        let output = taut().args(args).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        (output.status.code(), said)
    };
    // The port is in use, as it is while the relay runs.
    let running = FORWARD.replace("127.0.0.1:0", &taken.to_string());
    assert_eq!(check(&running), (Some(0), String::new()));
    let (code, said) = check(&FORWARD.replace("127.0.0.1:9", "nowhere.invalid:80"));
    assert_eq!(code, Some(1));
    assert_one_sentence(&said, "cannot look up `nowhere.invalid:80`");
    let (code, said) = check("[relay]\nworker = 2\n");
    assert_eq!(code, Some(2));
    assert_one_sentence(&said, "unknown field `worker`");
}

#[test]
fn a_check_of_peers_dials_each_relay_and_says_who_does_not_accept_this_one() {
    let files = MeshFiles::new();
    let check = || {
        let mut check = taut();
        let output = check
            .arg("--check=peers")
            .arg("--config")
            .arg(files.config())
            .output();
        let output = output.unwrap();
        let said = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8(said).unwrap())
    };
    let (code, said) = check();
    assert_eq!(code, Some(1));
    assert_one_sentence(&said, "refuses connections");
    // The next relay knows this one, and then it does not.
    for (known, expected) in [("own", 0), ("third", 1)] {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        files.list_at(&path("members.toml"), &["next", known]);
        let mesh = format!(
            "[relay.mesh]\nprivate_key_file = {:?}\nmembers_file = {:?}\nlisten = \"{}\"\nallow = \"127.0.0.1:9\"\n",
            files.dir.path().join("next"),
            path("members.toml"),
            files.next,
        );
        fs::write(path("taut.toml"), format!("{FORWARD}{mesh}")).unwrap();
        let _next = Running::with_config(&path("taut.toml"));
        let (code, said) = check();
        assert_eq!(code, Some(expected), "{said}");
        match expected {
            0 => assert!(said.contains("ready after"), "{said}"),
            _ => assert_one_sentence(&said, "does not accept this relay's key"),
        }
    }
}

#[test]
fn a_log_level_that_does_not_exist_is_refused() {
    let args = ["--listen", "127.0.0.1:0", "--to", "127.0.0.1:9"];
    let output = taut()
        .env("TAUT_LOG", "verbose")
        .args(args)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert_one_sentence(
        &String::from_utf8(output.stderr).unwrap(),
        "TAUT_LOG: `verbose`",
    );
}

#[test]
fn a_reload_logs_only_what_changes() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let other = FORWARD.replace("127.0.0.1:0", "127.0.0.5:0");
    fs::write(file.path(), format!("{FORWARD}{other}")).unwrap();
    let mut relay = Running::with_config(file.path());
    relay.wait_for_log("listen=127.0.0.5:");
    fs::write(file.path(), FORWARD).unwrap();
    relay.signal(Signal::HUP);
    let said = relay.wait_for_log("has been read again");
    assert_eq!(said.matches("forwarding").count(), 1, "{said}");
    assert!(
        said.contains("no longer forwarding listen=127.0.0.5:"),
        "{said}"
    );
}

/// Runs a command to the relay with this control socket, and returns its exit status and output.
fn operate(control: &Path, args: &[&str]) -> (Option<i32>, String) {
    let control = control.to_str().unwrap();
    let command = taut()
        .args(args)
        .args(["--control", control])
        .output()
        .unwrap();
    let said = [command.stdout, command.stderr].concat();
    (command.status.code(), String::from_utf8(said).unwrap())
}

fn get(addr: SocketAddr, path: &str) -> String {
    let mut scraper = TcpStream::connect(addr).unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    scraper.write_all(request.as_bytes()).unwrap();
    let mut page = String::new();
    scraper.read_to_string(&mut page).unwrap();
    page
}

#[test]
fn an_operator_lists_ends_and_drains_over_the_control_socket() {
    let (server, addr) = server();
    let dir = tempfile::tempdir().unwrap();
    let (config, control) = (dir.path().join("taut.toml"), dir.path().join("control"));
    let (listen, metrics) = (free_port(), free_port());
    let text = format!(
        "[relay]\ncontrol = {control:?}\nmetrics = \"{metrics}\"\n\
         [[relay.forward]]\nname = \"web\"\nlisten = \"{listen}\"\nto = \"{addr}\"\n"
    );
    fs::write(&config, &text).unwrap();
    let mut relay = Running::with_config(&config);
    relay.wait_for_log("serving OpenMetrics");
    let (mut first, mut first_far) = pair(&relay, &server);
    first.write_all(b"12345").unwrap();
    first_far.read_exact(&mut [0; 5]).unwrap();
    let (mut second, _far) = pair(&relay, &server);
    let run = |args: &[&str]| operate(&control, args);
    // The relay opens the socket after its ports.
    let deadline = Instant::now() + PATIENCE;
    while !control.exists() {
        assert!(Instant::now() < deadline, "no control socket");
        std::thread::yield_now();
    }

    let port = first.local_addr().unwrap().port();
    let session_of = |port: u16| {
        let (code, said) = run(&["sessions", "--json", "--client", "127.0.0.1"]);
        assert_eq!(code, Some(0), "{said}");
        let list: serde_json::Value = serde_json::from_str(&said).unwrap();
        assert_eq!(list["sessions"]["matching"], 2, "{said}");
        let rows = list["sessions"]["sessions"].as_array().unwrap().clone();
        let client = format!("127.0.0.1:{port}");
        rows.into_iter()
            .find(|row| row["client"] == *client)
            .unwrap()
    };
    let row = session_of(port);
    assert_eq!(row["to_upstream"], 5, "{row}");
    assert_eq!(row["upstream"], addr.to_string(), "{row}");
    assert_eq!(
        (&row["state"], &row["forward"]),
        (&"relaying".into(), &"web".into())
    );
    let (_, said) = run(&["sessions", "--forward", "other"]);
    assert_eq!(said.lines().count(), 1, "{said}");

    // One session ends, the other goes on.
    let other = session_of(second.local_addr().unwrap().port());
    let (code, said) = run(&["end", "--session", other["id"].as_str().unwrap()]);
    assert_eq!((code, said.as_str()), (Some(0), "1 sessions reset\n"));
    let error = second.read(&mut [0]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    let (code, said) = run(&["end"]);
    assert_eq!(code, Some(1));
    assert_one_sentence(&said, "name the sessions to end");

    // A drained forward refuses connections until the drain is undone.
    let (code, said) = run(&["drain", "--forward", "nothing"]);
    assert_eq!(code, Some(1));
    assert_one_sentence(&said, "there is no forward `nothing`");
    assert_eq!(run(&["drain", "--forward", "web"]).0, Some(0));
    while TcpListener::bind(listen).is_err() {
        assert!(Instant::now() < deadline, "the port stays open");
    }
    let (_, said) = run(&["status"]);
    assert!(said.contains("web: drained"), "{said}");
    assert!(said.contains("nothing is broken"), "{said}");
    assert_eq!(run(&["reload"]).0, Some(0));
    TcpStream::connect(listen).unwrap_err();
    assert_eq!(run(&["drain", "--forward", "web", "--undo"]).0, Some(0));
    drop(pair(&relay, &server));
    first.write_all(b"6").unwrap();
    first_far.read_exact(&mut [0; 1]).unwrap();

    // The result of a reload comes back.
    fs::write(&config, "[relay]\nworker = 2\n").unwrap();
    let (code, said) = run(&["reload"]);
    assert_eq!(code, Some(1));
    assert_one_sentence(&said, ":2: relay.worker: unknown field");
    fs::write(&config, text.replace("[relay]", "[relay]\nworkers = 13")).unwrap();
    let (code, said) = run(&["reload"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("relay.workers cannot be changed"), "{said}");

    assert!(get(metrics, "/readyz").starts_with("HTTP/1.1 200"));
    assert_eq!(run(&["drain"]).0, Some(0));
    while !get(metrics, "/readyz").starts_with("HTTP/1.1 503") {
        assert!(Instant::now() < deadline, "ready although it drains");
    }
    assert!(get(metrics, "/healthz").starts_with("HTTP/1.1 200"));
    let (_, said) = run(&["status"]);
    assert!(said.contains("draining"), "{said}");
    drop((first, first_far));
    let (code, said) = relay.end();
    assert_eq!(code, Some(0), "{said}");
    let (code, said) = run(&["status"]);
    assert_eq!(code, Some(1));
    assert_one_sentence(&said, "cannot connect");
}

#[test]
fn an_operator_leads_sessions_around_a_relay() {
    let (server, addr) = server();
    let files = MeshFiles::new();
    // It accepts connections and says nothing.
    let next = TcpListener::bind(files.next).unwrap();
    let control = files.dir.path().join("control");
    let config = fs::read_to_string(files.config()).unwrap();
    let config = config.replace("127.0.0.1:9", &addr.to_string());
    let config = config.replace("via =", "direct = true\nvia =");
    let config = format!("[relay]\ncontrol = {control:?}\nconnect_timeout = \"60s\"\n{config}");
    fs::write(files.config(), config).unwrap();
    let relay = Running::with_config(&files.config());
    drop(next.accept().unwrap());
    let deadline = Instant::now() + PATIENCE;
    while !control.exists() {
        assert!(Instant::now() < deadline, "no control socket");
        std::thread::yield_now();
    }
    let run = |args: &[&str]| operate(&control, args);
    let (code, said) = run(&["drain", "--peer", "nobody"]);
    assert_eq!(code, Some(1));
    assert_one_sentence(&said, "no forward leads through a relay `nobody`");
    let (code, said) = run(&["drain", "--peer", "next"]);
    assert_eq!(code, Some(0), "{said}");
    let (_, said) = run(&["status"]);
    assert!(
        said.contains("next: drained; 0 connections ready"),
        "{said}"
    );
    // The first of them does not wait for the silent relay.
    drop(pair(&relay, &server));
    assert_eq!(run(&["reload"]).0, Some(0));
    drop(pair(&relay, &server));
    assert_eq!(run(&["drain", "--peer", "next", "--undo"]).0, Some(0));
    let (_, said) = run(&["status"]);
    assert!(said.contains("next: 0 connections ready"), "{said}");
    assert_eq!(run(&["drain", "--peer", "next", "--undo"]).0, Some(1));
}

#[test]
fn connections_to_the_destination_come_from_the_configured_addresses() {
    let (server, addr) = server();
    let file = tempfile::NamedTempFile::new().unwrap();
    let config = FORWARD.replace("127.0.0.1:9", &addr.to_string());
    let more = "upstream_address = [\"127.0.0.8\", \"127.0.0.9\"]\nupstream_dscp = 46\n";
    fs::write(
        file.path(),
        format!("[relay]\nuser_timeout = \"20s\"\n{config}{more}"),
    )
    .unwrap();
    let relay = Running::with_config(file.path());
    let mut from: Vec<_> = (0..2)
        .map(|_| {
            pair(&relay, &server)
                .1
                .peer_addr()
                .unwrap()
                .ip()
                .to_string()
        })
        .collect();
    from.sort();
    assert_eq!(from, ["127.0.0.8", "127.0.0.9"]);
}

#[test]
fn a_device_or_source_address_that_does_not_exist_is_one_message() {
    for (setting, part) in [
        (
            "upstream_device = \"no-such\"",
            "cannot use relay.forward, upstream_device",
        ),
        (
            "upstream_address = \"192.0.2.1\"",
            "cannot use relay.forward, upstream_address",
        ),
    ] {
        let (output, said) = refused(&format!("{FORWARD}{setting}\n"));
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert_one_sentence(&said, part);
    }
}

#[test]
fn a_dead_destination_is_one_warning_and_its_return_one_line_with_the_count() {
    let to = free_port();
    let mut relay = Running::start(to, &[]);
    let listen = relay.listen;
    let refused = |count| {
        for _ in 0..count {
            let mut client = TcpStream::connect(listen).unwrap();
            client.set_read_timeout(Some(PATIENCE)).unwrap();
            let error = client.read(&mut [0]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        }
    };
    refused(1);
    let said = relay.wait_for_log("refuses connections");
    assert!(
        said.contains(&format!(
            "WARN forward {listen}: {to} refuses connections; 1 session reset"
        )),
        "{said}"
    );
    refused(4);
    let server = TcpListener::bind(to).unwrap();
    // Enough successes for a recovery even if the failures fall into the same second.
    let server = std::thread::spawn(move || {
        let mut held = Vec::new();
        while let Ok((mut far, _)) = server.accept() {
            if far.read(&mut [0; 4]).is_ok_and(|n| n == 4) {
                return;
            }
            held.push(far);
        }
    });
    let clients: Vec<_> = (0..40)
        .map(|_| TcpStream::connect(listen).unwrap())
        .collect();
    let said = relay.wait_for_log("accepts connections again");
    assert_eq!(said.matches("WARN").count(), 0, "{said}");
    assert!(said.contains("5 sessions were reset meanwhile"), "{said}");
    drop(clients);
    TcpStream::connect(listen)
        .unwrap()
        .write_all(b"stop")
        .unwrap();
    server.join().unwrap();
}

#[test]
fn clients_that_are_refused_are_one_warning_with_an_example() {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(&file, format!("{FORWARD}not_from = \"127.0.0.0/8\"\n")).unwrap();
    let mut relay = Running::with_config(file.path());
    let mut client = TcpStream::connect(relay.listen).unwrap();
    client.read(&mut [0]).unwrap_err();
    let said = relay.wait_for_log("refuses clients");
    let listen = relay.listen;
    let part = format!(
        "WARN forward {listen} refuses clients (source_denied); 1 client reset so far, the last from 127.0.0.1"
    );
    assert!(said.contains(&part), "{said}");
    for _ in 0..50 {
        let mut client = TcpStream::connect(listen).unwrap();
        client.read(&mut [0]).unwrap_err();
    }
    relay.signal(Signal::TERM);
    let (_, said) = relay.end();
    assert!(!said.contains("refuse"), "{said}");
}

/// A relay `own` that goes through `next`, at an address where nobody listens.
struct MeshFiles {
    dir: tempfile::TempDir,
    next: SocketAddr,
    /// The public keys of `own`, `next` and `third`.
    keys: [String; 3],
}

impl MeshFiles {
    fn new() -> Self {
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
        let files = Self {
            dir,
            next: free_port(),
            keys,
        };
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

    fn config(&self) -> PathBuf {
        self.dir.path().join("taut.toml")
    }

    /// Writes the list of these members.
    fn list(&self, names: &[&str]) {
        self.list_at(&self.dir.path().join("members.toml"), names);
    }

    fn list_at(&self, path: &Path, names: &[&str]) {
        let member = |name: &&str| {
            let place = ["own", "next", "third"].iter().position(|n| n == name);
            let key = &self.keys[place.unwrap()];
            let addresses = match *name {
                "next" => format!("[\"{}\"]", self.next),
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

#[test]
fn a_next_relay_that_does_not_answer_is_a_warning_without_any_session() {
    let files = MeshFiles::new();
    let mut relay = Running::with_config(&files.config());
    let said = relay.wait_for_log("next relay");
    let part = "WARN next relay next refuses connections; 0 sessions reset";
    assert!(said.contains(part), "{said}");
}

#[test]
fn a_changed_list_of_members_is_adopted_but_not_one_that_has_lost_most_of_them() {
    let files = MeshFiles::new();
    files.list(&["own", "next", "third"]);
    let mut relay = Running::with_config(&files.config());
    files.list(&["own", "next"]);
    relay.wait_for_log("members.toml has changed: 2 members");
    files.list(&["own", "next", "third"]);
    relay.wait_for_log("members.toml has changed: 3 members");
    // The configuration still names it, which must not keep it from being revoked.
    files.list(&["own", "third"]);
    relay.wait_for_log("WARN next is no longer a member");
    relay.wait_for_log("members.toml has changed: 2 members");
    files.list(&["own", "next", "third"]);
    relay.wait_for_log("members.toml has changed: 3 members");
    files.list(&["own"]);
    let said = relay.wait_for_log("members.toml has 1 members and had 3: keeping the former list");
    assert!(!said.contains("has changed"), "{said}");
    fs::write(files.dir.path().join("members.toml"), "[[member]]\n").unwrap();
    relay.wait_for_log("keeping the former list of members");
}

#[test]
fn an_address_that_the_machine_gets_is_known_at_once() {
    if !rustix::process::geteuid().is_root() {
        println!("not tested: only root makes network namespaces");
        return;
    }
    let taut = taut();
    let start = "ip link set lo up && exec \"$@\"";
    let mut own = Command::new("unshare");
    own.args(["--net", "sh", "-c", start, "sh"]);
    own.arg(taut.get_program()).args(taut.get_args());
    own.args(["--listen", "127.0.0.1:0", "--to", "127.0.0.1:9"]);
    let mut relay = Running::run(&mut own);
    let place = format!("--net=/proc/{}/ns/net", relay.child.id());
    let added = Command::new("nsenter")
        .args([&place, "ip", "address", "add", "192.0.2.1/32", "dev", "lo"])
        .status();
    assert!(added.unwrap().success());
    relay.wait_for_log("the addresses of this machine have changed");
}

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

/// Returns the address of a port that is free now.
fn free_port() -> SocketAddr {
    server().1
}

#[test]
fn a_new_process_takes_over_under_load_without_losing_a_connection() {
    let (server, addr) = server();
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("taut.toml");
    let (listen, metrics) = (free_port(), free_port());
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
    let served = AtomicUsize::new(0);
    std::thread::scope(|s| {
        let server = server.try_clone().unwrap();
        let (stop, done, served) = (&stop, &done, &served);
        s.spawn(move || {
            while !done.load(Ordering::SeqCst) {
                let (mut far, _) = server.accept().unwrap();
                let _ = far.write_all(b"welcome");
            }
        });
        let client_loop = |_| {
            s.spawn(move || {
                while !stop.load(Ordering::SeqCst) {
                    let mut client = TcpStream::connect(listen).unwrap();
                    client.set_read_timeout(Some(PATIENCE)).unwrap();
                    let mut got = Vec::new();
                    client.read_to_end(&mut got).unwrap();
                    assert_eq!(got, b"welcome");
                    served.fetch_add(1, Ordering::SeqCst);
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
            let (before, deadline) = (served.load(Ordering::SeqCst), Instant::now() + PATIENCE);
            while served.load(Ordering::SeqCst) < before + 50 {
                assert!(Instant::now() < deadline, "no client is served any more");
                std::thread::yield_now();
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
    let (server, addr) = server();
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("taut.toml");
    let listen = free_port();
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

#[test]
fn a_relay_that_switches_user_keeps_the_privileges_for_a_reload() {
    if !rustix::process::geteuid().is_root() {
        println!("not tested: only root has privileges to drop");
        return;
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
    // CAP_NET_BIND_SERVICE is 10, CAP_NET_ADMIN 12 (linux/capability.h).
    let kept = 1 << 10 | 1 << 12;
    assert_eq!(
        u64::from_str_radix(&field("CapEff"), 16),
        Ok(kept),
        "{status}"
    );
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

#[test]
fn a_closed_log_does_not_end_the_relay() {
    let (server, addr) = server();
    let mut relay = Running::start(addr, &[]);
    let (mut client, mut far) = pair(&relay, &server);
    relay.said = None;
    relay.signal(Signal::HUP);
    relay.signal(Signal::TERM);
    client.write_all(b"still").unwrap();
    client.shutdown(std::net::Shutdown::Write).unwrap();
    let mut got = Vec::new();
    far.read_to_end(&mut got).unwrap();
    assert_eq!(got, b"still");
    drop(far);
    assert_eq!(client.read(&mut [0]).unwrap(), 0);
    assert_eq!(relay.child.wait().unwrap().code(), Some(0));
}

#[test]
fn draining_serves_every_connection_that_the_kernel_has_accepted() {
    const CLIENTS: usize = 300;
    let (server, addr) = server();
    let relay = Running::start(addr, &[]);
    // While it is stopped, the kernel completes handshakes for its listener.
    relay.signal(Signal::STOP);
    let clients: Vec<_> = (0..CLIENTS)
        .map(|_| TcpStream::connect(relay.listen).unwrap())
        .collect();
    relay.signal(Signal::TERM);
    relay.signal(Signal::CONT);
    let served = std::thread::spawn(move || {
        for _ in 0..CLIENTS {
            let (mut far, _) = server.accept().unwrap();
            far.write_all(b"welcome").unwrap();
        }
    });
    for mut client in clients {
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut got = Vec::new();
        client.read_to_end(&mut got).unwrap();
        assert_eq!(got, b"welcome");
    }
    served.join().unwrap();
    assert_eq!(relay.end().0, Some(0));
}

#[test]
fn a_second_signal_resets_the_remaining_sessions() {
    let (server, addr) = server();
    let relay = Running::start(addr, &[]);
    let (mut client, mut far) = pair(&relay, &server);
    relay.signal(Signal::TERM);
    relay.signal(Signal::INT);
    for end in [&mut client, &mut far] {
        assert_eq!(
            end.read(&mut [0]).unwrap_err().kind(),
            ErrorKind::ConnectionReset
        );
    }
    let (code, said) = relay.end();
    assert_eq!(code, Some(0), "{said}");
}

#[test]
fn a_killed_relay_resets_its_sessions_and_never_ends_them_in_order() {
    let (server, addr) = server();
    let relay = Running::start(addr, &[]);
    let (mut client, mut far) = pair(&relay, &server);
    far.write_all(b"half of a fi").unwrap();
    let mut got = [0; 12];
    client.read_exact(&mut got).unwrap();
    relay.signal(Signal::KILL);
    for end in [&mut client, &mut far] {
        assert_eq!(
            end.read(&mut [0]).unwrap_err().kind(),
            ErrorKind::ConnectionReset
        );
    }
}

#[test]
fn ended_sessions_leave_no_open_descriptor() {
    let (server, addr) = server();
    let mut relay = Running::start(addr, &["--metrics", "127.0.0.1:0"]);
    // The metrics listener is the last socket that it opens.
    relay.wait_for_log("serving OpenMetrics");
    let before = relay.sockets();
    let bulk = vec![7; 4 << 20];
    for round in 0..30 {
        let (mut client, mut far) = pair(&relay, &server);
        match round % 3 {
            // A complete session, with enough data for a pipe.
            0 => std::thread::scope(|s| {
                s.spawn(|| {
                    client.write_all(&bulk).unwrap();
                    client.shutdown(std::net::Shutdown::Write).unwrap();
                });
                let mut got = Vec::new();
                far.read_to_end(&mut got).unwrap();
                assert_eq!(got.len(), bulk.len());
            }),
            // The receiver closes during a transfer, while a pipe contains bytes.
            1 => {
                client.set_nonblocking(true).unwrap();
                while client.write(&bulk).is_ok() {}
                drop(far);
                continue;
            }
            // The sender closes during a transfer.
            _ => {
                client.set_nonblocking(true).unwrap();
                while client.write(&bulk).is_ok() {}
                drop(client);
                let _ = far.read_to_end(&mut Vec::new());
                continue;
            }
        }
    }
    let deadline = Instant::now() + PATIENCE;
    while relay.sockets() > before && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(relay.sockets(), before);
}
