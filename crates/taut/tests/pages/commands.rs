//! What holds for every command as a process: its output may end at any time, and has no colours.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;

use taut_sys_testing::skip::has_programs;

use crate::host::Host;

fn taut(words: &str) -> Command {
    let mut taut = Command::new(env!("CARGO_BIN_EXE_taut"));
    taut.args(words.split_whitespace()).stdin(Stdio::null());
    taut
}

/// Returns every command that the help lists, as `mesh plan`. The first is `taut` itself.
fn commands() -> Vec<String> {
    let mut all = vec![String::new()];
    let mut next = 0;
    while next < all.len() {
        let name = all[next].clone();
        let help = taut(&format!("{name} --help")).output().unwrap();
        let help = String::from_utf8(help.stdout).unwrap();
        // Those of `taut` itself are in groups.
        let (first, last) = match name.is_empty() {
            true => ("Look:", "Options:"),
            false => ("Commands:", ""),
        };
        let listed = help.lines().skip_while(|line| *line != first).skip(1);
        let listed = listed.take_while(|line| *line != last);
        // A longer indent is the rest of a description.
        let names = listed.filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
        // `lab` is another program, and `help` has been asked already.
        let names = names.filter(|name| !["", "help", "lab"].contains(name));
        all.extend(names.map(|below| format!("{name} {below}").trim().to_owned()));
        next += 1;
    }
    assert!(all.len() > 25, "{all:?}");
    all
}

/// Returns a pipe whose reader is gone.
fn closed_pipe() -> OwnedFd {
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    drop(reader);
    writer
}

/// A relay, for the commands that ask one. Dropping it kills it.
struct Relay(Child);

impl Relay {
    fn start(dir: &Path) -> Self {
        let config = dir.join("relay.toml");
        let control = dir.join("relay.sock");
        let text = format!(
            "[relay]\ncontrol = {control:?}\n[[relay.forward]]\nname = \"web\"\nlisten = \"127.0.0.1:0\"\nto = \"127.0.0.1:9\"\n"
        );
        fs::write(&config, text).unwrap();
        let mut child = taut("relay --config")
            .arg(config)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let said = BufReader::new(child.stderr.take().unwrap());
        let mut lines = said.lines().map(Result::unwrap);
        assert!(
            lines.any(|line| line.contains("forwarding")),
            "it has ended"
        );
        // Read on, or the pipe would be full one day.
        thread::spawn(move || lines.count());
        Self(child)
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns how to run each command so that it prints something and ends. `None`: it prints nothing
/// but its help, or changes the machine.
fn invocations(dir: &Path, netns: &str) -> BTreeMap<&'static str, Option<String>> {
    let at = |name: &str| dir.join(name).display().to_string();
    let (rtt, key, list) = (at("rtt"), at("key"), at("list"));
    fs::write(&rtt, "fra1 192.0.2.0/24 10\nfra1 198.51.100.0/24 20\n").unwrap();
    let made = taut("mesh keygen").arg(&key).output().unwrap();
    let public = String::from_utf8(made.stdout).unwrap();
    let public = public.trim();
    let members = format!(
        "[[member]]\nname = \"fra1\"\nkeys = [\"{public}\"]\naddresses = [\"203.0.113.7:7440\"]\n"
    );
    fs::write(&list, members).unwrap();
    let asks = |command: &str| Some(format!("{command} --control {}", at("relay.sock")));
    let of_netns = format!("--netns {netns}");
    BTreeMap::from([
        ("", None),
        ("status", Some("status".into())),
        (
            "check",
            Some(format!("check --config {}", at("relay.toml"))),
        ),
        ("completions", Some("completions bash".into())),
        ("man", Some("man why".into())),
        (
            "top",
            Some(format!("top --batch -n 2 --interval 50ms {of_netns}")),
        ),
        ("why", Some(format!("why --for 500ms {of_netns}"))),
        (
            "watch",
            Some(format!(
                "watch --interval 50ms --open-every 50ms {of_netns}"
            )),
        ),
        ("tune", Some(format!("tune --for 500ms {of_netns}"))),
        (
            "relay",
            Some("relay --check --listen 127.0.0.1:0 --to 127.0.0.1:9".into()),
        ),
        ("relay status", asks("relay status")),
        ("relay sessions", asks("relay sessions")),
        ("relay end", asks("relay end --client 192.0.2.1")),
        ("relay drain", asks("relay drain --forward web")),
        ("relay reload", asks("relay reload")),
        // It would start a relay.
        ("relay upgrade", None),
        ("mesh", None),
        ("mesh dns", None),
        (
            "mesh keygen",
            Some(format!("mesh keygen {}", at("another"))),
        ),
        ("mesh pubkey", Some(format!("mesh pubkey {key}"))),
        (
            "mesh plan",
            Some(format!(
                "mesh plan --from 192.0.2.1 --to 198.51.100.1 --rtt {rtt}"
            )),
        ),
        ("mesh rtt", asks("mesh rtt")),
        ("mesh status", asks("mesh status")),
        (
            "mesh sign",
            Some(format!(
                "mesh sign {list} --json --key {key} --output {}",
                at("signed")
            )),
        ),
        ("snoop", None),
        (
            "snoop status",
            Some(format!("snoop status --control {}", at("none.sock"))),
        ),
        // It measures for a minute.
        ("snoop cost", None),
        ("guest", None),
        ("guest up", None),
        ("guest down", None),
        ("guest status", Some("guest status --for 50ms".into())),
        // It takes half a minute, and has tests of its own.
        ("tour", None),
        ("doctor", Some("doctor --all".into())),
    ])
}

/// The commands of `invocations` that may fail: the relay is no member of a mesh, no snoop runs, and
/// the doctor may find what blocks.
const MAY_FAIL: [&str; 4] = ["mesh rtt", "mesh status", "snoop status", "doctor"];

/// Runs a command whose output has no reader, and which succeeds unless it `may_fail`. Returns what
/// it says on standard error.
fn without_reader(words: &str, may_fail: bool) -> String {
    let output = taut(words)
        .stdout(closed_pipe())
        .stderr(Stdio::piped())
        .output()
        .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    let is_right = output.status.success() || may_fail && output.status.code() == Some(1);
    assert!(is_right, "taut {words}: {}: {said}", output.status);
    said
}

#[test]
fn every_command_ends_quietly_when_the_reader_of_its_output_has_gone() {
    let host = Host::new("commands");
    // taut watch writes when there is something to record.
    let _connection = host.connection(&host.listener());
    let dir = tempfile::tempdir().unwrap();
    let _relay = Relay::start(dir.path());
    let invocations = invocations(dir.path(), host.name());
    for name in commands() {
        let said = without_reader(&format!("{name} --help"), false);
        assert_eq!(said, "", "taut {name} --help");
        let Some(words) = &invocations
            .get(&*name)
            .unwrap_or_else(|| panic!("add `{name}` to this test"))
        else {
            continue;
        };
        let said = without_reader(words, MAY_FAIL.contains(&&*name));
        for bad in ["panicked", "Broken pipe"] {
            assert!(!said.contains(bad), "taut {words}: {said}");
        }
    }
}

#[test]
fn a_result_that_cannot_be_written_is_an_error() {
    let full = || fs::File::options().write(true).open("/dev/full").unwrap();
    let host = Host::new("full");
    let _connection = host.connection(&host.listener());
    let dir = tempfile::tempdir().unwrap();
    let _relay = Relay::start(dir.path());
    for words in invocations(dir.path(), host.name()).into_values().flatten() {
        // These print nothing here.
        if ["tune", "mesh rtt", "mesh status", "snoop"]
            .iter()
            .any(|c| words.starts_with(c))
        {
            continue;
        }
        let output = taut(&words).stdout(full()).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "taut {words}: {said}");
        assert!(said.contains("No space left"), "taut {words}: {said}");
    }
}

