//! `taut top` and `taut why` as processes: connections of real kernels in namespaces of their own.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::net::sockopt;
use serde_json::Value;
use taut_sys::tcp_info::TcpInfo;
use taut_sys_testing::skip;
use taut_sys_testing::stalled_receive::StalledReceive;

use crate::host::Host;
use crate::without_root::WithoutRoot;

const PATIENCE: Duration = Duration::from_secs(60);

fn taut(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_taut"));
    command
        .args(args)
        .stdin(Stdio::null())
        .env_remove("TAUT_LOG");
    command
}

fn records(args: &[&str]) -> Vec<Value> {
    let output = taut(args).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let lines = output
        .stdout
        .split(|&byte| byte == b'\n')
        .filter(|line| !line.is_empty());
    lines
        .map(|line| serde_json::from_slice(line).unwrap())
        .collect()
}

/// Asks `taut why` again until the report is as expected, as an operator would: what limits a live connection
/// while it looks depends on what else this machine does. The limit is for a report that never comes.
pub(crate) fn until_told<T: std::fmt::Debug>(
    look: impl Fn() -> T,
    is_told: impl Fn(&T) -> bool,
) -> T {
    let began = Instant::now();
    loop {
        let told = look();
        if is_told(&told) {
            return told;
        }
        assert!(began.elapsed() < PATIENCE, "the last report: {told:?}");
        println!("looks again after {told:?}");
    }
}

/// Returns the factor of a record's verdict.
fn factor(record: &Value) -> &str {
    record["verdict"]["factor"].as_str().unwrap_or_default()
}

/// `taut` that goes on until this is dropped.
struct Running {
    child: Child,
    said: BufReader<ChildStdout>,
}

impl Running {
    fn start(args: &[&str]) -> Self {
        let mut child = taut(args).stdout(Stdio::piped()).spawn().unwrap();
        let said = BufReader::new(child.stdout.take().unwrap());
        Self { child, said }
    }

    /// Starts another program in a namespace.
    fn of(mut command: Command, host: &Host) -> Self {
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = host.0.run(|| command.spawn().unwrap()).unwrap();
        let said = BufReader::new(child.stdout.take().unwrap());
        Self { child, said }
    }

    fn end(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// The next line; none: it has ended.
    fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        (self.said.read_line(&mut line).unwrap() > 0).then_some(line)
    }

    /// All of a table.
    fn look(&mut self) -> String {
        let mut table = String::new();
        loop {
            let line = self.line().expect("it goes on");
            if line == "\n" {
                return table;
            }
            table.push_str(&line);
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end();
    }
}

fn me() -> u64 {
    std::process::id().into()
}

#[test]
fn a_connection_of_another_namespace_is_told_with_its_process() {
    let host = Host::new("owner");
    let (mut client, mut server) = host.connection(&host.listener());
    client.write_all(&[7; 3000]).unwrap();
    server.read_exact(&mut [0; 3000]).unwrap();
    let near = client.local_addr().unwrap().to_string();
    for args in [
        vec!["top", "--json", "-n", "1", "--netns", host.name()],
        vec!["top", "--json", "-n", "1", "netns", host.name()],
        vec!["why", "--json", "--for", "500ms", "netns", host.name()],
    ] {
        let records = records(&args);
        assert_eq!(records.len(), 2, "{args:?}: {records:?}");
        let sent = records
            .iter()
            .find(|record| record["local"] == *near)
            .unwrap();
        assert_eq!(sent["netns"], host.name());
        assert_eq!(sent["state"], "ESTABLISHED");
        assert_eq!(sent["process"]["pid"], me());
        assert_eq!(sent["instruments"]["HCDataOctetsOut"], 3000);
        assert!(sent["instruments"]["SmoothedRTT"].as_f64().unwrap() > 0.0);
    }
}

#[test]
fn a_filter_takes_what_it_says_and_a_wrong_one_is_explained() {
    let host = Host::new("filter");
    let (client, server) = host.connection(&host.listener());
    let port = server.local_addr().unwrap().port().to_string();
    let base = ["top", "--json", "-n", "1", "--netns", host.name()];
    let count = |filter: &[&str]| records(&[&base, filter].concat()).len();
    assert_eq!(count(&["dport", &port]), 1);
    assert_eq!(count(&["port", &port, "and", "pid", &me().to_string()]), 2);
    assert_eq!(count(&["not", "port", &port]), 0);
    drop(client);
    let refused = |filter: &[&str]| {
        let output = taut(&[&["top", "--batch"], filter].concat())
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(2));
        String::from_utf8(output.stderr).unwrap()
    };
    let said = refused(&["dport", "htps"]);
    assert!(said.contains("\"htps\"") && said.contains("443"), "{said}");
    let said = refused(&["no-such-word", "bar"]);
    assert!(said.contains("`process no-such-word`"), "{said}");
    let help = taut(&["why", "--help"])
        .env("COLUMNS", "80")
        .output()
        .unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    assert!(help.lines().all(|line| line.len() <= 80), "{help}");
    assert!(
        help.contains("10.0.0.9:443") && help.contains("dport https"),
        "{help}"
    );
}

