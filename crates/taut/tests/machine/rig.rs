//! A machine of its own for jobs that change more than their process: namespaces, file systems, a tap
//! and a connection.

use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::net::TcpStream;
use std::process::{Child, Command, Output, Stdio};

use rustix::net::sockopt;
use serde_json::Value;
use taut_sys::probe::{Answer, bpf};
use taut_sys::tap::Tap;
use taut_sys_testing::skip::skip;

use crate::host::Host;

pub(crate) const TAUT: &str = env!("CARGO_BIN_EXE_taut");

/// Commands that show what a job may change.
const STATE: [&str; 10] = [
    "ip rule",
    "ip -6 rule",
    "ip route show table all",
    "ip -6 route show table all",
    "nft list ruleset",
    "tc qdisc show",
    "tc filter show dev vnet0 ingress",
    "tc filter show dev vnet0 egress",
    "find /sys/fs/bpf -mindepth 1",
    "sysctl net.ipv4.tcp_rmem net.ipv4.tcp_wmem net.ipv4.tcp_congestion_control",
];

/// A network namespace with a BPF file system and a `/run/taut` of its own, a tap and a connection.
pub(crate) struct Machine {
    pub(crate) host: Host,
    /// A process in the mount namespace, which ends when its standard input is closed.
    holder: Child,
    pub(crate) dir: tempfile::TempDir,
    _tap: Tap,
    connection: (TcpStream, TcpStream),
}

// === impl Machine ===

impl Machine {
    pub(crate) fn new(name: &str) -> Self {
        let host = Host::new(name);
        let tap = host.0.run(|| Tap::create("vnet0").unwrap()).unwrap();
        // Without an IPv6 address, which would come later.
        for line in ["link set vnet0 addrgenmode none", "link set vnet0 up"] {
            assert!(host.ip(line).status.success(), "{line}");
        }
        let small = || {
            for (name, value) in [
                ("rmem", "4096 131072 6291456"),
                ("wmem", "4096 16384 4194304"),
            ] {
                fs::write(format!("/proc/sys/net/ipv4/tcp_{name}"), value).unwrap();
            }
        };
        host.0.run(small).unwrap();
        let mut holder = Command::new("unshare");
        holder
            .args(["--mount", "sh", "-c"])
            .arg(
                "mount -t bpf -o mode=700 bpf /sys/fs/bpf && mkdir -p /run/taut && \
                 mount -t tmpfs -o mode=755 tmpfs /run/taut && echo ready && exec cat",
            )
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut holder = host.0.run(|| holder.spawn().unwrap()).unwrap();
        let mut line = String::new();
        BufReader::new(holder.stdout.as_mut().unwrap())
            .read_line(&mut line)
            .unwrap();
        assert_eq!(line, "ready\n", "file systems can be mounted");
        let connection = host.connection(&host.listener());
        let machine = Self {
            host,
            holder,
            dir: tempfile::tempdir().unwrap(),
            _tap: tap,
            connection,
        };
        // A command that always fails would show no change.
        for line in STATE {
            let output = machine.run("sh", &["-c", line]);
            assert!(output.status.success(), "{line}: {output:?}");
        }
        machine
    }

    pub(crate) fn command(&self, program: &str, args: &[&str]) -> Command {
        let mut command = Command::new("nsenter");
        command
            .args([
                "--target",
                &self.holder.id().to_string(),
                "--mount",
                "--net",
            ])
            .arg(program)
            .args(args)
            .stdin(Stdio::null())
            .env_remove("TAUT_LOG");
        command
    }

    pub(crate) fn run(&self, program: &str, args: &[&str]) -> Output {
        self.command(program, args).output().unwrap()
    }

