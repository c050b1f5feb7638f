//! `taut mesh dns` as a process, asked by `dig` and by a resolver in front of it.

use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use taut_sys_testing::network::enter_private_network;
use taut_sys_testing::skip::{has_programs, skip};

/// The time limit of every wait in these tests.
const PATIENCE: Duration = Duration::from_secs(30);

/// The address and port of the server, which each test has in a network of its own.
const ADDRESS: &str = "127.0.0.1";
const PORT: u16 = 5353;

/// Where the server serves its metrics, if a test sets them.
const METRICS: &str = "127.0.0.1:9467";

/// Moves the test into a private network. Returns whether it can run: without `programs` it is reported as
/// skipped.
fn is_ready(programs: &[&str]) -> bool {
    enter_private_network();
    has_programs(programs)
}

/// A running server, with a relay `fra1` near to 198.51.100.0/24 and `nyc1` near to 203.0.113.0/24.
struct Server {
    child: Child,
    said: BufReader<ChildStderr>,
    /// What it has said so far.
    log: String,
    dir: tempfile::TempDir,
}

impl Server {
    /// Starts a server. `settings` are keys of `[mesh.dns]`, `probe` is that of `fra1`.
    fn start(settings: &str, probe: Option<&str>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let rtt = "fra1 198.51.100.0/24 10\nfra1 203.0.113.0/24 90\nnyc1 203.0.113.0/24 12\n";
        fs::write(dir.path().join("rtt.txt"), rtt).unwrap();
        write_config(dir.path().join("taut.toml"), settings, probe);
        let mut child = taut()
            .arg("--config")
            .arg(dir.path().join("taut.toml"))
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let said = BufReader::new(child.stderr.take().unwrap());
        let mut server = Self {
            child,
            said,
            log: String::new(),
            dir,
        };
        server.wait_for_log("answering for");
        server
    }

    fn config(&self) -> PathBuf {
        self.dir.path().join("taut.toml")
    }

    fn wait_for_log(&mut self, part: &str) -> String {
        loop {
            let mut line = String::new();
            let read = self.said.read_line(&mut line).unwrap();
            assert_ne!(read, 0, "it ended: {}", self.log);
            self.log.push_str(&line);
            if line.contains(part) {
                return line;
            }
        }
    }

    /// Returns the first value of a line of `/proc/PID/status`.
    fn process(&self, key: &str) -> String {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(key));
        line.unwrap().split_whitespace().next().unwrap().to_owned()
    }

    /// Fails if the process has a capability, or could get one.
    fn assert_no_capability(&self) {
        for set in ["CapEff:", "CapPrm:", "CapInh:", "CapBnd:", "CapAmb:"] {
            let capabilities = u64::from_str_radix(&self.process(set), 16).unwrap();
            assert_eq!(capabilities, 0, "{set}");
        }
        assert_eq!(self.process("NoNewPrivs:"), "1");
    }

    /// Returns what `dig` prints.
    fn dig(&self, args: &str) -> String {
        let mut dig = Command::new("dig");
        dig.args([&format!("@{ADDRESS}"), "-p", &PORT.to_string()]);
        let output = dig
            .args(["+tries=2", "+time=5"])
            .args(args.split(' '))
            .output();
        String::from_utf8(output.unwrap().stdout).unwrap()
    }

    /// Waits until `dig +short` prints `expected`.
    fn wait_for_answer(&self, args: &str, expected: &str) {
        let started = Instant::now();
        loop {
            let answer = self.dig(&format!("+short {args}"));
            if answer.trim() == expected {
                return;
            }
            assert!(started.elapsed() < PATIENCE, "{answer}");
        }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn taut() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_taut"));
    command
        .args(["mesh", "dns"])
        .stdin(Stdio::null())
        .env_remove("TAUT_LOG");
    command
}

