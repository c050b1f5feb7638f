//! What the commands print as JSON, compared with docs/reference/json.md: every field that is printed is documented, with
//! the kind of its value, and every documented field is printed, or [`NOT_HERE`] says why not. What is printed depends on
//! what connections do, so a command runs until it has printed all of its fields.

use std::collections::{BTreeSet, VecDeque};
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::Value;

use crate::jobs::{Jobs, PATIENCE, Running, until};

/// Fields that this test does not always produce, with their subfields, by command and path.
const NOT_HERE: &[(&str, &str)] = &[
    // A process in a container.
    ("taut top --json", "process.container"),
    ("taut why --json", "process.container"),
    ("taut watch", "process.container"),
    // They depend on the verdict, and that on how busy the machine is; observe_tune/observe.rs has packets that are dropped.
    ("taut top --json", "verdict.evidence"),
    ("taut top --json", "verdict.remedy"),
    ("taut top --json", "verdict.gain"),
    ("taut why --json", "verdict.evidence"),
    ("taut why --json", "verdict.remedy"),
    ("taut why --json", "verdict.gain"),
    ("taut watch", "verdict.evidence"),
    ("taut watch", "verdict.remedy"),
    ("taut watch", "verdict.gain"),
    // observe_tune/tune.rs changes connections.
    ("taut why --json", "tuned"),
    ("taut tune --json", "connection"),
    // Trouble, and a bottleneck that turbo start has measured: tests/relay, tests/etcd.
    ("taut relay status --json", "status.broken"),
    // Of addresses that are down.
    (
        "taut relay status --json",
        "status.forwards[].addresses[].seconds",
    ),
    (
        "taut relay status --json",
        "status.forwards[].addresses[].cause",
    ),
    (
        "taut relay status --json",
        "status.members.etcd.announcement",
    ),
    (
        "taut relay status --json",
        "status.members.etcd.last_failure",
    ),
    ("taut relay status --json", "status.members.etcd.refusal"),
    ("taut relay status --json", "status.peers[].rate"),
    // Labels of members, and automatic routes: admin.rs.
    ("taut mesh status --json", "members[].cloud"),
    ("taut mesh status --json", "members[].site"),
    ("taut mesh status --json", "routes"),
    // Rates of paths, three relays after the loss of one, and connections to another machine: mesh_plan.rs.
    ("taut mesh plan --json", "routes[].legs[].rate_bit_s"),
    ("taut mesh plan --json", "changes[].then"),
    ("taut mesh plan --json", "version"),
    ("taut mesh plan --json", "local"),
    ("taut mesh plan --json", "remote"),
    ("taut mesh plan --json", "process"),
    ("taut mesh plan --json", "pid"),
    ("taut mesh plan --json", "rtt_ms"),
    ("taut mesh plan --json", "loss"),
    ("taut mesh plan --json", "gain"),
    ("taut mesh plan --json", "now"),
    ("taut mesh plan --json", "best"),
    // Round-trip times to clients: dns.rs.
    ("taut mesh dns --json", "relays[].prefix"),
    ("taut mesh dns --json", "relays[].rtt_ms"),
    // A guest with connections, and a tap that is unfit: snoop.rs, machine/snoop_guests.
    ("taut snoop status --json", "taps[].flows"),
    ("taut snoop status --json", "taps[].why"),
    // The kernel module, and what the hypervisor and this machine's ticks say: machine/guest.rs.
    ("taut guest status --json", "module"),
    ("taut guest status --json", "steal_share"),
    ("taut guest status --json", "verdict"),
    // Connections that are limited: status.rs.
    ("taut status --json", "connections.slow.factors"),
    ("taut status --json", "connections.broken.factors"),
    ("taut status --json", "connections.unseen"),
    // Sections with a mistake: check.rs.
    ("taut check --json", "sections[].mistake"),
    // What is wrong with this machine: machine/doctor.rs, machine.
    ("taut doctor --json", "features[].detail"),
    ("taut doctor --json", "settings[].command"),
    ("taut doctor --json", "leftovers"),
];

