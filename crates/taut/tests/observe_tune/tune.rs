//! `taut tune` as a process, in network namespaces of the tests: its changes, and that it undoes
//! them.

mod profile;

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::AsRawFd as _;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use taut_sys::pidfd_socket::{BufferLocks, Pidfd};
use taut_tune::log::Log;
use taut_tune::report::{ChangeReport, Connection, Outcome};

use crate::host::Host;
use crate::without_root::WithoutRoot;

fn tune(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_taut"));
    command
        .arg("tune")
        .args(args)
        .stdin(Stdio::null())
        .env_remove("TAUT_LOG");
    command
}

fn run(args: &[&str]) -> Output {
    tune(args).output().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Returns all settings of a namespace and of its interfaces, by path below /proc/sys/net.
fn settings(host: &Host) -> BTreeMap<String, String> {
    host.0.run(taut_sys_testing::network::settings).unwrap()
}

fn rmem(host: &Host) -> String {
    let read = || fs::read_to_string("/proc/sys/net/ipv4/tcp_rmem").unwrap();
    host.0.run(read).unwrap()
}

/// Starts `taut tune --apply` in a namespace, and waits until it has raised both maxima.
fn applying(host: &Host, journal: &Path) -> Child {
    let journal = journal.to_str().unwrap();
    let args = [
        "--apply",
        "--json",
        "--netns",
        host.name(),
        "--journal",
        journal,
    ];
    let mut child = tune(&args).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    for _ in 0..2 {
        let line = lines.next().expect("a report of each change").unwrap();
        let report: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(report["outcome"], "applied", "{line}");
        assert_eq!(report["netns"], host.name(), "{line}");
    }
    // It ends, and undoes its changes, if nobody reads what it reports next.
    std::thread::spawn(move || lines.for_each(drop));
    child
}

fn end(mut child: Child, signal: Signal) {
    kill_process(Pid::from_child(&child), signal).unwrap();
    child.wait().unwrap();
}

/// Makes a namespace with the maxima of Linux 6.1.
fn host(name: &str) -> Host {
    let host = Host::new(name);
    let set = || {
        fs::write("/proc/sys/net/ipv4/tcp_rmem", "4096 131072 6291456").unwrap();
        fs::write("/proc/sys/net/ipv4/tcp_wmem", "4096 16384 4194304").unwrap();
    };
    host.0.run(set).unwrap();
    host
}

#[test]
fn advice_changes_nothing() {
    let host = host("advise");
    let before = settings(&host);
    let dir = tempfile::tempdir().unwrap();
    let journal = dir.path().join("journal");
    let journal = journal.to_str().unwrap();
    let output = run(&[
        "--json",
        "--netns",
        host.name(),
        "--for",
        "1s",
        "--journal",
        journal,
    ]);
    assert!(output.status.success(), "{output:?}");
    let lines = String::from_utf8(output.stdout).unwrap();
    let reports: Vec<Value> = lines
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    // Each is reported once, however many scans there are.
    assert_eq!(reports.len(), 2, "{lines}");
    for report in reports {
        assert_eq!(report["outcome"], "advised");
        assert!(
            report["change"].as_str().unwrap().contains("60000000"),
            "{report}"
        );
        assert!(
            report["reason"].as_str().unwrap().contains("window scale"),
            "{report}"
        );
    }
    assert_eq!(settings(&host), before);
}

#[test]
fn changes_are_undone_at_the_end() {
    let host = host("apply");
    let dir = tempfile::tempdir().unwrap();
    let journal = dir.path().join("journal");
    let before = settings(&host);
    for signal in [Signal::TERM, Signal::INT] {
        let child = applying(&host, &journal);
        assert!(rmem(&host).contains("60000000"));
        end(child, signal);
        assert_eq!(settings(&host), before);
        assert!(!journal.exists());
    }
}

#[test]
fn the_changes_of_a_killed_process_are_undone_by_the_next_and_by_undo() {
    let host = host("killed");
    let dir = tempfile::tempdir().unwrap();
    let journal = dir.path().join("journal");
    let before = settings(&host);
    end(applying(&host, &journal), Signal::KILL);
    assert!(rmem(&host).contains("60000000"));
    let output = run(&["--undo", "--journal", journal.to_str().unwrap()]);
    assert!(output.status.success(), "{output:?}");
    assert!(said(&output).contains("2 restored"), "{output:?}");
    assert_eq!(settings(&host), before);
    assert!(!journal.exists());

    end(applying(&host, &journal), Signal::KILL);
    // The next process restores the values from before the first.
    end(applying(&host, &journal), Signal::TERM);
    assert_eq!(settings(&host), before);
    let output = run(&["--undo", "--journal", journal.to_str().unwrap()]);
    assert!(said(&output).contains("nothing to undo"), "{output:?}");
}

#[test]
fn the_changes_of_a_killed_process_are_undone_although_the_address_of_the_metrics_is_taken() {
    let host = host("taken");
    let dir = tempfile::tempdir().unwrap();
    let journal = dir.path().join("journal");
    let before = settings(&host);
    end(applying(&host, &journal), Signal::KILL);
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let metrics = taken.local_addr().unwrap().to_string();
    let path = journal.to_str().unwrap();
    let args = ["--apply", "--netns", host.name(), "--journal", path];
    let output = run(&[&args[..], &["--metrics", &metrics]].concat());
    // Not 2, after which systemd does not start it again.
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(said(&output).contains("choose another --metrics"));
    assert_eq!(settings(&host), before);
}

#[test]
fn a_reader_of_standard_error_that_is_stuck_does_not_delay_the_end() {
    let (_reader, mut writer) = std::io::pipe().unwrap();
    rustix::io::ioctl_fionbio(&writer, true).unwrap();
    while writer.write(&[b'\n'; 4096]).is_ok() {}
    rustix::io::ioctl_fionbio(&writer, false).unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let metrics = taken.local_addr().unwrap().to_string();
    let mut command = tune(&["--metrics", &metrics]);
    // With lines in the log, whose thread waits for the reader.
    command.env("TAUT_LOG", "trace").stderr(writer);
    let mut child = command.spawn().unwrap();
    let limit = Instant::now() + Duration::from_secs(60);
    let status = loop {
        match child.try_wait().unwrap() {
            Some(status) => break status,
            None if Instant::now() < limit => std::thread::sleep(Duration::from_millis(50)),
            None => {
                child.kill().unwrap();
                panic!("it did not end");
            }
        }
    };
    assert_eq!(status.code(), Some(1));
}

#[test]
fn a_setting_that_others_have_changed_since_is_left_alone() {
    let host = host("others");
    let dir = tempfile::tempdir().unwrap();
    let journal = dir.path().join("journal");
    end(applying(&host, &journal), Signal::KILL);
    let set = || fs::write("/proc/sys/net/ipv4/tcp_rmem", "4096 131072 7777777").unwrap();
    host.0.run(set).unwrap();
    let output = run(&["--undo", "--journal", journal.to_str().unwrap()]);
    assert!(said(&output).contains("1 restored"), "{output:?}");
    assert!(said(&output).contains("1 changed by others"), "{output:?}");
    assert!(rmem(&host).contains("7777777"));
}

#[test]
fn one_process_tunes_at_a_time() {
    let host = host("twice");
    let dir = tempfile::tempdir().unwrap();
    let journal = dir.path().join("journal");
    let child = applying(&host, &journal);
    let path = journal.to_str().unwrap();
    for args in [
        ["--apply", "--netns", host.name(), "--journal", path].as_slice(),
        &["--undo", "--journal", path],
    ] {
        let second = run(args);
        assert_eq!(second.status.code(), Some(1));
        assert!(
            said(&second).contains("one `taut tune --apply` at a time"),
            "{second:?}"
        );
    }
    end(child, Signal::TERM);
}

#[test]
fn a_namespace_that_ends_while_it_is_tuned_is_no_failure() {
    let (host, other) = (host("stays"), host("vanishes"));
    let dir = tempfile::tempdir().unwrap();
    let journal = dir.path().join("journal");
    let child = applying(&other, &journal);
    drop(other);
    end(child, Signal::TERM);
    assert!(!journal.exists());
    drop(host);
}

#[test]
fn why_reports_changes_until_they_are_undone() {
    let host = host("log");
    let dir = tempfile::tempdir().unwrap();
    let journal = dir.path().join("tune.journal");
    let listener = host.listener();
    let port = listener.local_addr().unwrap().port();
    let (client, _server) = host.connection(&listener);
    let cookie = rustix::net::sockopt::socket_cookie(&client).unwrap();
    let why = |json: bool| {
        let log = journal.with_extension("log");
        let mut command = Command::new(env!("CARGO_BIN_EXE_taut"));
        command.args(["why", "--for", "500ms", "--netns", host.name()]);
        command.args(["--tune-log", log.to_str().unwrap()]);
        command.args(json.then_some("--json"));
        let output = command.arg(format!("dport {port}")).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let tuned = || -> Value { serde_json::from_str::<Value>(&why(true)).unwrap()["tuned"].take() };
    assert_eq!(tuned(), Value::Null);
    // The log as the tuner writes it.
    let report = ChangeReport {
        connection: Some(Connection {
            cookie,
            local: client.local_addr().unwrap(),
            remote: client.peer_addr().unwrap(),
            process: None,
        }),
        netns: host.name().to_owned(),
        change: "receive buffer 128.0 KiB -> 12.5 MiB".to_owned(),
        reason: String::new(),
        expected: String::new(),
        outcome: Outcome::Applied,
    };
    Log::of(&journal).note(&report).unwrap();
    let sentences = tuned();
    let sentence = sentences[0].as_str().unwrap();
    assert!(sentence.starts_with("tuned "), "{sentence}");
    assert!(sentence.ends_with(&report.change), "{sentence}");
    assert!(why(false).contains(sentence.rsplit("ago: ").next().unwrap()));
    // A process that undoes its journal removes the log.
    end(applying(&host, &journal), Signal::TERM);
    assert_eq!(tuned(), Value::Null);
}

/// Sends from one socket to the other until it is dropped.
struct Busy {
    ends: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Busy {
    fn new(mut from: TcpStream, mut to: TcpStream) -> Self {
        let ends = Arc::new(AtomicBool::new(false));
        let first = Arc::clone(&ends);
        let sends = move || {
            let block = vec![0; 1 << 16];
            while !first.load(Ordering::Relaxed) && from.write_all(&block).is_ok() {}
            from.shutdown(Shutdown::Write).unwrap();
        };
        let reads = move || {
            let mut block = vec![0; 1 << 16];
            while to.read(&mut block).is_ok_and(|len| len > 0) {}
        };
        let threads = vec![std::thread::spawn(sends), std::thread::spawn(reads)];
        Self { ends, threads }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            thread.join().unwrap();
        }
    }
}

fn locks(stream: &TcpStream) -> BufferLocks {
    let cookie = rustix::net::sockopt::socket_cookie(stream).unwrap();
    let own = Pidfd::open(std::process::id()).unwrap();
    let lent = own.socket(stream.as_raw_fd(), cookie).unwrap().unwrap();
    lent.buffers().unwrap().locks
}

#[test]
fn the_buffers_of_a_budget_are_restored_at_the_end_and_after_a_kill() {
    let host = host("budget");
    let dir = tempfile::tempdir().unwrap();
    let journal = dir.path().join("tune.journal");
    let journal = journal.to_str().unwrap();
    let before = settings(&host);
    let listener = host.listener();
    let (client, server) = host.connection(&listener);
    // An idle connection with a large buffer.
    let (giant, _other) = host.connection(&listener);
    rustix::net::sockopt::set_socket_send_buffer_size(&giant, 500_000).unwrap();
    let of_giant = locks(&giant);
    let _busy = Busy::new(client.try_clone().unwrap(), server);
    for signal in [Signal::TERM, Signal::KILL] {
        let args = [
            "--apply",
            "--budget",
            "8MiB",
            "--json",
            "--interval",
            "200ms",
            "--netns",
            host.name(),
            "--journal",
            journal,
        ];
        let mut child = tune(&args).stdout(Stdio::piped()).spawn().unwrap();
        // Held until the process has ended: it ends, and undoes its changes, if nobody can read its next report.
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        // The send buffers of the busy connection and of the idle one.
        let (port, giants) = (client.local_addr().unwrap(), giant.local_addr().unwrap());
        let mut missing = vec![port.to_string(), giants.to_string()];
        for line in lines.by_ref() {
            let report: Value = serde_json::from_str(&line.unwrap()).unwrap();
            let change = report["change"].as_str().unwrap();
            let is_resized =
                change.contains("send buffer") && change.contains("its share of the budget");
            if is_resized {
                assert_eq!(report["outcome"], "applied", "{report}");
                missing.retain(|addr| *addr != report["connection"]["local"].as_str().unwrap());
            }
            if missing.is_empty() {
                break;
            }
        }
        assert_eq!(missing, Vec::<String>::new());
        assert!(locks(&client).send && locks(&giant).send);
        // Three segments of the loopback interface.
        let giants = rustix::net::sockopt::socket_send_buffer_size(&giant).unwrap();
        assert!(giants < 500_000, "{giants}");
        assert_ne!(settings(&host), before);
        end(child, signal);
        drop(lines);
        if signal == Signal::KILL {
            assert!(locks(&client).send);
            assert!(run(&["--undo", "--journal", journal]).status.success());
        }
        assert_eq!(locks(&client), BufferLocks::default());
        assert_eq!(locks(&giant), of_giant);
        assert_eq!(
            rustix::net::sockopt::socket_send_buffer_size(&giant).unwrap(),
            1_000_000
        );
        assert_eq!(settings(&host), before);
        assert!(!Path::new(journal).exists());
    }
}

/// As in another container with the network of the host, which has neither its /run nor its /proc.
#[test]
fn a_second_tuner_with_another_journal_and_other_mounts_only_advises() {
    let host = host("second");
    let dir = tempfile::tempdir().unwrap();
    let before = settings(&host);
    let first = applying(&host, &dir.path().join("first"));
    let raised = settings(&host);
    let mut second = Command::new("unshare");
    second
        .args(["--mount", "--pid", "--fork", "--mount-proc"])
        .arg(env!("CARGO_BIN_EXE_taut"))
        .args(["tune", "--apply", "--own-netns", "--budget", "4MiB"])
        .args(["--json", "--for", "2s", "--journal"])
        .arg(dir.path().join("second"))
        .env_remove("TAUT_LOG");
    let output = host.0.run(|| second.output().unwrap()).unwrap();
    assert!(output.status.success(), "{output:?}");
    let sentence = "another taut tune --apply changes this namespace";
    assert!(said(&output).contains(sentence), "{output:?}");
    let lines = String::from_utf8(output.stdout).unwrap();
    for line in lines.lines() {
        let report: Value = serde_json::from_str(line).unwrap();
        assert_eq!(report["outcome"], "advised", "{report}");
    }
    assert_eq!(settings(&host), raised);
    end(first, Signal::TERM);
    assert_eq!(settings(&host), before);
}

#[test]
fn a_connection_left_alone_keeps_the_maximum_of_its_namespace() {
    let host = host("alone");
    let listener = host.listener();
    let _left_alone = host.connection(&listener);
    let dir = tempfile::tempdir().unwrap();
    let journal = dir.path().join("tune.journal");
    let skip = format!("port {}", listener.local_addr().unwrap().port());
    // Returns what it reports until something of this is changed.
    let until = |last: &str, skip: &[&str]| {
        let args = [
            "--apply",
            "--budget",
            "1MiB",
            "--json",
            "--interval",
            "200ms",
            "--netns",
            host.name(),
            "--journal",
            journal.to_str().unwrap(),
        ];
        let args = [&args[..], skip].concat();
        let mut child = tune(&args).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut said: Vec<String> = Vec::new();
        while said.last().is_none_or(|line| !line.contains(last)) {
            let line = lines.next().unwrap_or_else(|| panic!("{last}: {said:?}"));
            said.push(line.unwrap());
        }
        kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
        said.extend(lines.map(Result::unwrap));
        assert!(child.wait().unwrap().success());
        said.join("\n")
    };
    // A second connection is tuned. The maximum changes in the same round, before it.
    let other = host.listener();
    let _tuned = host.connection(&other);
    let said = until("its share of the budget", &["--skip", &skip]);
    assert!(!said.contains("net.ipv4.tcp_wmem"), "{said}");
    until("net.ipv4.tcp_wmem", &[]);
}

#[test]
fn without_root_there_is_advice_only() {
    let without_root = WithoutRoot::new();
    let dir = without_root.dir.path();
    let run = |args: &[&str]| {
        let mut command = without_root.taut();
        command.args(["tune", "--journal"]);
        command
            .arg(dir.join("journal"))
            .args(args)
            .output()
            .unwrap()
    };
    let refused = run(&["--apply"]);
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    assert!(said(&refused).contains("run this as root"), "{refused:?}");
    let advises = run(&["--for", "200ms"]);
    assert!(advises.status.success(), "{advises:?}");
    assert!(said(&advises).contains("without root"), "{advises:?}");
    // No other file is left.
    assert_eq!(fs::read_dir(dir).unwrap().count(), 1);
}

#[test]
fn filters_that_leave_nothing_to_tune_are_reported() {
    let host = host("lists");
    let listener = host.listener();
    let _connection = host.connection(&listener);
    let port = format!("port {}", listener.local_addr().unwrap().port());
    let of = |skip: &str| {
        let args = ["--netns", host.name(), "--for", "500ms", "--skip", skip];
        let output = run(&args);
        assert!(output.status.success(), "{output:?}");
        said(&output)
    };
    assert!(of(&port).contains("leave all connections alone"));
    assert!(!of("port 1").contains("leave all connections alone"));
}

#[test]
fn what_is_no_journal_is_left_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("hosts");
    fs::write(&path, "127.0.0.1 localhost\n").unwrap();
    for action in ["--undo", "--apply"] {
        let output = run(&[action, "--journal", path.to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(1));
        assert!(
            said(&output).contains("no journal of taut tune"),
            "{output:?}"
        );
        assert_eq!(fs::read_to_string(&path).unwrap(), "127.0.0.1 localhost\n");
    }
}

#[test]
fn invalid_arguments_are_reported_and_change_nothing() {
    for (args, sentence) in [
        (["--skip", "port x"].as_slice(), "--skip \"port x\""),
        (
            &["port 80", "--skip", "port 80"],
            "leaves all connections alone",
        ),
        (&["--skip", ""], "leaves all connections alone"),
        (&["--apply", "--advise"], "cannot be used with"),
        (&["--undo", "--apply"], "cannot be used with"),
        (&["--for", "long"], "--for"),
        (&["--budget", "much"], "not a size"),
        (&["--budget", "1023KiB"], "at least 1.0 MiB"),
        (&["--per-cgroup", "1MiB"], "--budget"),
        (&["--per-connection", "63KiB"], "at least 64.0 KiB"),
        (&["--per-connection", "2GiB"], "at most 1.0 GiB"),
        (
            &["--budget", "8MiB", "--per-cgroup", "9MiB"],
            "--per-cgroup 9.0 MiB",
        ),
        (
            &["--budget", "8MiB", "--per-destination", "0"],
            "--per-destination",
        ),
    ] {
        let output = run(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {output:?}");
        assert!(said(&output).contains(sentence), "{args:?}: {output:?}");
    }
}