/// Opens a connection in the namespace, which carries `request` bytes to the server and `reply` bytes
/// back, and closes it.
fn short_connection(host: &Host, listener: &TcpListener, request: usize, reply: usize) {
    let (mut client, mut server) = host.connection(listener);
    client.write_all(&vec![7; request]).unwrap();
    server.read_exact(&mut vec![0; request]).unwrap();
    server.write_all(&vec![7; reply]).unwrap();
    drop(server);
    client.read_to_end(&mut Vec::new()).unwrap();
}

/// The name of this process.
pub(crate) fn my_name() -> String {
    let name = std::fs::read_to_string("/proc/self/comm").unwrap();
    name.trim_end().to_owned()
}

/// Connects to `to`, sends `request` bytes, and reads the reply to its end.
fn request(to: SocketAddr, request: &[u8]) -> u64 {
    let mut client = TcpStream::connect(to).unwrap();
    client.write_all(request).unwrap();
    client.read_to_end(&mut Vec::new()).unwrap() as u64
}

/// Starts `taut top --json` in the namespace, and waits until it shows the open connection
/// `client`.
fn top_that_shows(host: &Host, interval: &str, client: &TcpStream) -> Running {
    let netns = ["--netns", host.name()];
    let mut top =
        Running::start(&[&["top", "--json", "--interval", interval][..], &netns].concat());
    let near = client.local_addr().unwrap().to_string();
    while !top.line().expect("it goes on").contains(&near) {}
    top
}

/// The processor time of a process, in seconds.
fn cpu_seconds(pid: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<_> = stat
        .rsplit(')')
        .next()
        .unwrap()
        .split_whitespace()
        .collect();
    let ticks: f64 = fields[11..13]
        .iter()
        .map(|ticks| ticks.parse::<f64>().unwrap())
        .sum();
    ticks / rustix::param::clock_ticks_per_second() as f64
}

/// TAUT_SHORT_SECONDS=60 makes 2,000 connections a second for a minute, and prints the cost.
#[test]
fn connections_that_come_and_go_are_summed_up_with_their_process_and_none_is_missed() {
    const RATE: u64 = 2000;
    let seconds = std::env::var("TAUT_SHORT_SECONDS").ok();
    let seconds: Option<u64> = seconds.map(|seconds| seconds.parse().unwrap());
    let many = seconds.map_or(1000, |seconds| seconds * RATE);
    let host = Host::new("short");
    let listener = host.listener();
    let open = host.connection(&listener);
    let mut top = top_that_shows(&host, "100ms", &open.0);
    let to = listener.local_addr().unwrap();
    // What the server has sent and received, by its own account.
    let (sent, received) = (AtomicU64::new(0), AtomicU64::new(0));
    let (mut seen, mut sums) = (0, [[0; 3]; 2]);
    let (began, before) = (Instant::now(), cpu_seconds(top.child.id()));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for index in 0..many {
                let (mut server, _) = listener.accept().unwrap();
                server.read_exact(&mut [0; 100]).unwrap();
                let reply = vec![7; 1000 + index as usize % 5000];
                server.write_all(&reply).unwrap();
                sent.fetch_add(reply.len() as u64, Ordering::Relaxed);
                received.fetch_add(100, Ordering::Relaxed);
            }
        });
        scope.spawn(|| {
            let all = || {
                for index in 0..many {
                    request(to, &[7; 100]);
                    if seconds.is_some() {
                        let due = Duration::from_secs(index) / RATE as u32;
                        std::thread::sleep(due.saturating_sub(began.elapsed()));
                    }
                }
            };
            host.0.run(all).unwrap();
        });
        while seen < 2 * many {
            let line: Value = serde_json::from_str(&top.line().expect("it goes on")).unwrap();
            let ended = &line["ended"];
            if ended.is_null() {
                continue;
            }
            assert_eq!(ended["process"], my_name(), "{line}");
            let of = |name: &str| ended[name].as_u64().unwrap();
            let here = usize::from(ended["opened_by"] == "here");
            for (sum, name) in sums[here]
                .iter_mut()
                .zip(["connections", "sent", "received"])
            {
                *sum += of(name);
            }
            assert_eq!((of("failed"), of("open_before")), (0, 0));
            seen += of("connections");
        }
    });
    let (sent, received) = (sent.into_inner(), received.into_inner());
    assert_eq!(sums[0], [many, sent, received]);
    assert_eq!(sums[1], [many, received, sent]);
    if seconds.is_some() {
        let (time, used) = (
            began.elapsed().as_secs_f64(),
            cpu_seconds(top.child.id()) - before,
        );
        println!(
            "{many} connections in {time:.1} s, {:.3} cores",
            used / time
        );
    }
}