/// The page: a section for each kind of object.
struct Reference(Vec<Section>);

struct Section {
    /// The commands that print it, with `--json`.
    commands: Vec<String>,
    fields: Vec<Field>,
}

#[derive(Clone)]
struct Field {
    /// Such as `members[].name`.
    path: String,
    kind: String,
    may_be_absent: bool,
    /// A field beside it, and the value of that without which this one is absent.
    only: Option<(String, String)>,
}

// === impl Reference ===

impl Reference {
    fn read() -> Self {
        let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/json.md");
        let page = fs::read_to_string(page).unwrap();
        let mut sections: Vec<Section> = Vec::new();
        for text in page.split("\n## ").skip(1) {
            let (heading, text) = text.split_once('\n').unwrap();
            let commands = heading.split('`').skip(1).step_by(2);
            let mut section = Section {
                commands: commands.map(str::to_owned).collect(),
                fields: Vec::new(),
            };
            for line in text.lines().filter(|line| line.starts_with("| ")).skip(1) {
                let cells: Vec<_> = line
                    .trim_matches('|')
                    .splitn(3, " | ")
                    .map(str::trim)
                    .collect();
                if cells[0].starts_with("all of [`taut top --json`]") {
                    assert!(cells[0].ends_with("but `time`"), "{line}");
                    let fields = sections[0].fields.iter().cloned();
                    section.fields.extend(fields.filter(|f| f.path != "time"));
                    continue;
                }
                section.fields.push(Field::of(&cells));
            }
            // The head of the page tells of it.
            if section.fields.iter().all(|field| field.path != "version") {
                let version = Field::of(&["`version`", "text", "Taut's version"]);
                section.fields.insert(0, version);
            }
            assert!(section.fields.len() > 1, "{heading}");
            sections.push(section);
        }
        assert_eq!(sections[0].commands, ["taut top --json"]);
        Self(sections)
    }

    /// Compares what a command has printed with the section of it that fits best, and adds the
    /// fields to `seen`: the section and the path.
    fn compare(&self, command: &str, value: &Value, seen: &mut BTreeSet<(usize, String)>) {
        assert_eq!(
            value["version"],
            env!("CARGO_PKG_VERSION"),
            "{command}: {value}"
        );
        let sections = self.0.iter().enumerate();
        let sections = sections.filter(|(_, s)| s.commands.iter().any(|c| c == command));
        let compared = sections.map(|(number, section)| {
            let mut found = Comparison {
                section,
                wrong: Vec::new(),
                seen: BTreeSet::new(),
            };
            found.object(value, "");
            (number, found)
        });
        let best = compared.min_by_key(|(_, found)| found.wrong.len());
        let (number, found) = best.unwrap_or_else(|| panic!("{command} is not in the page"));
        assert!(
            found.wrong.is_empty(),
            "{command}: {:#?} in {value:#}",
            found.wrong
        );
        seen.extend(found.seen.into_iter().map(|path| (number, path)));
    }
}

// === impl Field ===

impl Field {
    fn of(cells: &[&str]) -> Self {
        let [path, kind, meaning] = cells else {
            panic!("{cells:?}");
        };
        let path = path.trim_matches('`').to_owned();
        let only = meaning.strip_prefix("if `").map(|text| {
            let words: Vec<_> = text.split('`').collect();
            assert_eq!(words[1], " is ", "{meaning}");
            (words[0].to_owned(), words[2].to_owned())
        });
        Self {
            path,
            kind: (*kind).to_owned(),
            may_be_absent: meaning.contains("Absent if"),
            only,
        }
    }

    /// Returns the name, if it is directly below this path.
    fn name_below(&self, path: &str) -> Option<&str> {
        let name = self.path.strip_prefix(path)?;
        (!name.contains(['.', '['])).then_some(name)
    }

