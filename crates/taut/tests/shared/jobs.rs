//! Every job in a network namespace, for tests of what the jobs say.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use taut_sys::tap::Tap;
use taut_sys_testing::skip::has_programs;

use crate::host::Host;

pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// The jobs with metrics, their ports, and the pages that explain these. That of taut guest is node_exporter's.
pub(crate) const JOBS: [(&str, u16, &str); 7] = [
    ("taut-relay", 9464, "relay-monitor.md"),
    ("taut-relay", 9465, "relay-monitor.md"),
    ("taut-watch", 9466, "watch.md"),
    ("taut-mesh-dns", 9467, "mesh-dns.md"),
    ("taut-snoop", 9468, "snoop-status.md"),
    ("taut-tune", 9469, "tune.md"),
    ("taut-guest", 9100, "guest.md"),
];

/// A process that ends with the test.
pub(crate) struct Running(pub(crate) Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Every job in a network namespace, with all that makes metrics appear, and a few sessions.
pub(crate) struct Jobs {
    running: Vec<Running>,
    _taps: [Tap; 2],
    dir: tempfile::TempDir,
    pub(crate) host: Host,
}

impl Jobs {
    /// Returns `None`, after reporting the test as skipped, without etcd.
    pub(crate) fn new(name: &str) -> Option<Self> {
        if !has_programs(&["etcd", "etcdctl"]) {
            return None;
        }
        let host = Host::new(&format!("metrics-{name}"));
        // For snoop, and for the relay's programs.
        let taps = ["tautm0", "tautm1"].map(|name| {
            let tap = host.0.run(|| Tap::create(name).unwrap()).unwrap();
            let line = format!("link set {name} up");
            assert!(host.ip(&line).status.success(), "{line}");
            tap
        });
        let jobs = Self {
            running: Vec::new(),
            _taps: taps,
            dir: tempfile::tempdir().unwrap(),
            host,
        };
        jobs.write_files();
        Some(jobs.start())
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.dir.path().join(name).to_str().unwrap().to_owned()
    }

    fn write_files(&self) {
        let key = |name: &str| {
            let made = run(&["mesh", "keygen", &self.path(name)]);
            String::from_utf8(made.stdout).unwrap().trim().to_owned()
        };
        let [near, far, signing] = ["near.key", "far.key", "signing.key"].map(key);
        let member = |name: &str, key: &str, port: u16| {
            format!(
                "[[member]]\nname = \"{name}\"\nkeys = [\"{key}\"]\naddresses = [\"127.0.0.1:{port}\"]\n"
            )
        };
        let list = member("near", &near, 7440) + &member("far", &far, 7441);
        fs::write(self.path("list"), list).unwrap();
        for signed in ["near.members", "far.members"] {
            let [key, signed, list] = ["signing.key", signed, "list"].map(|name| self.path(name));
            run(&["mesh", "sign", "--key", &key, "--output", &signed, &list]);
        }
        let dir = self.dir.path().display();
        let near = format!(
            r#"
            [relay]
            metrics = "127.0.0.1:9464"
            control = "{dir}/near.sock"
            session_log = "{dir}/sessions.json"
            early_syn_devices = "tautm1"
            [[relay.forward]]
            name = "web"
            listen = "127.0.0.1:8080"
            to = "127.0.0.1:8000"
            via = "far"
            early_syn = true
            [[relay.forward]]
            name = "straight"
            listen = "127.0.0.1:8081"
            to = "127.0.0.1:8000"
            [[relay.forward]]
            transparent = true
            listen = "127.0.0.1:8443"
            ports = [80]
            destinations = ["203.0.113.0/24"]
            devices = ["tautm1"]
            allow = ["203.0.113.0/24:*"]
            [relay.mesh]
            private_key_file = "{dir}/near.key"
            members_file = "{dir}/near.members"
            members_key = "{signing}"
            listen = "127.0.0.1:7440"
            allow = ["127.0.0.1/32:8000"]
            [relay.mesh.etcd]
            endpoints = ["http://127.0.0.1:2379"]
            "#
        );
        fs::write(self.path("near.toml"), near).unwrap();
        let far = format!(
            r#"
            [relay]
            metrics = "127.0.0.1:9465"
            control = "{dir}/far.sock"
            [relay.mesh]
            private_key_file = "{dir}/far.key"
            members_file = "{dir}/far.members"
            members_key = "{signing}"
            listen = "127.0.0.1:7441"
            congestion_control = "cubic"
            allow = ["127.0.0.1/32:8000"]
            "#
        );
        fs::write(self.path("far.toml"), far).unwrap();
        let dns = r#"
            [mesh.dns]
            zone = "steer.example.org"
            listen = "127.0.0.1:5300"
            metrics = "127.0.0.1:9467"
            [[mesh.dns.name_server]]
            name = "ns1"
            addresses = ["127.0.0.1"]
            [[mesh.dns.relay]]
            name = "near"
            addresses = ["127.0.0.1"]
            probe = "127.0.0.1:8080"
            [[mesh.dns.name]]
            name = "www"
            "#;
        fs::write(self.path("dns.toml"), dns).unwrap();
    }

    fn start(mut self) -> Self {
        let [near, far, dns, control] =
            ["near.toml", "far.toml", "dns.toml", "snoop.sock"].map(|name| self.path(name));
        self.start_etcd();
        let netns = self.host.name().to_owned();
        for args in [
            &["relay", "--config", &far][..],
            &["relay", "--config", &near],
            &[
                "watch",
                "--netns",
                &netns,
                "--interval",
                "100ms",
                "--metrics",
                "127.0.0.1:9466",
            ],
            &["mesh", "dns", "--config", &dns],
            &[
                "snoop",
                "--tap",
                "tautm0",
                "--control",
                &control,
                "--metrics",
                "127.0.0.1:9468",
            ],
            &[
                "tune",
                "--netns",
                &netns,
                "--interval",
                "100ms",
                "--metrics",
                "127.0.0.1:9469",
            ],
        ] {
            let mut command = Command::new(env!("CARGO_BIN_EXE_taut"));
            command
                .args(args)
                .env("TAUT_LOG", "error")
                .stdout(Stdio::null());
            self.spawn(command);
        }
        self.serve_textfile();
        until("every job answers", || {
            JOBS.iter().all(|job| self.get(job.1, "/metrics").is_some())
        });
        self.exchange();
        self
    }

    /// Serves what `taut guest status` writes for node_exporter's textfile collector, as node_exporter would.
    fn serve_textfile(&self) {
        let body = run(&["guest", "status", "--prometheus"]).stdout;
        let bind = || TcpListener::bind("127.0.0.1:9100").unwrap();
        let server = self.host.0.run(bind).unwrap();
        thread::spawn(move || {
            for scraper in server.incoming() {
                let mut scraper = scraper.unwrap();
                if scraper.read(&mut [0; 4096]).is_ok_and(|read| read == 0) {
                    continue;
                }
                let _ = scraper.write_all(
                    b"HTTP/1.0 200 OK\r\ncontent-type: text/plain; version=0.0.4\r\n\r\n",
                );
                let _ = scraper.write_all(&body);
            }
        });
    }

    /// Starts etcd, with the list of members.
    fn start_etcd(&mut self) {
        let mut etcd = Command::new("etcd");
        for (option, value) in [
            ("data-dir", &*self.path("etcd")),
            ("listen-client-urls", "http://127.0.0.1:2379"),
            ("advertise-client-urls", "http://127.0.0.1:2379"),
            ("listen-peer-urls", "http://127.0.0.1:2380"),
            ("log-level", "fatal"),
        ] {
            etcd.arg(format!("--{option}={value}"));
        }
        etcd.arg("--unsafe-no-fsync").stderr(Stdio::null());
        self.spawn(etcd);
        let list = fs::read_to_string(self.path("near.members")).unwrap();
        until("etcd has the list of members", || {
            let mut put = Command::new("etcdctl");
            put.args(["put", "/taut/members", "--", &list]);
            put.env("ETCDCTL_API", "3").stderr(Stdio::null());
            let put = self.host.0.run(|| put.output().unwrap()).unwrap();
            put.status.success()
        });
    }

    pub(crate) fn spawn(&mut self, mut command: Command) {
        command.stdin(Stdio::null());
        let child = self.host.0.run(|| command.spawn().unwrap()).unwrap();
        self.running.push(Running(child));
    }

    /// Has a session through each forward, and a DNS query.
    pub(crate) fn have_sessions(&self) {
        let once = |port: u16| {
            let mut client = TcpStream::connect(("127.0.0.1", port)).unwrap();
            client.set_read_timeout(Some(PATIENCE)).unwrap();
            client.write_all(&[7; 100_000]).unwrap();
            client.shutdown(Shutdown::Write).unwrap();
            let mut text = Vec::new();
            client.read_to_end(&mut text).unwrap();
            assert_eq!(text.len(), 100_000, "through port {port}");
        };
        let sessions = || {
            once(8080);
            once(8081);
            let query = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
            // www.steer.example.org, type A.
            let name = b"\x03www\x05steer\x07example\x03org\0";
            let head = b"\0\x07\0\0\0\x01\0\0\0\0\0\0";
            let query_bytes = [&head[..], &name[..], b"\0\x01\0\x01"].concat();
            query.send_to(&query_bytes, "127.0.0.1:5300").unwrap();
        };
        self.host.0.run(sessions).unwrap();
    }

    /// Has sessions until what they make appears in the metrics.
    fn exchange(&self) {
        let bind = || TcpListener::bind("127.0.0.1:8000").unwrap();
        let server = self.host.0.run(bind).unwrap();
        thread::spawn(move || {
            for client in server.incoming() {
                let mut text = Vec::new();
                let mut client = client.unwrap();
                if client.read_to_end(&mut text).is_ok() {
                    let _ = client.write_all(&text);
                }
            }
        });
        until("sessions and measurements are in the metrics", || {
            self.have_sessions();
            let has = |port, line: &str| {
                let text = self.get(port, "/metrics").unwrap_or_default();
                text.lines()
                    .any(|l| l.starts_with(line) && !l.ends_with(" 0"))
            };
            has(9464, "taut_relay_peer_rtt_seconds{peer=\"far\"}")
                && has(9464, "taut_relay_first_byte_seconds_count")
                && has(9464, "taut_relay_etcd_reads_total")
                && has(9466, "taut_watch_rtt_seconds_count")
                && has(9467, "taut_dns_steered_total")
                && has(9469, "taut_tune_scans_total")
                && has(9468, "taut_snoop_tap_state{tap=\"tautm0\",state=\"on\"}")
        });
    }

    /// Returns what a server in the namespace answers, or `None` if it does not.
    pub(crate) fn get(&self, port: u16, path: &str) -> Option<String> {
        let get = || {
            let mut server = TcpStream::connect(("127.0.0.1", port)).ok()?;
            server.set_read_timeout(Some(PATIENCE)).ok()?;
            let request = format!("GET {path} HTTP/1.0\r\nhost: 127.0.0.1\r\n\r\n");
            server.write_all(request.as_bytes()).ok()?;
            let mut answer = String::new();
            server.read_to_string(&mut answer).ok()?;
            let (_, body) = answer.split_once("\r\n\r\n")?;
            Some(body.to_owned())
        };
        self.host.0.run(get).unwrap()
    }
}

pub(crate) fn run(args: &[&str]) -> Output {
    let output = Command::new(env!("CARGO_BIN_EXE_taut"))
        .args(args)
        .output()
        .unwrap();
    assert!(output.status.success(), "{args:?}: {output:?}");
    output
}

pub(crate) fn until(what: &str, mut so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !so() {
        assert!(
            began.elapsed() < PATIENCE,
            "{what}: not within {PATIENCE:?}"
        );
        thread::sleep(Duration::from_millis(50));
    }
}
