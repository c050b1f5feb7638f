//! A client, a router and a server, each in a namespace of its own, in a row.

use std::io::Read;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use taut_relay::config::{Config, Forward, Transparent};
use taut_relay::intercept::Method;
use taut_relay::node::Node;
use taut_sys::netns::Netns;
use taut_sys_testing::skip::has_programs;
use tempfile::TempDir;

pub(crate) use crate::PATIENCE;
pub(crate) use crate::wait::wait_until;

/// Returns both methods of interception, without that of nft where there is none.
pub(crate) fn methods() -> Vec<Method> {
    let mut methods = vec![Method::Bpf];
    methods.extend(has_programs(&["nft"]).then_some(Method::Nft));
    methods
}

/// The ends of the two links; the last part differs between the two ends.
pub(crate) const CLIENT: [&str; 2] = ["10.50.1.2", "fd50:1::2"];
pub(crate) const ROUTER_TO_CLIENT: [&str; 2] = ["10.50.1.1", "fd50:1::1"];
pub(crate) const ROUTER_TO_SERVER: [&str; 2] = ["10.50.2.1", "fd50:2::1"];
/// An address of the server that is not on a link.
pub(crate) const SERVER: [&str; 2] = ["203.0.113.10", "2001:db8:113::10"];

/// The router's devices.
pub(crate) const TO_CLIENT: &str = "clients";
pub(crate) const TO_SERVER: &str = "servers";

/// The intercepted port, and where the relay listens.
pub(crate) const PORT: u16 = 80;
pub(crate) const LISTEN: u16 = 8443;

pub(crate) struct Net {
    pub(crate) client: Netns,
    pub(crate) router: Netns,
    pub(crate) server: Netns,
}

// === impl Net ===

impl Net {
    pub(crate) fn new() -> Self {
        assert!(
            rustix::process::geteuid().is_root(),
            "this test makes network namespaces and must run as root; `make test` does"
        );
        static MADE: AtomicU32 = AtomicU32::new(0);
        let made = MADE.fetch_add(1, Ordering::Relaxed);
        let pid = std::process::id();
        let netns = |who: &str| Netns::create(&format!("taut-trans-{pid}-{made}-{who}")).unwrap();
        let net = Self {
            client: netns("client"),
            router: netns("router"),
            server: netns("server"),
        };
        for (device, other) in [(TO_CLIENT, &net.client), (TO_SERVER, &net.server)] {
            let line = format!(
                "link add {device} type veth peer name wire netns {}",
                other.name()
            );
            ip(&net.router, &line);
        }
        let server = ["10.50.2.2", "fd50:2::2"];
        // With the link address of each end, and the addresses of the other.
        let ends = [
            (&net.client, "wire", CLIENT, 0, (ROUTER_TO_CLIENT, 1)),
            (&net.router, TO_CLIENT, ROUTER_TO_CLIENT, 1, (CLIENT, 0)),
            (&net.router, TO_SERVER, ROUTER_TO_SERVER, 2, (server, 3)),
            (&net.server, "wire", server, 3, (ROUTER_TO_SERVER, 2)),
        ];
        let mac = |end: u8| format!("02:00:00:00:50:{end:02x}");
        for (netns, device, addrs, end, (others, other_end)) in ends {
            ip(netns, "link set lo up");
            ip(netns, &format!("link set {device} address {}", mac(end)));
            ip(netns, &format!("address add {}/24 dev {device}", addrs[0]));
            ip(
                netns,
                &format!("address add {}/64 dev {device} nodad", addrs[1]),
            );
            ip(netns, &format!("link set {device} up"));
            // A kernel worker makes an end listen for neighbour solicitations: on a busy machine later than a neighbour
            // asks.
            for other in others {
                let lladdr = mac(other_end);
                let neighbour = format!("{other} lladdr {lladdr} dev {device} nud permanent");
                ip(netns, &format!("neigh add {neighbour}"));
            }
            if device == "wire" {
                for gateway in others {
                    ip(netns, &format!("route add default via {gateway}"));
                }
            }
        }
        ip(&net.server, &format!("address add {} dev lo", SERVER[0]));
        // Otherwise the kernel looks for a duplicate, and nobody can bind the address for a moment.
        ip(
            &net.server,
            &format!("address add {} dev lo nodad", SERVER[1]),
        );
        ip(&net.router, "route add 203.0.113.0/24 via 10.50.2.2");
        ip(&net.router, "route add 2001:db8:113::/64 via fd50:2::2");
        for knob in ["ipv4/ip_forward", "ipv6/conf/all/forwarding"] {
            net.set(&net.router, knob, "1");
        }
        net
    }

    /// Sets a sysctl of a namespace.
    pub(crate) fn set(&self, netns: &Netns, knob: &str, value: &str) {
        let path = format!("/proc/sys/net/{knob}");
        netns.run(|| std::fs::write(path, value)).unwrap().unwrap();
    }

    /// Starts a node on the router with these forwards.
    pub(crate) fn relay(&self, method: Method, forwards: Vec<Forward>) -> Node {
        let config = config(method, forwards);
        self.router.run(|| Node::start(&config)).unwrap().unwrap()
    }

    /// Starts a node that intercepts connections to the server.
    pub(crate) fn intercept(&self, method: Method) -> Node {
        self.relay(method, vec![forward()])
    }

    /// Starts a server.
    pub(crate) fn listen(&self, netns: &Netns, ip: &str, port: u16) -> TcpListener {
        let addr = SocketAddr::new(ip.parse().unwrap(), port);
        netns.run(|| TcpListener::bind(addr)).unwrap().unwrap()
    }