    /// Returns everything that a job may change, but for the kernel's congestion controls.
    pub(crate) fn state(&self) -> String {
        let script = "for line; do echo \"$line\"; $line; done 2> /dev/null";
        let output = self.run("sh", &[&["-c", script, "sh"], &STATE[..]].concat());
        let mut state = String::from_utf8_lossy(&output.stdout).into_owned();
        for end in [&self.connection.0, &self.connection.1] {
            let send = sockopt::socket_send_buffer_size(end).unwrap();
            let receive = sockopt::socket_recv_buffer_size(end).unwrap();
            let _ = writeln!(state, "{send} {receive}");
        }
        state
    }

    /// Returns what `taut doctor` says is left.
    pub(crate) fn left(&self, args: &[&str]) -> (Vec<Value>, Output) {
        let begin = ["doctor", "--only", "leftovers", "--json"];
        let output = self.run(TAUT, &[&begin, args].concat());
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        let left = report["leftovers"].as_array().unwrap().clone();
        for one in &left {
            assert_eq!(one["state"], "left", "{one}");
        }
        (left, output)
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.run(TAUT, &["guest", "down"]);
        drop(self.holder.stdin.take());
        let _ = self.holder.wait();
    }
}

/// Returns the congestion controls of `taut guest` that the kernel has. All namespaces share them.
pub(crate) fn congestion_controls() -> String {
    let path = "/proc/sys/net/ipv4/tcp_available_congestion_control";
    let text = fs::read_to_string(path).unwrap();
    let ours = ["taut_bbr", "taut_cubic"];
    let of_guest = |name: &&str| ours.iter().any(|ours| name.starts_with(ours));
    text.split_whitespace().filter(of_guest).collect()
}

/// Returns the command lines of the jobs. What `guest up` loads, all namespaces share: its tests hold
/// [`programs::alone`](crate::programs::alone).
pub(crate) fn jobs(machine: &Machine) -> Vec<Vec<String>> {
    let [by_bpf, by_nft] = ["bpf", "nft"].map(|method| {
        let path = machine.dir.path().join(format!("{method}.toml"));
        let text = format!(
            r#"
            [relay]
            intercept_by = "{method}"
            [[relay.forward]]
            transparent = true
            listen = "127.0.0.1:8443"
            ports = [80]
            destinations = ["203.0.113.0/24"]
            allow = ["203.0.113.0/24:*"]
            "#
        );
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    });
    let mut jobs = vec![
        vec!["relay", "--config", &by_bpf],
        vec!["relay", "--config", &by_nft],
        vec!["tune", "--apply", "--json", "--netns", machine.host.name()],
        vec!["snoop", "--tap", "vnet*"],
        vec!["watch", "--interval", "100ms"],
    ];
    match bpf::tcp_congestion_ops() {
        Answer::No(why) => skip(&format!("taut guest: this kernel: {why}")),
        _ => jobs.extend([vec!["guest", "up"], vec!["guest", "down"]]),
    }
    let owned = |job: Vec<&str>| job.into_iter().map(str::to_owned).collect();
    jobs.into_iter().map(owned).collect()
}

/// Starts a job and waits until it has said one of the words, or has ended.
pub(crate) fn start(machine: &Machine, job: &[&str]) -> (Child, Vec<String>) {
    let args = job.iter().copied();
    let begin = ["-c", "exec \"$@\" 2>&1", "sh", TAUT];
    let args: Vec<_> = begin.into_iter().chain(args).collect();
    let mut job = machine.command("sh", &args);
    let mut job = job.stdout(Stdio::piped()).spawn().unwrap();
    let mut said = Vec::new();
    let mut lines = BufReader::new(job.stdout.take().unwrap()).lines();
    while let Some(Ok(line)) = lines.next() {
        let is_ready = ["relaying", "\"applied\"", "serving", "are loaded"]
            .iter()
            .any(|words| line.contains(words));
        said.push(line);
        if is_ready {
            // What follows is read, so that the job can write it.
            std::thread::spawn(move || lines.for_each(drop));
            break;
        }
    }
    (job, said)
}