fn write_config(path: PathBuf, settings: &str, probe: Option<&str>) {
    let rtt_file = path.with_file_name("rtt.txt");
    let probe = probe.map_or(String::new(), |p| format!("probe = \"{p}\""));
    let config = format!(
        r#"
        [mesh.dns]
        zone = "steer.example.org"
        listen = "{ADDRESS}:{PORT}"
        workers = 2
        rtt_file = "{}"
        probe_interval = "100ms"
        {settings}

        [[mesh.dns.name_server]]
        name = "ns1"
        addresses = ["{ADDRESS}"]

        [[mesh.dns.relay]]
        name = "fra1"
        addresses = ["192.0.2.1", "2001:db8::1"]
        {probe}

        [[mesh.dns.relay]]
        name = "nyc1"
        addresses = ["192.0.2.2"]

        [[mesh.dns.name]]
        name = "www"
        "#,
        rtt_file.display()
    );
    fs::write(path, config).unwrap();
}

fn metrics() -> String {
    let mut stream = TcpStream::connect(METRICS).unwrap();
    let request = b"GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    stream.write_all(request).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

fn count(metrics: &str, name: &str) -> f64 {
    let line = metrics.lines().find_map(|line| line.strip_prefix(name));
    line.unwrap_or_else(|| panic!("no {name}: {metrics}"))
        .trim()
        .parse()
        .unwrap()
}

#[test]
fn dig_gets_the_relay_that_is_nearest_to_the_subnet_that_it_names() {
    if !is_ready(&["dig"]) {
        return;
    }
    let server = Server::start("", None);
    let near = |subnet: &str| {
        let said = server.dig(&format!("www.steer.example.org A +subnet={subnet}"));
        let scope = said.lines().find(|line| line.contains("CLIENT-SUBNET"));
        (scope.unwrap_or_default().to_owned(), said)
    };
    let (scope, said) = near("203.0.113.0/24");
    assert!(
        said.contains("IN\tA\t192.0.2.2") && said.contains(" aa "),
        "{said}"
    );
    assert!(scope.ends_with("203.0.113.0/24/24"), "{said}");
    let (scope, said) = near("198.51.100.0/24");
    assert!(said.contains("IN\tA\t192.0.2.1"), "{said}");
    assert!(scope.ends_with("198.51.100.0/24/24"), "{said}");
    // Nothing is known of the client: the first relay.
    let (scope, said) = near("10.1.2.0/24");
    assert!(said.contains("IN\tA\t192.0.2.1"), "{said}");
    assert!(scope.ends_with("10.1.2.0/24/1"), "{said}");
}

#[test]
fn what_is_too_large_for_udp_comes_over_tcp() {
    if !is_ready(&["dig"]) {
        return;
    }
    let server = Server::start("", None);
    // dig asks again over TCP by itself when the answer is truncated.
    assert_eq!(
        server.dig("+short www.steer.example.org AAAA").trim(),
        "2001:db8::1"
    );
    let said = server.dig("+nocookie +ignore no.steer.example.org A");
    assert!(
        said.contains("status: NXDOMAIN") && said.contains(" tc "),
        "{said}"
    );
    let said = server.dig("no.steer.example.org A");
    assert!(
        said.contains("status: NXDOMAIN") && said.contains("SOA\tns1.steer"),
        "{said}"
    );
    assert!(said.contains("(TCP)"), "{said}");
    let said = server.dig("+tcp +keepopen steer.example.org NS ns1.steer.example.org A");
    assert!(
        said.contains("NS\tns1.steer.example.org.") && said.contains("A\t127.0.0.1"),
        "{said}"
    );
    assert!(server.dig("example.org A").contains("status: REFUSED"));
}

#[test]
fn a_relay_that_does_not_answer_is_no_answer_until_it_does() {
    if !is_ready(&["dig"]) {
        return;
    }
    let at = "127.0.0.1:8080";
    let fra = TcpListener::bind(at).unwrap();
    let mut server = Server::start("", Some(at));
    let ask = "www.steer.example.org A +subnet=198.51.100.0/24";
    server.wait_for_answer(ask, "192.0.2.1");
    drop(fra);
    let said = server.wait_for_log("relay fra1 is down");
    assert!(
        said.contains("refused") && said.contains("answers name other relays"),
        "{said}"
    );
    assert_eq!(server.dig(&format!("+short {ask}")).trim(), "192.0.2.2");
    let _fra = TcpListener::bind(at).unwrap();
    server.wait_for_log("relay fra1 is up again after");
    assert_eq!(server.dig(&format!("+short {ask}")).trim(), "192.0.2.1");
}

#[test]
fn a_relay_whose_page_says_that_it_drains_is_no_answer() {
    if !is_ready(&["dig"]) {
        return;
    }
    let page = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = page.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in page.incoming() {
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut [0; 1024]);
            let _ =
                stream.write_all(b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n");
        }
    });
    let mut server = Server::start("", Some(&format!("http://{at}/readyz")));
    let said = server.wait_for_log("relay fra1 is down");
    assert!(said.contains("it answers 503"), "{said}");
    server.wait_for_answer(
        "www.steer.example.org A +subnet=198.51.100.0/24",
        "192.0.2.2",
    );
}

