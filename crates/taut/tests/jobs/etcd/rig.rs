//! A server of etcd, and relays that follow the list of members in it, each a process.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use serde_json::Value;
use taut_sys_testing::network::enter_private_network;
use taut_sys_testing::skip::has_programs;

/// A test that waits longer than this for something has failed.
const PATIENCE: Duration = Duration::from_secs(60);

/// Waits for a condition that must be polled.
pub(crate) fn wait_until(what: &str, mut happened: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !happened() {
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// An address where nothing listens.
pub(crate) const UNUSED: SocketAddr = address(1);

/// The address of the server for its peers.
const PEERS: SocketAddr = address(2380);

const fn address(port: u16) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port)
}

/// Moves the test into a private network, where no other process takes a port of a server that is dead for
/// a while, and returns the operator of a mesh and a server with this number of addresses. Returns `None`,
/// after reporting the test as skipped, without etcd.
pub(crate) fn start(addresses: u16) -> Option<(Operator, Etcd)> {
    start_with(addresses, false, &["etcd", "etcdctl"])
}

/// Does so with a server that accepts only clients with a certificate.
pub(crate) fn start_with_tls() -> Option<(Operator, Etcd)> {
    start_with(1, true, &["etcd", "etcdctl", "openssl"])
}

fn start_with(addresses: u16, tls: bool, programs: &[&str]) -> Option<(Operator, Etcd)> {
    if !has_programs(programs) {
        return None;
    }
    enter_private_network();
    Some((Operator::new(), Etcd::start(addresses, tls)))
}

fn run(command: &mut Command) -> Output {
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {said}");
    output
}

/// Returns the command `taut`.
pub(crate) fn taut() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_taut"));
    command.stdin(Stdio::null()).env_remove("TAUT_LOG");
    command
}

/// A server of etcd with its data in a directory of its own.
pub(crate) struct Etcd {
    child: Option<Child>,
    folder: tempfile::TempDir,
    /// Its addresses for clients.
    pub(crate) clients: Vec<SocketAddr>,
    /// Certificates, if it uses TLS.
    pub(crate) tls: bool,
}

impl Etcd {
    fn start(addresses: u16, tls: bool) -> Self {
        let folder = tempfile::tempdir().unwrap();
        if tls {
            make_certificates(folder.path());
        }
        let mut etcd = Self {
            child: None,
            folder,
            clients: (0..addresses).map(|n| address(2381 + n)).collect(),
            tls,
        };
        etcd.start_again();
        etcd
    }

    /// Starts the server with the data that it had.
    pub(crate) fn start_again(&mut self) {
        let clients: Vec<_> = self.clients.iter().map(|a| self.url(*a)).collect();
        let (clients, peers) = (clients.join(","), format!("http://{PEERS}"));
        let mut command = Command::new("etcd");
        command
            .args([
                "--unsafe-no-fsync",
                // The only member need not wait a second before it votes for itself.
                "--heartbeat-interval=10",
                "--election-timeout=100",
                "--name",
                "one",
                "--logger",
                "zap",
                "--log-outputs",
                "stderr",
            ])
            .args(["--initial-cluster", &format!("one={peers}")])
            .args([
                "--listen-peer-urls",
                &peers,
                "--initial-advertise-peer-urls",
                &peers,
            ])
            .args([
                "--listen-client-urls",
                &clients,
                "--advertise-client-urls",
                &clients,
            ])
            .arg("--data-dir")
            .arg(self.path("data"));
        if self.tls {
            command
                .arg("--client-cert-auth")
                .arg("--trusted-ca-file")
                .arg(self.path("ca.pem"))
                .arg("--cert-file")
                .arg(self.path("server.pem"))
                .arg("--key-file")
                .arg(self.path("server.key"));
        }
        let log = fs::File::create(self.path("log")).unwrap();
        let child = command.stdout(Stdio::null()).stderr(log).spawn();
        self.child = Some(child.unwrap());
        wait_until("etcd", || {
            let up = TcpStream::connect(self.clients[0]).is_ok();
            up && self.ctl(&["endpoint", "health"]).status.success()
        });
    }

    /// Kills the server.
    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn url(&self, addr: SocketAddr) -> String {
        let scheme = if self.tls { "https" } else { "http" };
        format!("{scheme}://{addr}")
    }

    /// Runs etcdctl.
    pub(crate) fn ctl(&self, args: &[&str]) -> Output {
        let mut command = Command::new("etcdctl");
        command
            .env("ETCDCTL_API", "3")
            .args(["--endpoints", &self.url(self.clients[0])]);
        if self.tls {
            let certificate = |name: &str| self.path(name).display().to_string();
            command
                .args([
                    "--cacert",
                    &certificate("ca.pem"),
                    "--cert",
                    &certificate("client.pem"),
                ])
                .args(["--key", &certificate("client.key")]);
        }
        command.args(args).output().unwrap()
    }