#[test]
fn the_process_that_connects_and_the_one_that_accepts_are_told_apart_after_both_are_done() {
    const MANY: u64 = 10;
    let host = Host::new("two");
    let listener = host.listener();
    let to = listener.local_addr().unwrap();
    let open = host.connection(&listener);
    let mut top = top_that_shows(&host, "50ms", &open.0);
    for _ in 0..MANY {
        let mut client = Command::new("ip");
        client.args(["netns", "exec", host.name(), "bash", "-c"]);
        client.arg(format!(
            "exec 3<>/dev/tcp/127.0.0.1/{}; read -r <&3",
            to.port()
        ));
        let mut client = client.stdin(Stdio::null()).spawn().unwrap();
        listener.accept().unwrap().0.write_all(b"done\n").unwrap();
        assert!(client.wait().unwrap().success());
    }
    let mut counts = std::collections::BTreeMap::new();
    while counts.values().sum::<u64>() < 2 * MANY {
        let line: Value = serde_json::from_str(&top.line().expect("it goes on")).unwrap();
        let ended = &line["ended"];
        if let Some(count) = ended["connections"].as_u64() {
            let process = ended["process"].as_str().unwrap().to_owned();
            let opener = ended["opened_by"].as_str().unwrap().to_owned();
            *counts.entry((process, opener)).or_default() += count;
        }
    }
    let of = |name: &str, opener: &str| (name.to_owned(), opener.to_owned());
    let expected = [(of("bash", "here"), MANY), (of(&my_name(), "peer"), MANY)];
    assert_eq!(counts, expected.into());
}

#[test]
fn why_explains_what_ended_within_its_time_and_never_says_that_there_was_nothing() {
    let host = Host::new("why-short");
    let listener = host.listener();
    let name = my_name();
    let filter = format!("process '{name}'");
    let mut why = taut(&["why", "--for", "500ms", "--netns", host.name(), &filter]);
    let mut why = why.stdout(Stdio::piped()).spawn().unwrap();
    while why.try_wait().unwrap().is_none() {
        short_connection(&host, &listener, 100, 20_000);
    }
    let said = std::io::read_to_string(why.stdout.take().unwrap()).unwrap();
    assert!(!said.contains("no such connection"), "{said}");
    assert!(!said.contains("no connection"), "{said}");
    let peer = listener.local_addr().unwrap().ip();
    let sums = format!(
        "connections of {name} to {peer} ended in namespace {}",
        host.name()
    );
    assert!(said.contains(&sums), "{said}");
    assert!(said.contains("segments retransmitted"), "{said}");
}

#[test]
fn a_name_that_moves_the_cursor_moves_nothing() {
    let host = Host::new("hostile");
    let listener = host
        .0
        .run(|| TcpListener::bind("127.0.0.1:0"))
        .unwrap()
        .unwrap();
    let to = listener.local_addr().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let program = dir
        .path()
        .join(std::ffi::OsStr::from_bytes(b"\x1b[2J) R\n\xe2\x80\xae\xff"));
    std::os::unix::fs::symlink("/bin/bash", &program).unwrap();
    let mut child = Command::new("ip");
    child
        .args(["netns", "exec", host.name()])
        .arg(&program)
        .arg("-c");
    child.arg(format!(
        "exec 3<>/dev/tcp/127.0.0.1/{}; read -r <&3",
        to.port()
    ));
    let mut child = child.spawn().unwrap();
    let (held, _) = listener.accept().unwrap();

    let table = taut(&[
        "top",
        "--batch",
        "-n",
        "2",
        "--interval",
        "50ms",
        "--netns",
        host.name(),
    ]);
    let table = { table }.output().unwrap().stdout;
    let text = String::from_utf8(table).unwrap();
    assert!(text.contains(&format!("/{}", child.id())), "{text}");
    assert!(
        text.chars().all(|c| c == '\n' || !c.is_control()),
        "{text:?}"
    );
    assert!(!text.contains('\u{202e}'), "{text:?}");
    // The time, titles, two connections and an empty line, twice.
    assert_eq!(text.lines().count(), 10, "{text}");
    drop(held);
    child.wait().unwrap();
}