#[test]
fn sighup_adopts_a_right_configuration_and_keeps_the_former_instead_of_a_wrong_one() {
    if !is_ready(&["dig"]) {
        return;
    }
    let mut server = Server::start("", None);
    let good = fs::read_to_string(server.config()).unwrap();
    fs::write(
        server.config(),
        good.replace("name = \"www\"", "name = \"w w\""),
    )
    .unwrap();
    server.signal(Signal::HUP);
    let said = server.wait_for_log("keeping the former configuration");
    assert!(said.contains("`w w` is not a domain name"), "{said}");
    assert_eq!(
        server.dig("+short www.steer.example.org A").trim(),
        "192.0.2.1"
    );
    fs::write(
        server.config(),
        good.replace("name = \"www\"", "name = \"new\""),
    )
    .unwrap();
    let rtt = "nyc1 127.0.0.0/8 1\n";
    fs::write(server.dir.path().join("rtt.txt"), rtt).unwrap();
    server.signal(Signal::HUP);
    server.wait_for_log("the configuration has been read again");
    assert!(
        server
            .dig("+tcp www.steer.example.org A")
            .contains("status: NXDOMAIN")
    );
    assert_eq!(
        server.dig("+short new.steer.example.org A").trim(),
        "192.0.2.2"
    );
    server.signal(Signal::TERM);
    server.wait_for_log("stopped");
    assert!(server.child.wait().unwrap().success());
}

/// Returns a question for an address of www.steer.example.org, with a cookie (RFC 7873).
fn question(cookie: &[u8]) -> Vec<u8> {
    let mut query = vec![0, 1, 1, 0, 0, 1, 0, 0, 0, 0, 0, 1];
    query.extend(b"\x03www\x05steer\x07example\x03org\0\0\x01\0\x01");
    let option = [0, 10, 0, u8::try_from(cookie.len()).unwrap()];
    query.extend(b"\0\0\x29\x04\xd0\0\0\0\0\0");
    query.push(u8::try_from(option.len() + cookie.len()).unwrap());
    query.extend(option);
    query.extend(cookie);
    query
}

/// What a client chooses of its cookie.
const CHOSEN: &[u8; 8] = b"a client";

/// Returns a socket that sends to the server.
fn client() -> UdpSocket {
    let client = UdpSocket::bind((ADDRESS, 0)).unwrap();
    client.connect((ADDRESS, PORT)).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    client
}

/// Sends queries with this cookie, faster than any rate of these tests, until the server has sent some of
/// them to TCP and dropped others. Returns its counters.
fn exceed_the_rate(client: &UdpSocket, cookie: &[u8]) -> String {
    let over = |counters: &str| {
        ["truncated", "dropped"].map(|what| {
            count(
                counters,
                &format!("taut_dns_{what}_total{{cause=\"rate\"}}"),
            )
        })
    };
    let (before, started) = (over(&metrics()), Instant::now());
    loop {
        for _ in 0..10 {
            client.send(&question(cookie)).unwrap();
        }
        let counters = metrics();
        let now = over(&counters);
        if (0..2).all(|i| now[i] - before[i] >= 3.0) {
            return counters;
        }
        assert!(started.elapsed() < PATIENCE, "{counters}");
    }
}

