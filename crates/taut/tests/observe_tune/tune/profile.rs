//! `taut tune --profile security`: the settings that it changes, and that it restores them.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead as _, BufReader, Lines};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Stdio};

use rustix::process::Signal;
use serde_json::Value;

use crate::host::Host;
use crate::tune::{end, run, said, settings, tune};

/// The settings that are too lax in a namespace of [`lax`], by path below /proc/sys/net, with the
/// values that the profile sets.
const LAX: [(&str, &str); 11] = [
    ("ipv4/conf/all/accept_redirects", "0"),
    ("ipv4/conf/all/accept_source_route", "0"),
    ("ipv4/conf/lo/accept_redirects", "0"),
    ("ipv4/conf/va/accept_redirects", "0"),
    ("ipv4/conf/vb/accept_redirects", "0"),
    ("ipv4/tcp_keepalive_time", "1800"),
    ("ipv4/tcp_syncookies", "1"),
    ("ipv6/conf/all/accept_source_route", "-1"),
    ("ipv6/conf/lo/accept_redirects", "0"),
    ("ipv6/conf/va/accept_redirects", "0"),
    ("ipv6/conf/vb/accept_redirects", "0"),
];

/// Makes a namespace with two interfaces and settings as lax as possible, in which the maxima of
/// buffers need no change.
fn lax(name: &str) -> Host {
    let host = Host::new(name);
    assert!(
        host.ip("link add va type veth peer name vb")
            .status
            .success()
    );
    for (name, value) in [
        ("ipv4/tcp_rmem", "4096 131072 60000000"),
        ("ipv4/tcp_wmem", "4096 16384 60000000"),
        ("ipv4/tcp_syncookies", "0"),
        ("ipv4/conf/all/accept_source_route", "1"),
        ("ipv4/conf/all/accept_redirects", "1"),
    ] {
        set(&host, name, value);
    }
    host
}

fn set(host: &Host, name: &str, value: &str) {
    let write = || fs::write(format!("/proc/sys/net/{name}"), value).unwrap();
    host.0.run(write).unwrap();
}

/// Returns a temporary directory and a path for a journal in it.
fn journal() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("journal");
    (dir, path)
}