    fn applies_to(&self, object: &Value) -> bool {
        let only = self.only.as_ref();
        only.is_none_or(|(field, value)| object[field] == **value)
    }
}

/// An object with at most one version, as serde checks for fields of a struct. [`Value`] takes the
/// last of several.
#[derive(Deserialize)]
struct Once {
    #[serde(rename = "version")]
    _version: Option<Value>,
}

/// A value beside the section that describes it.
struct Comparison<'a> {
    section: &'a Section,
    wrong: Vec<String>,
    /// The paths of values other than null.
    seen: BTreeSet<String>,
}

// === impl Comparison ===

impl Comparison<'_> {
    /// Compares an object with the fields below `path`.
    fn object(&mut self, object: &Value, path: &str) {
        let section = self.section;
        let below = section
            .fields
            .iter()
            .filter(|field| field.applies_to(object));
        let below: Vec<_> = below
            .filter_map(|field| Some((field.name_below(path)?, field)))
            .collect();
        let Some(values) = object.as_object() else {
            self.wrong.push(format!("{path} is no object"));
            return;
        };
        for (name, value) in values {
            let known = below.iter().find(|(known, _)| known == name);
            let known = known.or_else(|| below.iter().find(|(known, _)| *known == "NAME"));
            match known {
                Some((_, field)) => {
                    if !value.is_null() {
                        self.seen.insert(field.path.clone());
                    }
                    self.value(value, &field.kind, &field.path);
                }
                None => self.wrong.push(format!("{path}{name} is not documented")),
            }
        }
        for (name, field) in below {
            if name != "NAME" && !field.may_be_absent && !values.contains_key(name) {
                self.wrong
                    .push(format!("{path}{name} is documented and absent"));
            }
        }
    }

    fn value(&mut self, value: &Value, kind: &str, path: &str) {
        if let Some(kind) = kind.strip_suffix(" or null") {
            if !value.is_null() {
                self.value(value, kind, path);
            }
            return;
        }
        let has_fields = |path: &str| {
            let mut fields = self.section.fields.iter();
            fields.any(|field| field.path.starts_with(path))
        };
        let is_right = match (kind, value) {
            ("text", value) => value.is_string(),
            ("number", value) => value.is_number(),
            ("true or false", value) => value.is_boolean(),
            (kind, Value::Object(values)) if kind.starts_with("object") => {
                let below = format!("{path}.");
                match kind.strip_prefix("object of ") {
                    Some(inner) if !has_fields(&below) => {
                        values
                            .values()
                            .for_each(|value| self.value(value, inner, path));
                    }
                    _ => self.object(value, &below),
                }
                true
            }
            (kind, Value::Array(values)) if kind.starts_with("list of ") => {
                let inner = &kind["list of ".len()..];
                let path = format!("{path}[]");
                values
                    .iter()
                    .for_each(|value| self.value(value, inner, &path));
                true
            }
            (kind, Value::Array(values)) if kind.starts_with("pair of ") => {
                let kinds = kind["pair of ".len()..].split_once(" and ").unwrap();
                if let [first, second] = &values[..] {
                    self.value(first, kinds.0, path);
                    self.value(second, kinds.1, path);
                }
                values.len() == 2
            }
            (kind, Value::String(text)) => kind.split(", ").any(|k| k == format!("`{text}`")),
            (kind, Value::Object(values)) => values.iter().all(|(name, text)| {
                kind.contains(&format!("an object with the text `{name}`")) && text.is_string()
            }),
            _ => false,
        };
        if !is_right {
            self.wrong
                .push(format!("{path} is {value} and documented as {kind}"));
        }
    }
}

/// The number of connections that are open at a time until they end, the oldest first.
const LASTING: usize = 12;

