//! `--profile security`: what it sets, where, and that nothing of it stays.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead as _, BufReader, Lines};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Stdio};

use rustix::process::Signal;
use serde_json::Value;

use crate::host::Host;
use crate::{end, run, said, tune};

/// What is laxer than the profile wants in a namespace of [`lax`], by its file below /proc/sys/net, and what it is made.
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

/// A namespace with two interfaces, in which everything is as lax as it can be, and the buffers' maxima are as they should be.
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

/// All settings of the namespace and of its interfaces, by their files below /proc/sys/net.
fn settings(host: &Host) -> BTreeMap<String, String> {
    fn read(directory: &Path, all: &mut BTreeMap<String, String>) {
        for entry in fs::read_dir(directory).unwrap().flatten() {
            let path = entry.path();
            if path.is_dir() {
                read(&path, all);
            } else if let Ok(text) = fs::read_to_string(&path) {
                // Some are written only.
                let name = path.strip_prefix("/proc/sys/net").unwrap();
                all.insert(name.display().to_string(), text.trim().to_owned());
            }
        }
    }
    let mut all = BTreeMap::new();
    host.0
        .run(|| read(Path::new("/proc/sys/net"), &mut all))
        .unwrap();
    // It is drawn by lot.
    all.retain(|path, _| !path.ends_with("tcp_fastopen_key"));
    all
}

/// A journal's path, in a directory that goes with the first.
fn journal() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("journal");
    (dir, path)
}

/// `taut tune --apply --profile security`, and what it says.
struct Applying {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Applying {
    fn new(host: &Host, journal: &Path) -> Self {
        let journal = journal.to_str().unwrap();
        let mut command = tune(&["--apply", "--profile", "security", "--json"]);
        // Who waits for what does not come sees the end of it.
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

    /// Waits for so many changes; what they were.
    fn made(&mut self, count: usize) -> Vec<String> {
        let made = self.lines.by_ref().take(count).map(|line| {
            let told: Value = serde_json::from_str(&line.unwrap()).unwrap();
            assert_eq!(told["outcome"], "applied", "{told}");
            told["change"].as_str().unwrap().to_owned()
        });
        let made: Vec<String> = made.collect();
        assert_eq!(made.len(), count, "{made:?}");
        made
    }
}

/// What those settings are by now that were `before`, and are others.
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
fn a_profile_is_only_said_without_apply_and_nothing_is_said_of_it_without_its_name() {
    let host = lax("sec-advise");
    let before = settings(&host);
    let output = run(&["--json", "--netns", host.name(), "--for", "500ms"]);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "", "{output:?}");
    let args = ["--profile", "security", "--netns", host.name()];
    let output = run(&[&args[..], &["--json", "--interval", "100ms", "--for", "1s"]].concat());
    assert!(output.status.success(), "{output:?}");
    let lines = String::from_utf8(output.stdout).unwrap();
    // Each once, in however many looks.
    assert_eq!(lines.lines().count(), LAX.len(), "{lines}");
    for line in lines.lines() {
        let told: Value = serde_json::from_str(line).unwrap();
        assert_eq!(told["outcome"], "advised", "{line}");
        assert_eq!(told["netns"], host.name(), "{line}");
        assert_eq!(told["connection"], Value::Null, "{line}");
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
        applying.made(LAX.len());
        // And conf/default is not among them.
        assert_eq!(changed(&before, &host), tightened());
        end(applying.child, signal);
        assert_eq!(settings(&host), before);
        assert!(!journal.exists());
    }
}

#[test]
fn a_profile_that_a_killed_one_has_set_is_undone_by_undo_and_by_the_next() {
    let host = lax("sec-killed");
    let (_dir, journal) = journal();
    let before = settings(&host);
    let mut applying = Applying::new(&host, &journal);
    applying.made(LAX.len());
    end(applying.child, Signal::KILL);
    assert_eq!(changed(&before, &host), tightened());
    let output = run(&["--undo", "--journal", journal.to_str().unwrap()]);
    assert!(output.status.success(), "{output:?}");
    assert!(said(&output).contains("11 restored"), "{output:?}");
    assert_eq!(settings(&host), before);
    assert!(!journal.exists());

    let mut applying = Applying::new(&host, &journal);
    applying.made(LAX.len());
    end(applying.child, Signal::KILL);
    // The next undoes it first, though the profile is not asked for any more.
    let args = ["--apply", "--netns", host.name(), "--for", "300ms"];
    let output = run(&[&args[..], &["--journal", journal.to_str().unwrap()]].concat());
    assert!(said(&output).contains("11 restored"), "{output:?}");
    assert_eq!(settings(&host), before);
    assert!(!journal.exists());
}

#[test]
fn a_profile_keeps_up_with_interfaces_that_come_go_and_are_called_otherwise() {
    let host = lax("sec-links");
    let (_dir, journal) = journal();
    let mut before = settings(&host);
    let mut applying = Applying::new(&host, &journal);
    applying.made(LAX.len());
    for line in [
        // One that goes, and its peer,
        "link add gone type veth peer name gone2",
        // those that stay,
        "link add stays type veth peer name stays2",
    ] {
        assert!(host.ip(line).status.success(), "{line}");
        let made = applying.made(4);
        let count = made
            .iter()
            .filter(|made| made.contains("accept_redirects: 1 -> 0"));
        assert_eq!(count.count(), 4, "{made:?}");
    }
    for line in [
        "link del gone",
        // and one that gives its name to another: that one is set, too.
        "link set va name other",
        "link add va type veth peer name vc",
    ] {
        assert!(host.ip(line).status.success(), "{line}");
    }
    applying.made(4);
    // Somebody else sets these for good.
    set(&host, "ipv4/conf/stays/accept_redirects", "2");
    set(&host, "ipv4/tcp_keepalive_time", "900");
    // To undo by name would be to undo this.
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
    // All others are as they were, those of conf/default among them.
    let is_of_va = |path: &str| path.contains("/va/");
    for (path, was) in before.iter().filter(|(path, _)| !is_of_va(path)) {
        assert_eq!(after[path], *was, "{path}");
    }
    assert!(!journal.exists());
}

#[test]
fn a_namespace_that_vanishes_under_a_profile_is_no_failure() {
    let host = lax("sec-vanish");
    let (_dir, journal) = journal();
    let mut applying = Applying::new(&host, &journal);
    applying.made(LAX.len());
    drop(host);
    end(applying.child, Signal::TERM);
    assert!(!journal.exists());
}