/// A running `taut tune --apply --profile security`, and its output.
struct Applying {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Applying {
    fn new(host: &Host, journal: &Path) -> Self {
        let journal = journal.to_str().unwrap();
        let mut command = tune(&["--apply", "--profile", "security", "--json"]);
        // A test that waits in vain ends with the process.
        command.args([
            "--interval",
            "100ms",
            "--for",
            "60s",
            "--netns",
            host.name(),
        ]);
        command.args(["--journal", journal]);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    /// Waits for this many changes, and returns them.
    fn changes(&mut self, count: usize) -> Vec<String> {
        let changes = self.lines.by_ref().take(count).map(|line| {
            let report: Value = serde_json::from_str(&line.unwrap()).unwrap();
            assert_eq!(report["outcome"], "applied", "{report}");
            report["change"].as_str().unwrap().to_owned()
        });
        let changes: Vec<String> = changes.collect();
        assert_eq!(changes.len(), count, "{changes:?}");
        changes
    }
}

/// Returns the settings that differ from `before`, with their present values.
fn changed(before: &BTreeMap<String, String>, host: &Host) -> BTreeMap<String, String> {
    let now = settings(host);
    now.into_iter()
        .filter(|(path, is)| before[path] != *is)
        .collect()
}

fn tightened() -> BTreeMap<String, String> {
    LAX.map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into()
}

#[test]
fn a_profile_is_advised_without_apply_and_not_examined_without_its_name() {
    let host = lax("sec-advise");
    let before = settings(&host);
    let output = run(&["--json", "--netns", host.name(), "--for", "500ms"]);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "", "{output:?}");
    let args = ["--profile", "security", "--netns", host.name()];
    let output = run(&[&args[..], &["--json", "--interval", "100ms", "--for", "1s"]].concat());
    assert!(output.status.success(), "{output:?}");
    let lines = String::from_utf8(output.stdout).unwrap();
    // Each is reported once, however many scans there are.
    assert_eq!(lines.lines().count(), LAX.len(), "{lines}");
    for line in lines.lines() {
        let report: Value = serde_json::from_str(line).unwrap();
        assert_eq!(report["outcome"], "advised", "{line}");
        assert_eq!(report["netns"], host.name(), "{line}");
        assert_eq!(report["connection"], Value::Null, "{line}");
    }
    let output = run(&[&args[..], &["--for", "500ms"]].concat());
    let text = String::from_utf8(output.stdout).unwrap();
    let first = format!(
        "namespace {}: would change: net.ipv4.tcp_syncookies: 0 -> 1\n    why: a flood of SYNs",
        host.name()
    );
    assert!(text.contains(&first), "{text}");
    assert_eq!(settings(&host), before);
    let output = run(&["--profile", "speed"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(said(&output).contains("security"), "{output:?}");
}

#[test]
fn a_profile_is_undone_at_the_end() {
    let host = lax("sec-apply");
    let (_dir, journal) = journal();
    let before = settings(&host);
    for signal in [Signal::TERM, Signal::INT] {
        let mut applying = Applying::new(&host, &journal);
        applying.changes(LAX.len());
        // conf/default is not changed.
        assert_eq!(changed(&before, &host), tightened());
        end(applying.child, signal);
        assert_eq!(settings(&host), before);
        assert!(!journal.exists());
    }
}

#[test]
fn the_profile_of_a_killed_process_is_undone_by_undo_and_by_the_next() {
    let host = lax("sec-killed");
    let (_dir, journal) = journal();
    let before = settings(&host);
    let mut applying = Applying::new(&host, &journal);
    applying.changes(LAX.len());
    end(applying.child, Signal::KILL);
    assert_eq!(changed(&before, &host), tightened());
    let output = run(&["--undo", "--journal", journal.to_str().unwrap()]);
    assert!(output.status.success(), "{output:?}");
    assert!(said(&output).contains("11 restored"), "{output:?}");
    assert_eq!(settings(&host), before);
    assert!(!journal.exists());

    let mut applying = Applying::new(&host, &journal);
    applying.changes(LAX.len());
    end(applying.child, Signal::KILL);
    // The next process undoes it first, even without --profile.
    let args = ["--apply", "--netns", host.name(), "--for", "300ms"];
    let output = run(&[&args[..], &["--journal", journal.to_str().unwrap()]].concat());
    assert!(said(&output).contains("11 restored"), "{output:?}");
    assert_eq!(settings(&host), before);
    assert!(!journal.exists());
}

#[test]
fn a_profile_follows_interfaces_that_are_added_removed_and_renamed() {
    let host = lax("sec-links");
    let (_dir, journal) = journal();
    let mut before = settings(&host);
    let mut applying = Applying::new(&host, &journal);
    applying.changes(LAX.len());
    for line in [
        // A pair that is removed later,
        "link add gone type veth peer name gone2",
        // and one that stays.
        "link add stays type veth peer name stays2",
    ] {
        assert!(host.ip(line).status.success(), "{line}");
        let changes = applying.changes(4);
        let count = changes
            .iter()
            .filter(|change| change.contains("accept_redirects: 1 -> 0"));
        assert_eq!(count.count(), 4, "{changes:?}");
    }
    for line in [
        "link del gone",
        // A renamed interface, whose name another one gets.
        "link set va name other",
        "link add va type veth peer name vc",
    ] {
        assert!(host.ip(line).status.success(), "{line}");
    }
    applying.changes(4);
    // Another program sets these.
    set(&host, "ipv4/conf/stays/accept_redirects", "2");
    set(&host, "ipv4/tcp_keepalive_time", "900");
    // Undoing by name would change this one.
    set(&host, "ipv6/conf/other/accept_redirects", "3");
    end(applying.child, Signal::KILL);
    let output = run(&["--undo", "--journal", journal.to_str().unwrap()]);
    assert!(output.status.success(), "{output:?}");
    assert!(said(&output).contains("3 changed by others"), "{output:?}");
    before.insert("ipv4/tcp_keepalive_time".into(), "900".into());
    let after = settings(&host);
    let of =
        |name: &str, family: &str| after[&format!("{family}/conf/{name}/accept_redirects")].clone();
    for name in ["lo", "va", "vb", "vc", "stays2"] {
        assert_eq!(
            (of(name, "ipv4"), of(name, "ipv6")),
            ("1".into(), "1".into()),
            "{name}"
        );
    }
    assert_eq!(
        (of("stays", "ipv4"), of("stays", "ipv6")),
        ("2".into(), "1".into())
    );
    assert_eq!(
        (of("other", "ipv4"), of("other", "ipv6")),
        ("1".into(), "3".into())
    );
    // All others are as before, including those of conf/default.
    let is_of_va = |path: &str| path.contains("/va/");
    for (path, was) in before.iter().filter(|(path, _)| !is_of_va(path)) {
        assert_eq!(after[path], *was, "{path}");
    }
    assert!(!journal.exists());
}

#[test]
fn a_namespace_that_ends_under_a_profile_is_no_failure() {
    let host = lax("sec-vanish");
    let (_dir, journal) = journal();
    let mut applying = Applying::new(&host, &journal);
    applying.changes(LAX.len());
    drop(host);
    end(applying.child, Signal::TERM);
    assert!(!journal.exists());
}