/// Ends the connections when it is dropped.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The page, and the fields of it that were printed: the section and the path.
struct Printed {
    reference: Reference,
    seen: BTreeSet<(usize, String)>,
}

// === impl Printed ===

impl Printed {
    fn new() -> Self {
        Self {
            reference: Reference::read(),
            seen: BTreeSet::new(),
        }
    }

    /// Compares each line of `text`, or the one object that it is.
    fn compare(&mut self, command: &str, text: &str) {
        let once = serde_json::Deserializer::from_str(text).into_iter::<Once>();
        for value in once {
            value.unwrap_or_else(|e| panic!("{command}: {e} in {text}"));
        }
        let values = serde_json::Deserializer::from_str(text).into_iter::<Value>();
        let mut count = 0;
        for value in values {
            let value = value.unwrap_or_else(|e| panic!("{command}: {e} in {text}"));
            self.reference.compare(command, &value, &mut self.seen);
            count += 1;
        }
        assert!(count > 0, "{command} prints nothing");
    }

    /// Calls `print` and compares its text until all documented fields of the command were printed.
    fn complete(&mut self, command: &str, mut print: impl FnMut() -> String) {
        let began = Instant::now();
        loop {
            self.compare(command, &print());
            let missing = self.missing(command);
            if missing.is_empty() {
                return;
            }
            assert!(
                began.elapsed() < PATIENCE,
                "{command}: documented and never printed: {missing:?}"
            );
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// Returns the documented fields of a command that were not printed yet.
    fn missing(&self, command: &str) -> Vec<&str> {
        let is_elsewhere = |path: &str| {
            NOT_HERE.iter().any(|(of, below)| {
                *of == command
                    && path
                        .strip_prefix(below)
                        .is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
            })
        };
        let sections = self.reference.0.iter().enumerate();
        let sections = sections.filter(|(_, s)| s.commands.iter().any(|c| c == command));
        let fields = sections.flat_map(|(number, section)| {
            let paths = section.fields.iter().map(|field| &*field.path);
            paths.filter(move |path| !self.seen.contains(&(number, (*path).to_owned())))
        });
        fields.filter(|path| !is_elsewhere(path)).collect()
    }
}

/// Runs a command in the namespace of `jobs`, if any, and returns what it prints.
fn printed(jobs: Option<&Jobs>, command: &str, args: &[&str]) -> String {
    let words = command.strip_prefix("taut ").unwrap().split(' ');
    let mut taut = Command::new(env!("CARGO_BIN_EXE_taut"));
    taut.args(words)
        .args(args)
        .stdin(Stdio::null())
        .env("TAUT_LOG", "error");
    let output = match jobs {
        Some(jobs) => jobs.host.0.run(|| taut.output().unwrap()).unwrap(),
        None => taut.output().unwrap(),
    };
    assert!(
        output.status.success() || command.starts_with("taut doctor"),
        "{command} {args:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

/// The jobs, with connections that do something.
struct World {
    jobs: Jobs,
    printed: Printed,
}

// === impl World ===

impl World {
    fn path(&self, name: &str) -> String {
        self.jobs.path(name)
    }

    /// Runs a command until it has printed all of its fields.
    fn complete(&mut self, command: &str, args: &[&str]) {
        let print = || printed(Some(&self.jobs), command, args);
        self.printed.complete(command, print);
    }

    fn connections(&mut self) {
        // The maxima of Linux 6.1, which taut tune raises.
        let set = || {
            fs::write("/proc/sys/net/ipv4/tcp_rmem", "4096 131072 6291456").unwrap();
            fs::write("/proc/sys/net/ipv4/tcp_wmem", "4096 16384 4194304").unwrap();
        };
        self.jobs.host.0.run(set).unwrap();
        let netns = self.jobs.host.name().to_owned();
        let netns = ["--netns", &*netns];
        let ended = AtomicBool::new(false);
        let listener = self.jobs.host.listener();
        // It has no room for further connections, so it drops what dials it.
        rustix::net::listen(&listener, 1).unwrap();
        let address = listener.local_addr().unwrap();
        let (mut sender, mut receiver) = self.jobs.host.connection(&self.jobs.host.listener());
        let host = self.jobs.host.0.clone();
        let lasting = self.jobs.host.listener();
        let busy = || !ended.load(Ordering::Relaxed);
        thread::scope(|scope| {
            // Also if the comparison fails.
            let _end = End(&ended);
            scope.spawn(|| {
                while busy() && sender.write_all(&[7; 10_000]).is_ok() {
                    thread::sleep(Duration::from_millis(10));
                }
                drop(sender);
            });
            scope.spawn(|| {
                let mut buffer = [0; 10_000];
                while receiver.read(&mut buffer).is_ok_and(|n| n > 0) {}
            });
            scope.spawn(|| {
                host.run(|| {
                    // Connections that end, and some that are never accepted.
                    let mut dialled = Vec::new();
                    // Connections that end as well, once several scans have found them.
                    let mut open = VecDeque::new();
                    while busy() {
                        let mut client = TcpStream::connect(lasting.local_addr().unwrap()).unwrap();
                        client.write_all(b"GET").unwrap();
                        open.push_back((client, lasting.accept().unwrap()));
                        if open.len() > LASTING {
                            open.pop_front();
                        }
                        let web: SocketAddr = "127.0.0.1:8081".parse().unwrap();
                        let mut client = TcpStream::connect(web).unwrap();
                        client.write_all(b"GET").unwrap();
                        client.shutdown(std::net::Shutdown::Write).unwrap();
                        client.read_to_end(&mut Vec::new()).unwrap();
                        dialled.push(dial(address));
                        thread::sleep(Duration::from_millis(50));
                    }
                })
                .unwrap();
            });
            self.observe(netns);
        });
    }

    /// Runs what observes connections.
    fn observe(&mut self, netns: [&str; 2]) {
        let scans = [&["-n", "3", "--interval", "300ms"][..], &netns].concat();
        self.complete("taut top --json", &scans);
        let for_a_second = [&["--for", "1s"][..], &netns].concat();
        let far = printed(Some(&self.jobs), "taut why --json", &for_a_second);
        let file = self.path("far.json");
        fs::write(&file, far).unwrap();
        let both = [&for_a_second[..], &["--with", &file]].concat();
        self.complete("taut why --json", &both);

        let mut watch = Command::new(env!("CARGO_BIN_EXE_taut"));
        watch.args(["watch", "--interval", "100ms", "--open-every", "200ms"]);
        let records = self.path("records");
        watch
            .args(netns)
            .env("TAUT_LOG", "error")
            .stdin(Stdio::null());
        watch.stdout(fs::File::create(&records).unwrap());
        let watch = Running(watch.spawn().unwrap());
        until("taut watch records open and ended connections", || {
            let text = fs::read_to_string(&records).unwrap();
            ["\"event\":\"open\"", "\"event\":\"end\""]
                .iter()
                .all(|event| text.matches(event).count() > 3)
        });
        self.printed.complete("taut watch", || lines_of(&records));
        drop(watch);

        self.complete("taut tune --json", &for_a_second);
    }

    fn relays(&mut self) {
        let control = self.path("near.sock");
        let control = ["--control", &*control];
        // A session that stays open, with bytes in both directions.
        let mut client = self
            .jobs
            .host
            .0
            .run(|| TcpStream::connect("127.0.0.1:8080").unwrap())
            .unwrap();
        client.write_all(b"open").unwrap();
        self.complete("taut relay status --json", &control);
        self.complete("taut relay sessions --json", &control);
        self.complete("taut mesh status --json", &control);
        self.complete("taut mesh rtt --json", &control);
        let forward = [&["--forward", "web"][..], &control].concat();
        self.complete("taut relay end --json", &forward);
        self.complete("taut relay drain --json", &forward);
        self.complete("taut relay reload --json", &control);
        let log = self.path("sessions.json");
        let lines = || lines_of(&log);
        self.printed.complete("session_log of taut relay", lines);
    }

    fn mesh(&mut self) {
        let rtt = self.path("rtt");
        fs::write(&rtt, RTT).unwrap();
        let ends = [
            "--rtt",
            &rtt,
            "--from",
            "192.0.2.7",
            "--to",
            "198.51.100.0/24",
        ];
        self.complete("taut mesh plan --json", &ends);
        let [key, list, signed] = ["signing.key", "list", "another.members"].map(|n| self.path(n));
        let sign = ["--key", &key, "--output", &signed, &list];
        self.complete("taut mesh sign --json", &sign);
        let dns = self.path("dns.toml");
        self.complete("taut check --json", &["--config", &dns]);
        let explain = ["--config", &dns, "--explain", "192.0.2.1"];
        self.complete("taut mesh dns --json", &explain);
    }

    fn others(&mut self) {
        let snoop = self.path("snoop.sock");
        self.complete("taut snoop status --json", &["--control", &snoop]);
        self.complete("taut guest status --json", &["--for", "300ms"]);
        self.complete("taut doctor --json", &[]);
        self.complete("taut status --json", &[]);
    }
}

/// Returns the complete lines of a file that a job writes.
fn lines_of(file: &str) -> String {
    let mut text = fs::read_to_string(file).unwrap();
    text.truncate(text.rfind('\n').map_or(0, |end| end + 1));
    text
}

/// The route of pied-piper 3.3, with a relay in the middle of the cloud's leg that is a detour.
const RTT: &str = "\
near 192.0.2.0/24 32.7
far 198.51.100.0/24 26
near far 215
middle near 150
middle far 140
192.0.2.0/24 198.51.100.0/24 273.7
";

/// Starts to connect, without waiting.
fn dial(address: SocketAddr) -> OwnedFd {
    use rustix::net::{AddressFamily, SocketType, connect, socket};
    let dialler = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    rustix::io::ioctl_fionbio(&dialler, true).unwrap();
    let _ = connect(&dialler, &address);
    dialler
}

/// The command that takes seconds of a core and has a test of its own.
const COST: &str = "taut snoop cost --json";

#[test]
fn every_command_prints_the_json_that_the_reference_describes() {
    let Some(jobs) = Jobs::new("json") else {
        return;
    };
    let printed = Printed::new();
    let mut world = World { jobs, printed };
    world.mesh();
    world.others();
    world.connections();
    world.relays();
    let sections = &world.printed.reference.0;
    for command in sections.iter().flat_map(|section| &section.commands) {
        let missing = world.printed.missing(command);
        assert!(
            missing.is_empty() || command == COST,
            "{command} did not run"
        );
    }
}

#[test]
fn what_a_packet_costs_is_measured() {
    let text = printed(None, COST, &["--segments", "1000"]);
    let mut printed = Printed::new();
    printed.compare(COST, &text);
    assert_eq!(printed.missing(COST), [""; 0]);
    let costs: Value = serde_json::from_str(&text).unwrap();
    let costs = costs["scenarios"].as_array().unwrap();
    assert_eq!(costs.len(), 6);
    for cost in costs {
        assert!(cost["delivery"].as_f64().unwrap() > 0.0, "{cost}");
        assert!(cost["pass_to_guest"].as_f64().unwrap() > 0.0, "{cost}");
    }
}

#[test]
fn fields_that_are_made_elsewhere_are_documented() {
    let Reference(sections) = Reference::read();
    for (command, path) in NOT_HERE {
        let mut of = sections
            .iter()
            .filter(|s| s.commands.iter().any(|c| c == command));
        let is_known = of.any(|s| s.fields.iter().any(|field| field.path == *path));
        assert!(is_known, "{command}: {path}");
    }
}
