//! `taut tune --initcwnd` as a process, in network namespaces of the tests: the routes that it
//! changes, and that it restores them.

use std::io::{BufRead as _, BufReader, Lines};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::host::Host;

fn tune(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_taut"));
    command
        .args(["tune", "--no-events"])
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

fn undo(journal: &Path) -> Output {
    run(&["--undo", "--journal", journal.to_str().unwrap()])
}

fn ip(host: &Host, lines: &[&str]) {
    for line in lines {
        let output = host.ip(line);
        assert!(output.status.success(), "ip {line}: {output:?}");
    }
}

/// Makes a namespace with a link for routes.
fn host(name: &str) -> Host {
    let host = Host::new(name);
    ip(
        &host,
        &[
            "link add v0 type veth peer name v1",
            // Otherwise the kernel adds link-local addresses later.
            "link set v0 addrgenmode none",
            "link set v1 addrgenmode none",
            "link set v0 up",
            "link set v1 up",
            "address add 10.9.0.1/24 dev v0",
            "address add 10.9.0.7/24 dev v0",
            "address add 2001:db8::1/64 dev v0 nodad",
            "address add 2001:db8::7/64 dev v0 nodad",
        ],
    );
    host
}

/// Returns all routes in detail, except for the time until they expire, the state of their devices, and what the
/// kernel adds some time after a device is up.
fn routes(host: &Host) -> String {
    let of = |family: &str| {
        let output = host.ip(&format!("-d {family} route show table all"));
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let all = (of("-4") + &of("-6")).replace(" linkdown", "");
    let lines = { all.lines() }.filter(|line| !line.starts_with("multicast ff00::/8 "));
    let all = lines.collect::<Vec<_>>().join("\n");
    let words = all.split(' ').filter(|word| !word.ends_with("sec"));
    words.collect::<Vec<_>>().join(" ")
}

/// Reads this many reports of routes.
fn read_reports(lines: &mut Lines<BufReader<ChildStdout>>, count: usize) -> Vec<Value> {
    let of_routes = lines.filter_map(|line| {
        let report: Value = serde_json::from_str(&line.unwrap()).unwrap();
        let change = report["change"].as_str().unwrap();
        change.starts_with("route ").then_some(report)
    });
    let reports: Vec<Value> = of_routes.take(count).collect();
    assert_eq!(reports.len(), count, "{reports:?}");
    reports
}

struct Applying {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Applying {
    fn new(host: &Host, journal: &Path, args: &[&str]) -> Self {
        let journal = journal.to_str().unwrap();
        let mut all = vec!["--apply", "--json", "--netns", host.name()];
        // A test that waits in vain ends with the process.
        all.extend(["--journal", journal, "--for", "2m"]);
        all.extend(args);
        let mut child = tune(&all).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    fn reports(&mut self, count: usize) -> Vec<Value> {
        read_reports(&mut self.lines, count)
    }

    fn end(mut self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
        self.child.wait().unwrap();
    }
}

/// Routes that are changed.
const SHAPES: &[&str] = &[
    "route add default via 10.9.0.2 metric 10 mtu lock 1400 rtt 20ms",
    "route add default via 10.9.0.2 src 10.9.0.7 proto dhcp metric 11 realm 5 congctl cubic",
    "route add default via 10.66.0.2 dev v0 onlink metric 12",
    "route add default dev v0 scope link metric 13 features ecn",
    "route add default metric 14 nexthop via 10.9.0.4 dev v0 weight 3 nexthop via 10.66.0.5 dev v0 onlink",
    "route add default via 10.9.0.2 metric 15 tos 0x10",
    "route add default via inet6 2001:db8::5 dev v0 metric 16",
    "route add default via 10.9.0.3 metric 17 initrwnd 9",
    "-6 route add default via 2001:db8::2 metric 22 src 2001:db8::7 pref high",
    "-6 route add default metric 23 nexthop via 2001:db8::3 dev v0 weight 3 nexthop via 2001:db8::4 dev v0",
    "-6 route add default via 2001:dead::2 dev v0 onlink metric 24 mtu 1300 hoplimit 7",
    "-6 route add default dev v0 metric 25",
    "-6 route add default nhid 9 metric 26",
    "-6 route add default nhid 11 metric 27",
];

/// Routes that are left alone, each with a word of the reason.
const LEFT: &[(&str, &str)] = &[
    ("route add default nhid 7 metric 20", "object"),
    ("route add default nhid 8 metric 21", "object"),
    ("route add default nhid 10 metric 22", "object"),
    (
        "route add default via 10.9.0.2 metric 30 initcwnd 40",
        "initcwnd 40 already",
    ),
    (
        "route append default via 10.9.0.4 metric 31",
        "another for the same",
    ),
    (
        "-6 route add default via 2001:db8::2 metric 30 expires 900",
        "expires",
    ),
    (
        "-6 route add default via fe80::1 dev v0 metric 31 proto ra",
        "advertisement",
    ),
    (
        "-6 route append default dev v0 metric 32",
        "another for the same",
    ),
];

fn with_all_shapes(name: &str) -> Host {
    let host = host(name);
    ip(
        &host,
        &[
            "nexthop add id 7 via 10.9.0.3 dev v0",
            "nexthop add id 8 via 10.77.0.9 dev v0 onlink",
            "nexthop add id 10 group 7/8",
            "nexthop add id 9 via 2001:db8::9 dev v0",
            "nexthop add id 11 group 9",
            // Not selected: another destination, another table, and a route that forwards nothing.
            "route add 10.20.0.0/16 via 10.9.0.2",
            "route add default via 10.9.0.2 table 77",
            "route add unreachable default metric 40",
            // These two get others of the same key.
            "route add default via 10.9.0.2 metric 31",
            "-6 route add default via fe80::1 dev v0 metric 32",
        ],
    );
    ip(&host, SHAPES);
    for (line, _) in LEFT {
        ip(&host, &[line]);
    }
    host
}

#[test]
fn routes_of_all_shapes_are_as_before_at_the_end_and_after_a_kill() {
    let host = with_all_shapes("shapes");
    let dir = tempfile::tempdir().unwrap();
    let journal = dir.path().join("journal");
    let before = routes(&host);
    let is_set = |count| {
        let now = routes(&host);
        assert_eq!(now.matches(" initcwnd 20").count(), count, "{now}");
        assert_eq!(now.replace(" initcwnd 20", ""), before);
    };
    for signal in [Signal::TERM, Signal::KILL] {
        let mut applying = Applying::new(&host, &journal, &["--initcwnd", "20"]);
        let reports = applying.reports(SHAPES.len() + LEFT.len());
        let left = reports
            .iter()
            .filter_map(|report| report["outcome"]["failed"].as_str());
        let mut left: Vec<&str> = left.collect();
        for (line, reason) in LEFT {
            let at = left.iter().position(|left| left.contains(reason));
            left.remove(at.unwrap_or_else(|| panic!("{line}: {reports:?}")));
        }
        assert_eq!(left, Vec::<&str>::new());
        is_set(SHAPES.len());
        applying.end(signal);
        if signal == Signal::KILL {
            is_set(SHAPES.len());
            let output = undo(&journal);
            assert!(output.status.success(), "{output:?}");
            let sentence = format!("{} restored, 0 ended", SHAPES.len() + 2);
            assert!(said(&output).contains(&sentence), "{output:?}");
        }
        assert_eq!(routes(&host), before);
        assert!(!journal.exists());
    }
    let mut killed = Applying::new(&host, &journal, &["--initcwnd", "20"]);
    killed.reports(SHAPES.len() + LEFT.len());
    killed.end(Signal::KILL);
    is_set(SHAPES.len());
    // The next process restores the values from before the first.
    let mut next = Applying::new(&host, &journal, &["--initcwnd", "25"]);
    next.reports(SHAPES.len() + LEFT.len());
    assert_eq!(routes(&host).matches(" initcwnd 25").count(), SHAPES.len());
    next.end(Signal::TERM);
    assert_eq!(routes(&host), before);
}

#[test]
fn the_changes_of_other_programs_to_a_route_stay() {
    let host = host("others");
    ip(
        &host,
        &[
            "route add default via 10.9.0.2 metric 1",
            "route add default via 10.9.0.2 metric 2",
            "route add default via 10.9.0.2 metric 3",
            "route add default via 10.9.0.2 metric 4",
            "route add default via 10.9.0.2 metric 5",
        ],
    );
    let dir = tempfile::tempdir().unwrap();
    let journal = dir.path().join("journal");
    for signal in [Signal::TERM, Signal::KILL] {
        let args = ["--initcwnd", "20", "--initrwnd", "30", "--interval", "1h"];
        let mut applying = Applying::new(&host, &journal, &args);
        applying.reports(5);
        ip(
            &host,
            &[
                // Removed; replaced; both metrics, or one, set by another program; changed with the
                // metrics kept.
                "route delete default metric 1",
                "route replace default via 10.9.0.3 metric 2 mtu 1300",
                "route replace default via 10.9.0.2 metric 3 initcwnd 7 initrwnd 8",
                "route replace default via 10.9.0.2 metric 4 initcwnd 20 initrwnd 9",
                "route replace default via 10.9.0.4 metric 5 initcwnd 20 initrwnd 30 mtu 1200",
            ],
        );
        applying.end(signal);
        if signal == Signal::KILL {
            let output = undo(&journal);
            // Both maxima, and two routes.
            let sentence = "4 restored, 1 ended meanwhile, 2 changed by others";
            assert!(said(&output).contains(sentence), "{output:?}");
        }
        let output = host.ip("route show default");
        let now = String::from_utf8(output.stdout).unwrap();
        let now: Vec<&str> = now.lines().map(str::trim_end).collect();
        assert_eq!(
            now,
            [
                "default via 10.9.0.3 dev v0 metric 2 mtu 1300",
                "default via 10.9.0.2 dev v0 metric 3 initcwnd 7 initrwnd 8",
                "default via 10.9.0.2 dev v0 metric 4 initrwnd 9",
                "default via 10.9.0.4 dev v0 metric 5 mtu 1200",
            ]
        );
        assert!(!journal.exists());
        ip(&host, &["route flush default"]);
        for metric in 1..=5 {
            ip(
                &host,
                &[&format!("route add default via 10.9.0.2 metric {metric}")],
            );
        }
    }
}

#[test]
fn a_replaced_route_is_changed_again_unless_it_has_the_metric() {
    let host = host("again");
    ip(
        &host,
        &[
            "route add default via 10.9.0.2",
            "route add 10.20.0.0/16 via 10.9.0.2",
        ],
    );
    let dir = tempfile::tempdir().unwrap();
    let journal = dir.path().join("journal");
    let args = [
        "--initcwnd",
        "20",
        "--interval",
        "10ms",
        "--route",
        "default",
        "--route",
        "10.20.0.0/16",
    ];
    let mut applying = Applying::new(&host, &journal, &args);
    applying.reports(2);
    ip(
        &host,
        &[
            "route replace 10.20.0.0/16 via 10.9.0.2 initcwnd 7",
            "route replace default via 10.9.0.3",
        ],
    );
    let reports = applying.reports(2);
    for report in &reports {
        match report["change"].as_str().unwrap() {
            "route default: initcwnd 20" => assert_eq!(report["outcome"], "applied"),
            change => {
                assert_eq!(change, "route 10.20.0.0/16: initcwnd 20");
                let why = report["outcome"]["failed"].as_str().unwrap();
                assert!(why.contains("initcwnd 7 already"), "{why}");
            }
        }
    }
    // Once more: a route that is left alone is not reported again.
    for line in [
        "route replace default via 10.9.0.5",
        "route replace default via 10.9.0.4",
    ] {
        ip(&host, &[line]);
        let reports = applying.reports(1);
        assert_eq!(reports[0]["change"], "route default: initcwnd 20");
    }
    applying.end(Signal::TERM);
    let output = host.ip("route show");
    let now = String::from_utf8(output.stdout).unwrap();
    assert!(now.contains("default via 10.9.0.4 dev v0 \n"), "{now}");
    assert!(
        now.contains("10.20.0.0/16 via 10.9.0.2 dev v0 initcwnd 7"),
        "{now}"
    );
}

#[test]
fn a_new_connection_has_the_initial_window() {
    let (near, far) = (host("near"), Host::new("far"));
    ip(
        &near,
        &[
            &format!("link set v1 netns {}", far.name()),
            "route add 10.8.0.0/16 via 10.9.0.2",
        ],
    );
    ip(
        &far,
        &[
            "link set v1 up",
            "address add 10.9.0.2/24 dev v1",
            "address add 10.8.0.1/32 dev lo",
        ],
    );
    let listen = || std::net::TcpListener::bind("10.8.0.1:0").unwrap();
    let listener = far.0.run(listen).unwrap();
    let to = listener.local_addr().unwrap();
    let window = || {
        let connect = || TcpStream::connect(to).unwrap();
        let _client = near.0.run(connect).unwrap();
        let mut ss = Command::new("ss");
        ss.args(["-N", near.name(), "-tinH", "state", "established"]);
        let output = String::from_utf8(ss.output().unwrap().stdout).unwrap();
        let cwnd = output
            .split_whitespace()
            .find_map(|word| word.strip_prefix("cwnd:"));
        cwnd.unwrap_or_else(|| panic!("{output}")).to_owned()
    };
    assert_eq!(window(), "10");
    let dir = tempfile::tempdir().unwrap();
    let journal = dir.path().join("journal");
    let args = ["--initcwnd", "37", "--route", "10.8.0.0/16"];
    let mut applying = Applying::new(&near, &journal, &args);
    applying.reports(1);
    assert_eq!(window(), "37");
    applying.end(Signal::TERM);
    assert_eq!(window(), "10");
}

#[test]
fn advice_changes_no_route() {
    let host = with_all_shapes("advise-routes");
    let before = routes(&host);
    let args = [
        "--json",
        "--netns",
        host.name(),
        "--for",
        "1s",
        "--initrwnd",
        "20",
    ];
    let mut child = tune(&args).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    // One route has an initrwnd and is left alone; the one with an initcwnd is not.
    let reports = read_reports(&mut lines, SHAPES.len() + LEFT.len());
    let advised = reports
        .iter()
        .filter(|report| report["outcome"] == "advised");
    assert_eq!(advised.count(), SHAPES.len());
    assert!(reports.iter().all(|report| report["netns"] == host.name()));
    child.wait().unwrap();
    assert_eq!(routes(&host), before);
}

#[test]
fn a_destination_that_no_namespace_has_is_reported() {
    let host = host("unmatched");
    let sentence = |to: &str| format!("no network namespace has a route to {to} in");
    // Returns all that is printed until the process, which is stopped after this sentence, has
    // ended.
    let until = |last: &str, args: &[&str]| {
        let all = ["--netns", host.name(), "--for", "2m", "--initcwnd", "20"];
        let mut child = tune(&[&all[..], args].concat())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let mut said: Vec<String> = Vec::new();
        while said.last().is_none_or(|line| !line.contains(last)) {
            let line = lines.next().unwrap_or_else(|| panic!("{last}: {said:?}"));
            said.push(line.unwrap());
        }
        kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
        said.extend(lines.map(Result::unwrap));
        child.wait().unwrap();
        said.join("\n")
    };
    let [there, first, last] = ["10.9.0.0/24", "10.9.0.0/16", "10.10.0.0/16"];
    let args = ["--route", there, "--route", first, "--route", last];
    let said = until(&sentence(last), &args);
    assert_eq!(said.matches(&sentence(first)).count(), 1, "{said}");
    assert_eq!(said.matches(&sentence(last)).count(), 1, "{said}");
    assert!(!said.contains(&sentence(there)), "{said}");
    until(&sentence("default"), &[]);
}

#[test]
fn invalid_arguments_are_reported_and_change_nothing() {
    for (args, sentence) in [
        (["--initcwnd", "0"].as_slice(), "from 1 to 1000"),
        (&["--initrwnd", "1001"], "from 1 to 1000"),
        (&["--initcwnd", "many"], "from 1 to 1000"),
        (&["--route", "default"], "--initcwnd or --initrwnd"),
        (
            &["--initcwnd", "20", "--route", "all"],
            "--route \"all\": no destination",
        ),
        (
            &["--initcwnd", "20", "--route", "10.9.0.1/24"],
            "did you mean 10.9.0.0/24?",
        ),
    ] {
        let output = run(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {output:?}");
        assert!(said(&output).contains(sentence), "{args:?}: {output:?}");
    }
}