#[test]
fn a_network_over_its_rate_is_sent_to_tcp_and_counted() {
    if !is_ready(&["dig"]) {
        return;
    }
    let settings = format!("rate_limit = 2\nmetrics = \"{METRICS}\"");
    let server = Server::start(&settings, None);
    exceed_the_rate(&client(), CHOSEN);
    let tcp = server.dig("+tcp +short www.steer.example.org A");
    assert_eq!(tcp.trim(), "192.0.2.1");
    let counters = metrics();
    let count = |name: &str| count(&counters, name);
    assert!(count("taut_dns_queries_total{transport=\"udp\"}") > 9.0);
    assert!(count("taut_dns_queries_total{transport=\"tcp\"}") > 0.0);
    assert!(count("taut_dns_steered_total{relay=\"fra1\",by=\"fallback\"}") > 0.0);
    assert!((count("taut_dns_relay_up{relay=\"fra1\"}") - 1.0).abs() < 0.1);
    assert!((count("taut_dns_rtts") - 3.0).abs() < 0.1);
}

#[test]
fn a_client_over_the_rate_of_its_network_is_answered_if_its_cookie_proves_its_address() {
    enter_private_network();
    let settings = format!("rate_limit = 1\nmetrics = \"{METRICS}\"");
    let _server = Server::start(&settings, None);
    let spared = || count(&metrics(), "taut_dns_spared_total");
    let receive = |client: &UdpSocket| {
        let mut answer = [0; 512];
        let len = client.recv(&mut answer).unwrap();
        answer[..len].to_vec()
    };
    // A truncated answer has room for the cookie.
    let first = client();
    exceed_the_rate(&first, CHOSEN);
    let cookie = loop {
        let answer = receive(&first);
        let at = answer.windows(8).position(|part| part == CHOSEN);
        if let Some(at) = at {
            break answer[at..][..24].to_vec();
        }
    };
    let client = client();
    let started = Instant::now();
    while spared() < 3.0 {
        client.send(&question(&cookie)).unwrap();
        let answer = receive(&client);
        let is_truncated = answer[2] & 2 != 0;
        assert!(!is_truncated && answer.windows(4).any(|part| part == [192, 0, 2, 1]));
        assert!(started.elapsed() < PATIENCE, "no query is over the rate");
    }
    assert!(count(&metrics(), "taut_dns_cookies_total{proof=\"proven\"}") >= 3.0);
    // A cookie of another address, or a changed one, spares nothing.
    let mut forged = cookie;
    forged[23] ^= 1;
    let before = spared();
    let counters = exceed_the_rate(&client, &forged);
    assert!(count(&counters, "taut_dns_cookies_total{proof=\"invalid\"}") > 0.0);
    assert!(spared() <= before);
}