#[test]
fn a_namespace_is_let_go_when_its_owner_does() {
    let (host, beside) = (Host::new("vanishes"), Host::new("stays"));
    let made = host.ip(&format!(
        "link add v0 type veth peer name v1 netns {}",
        beside.name()
    ));
    assert!(made.status.success(), "{made:?}");
    let ends = host.connection(&host.listener());
    let mut top = Running::start(&["top", "--batch", "--interval", "20ms"]);
    let near = ends.0.local_addr().unwrap().to_string();
    while !top.look().contains(&near) {}
    drop((ends, host));
    // The kernel takes the one end of the pair away when the other end's namespace is gone.
    let gone = |_| {
        top.look();
        !beside.ip("link show v1").status.success()
    };
    assert!((0..2000).any(gone), "the namespace is held");
}

#[test]
fn connections_that_come_and_go_leave_neither_strangers_names_nor_broken_lines() {
    let host = Host::new("churn");
    let listener = host
        .0
        .run(|| TcpListener::bind("127.0.0.1:0"))
        .unwrap()
        .unwrap();
    let to: SocketAddr = listener.local_addr().unwrap();
    let (stop, made) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while let Ok((stream, _)) = listener.accept() {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                drop(stream);
            }
        });
        scope.spawn(|| {
            host.0
                .run(|| {
                    // Most are open for a moment, some for as long as the test takes.
                    let (mut open, mut kept) = (std::collections::VecDeque::new(), Vec::new());
                    while !stop.load(Ordering::Relaxed) {
                        if let Ok(stream) = TcpStream::connect(to) {
                            match made.fetch_add(1, Ordering::Relaxed) % 200 {
                                0 if kept.len() < 500 => kept.push(stream),
                                _ => open.push_back(stream),
                            }
                        }
                        if open.len() > 200 {
                            open.pop_front();
                        }
                    }
                    // The one that lets the listener go.
                    let _ = TcpStream::connect(to);
                })
                .unwrap();
        });
        let mut top = Running::start(&[
            "top",
            "--json",
            "--interval",
            "50ms",
            "--netns",
            host.name(),
        ]);
        let (mut lines, mut owned) = (0, 0);
        while made.load(Ordering::Relaxed) < 20_000 || lines < 2000 {
            let line = top.line().expect("it goes on");
            let record: Value = serde_json::from_str(&line).unwrap();
            lines += 1;
            if let Some(pid) = record["process"]["pid"].as_u64() {
                assert_eq!(pid, me(), "{record}");
                owned += 1;
            }
        }
        assert!(owned > 0);
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn without_root_what_is_missing_is_said_once() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let _client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let without_root = WithoutRoot::new();
    let mut command = without_root.taut();
    command.args(["top", "--batch", "-n", "3", "--interval", "20ms"]);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let (shown, said) = (
        String::from_utf8(output.stdout).unwrap(),
        String::from_utf8(output.stderr).unwrap(),
    );
    assert!(
        shown.contains(&listener.local_addr().unwrap().to_string()),
        "{shown}"
    );
    assert_eq!(
        said,
        "taut: without root, other network namespaces, other users' processes and connections between two scans are \
         not seen\n"
    );
}

#[test]
fn without_the_kernels_types_the_reason_is_said() {
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "sh", "-c"])
        .arg(format!(
            "mount -t tmpfs none /sys/kernel/btf && exec {} top --batch -n 1 --own-netns",
            env!("CARGO_BIN_EXE_taut")
        ))
        .env_remove("TAUT_LOG");
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("the kernel has no BTF"), "{said}");
}