    /// Runs etcdctl, which must succeed, and returns what it prints.
    pub(crate) fn operator(&self, args: &[&str]) -> String {
        let output = self.ctl(args);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "etcdctl {args:?}: {said}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Replaces the certificate and key of clients by others of the same authority.
    pub(crate) fn renew_client(&self, days: u32) {
        let folder = self.path("renewed");
        fs::create_dir(&folder).unwrap();
        for file in ["ca.pem", "ca.key", "extensions"] {
            fs::copy(self.path(file), folder.join(file)).unwrap();
        }
        make_certificate(&folder, "client", "/O=relays", days);
        for file in ["client.pem", "client.key"] {
            fs::rename(folder.join(file), self.path(file)).unwrap();
        }
    }

    /// Puts a list of members there.
    pub(crate) fn put(&self, list: &str) {
        self.operator(&["put", "/taut/members", list]);
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        self.kill();
    }
}

fn openssl(folder: &Path, args: &str) {
    run(Command::new("openssl")
        .args(args.split(' '))
        .current_dir(folder));
}

/// Makes an authority and certificates for a server and a client. The server's is a client's, too, because
/// etcd's gateway connects to the server itself.
pub(crate) fn make_certificates(folder: &Path) {
    let new_key = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes";
    openssl(
        folder,
        &format!("req -x509 {new_key} -keyout ca.key -out ca.pem -days 30 -subj /CN=authority"),
    );
    let extensions = "subjectAltName=IP:127.0.0.1\nextendedKeyUsage=serverAuth,clientAuth\n";
    fs::write(folder.join("extensions"), extensions).unwrap();
    // etcd refuses users at the gateway whose certificate has a common name.
    for (name, subject) in [("server", "/CN=server"), ("client", "/O=relays")] {
        make_certificate(folder, name, subject, 20);
    }
}

/// Makes a certificate of the authority that is valid for this number of days.
fn make_certificate(folder: &Path, name: &str, subject: &str, days: u32) {
    let new_key = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes";
    openssl(
        folder,
        &format!("req {new_key} -keyout {name}.key -out {name}.csr -subj {subject}"),
    );
    openssl(
        folder,
        &format!(
            "x509 -req -in {name}.csr -CA ca.pem -CAkey ca.key -CAcreateserial -out {name}.pem -days {days} -extfile extensions"
        ),
    );
}

/// The keys of a mesh and of its relays, and the lists that its operator signs.
pub(crate) struct Operator {
    folder: tempfile::TempDir,
    key: String,
}

impl Operator {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let key = keygen(&folder.path().join("mesh.key"));
        Self { folder, key }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Returns the public key of a relay. Its private key is made at the first call.
    fn key_of(&self, name: &str) -> String {
        let file = self.path(&format!("{name}.key"));
        match file.exists() {
            true => {
                let output = run(taut().args(["mesh", "pubkey"]).arg(&file));
                String::from_utf8(output.stdout).unwrap().trim().to_owned()
            }
            false => keygen(&file),
        }
    }

    /// Signs a list of these members with `taut mesh sign` and returns it. `NAME@ADDRESS` is a member with
    /// an address.
    pub(crate) fn sign(&self, names: &[&str], args: &[&str]) -> String {
        let entries = names.iter().map(|name| {
            let (name, address) = name.split_once('@').unwrap_or((name, ""));
            let addresses = Vec::from_iter((!address.is_empty()).then_some(address));
            let key = self.key_of(name);
            format!(
                "[[member]]\nname = \"{name}\"\nkeys = [\"{key}\"]\naddresses = {addresses:?}\n"
            )
        });
        fs::write(self.path("members.toml"), entries.collect::<String>()).unwrap();
        let mut sign = taut();
        sign.args(["mesh", "sign", "--key"])
            .arg(self.path("mesh.key"))
            .arg("--output")
            .arg(self.path("members.signed"))
            .arg(self.path("members.toml"))
            .args(args);
        run(&mut sign);
        fs::read_to_string(self.path("members.signed")).unwrap()
    }

    /// Writes the configuration of the relay `name`; `etcd` are the keys of `[relay.mesh.etcd]`.
    pub(crate) fn configure(&self, name: &str, folder: &Path, etcd: &str) -> PathBuf {
        self.key_of(name);
        let config = folder.join("taut.toml");
        let default = |key: &str, value: &str| match etcd.contains(&format!("{key} =")) {
            true => String::new(),
            false => format!("{key} = \"{value}\"\n"),
        };
        let times = [("interval", "1s"), ("timeout", "60s"), ("lease", "30s")];
        let times: String = times.map(|(key, value)| default(key, value)).concat();
        let text = format!(
            "[relay]\ncontrol = {:?}\nmetrics = \"127.0.0.1:0\"\nworkers = 1\nmax_sessions = 16\n\
             [relay.mesh]\nprivate_key_file = {:?}\nmembers_file = {:?}\nmembers_key = {:?}\n\
             listen = \"127.0.0.1:0\"\nallow = \"127.0.0.1/32:9\"\nturbo = false\n\
             [relay.mesh.etcd]\n{times}{etcd}\n",
            folder.join("control"),
            self.path(&format!("{name}.key")),
            folder.join("members.toml"),
            self.key,
        );
        fs::write(&config, text).unwrap();
        config
    }