#[test]
fn the_relay_beside_the_server_is_asked_for_its_times_and_its_loss_is_said_once() {
    if !is_ready(&["dig"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let control = folder.path().join("control");
    let relay = start_relay(folder.path());
    let settings = format!("relay_control = {control:?}\nmetrics = \"{METRICS}\"");
    let mut server = Server::start(&settings, None);
    let age = || count(&metrics(), "taut_dns_relay_age_seconds");
    let started = Instant::now();
    while age() < 0.0 {
        assert!(started.elapsed() < PATIENCE);
    }
    drop(relay);
    for _ in 0..2 {
        server.signal(Signal::HUP);
        server.wait_for_log("SIGHUP: the configuration has been read again");
    }
    assert_eq!(server.log.matches("cannot ask the relay at").count(), 1);
    assert!(age() >= 0.0);
    assert_eq!(
        server
            .dig("+short www.steer.example.org A +subnet=203.0.113.0/24")
            .trim(),
        "192.0.2.2"
    );
    assert!(count(&metrics(), "taut_dns_relay_errors_total") > 1.0);
    let _relay = start_relay(folder.path());
    server.signal(Signal::HUP);
    server.wait_for_log("can be asked for round-trip times again");
    let said = taut()
        .arg("--check")
        .arg("--config")
        .arg(server.config())
        .output()
        .unwrap();
    let said = String::from_utf8(said.stdout).unwrap();
    assert!(
        said.contains("knows 0 round-trip times to prefixes"),
        "{said}"
    );
}

/// A running relay, which is killed when it is dropped.
struct Relay(Child);

impl Drop for Relay {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a relay of a mesh with one member, whose control socket is `control` in `folder`, and waits for it.
fn start_relay(folder: &Path) -> Relay {
    let run = || Command::new(env!("CARGO_BIN_EXE_taut"));
    let path = |name: &str| folder.join(name);
    if !path("key").exists() {
        let made = run()
            .args(["mesh", "keygen"])
            .arg(path("key"))
            .output()
            .unwrap();
        let key = String::from_utf8(made.stdout).unwrap();
        let list = format!("[[member]]\nname = \"fra1\"\nkeys = [\"{}\"]\n", key.trim());
        fs::write(path("members.toml"), list).unwrap();
        let config = format!(
            "[relay]\ncontrol = {:?}\nworkers = 1\n[relay.mesh]\nprivate_key_file = {:?}\nmembers_file = {:?}\n\
             listen = \"127.0.0.1:0\"\nallow = \"127.0.0.1/32:9\"\nturbo = false\n",
            path("control"),
            path("key"),
            path("members.toml")
        );
        fs::write(path("relay.toml"), config).unwrap();
    }
    let mut relay = run();
    relay.args(["relay", "--config"]).arg(path("relay.toml"));
    let relay = relay.stdin(Stdio::null()).stderr(Stdio::null()).spawn();
    let relay = Relay(relay.unwrap());
    let started = Instant::now();
    loop {
        let mut status = run();
        status
            .args(["mesh", "rtt", "--control"])
            .arg(path("control"));
        if status.output().unwrap().status.success() {
            return relay;
        }
        assert!(started.elapsed() < PATIENCE, "the relay does not answer");
    }
}

#[test]
fn the_server_keeps_no_privilege() {
    if !rustix::process::geteuid().is_root() {
        return skip("only root can switch to another user");
    }
    if !is_ready(&["dig"]) {
        return;
    }
    let server = Server::start("user = \"nobody\"", None);
    assert_ne!(server.process("Uid:"), "0");
    server.assert_no_capability();
    assert!(!server.log.contains("runs as root"), "{}", server.log);
    assert_eq!(
        server.dig("+short www.steer.example.org A").trim(),
        "192.0.2.1"
    );
}

#[test]
fn a_server_without_a_user_to_switch_to_has_no_capability_either_and_says_what_to_do() {
    if !rustix::process::geteuid().is_root() {
        return skip("only root has privileges to lose");
    }
    enter_private_network();
    let server = Server::start("", None);
    assert_eq!(server.process("Uid:"), "0");
    server.assert_no_capability();
    assert!(server.log.contains("set mesh.dns.user"), "{}", server.log);
}

#[test]
fn a_check_by_root_has_the_rights_of_the_servers_user() {
    if !rustix::process::geteuid().is_root() {
        return skip("only root can take the rights of another user");
    }
    let dir = tempfile::tempdir().unwrap();
    let (path, control) = (dir.path().join("taut.toml"), dir.path().join("relay.sock"));
    let mode = |path: &Path, mode| fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    fs::write(dir.path().join("rtt.txt"), "fra1 203.0.113.0/24 90\n").unwrap();
    let _of_root = UnixListener::bind(&control).unwrap();
    let check = |user: &str| {
        let settings = format!("relay_control = {control:?}\nuser = \"{user}\"");
        write_config(path.clone(), &settings, None);
        let output = taut().arg("--check").arg("--config").arg(&path).output();
        let output = output.unwrap();
        let said = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8(said).unwrap())
    };
    mode(dir.path(), 0o755);
    mode(&control, 0o600);
    let (code, said) = check("nobody");
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("it answers only root and user 0"), "{said}");
    let (code, said) = check("no-such-user");
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("no-such-user"), "{said}");
    // The server could read neither.
    mode(dir.path(), 0o700);
    let (code, said) = check("nobody");
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("rtt.txt"), "{said}");
}