#[test]
fn what_happens_between_looks_is_counted_unless_that_is_not_wanted() {
    if !skip::has_programs(&["nft"]) {
        return;
    }
    let host = Host::new("events");
    let (mut client, mut server) = host.connection(&host.listener());
    // BBR can stay in Loss for minutes behind a policer: one signal, however many segments it
    // loses. Reno recovers between two.
    rustix::net::sockopt::set_tcp_congestion(&client, "reno").unwrap();
    let (near, port) = (
        client.local_addr().unwrap().to_string(),
        server.local_addr().unwrap().port(),
    );
    // What is more than a rate is dropped.
    let mut nft = Command::new("ip");
    nft.args(["netns", "exec", host.name(), "nft"]).arg(format!(
        "table inet test {{ chain in {{ type filter hook input priority 0; \
         tcp dport {port} limit rate over 2 mbytes/second burst 200 kbytes drop; }}; }}"
    ));
    assert!(nft.status().unwrap().success());
    let ends = [&client, &server].map(|end| end.try_clone().unwrap());
    let writes = std::thread::spawn(move || while client.write_all(&[7; 65536]).is_ok() {});
    let reads = std::thread::spawn(move || {
        let mut room = vec![0; 65536];
        while matches!(server.read(&mut room), Ok(read) if read > 0) {}
    });
    let mut top = Running::start(&[
        "top",
        "--json",
        "--interval",
        "50ms",
        "--netns",
        host.name(),
    ]);
    let (mut looks, mut quiet) = (0, true);
    let record = loop {
        let record: Value = serde_json::from_str(&top.line().unwrap()).unwrap();
        if record["local"] != *near {
            continue;
        }
        let signals = record["instruments"]["CongSignals"].as_u64();
        // It counts from the first look on, whatever was before.
        quiet &= looks > 0 || signals == Some(0);
        if signals >= Some(4) {
            break record;
        }
        looks += 1;
        assert!(looks < 2000, "nothing is counted: {record}");
    };
    assert!(quiet);
    let instrument = |name: &str| record["instruments"][name].as_f64().unwrap();
    assert!(instrument("CountRTT") <= instrument("SegsIn"), "{record}");
    assert!(instrument("signal_interval") > 0.0, "{record}");
    assert!(instrument("PreCongSumCwnd") >= instrument("CongSignals") * instrument("CurMSS"));
    let mean = instrument("HCSumRTT") / instrument("CountRTT");
    assert!(mean > 0.0 && mean <= instrument("MaxRTT"), "{record}");

    let base = ["top", "--json", "-n", "1", "--netns", host.name()];
    let without = records(&[&base[..], &["--no-events"]].concat());
    assert_eq!(without.len(), 2);
    for record in without {
        assert_eq!(record["instruments"].get("CongSignals"), None, "{record}");
        assert!(record["instruments"].get("window_clamp").is_some());
    }
    for end in ends {
        end.shutdown(std::net::Shutdown::Both).unwrap();
    }
    for thread in [writes, reads] {
        thread.join().unwrap();
    }
}

#[test]
fn a_listener_that_drops_connection_attempts_is_named_with_its_process() {
    let host = Host::new("listen");
    let listener = host.listener();
    rustix::net::listen(&listener, 2).unwrap();
    let address = listener.local_addr().unwrap();
    let connect = || (0..3).map(|_| TcpStream::connect(address).unwrap());
    let fits: Vec<_> = host.0.run(|| connect().collect()).unwrap();
    let (name, port) = (host.name(), address.port().to_string());
    let watch = |port: &str| {
        let args = [
            "why", "--json", "--for", "500ms", "--netns", name, "port", port,
        ];
        let mut child = taut(&args).stdout(Stdio::piped()).spawn().unwrap();
        // However long it takes to start, something is dropped while it observes.
        while child.try_wait().unwrap().is_none() {
            host.0.run(|| dial(address)).unwrap();
        }
        let mut text = String::new();
        child
            .stdout
            .take()
            .unwrap()
            .read_to_string(&mut text)
            .unwrap();
        let records = text
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).unwrap());
        records
            .filter(|record| record.get("listener").is_some())
            .collect::<Vec<_>>()
    };
    let records = until_told(|| watch(&port), |told| !told.is_empty());
    let [record] = &records[..] else {
        panic!("{records:?}");
    };
    let found = &record["listener"];
    assert_eq!(found["local"], address.to_string(), "{found}");
    assert_eq!(found["pid"], me(), "{found}");
    assert_eq!(
        (&found["waiting"], &found["most_waiting"]),
        (&3.into(), &3.into()),
        "{found}"
    );
    assert!(found["dropped"].as_u64().unwrap() > 0, "{found}");
    // What others' listeners drop is not asked for.
    assert_eq!(watch("1"), Vec::<Value>::new());
    drop(fits);
}