    /// Starts the relay `name` with these servers of etcd.
    pub(crate) fn relay(&self, name: &str, etcd: &Etcd) -> Relay {
        Relay::start(self, name, &endpoints(etcd))
    }
}

/// Returns the keys of `[relay.mesh.etcd]` for a server.
pub(crate) fn endpoints(etcd: &Etcd) -> String {
    let urls: Vec<_> = etcd.clients.iter().map(|addr| etcd.url(*addr)).collect();
    format!("endpoints = {urls:?}\n")
}

fn keygen(file: &Path) -> String {
    let output = run(taut().args(["mesh", "keygen"]).arg(file));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// A running relay.
pub(crate) struct Relay {
    child: Child,
    folder: tempfile::TempDir,
}

impl Relay {
    pub(crate) fn start(operator: &Operator, name: &str, etcd: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        operator.configure(name, folder.path(), etcd);
        let mut relay = Self {
            child: Command::new("true").spawn().unwrap(),
            folder,
        };
        relay.start_again();
        relay
    }

    /// Starts the relay after it was killed, with its configuration and its last list.
    pub(crate) fn start_again(&mut self) {
        self.child.wait().unwrap();
        let mut log = fs::File::options();
        let log = log.create(true).append(true);
        let log = log.open(self.folder.path().join("log")).unwrap();
        let mut relay = taut();
        relay
            .arg("relay")
            .arg("--config")
            .arg(self.folder.path().join("taut.toml"));
        self.child = relay.stdout(Stdio::null()).stderr(log).spawn().unwrap();
        wait_until("the relay", || self.try_status().is_some());
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub(crate) fn list_file(&self) -> PathBuf {
        self.folder.path().join("members.toml")
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap()
    }

    fn try_status(&self) -> Option<Value> {
        let mut status = taut();
        status
            .args(["relay", "status", "--json", "--control"])
            .arg(self.folder.path().join("control"));
        let output = status.output().unwrap();
        let answer: Value = serde_json::from_slice(&output.stdout).ok()?;
        Some(answer["status"].clone())
    }

    /// Returns the part on members of `taut relay status`.
    pub(crate) fn members(&self) -> Value {
        self.try_status().expect("a relay that answers")["members"].clone()
    }

    pub(crate) fn count(&self) -> u64 {
        self.members()["count"].as_u64().unwrap()
    }

    /// Returns how many lists the relay has refused for this cause.
    pub(crate) fn refused(&self, cause: &str) -> u64 {
        self.members()["refused"][cause].as_u64().unwrap_or(0)
    }

    pub(crate) fn etcd(&self, field: &str) -> Value {
        self.members()["etcd"][field].clone()
    }

    pub(crate) fn reads(&self) -> bool {
        self.etcd("connected") == true
    }

    /// Returns the seconds until something expires, by `taut_relay_expires_seconds`.
    pub(crate) fn expires(&self, what: &str) -> f64 {
        let log = self.log();
        let (_, rest) = log.split_once("/metrics addr=").unwrap();
        let address = rest.split_whitespace().next().unwrap();
        let mut stream = TcpStream::connect(address).unwrap();
        let request =
            format!("GET /metrics HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        let name = format!("taut_relay_expires_seconds{{what=\"{what}\"}} ");
        let value = text.lines().find_map(|line| line.strip_prefix(&name));
        value.unwrap_or_else(|| panic!("{text}")).parse().unwrap()
    }

    /// Waits until the relay has this number of members.
    pub(crate) fn wait_for(&self, members: u64) {
        wait_until(&format!("a list of {members}"), || self.count() == members);
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            println!("the relay's log:\n{}", self.log());
        }
    }
}

/// A proxy in front of a server, which forwards the first connections, and each further one once it is released.
pub(crate) struct Gate {
    pub(crate) address: SocketAddr,
    waiting: mpsc::Receiver<mpsc::Sender<()>>,
}

impl Gate {
    pub(crate) fn new(server: SocketAddr, first: usize) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (tell, waiting) = mpsc::channel();
        std::thread::spawn(move || {
            for (number, client) in listener.incoming().enumerate() {
                let (client, tell) = (client.unwrap(), tell.clone());
                std::thread::spawn(move || {
                    let (release, released) = mpsc::channel();
                    // The test may have ended.
                    if number >= first {
                        if tell.send(release).is_err() {
                            return;
                        }
                        let _ = released.recv();
                    }
                    let server = TcpStream::connect(server).unwrap();
                    let (mut from, mut to) =
                        (client.try_clone().unwrap(), server.try_clone().unwrap());
                    std::thread::spawn(move || std::io::copy(&mut from, &mut to));
                    let _ = std::io::copy(&mut &server, &mut &client);
                });
            }
        });
        Self { address, waiting }
    }

    /// Waits for the next connection. It is forwarded once the sender that is returned sends or is dropped.
    pub(crate) fn next(&self) -> mpsc::Sender<()> {
        self.waiting.recv_timeout(PATIENCE).expect("a connection")
    }
}