#[test]
fn no_command_has_colours_where_there_is_no_terminal() {
    let host = Host::new("colours");
    let _connection = host.connection(&host.listener());
    let dir = tempfile::tempdir().unwrap();
    let _relay = Relay::start(dir.path());
    let invocations = invocations(dir.path(), host.name());
    let ends = |words: &&String| !words.starts_with("watch");
    for words in invocations.values().flatten().filter(ends) {
        let output = taut(words).output().unwrap();
        for text in [&output.stdout, &output.stderr] {
            let text = String::from_utf8(text.clone()).unwrap();
            assert!(!text.contains('\x1b'), "taut {words}: {text}");
        }
    }
}

/// Runs a command at a terminal, by script of util-linux. Returns what the terminal got.
fn at_terminal(words: &str, no_color: &str) -> String {
    let command = format!("{} {words}", env!("CARGO_BIN_EXE_taut"));
    let mut script = Command::new("script");
    let output = script
        .args(["--quiet", "--return", "--command", &command, "/dev/null"])
        .env("NO_COLOR", no_color)
        .env("TERM", "xterm")
        .env("TAUT_LOG", "debug")
        .stdin(Stdio::null())
        .output();
    String::from_utf8_lossy(&output.unwrap().stdout).into_owned()
}

#[test]
fn no_color_turns_off_the_colours_of_help_and_of_the_log() {
    if !has_programs(&["script"]) {
        return;
    }
    for words in ["--help", "tune --for 50ms --own-netns"] {
        let coloured = at_terminal(words, "");
        assert!(coloured.contains("\x1b["), "{words}: {coloured:?}");
        let plain = at_terminal(words, "1");
        assert!(!plain.contains("\x1b["), "{words}: {plain:?}");
    }
}