/// Starts to connect, without waiting.
fn dial(address: SocketAddr) -> std::os::fd::OwnedFd {
    use rustix::net::{AddressFamily, SocketType, connect, socket};
    let dialler = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    rustix::io::ioctl_fionbio(&dialler, true).unwrap();
    let _ = connect(&dialler, &address);
    dialler
}

#[test]
fn a_reader_that_does_not_read_is_told_at_both_ends() {
    let hosts = ["near", "far"].map(|end| Host::new(&format!("reader-{end}")));
    let [near_host, far_host] = &hosts;
    join([near_host, far_host]);
    let listener = far_host.0.run(|| TcpListener::bind("192.0.2.2:0"));
    let (mut client, server) = near_host.connection(&listener.unwrap().unwrap());
    let near = client.local_addr().unwrap().to_string();
    let writes = std::thread::spawn(move || while client.write_all(&[7; 65536]).is_ok() {});
    let is_told = |told: &Vec<Value>| told.len() == 1 && factor(&told[0]) == "receiver-application";
    let why = ["why", "--for", "1s", "--netns", near_host.name()];
    let json = ["why", "--for", "1s", "--netns", far_host.name(), "--json"];
    until_told(|| records(&[&why[..], &["--json"]].concat()), is_told);
    let told = until_told(|| records(&json), is_told);
    // What the other end says comes from a file, or over ssh.
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("far.json");
    let lines: String = told.iter().map(|record| format!("{record}\n")).collect();
    std::fs::write(&file, lines).unwrap();
    let with = [&why[..], &["--with"]].concat();
    let with_file = [&with[..], &[file.to_str().unwrap(), "--json"]].concat();
    let is_joined = |told: &Vec<Value>| {
        told.len() == 1 && told[0]["both_ends"]["factor"] == "receiver-application"
    };
    let joined = until_told(|| records(&with_file), is_joined);
    assert_eq!(joined[0]["both_ends"]["shown_by"], "there");
    // Or from a pipe, on which it comes while this end observes.
    let with_pipe = || {
        let mut far = taut(&json).stdout(Stdio::piped()).spawn().unwrap();
        let pipe = far.stdout.take().unwrap();
        let joined = taut(&[&with[..], &["/dev/stdin", "--json"]].concat())
            .stdin(pipe)
            .output()
            .unwrap();
        far.wait().unwrap();
        String::from_utf8(joined.stdout).unwrap()
    };
    until_told(with_pipe, |joined| {
        joined.matches("\"both_ends\"").count() == 1
    });
    let ssh = dir.path().join("ssh");
    let with_ssh = |script: &str| {
        // Not fs::write, for the same reason as with the copy above.
        let write = "printf '#!/bin/sh\n%s\n' \"$1\" >\"$0\" && chmod 755 \"$0\"";
        let mut sh = Command::new("sh");
        let written = sh.args(["-c", write, ssh.to_str().unwrap(), script]);
        assert!(written.status().unwrap().success());
        let path = format!(
            "{}:{}",
            dir.path().display(),
            std::env::var("PATH").unwrap()
        );
        let far = ["far", "--with-command", env!("CARGO_BIN_EXE_taut")];
        taut(&[&with[..], &far].concat())
            .env("PATH", path)
            .output()
            .unwrap()
    };
    let at_far = format!(
        "  at far ({}, pid {}): receiver-application",
        my_name(),
        me()
    );
    let at_both = "is limited by the receiving application";
    let over_ssh = || {
        let output = with_ssh("[ \"$1 $2 $3\" = '-T -- far' ] && exec sh -c \"$4\"");
        String::from_utf8(output.stdout).unwrap()
    };
    let text = until_told(over_ssh, |text| {
        text.matches(&at_far).count() == 1 && text.matches(at_both).count() == 1
    });
    assert!(text.contains(&near), "{text}");
    let output = with_ssh("exit 255");
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("--with far: exit status: 255"), "{said}");
    drop(server);
    writes.join().unwrap();
}

/// A cgroup with a twentieth of a CPU, removed on drop with the process in it.
struct Quota {
    directory: PathBuf,
    file: &'static str,
}