    /// Connects as the client.
    pub(crate) fn connect(&self, ip: &str, port: u16) -> TcpStream {
        let addr = SocketAddr::new(ip.parse().unwrap(), port);
        let connect = || TcpStream::connect_timeout(&addr, PATIENCE);
        let stream = self.client.run(connect).unwrap().unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        for netns in [&self.client, &self.router, &self.server] {
            let _ = Netns::delete(netns.name());
        }
    }
}

/// A forward for port 80 of the server's networks, with those as allowed destinations.
pub(crate) fn forward() -> Forward {
    let transparent = Transparent {
        ports: vec![PORT],
        destinations: ["203.0.113.0/24", "2001:db8:113::/64"]
            .map(|n| n.parse().unwrap())
            .into(),
        devices: vec![TO_CLIENT.to_owned()],
        allow: ["203.0.113.0/24:*", "[2001:db8:113::]/64:*"]
            .map(|r| r.parse().unwrap())
            .into(),
        deny: Vec::new(),
    };
    let listen = format!(":{LISTEN}").parse().unwrap();
    Forward::transparent(vec![listen], transparent)
}

pub(crate) fn config(method: Method, forwards: Vec<Forward>) -> Config {
    let mut config = Config::new(forwards);
    config.workers = Some(2);
    config.max_sessions = Some(64);
    config.intercept.method = Some(method);
    config
}

/// Runs `ip` in a namespace.
pub(crate) fn ip(netns: &Netns, line: &str) -> String {
    let mut ip = Command::new("ip");
    let output = ip
        .args(["-n", netns.name()])
        .args(line.split(' '))
        .output()
        .unwrap();
    let why = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "ip {line}: {why}");
    String::from_utf8(output.stdout).unwrap()
}

/// Runs a program in a namespace.
pub(crate) fn exec(netns: &Netns, line: &[&str]) -> Output {
    inside(netns, line).output().unwrap()
}

fn inside(netns: &Netns, line: &[&str]) -> Command {
    let mut command = Command::new("ip");
    command
        .args(["netns", "exec", netns.name()])
        .args(line)
        .stdin(Stdio::null());
    command
}

/// Returns what `curl` prints of a page, or how it failed.
pub(crate) fn curl(netns: &Netns, url: &str) -> Result<String, String> {
    let patience = PATIENCE.as_secs().to_string();
    let line = [
        "curl",
        "-sS",
        "-g",
        "--noproxy",
        "*",
        "--max-time",
        &patience,
        url,
    ];
    let output = exec(netns, &line);
    match output.status.success() {
        true => Ok(String::from_utf8(output.stdout).unwrap()),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}

pub(crate) fn url(ip: &str, port: u16) -> String {
    let addr = SocketAddr::new(ip.parse::<IpAddr>().unwrap(), port);
    format!("http://{addr}/")
}

/// Connects as the client and waits for RST; an orderly end is a failure.
pub(crate) fn assert_reset(net: &Net, ip: &str, port: u16) {
    let addr = SocketAddr::new(ip.parse().unwrap(), port);
    let connect = || TcpStream::connect_timeout(&addr, PATIENCE);
    // The relay accepts first, but its RST may come before `connect` has returned.
    let end = net.client.run(connect).unwrap().and_then(|mut stream| {
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.read_to_end(&mut Vec::new())
    });
    let kind = end
        .expect_err("the stream ended with FIN instead of RST")
        .kind();
    assert_eq!(kind, std::io::ErrorKind::ConnectionReset);
}

/// A foreign process, in a folder of its own, until it is dropped.
pub(crate) struct Peer {
    child: Child,
    _folder: TempDir,
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// An nginx that answers with the client's address and the address that it connected to. `listen`:
/// the text after `listen` for each address.
pub(crate) fn nginx(netns: &Netns, listen: &[String], http: &str) -> Peer {
    let folder = TempDir::new().unwrap();
    let listen: String = listen.iter().map(|l| format!("listen {l};")).collect();
    let configuration = format!(
        "daemon off; master_process off; pid nginx.pid; error_log stderr; events {{}}\n\
         http {{ access_log off; client_body_temp_path .; proxy_temp_path .; fastcgi_temp_path .; \
         uwsgi_temp_path .; scgi_temp_path .;\n server {{ {listen} {http} }} }}\n"
    );
    std::fs::write(folder.path().join("nginx.conf"), configuration).unwrap();
    let prefix = folder.path().to_str().unwrap().to_owned();
    let child = inside(netns, &["nginx", "-p", &prefix, "-c", "nginx.conf"])
        .spawn()
        .unwrap();
    let pid = folder.path().join("nginx.pid");
    // It listens before it writes that file.
    wait_until("nginx", || pid.exists());
    Peer {
        child,
        _folder: folder,
    }
}

/// The server's nginx on both of its addresses, in plain HTTP.
pub(crate) fn web_server(net: &Net) -> Peer {
    let listen = SERVER.map(|ip| SocketAddr::new(ip.parse().unwrap(), PORT).to_string());
    let http = "location / { return 200 \"$remote_addr $server_addr $server_port\"; }";
    nginx(&net.server, &listen, http)
}

/// Returns the next connection of a listener, and its source.
pub(crate) fn accepted(listener: &TcpListener) -> (TcpStream, SocketAddr) {
    let (stream, peer) = listener.accept().unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    (stream, peer)
}