#[test]
fn the_check_names_a_mistake_and_explain_the_order_of_a_client() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("taut.toml");
    fs::write(
        dir.path().join("rtt.txt"),
        "fra1 203.0.113.0/24 90\nnyc1 203.0.113.0/24 12.34\n",
    )
    .unwrap();
    write_config(path.clone(), "", None);
    let run = |args: &[&str]| {
        let output = taut()
            .arg("--config")
            .arg(&path)
            .args(args)
            .output()
            .unwrap();
        let said = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8(said).unwrap())
    };
    let (code, said) = run(&["--check"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(
        said.contains("2 relays, 1 name, round-trip times to 1 prefix"),
        "{said}"
    );
    assert!(said.ends_with("the configuration is valid\n"), "{said}");
    let (code, said) = run(&["--explain", "203.0.113.9"]);
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(
        said,
        "nyc1: 12.3 ms to 203.0.113.0/24\nfra1: 90.0 ms to 203.0.113.0/24\n"
    );
    let (_, said) = run(&["--explain", "2001:db8::/48", "--json"]);
    let expected = serde_json::json!({
        "client": "2001:db8::",
        "relays": [{"prefix": null, "relay": "fra1", "rtt_ms": null}],
        "scope": 0,
        "version": env!("CARGO_PKG_VERSION"),
    });
    assert_eq!(
        serde_json::from_str::<serde_json::Value>(&said).unwrap(),
        expected
    );
    fs::write(dir.path().join("rtt.txt"), "fra1 203.0.113.0/24 soon\n").unwrap();
    let (code, said) = run(&["--check"]);
    assert_eq!(code, Some(1), "{said}");
    assert!(
        said.contains("rtt.txt") && said.contains("mesh.dns.rtt_file"),
        "{said}"
    );
    fs::write(&path, "[mesh.dns]\nzone = 5\n").unwrap();
    let (code, said) = run(&["--check"]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("taut.toml:2: mesh.dns.zone"), "{said}");
}

#[test]
fn a_resolver_in_front_hands_on_its_clients_subnets_and_the_answers() {
    if !is_ready(&["dig", "unbound"]) {
        return;
    }
    let _server = Server::start("", None);
    let dir = tempfile::tempdir().unwrap();
    let config = format!(
        r#"
        server:
            interface: 127.0.0.2@{PORT}
            do-daemonize: no
            use-syslog: no
            username: ""
            chroot: ""
            directory: "{dir}"
            pidfile: ""
            do-not-query-localhost: no
            module-config: "subnetcache iterator"
            client-subnet-always-forward: yes
            send-client-subnet: {ADDRESS}
            access-control: 127.0.0.0/8 allow
        stub-zone:
            name: steer.example.org
            stub-addr: {ADDRESS}@{PORT}
        "#,
        dir = dir.path().display(),
    );
    fs::write(dir.path().join("unbound.conf"), config).unwrap();
    let unbound = Command::new("unbound")
        .args(["-d", "-c"])
        .arg(dir.path().join("unbound.conf"))
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    struct Killed(Child);
    impl Drop for Killed {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }
    let _unbound = Killed(unbound.unwrap());
    let ask = |question: &str| {
        let mut dig = Command::new("dig");
        dig.args([
            "@127.0.0.2",
            "-p",
            &PORT.to_string(),
            "+short",
            "+tries=1",
            "+time=5",
        ]);
        let output = dig.args(question.split(' ')).output().unwrap();
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    let started = Instant::now();
    while ask("www.steer.example.org A") != "192.0.2.1" {
        assert!(started.elapsed() < PATIENCE);
    }
    // Two clients of one resolver get different relays, each for its own subnet, also from the cache.
    for _ in 0..2 {
        assert_eq!(
            ask("www.steer.example.org A +subnet=203.0.113.0/24"),
            "192.0.2.2"
        );
        assert_eq!(
            ask("www.steer.example.org A +subnet=198.51.100.0/24"),
            "192.0.2.1"
        );
    }
    // The answer that does not fit into UDP comes over TCP.
    assert_eq!(ask("www.steer.example.org AAAA"), "2001:db8::1");
}