impl Quota {
    /// Returns `None` if the machine has no CPU controller for cgroups.
    fn new() -> Option<Self> {
        let name = format!("taut-observe-{}", std::process::id());
        let of = |root: &str, file: &'static str, text: &str| {
            let directory = Path::new(root).join(&name);
            std::fs::create_dir(&directory).ok()?;
            let quota = Self { directory, file };
            std::fs::write(quota.directory.join(file), text).ok()?;
            Some(quota)
        };
        of("/sys/fs/cgroup/cpu", "cpu.cfs_quota_us", "5000")
            .or_else(|| of("/sys/fs/cgroup", "cpu.max", "5000 100000"))
    }
}

impl Drop for Quota {
    fn drop(&mut self) {
        // The group is empty once its process has ended, which the kernel may notice a little later.
        let removed = || std::fs::remove_dir(&self.directory).is_ok();
        while self.directory.exists() && !removed() {
            std::thread::yield_now();
        }
    }
}

#[test]
fn an_application_that_a_cpu_quota_stops_is_told_with_the_file_that_sets_it() {
    let Some(quota) = Quota::new() else {
        skip::skip("this machine has no CPU controller for cgroups");
        return;
    };
    let host = Host::new("quota");
    let listener = host.listener();
    let mut sender = Command::new("bash");
    sender
        .args(["-c", "echo $$ >\"$1\"; exec 3<>/dev/tcp/127.0.0.1/$2; while :; do for _ in {1..3000}; do :; done; echo x >&3; done"])
        .arg("bash")
        .arg(quota.directory.join("cgroup.procs"))
        .arg(listener.local_addr().unwrap().port().to_string());
    let mut sender = Running::of(sender, &host);
    let (mut server, _) = listener.accept().unwrap();
    let reads = std::thread::spawn(move || std::io::copy(&mut server, &mut std::io::sink()));
    let netns = ["--netns", host.name(), "process", "bash"];
    let args = [&["why", "--json", "--for", "1s"][..], &netns].concat();
    let told = until_told(
        || records(&args),
        |told| matches!(&told[..], [record] if factor(record) == "cpu-quota"),
    );
    let record = &told[0];
    let file = quota.directory.join(quota.file);
    let said = record["verdict"]["evidence"][0]["text"].as_str().unwrap();
    assert!(said.contains(file.to_str().unwrap()), "{said}");
    sender.end();
    reads.join().unwrap().unwrap();
}

/// Joins two hosts by devices called `veth`, 192.0.2.1 and 192.0.2.2.
fn join(hosts: [&Host; 2]) {
    let [near, far] = hosts.map(Host::name);
    let pair = format!("link add veth type veth peer name veth netns {far}");
    assert!(hosts[0].ip(&pair).status.success(), "{near}");
    for (host, address) in hosts.into_iter().zip(["192.0.2.1/24", "192.0.2.2/24"]) {
        assert!(
            host.ip(&format!("addr add {address} dev veth"))
                .status
                .success()
        );
        assert!(host.ip("link set veth up").status.success());
    }
}

/// Returns whether one connection was reported, limited by packets that this host drops.
fn is_host_drops(told: &[Value]) -> bool {
    matches!(told, [record] if factor(record) == "host-drops")
}

/// Adds a rule to what comes in at a host.
fn nft(host: &Host, rule: &str) {
    let mut nft = Command::new("nft");
    nft.arg(format!(
        "add table inet t; add chain inet t c {{ type filter hook input priority 0; }}; add rule inet t c {rule}"
    ));
    let output = host.0.run(move || nft.output().unwrap()).unwrap();
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn packets_that_a_rule_of_this_host_drops_are_named_with_their_place() {
    drops_are_named("drop", "numgen random mod 100 < 10 meta l4proto tcp drop");
}

#[test]
fn packets_that_a_policer_of_this_host_drops_are_named_with_their_place() {
    let rule = "meta l4proto tcp limit rate over 2 mbytes/second burst 50 kbytes drop";
    drops_are_named("limit", rule);
}

fn drops_are_named(name: &str, rule: &str) {
    if !skip::has_programs(&["nft"]) {
        return;
    }
    let hosts = ["near", "far"].map(|end| Host::new(&format!("{name}-{end}")));
    let [near, far] = &hosts;
    join([near, far]);
    let listener = far
        .0
        .run(|| TcpListener::bind("192.0.2.2:0").unwrap())
        .unwrap();
    let (mut client, mut server) = near.connection(&listener);
    // BBR would send on, and its peer would not read as fast.
    sockopt::set_tcp_congestion(&client, "cubic").unwrap();
    nft(far, rule);
    let reads = std::thread::spawn(move || std::io::copy(&mut server, &mut std::io::sink()));
    let is_done = Arc::new(AtomicBool::new(false));
    let is_over = is_done.clone();
    let writes = std::thread::spawn(move || {
        while !is_over.load(Ordering::Relaxed) {
            client.write_all(&[7; 50_000]).unwrap();
        }
    });
    // Long enough that few of the losses are of drops before it counted them.
    let args = ["why", "--json", "--for", "3s", "netns", near.name()];
    let told = until_told(|| records(&args), |told| is_host_drops(told));
    is_done.store(true, Ordering::Relaxed);
    let record = &told[0];
    let verdict = &record["verdict"];
    let drop = &verdict["evidence"][1]["drop"];
    assert_eq!(drop["place"], "netfilter", "{record}");
    assert_eq!(drop["device"], "veth", "{record}");
    assert_eq!(drop["netns"], far.name(), "{record}");
    assert!(
        verdict["remedy"]
            .as_str()
            .unwrap()
            .contains("nft list ruleset")
    );
    // What the sender has sent, and its end, does not have to pass the rule.
    let none = || Command::new("nft").args(["flush", "ruleset"]).status();
    assert!(far.0.run(none).unwrap().unwrap().success());
    writes.join().unwrap();
    reads.join().unwrap().unwrap();
}

/// Returns what `taut why` reports of a connection whose receiver's backlog is full.
fn full_backlog() -> Vec<Value> {
    let [near, far] = ["near", "far"].map(|end| Host::new(&format!("backlog-{end}")));
    join([&near, &far]);
    // Retransmissions come at least once a second. Without this setting (Linux before 6.15) the times between them
    // double.
    let often = || std::fs::write("/proc/sys/net/ipv4/tcp_rto_max_ms", "1000");
    let _ = near.0.run(often).unwrap();
    // The congestion window does not limit the sender.
    let route = near.ip("route change 192.0.2.0/24 dev veth initcwnd 1000");
    assert!(route.status.success(), "{route:?}");
    let listener = far
        .0
        .run(|| TcpListener::bind("192.0.2.2:0").unwrap())
        .unwrap();
    let (mut client, mut server) = near.connection(&listener);
    let began = Instant::now();
    while TcpInfo::of(&client).unwrap().snd_wnd.unwrap() < 150_000 {
        assert!(began.elapsed() < PATIENCE, "the window stays small");
        client.write_all(&[7; 10_000]).unwrap();
        server.read_exact(&mut [0; 10_000]).unwrap();
    }
    // The backlog may hold the buffers and 64 KiB: now less than that window.
    sockopt::set_socket_recv_buffer_size(&server, 1).unwrap();
    sockopt::set_socket_send_buffer_size(&server, 1).unwrap();
    // Whatever lists a stalled socket waits. The other tests do not find one in a namespace without a
    // name.
    drop(far);
    client.write_all(&[7]).unwrap();
    let _stalled = StalledReceive::start(&server).unwrap();
    client.write_all(&[7; 140_000]).unwrap();
    // Now the backlog is full, and each retransmission is dropped.
    records(&["why", "--json", "--for", "2s", "--netns", near.name()])
}

#[test]
fn the_full_backlog_of_a_socket_whose_application_is_stuck_is_named() {
    // A report that has come between two retransmissions needs another connection: the next may take long.
    let told = until_told(full_backlog, |told| is_host_drops(told));
    let verdict = &told[0]["verdict"];
    let evidence = &verdict["evidence"][1];
    assert_eq!(evidence["drop"]["place"], "socket-backlog", "{evidence}");
    let said = evidence["text"].as_str().unwrap();
    assert!(
        said.contains("the full backlog of the receiving socket"),
        "{said}"
    );
    let remedy = verdict["remedy"].as_str().unwrap();
    assert!(
        remedy.contains("have its application read sooner"),
        "{remedy}"
    );
}

#[test]
fn without_a_terminal_it_says_what_to_do() {
    let output = taut(&["top"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(
        String::from_utf8(output.stderr)
            .unwrap()
            .contains("--batch")
    );
}
