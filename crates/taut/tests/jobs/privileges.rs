//! The privileges of every job while it runs, against the table in docs/security.md.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use taut_sys::child::Child;
use taut_sys::tap::Tap;
use taut_sys_testing::skip::has_programs;

use crate::host::Host;

const PATIENCE: Duration = Duration::from_secs(60);

/// The names of capabilities by number (linux/capability.h).
const CAPABILITIES: [(u32, &str); 11] = [
    (1, "DAC_OVERRIDE"),
    (2, "DAC_READ_SEARCH"),
    (10, "NET_BIND_SERVICE"),
    (12, "NET_ADMIN"),
    (13, "NET_RAW"),
    (19, "SYS_PTRACE"),
    (21, "SYS_ADMIN"),
    (23, "SYS_NICE"),
    (34, "SYSLOG"),
    (38, "PERFMON"),
    (39, "BPF"),
];

/// The user and the capabilities of a job.
type Privileges = (String, Vec<String>);

/// Returns the rows of the table: the first cells of each, by job.
fn documented() -> BTreeMap<String, Privileges> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/security.md");
    let page = fs::read_to_string(page).unwrap();
    let table = page.split("| job | user | capabilities |").nth(1).unwrap();
    let rows = table
        .lines()
        .skip(2)
        .take_while(|line| line.starts_with('|'));
    let row = |line: &str| {
        let cells: Vec<_> = line.split('|').map(str::trim).collect();
        let mut capabilities: Vec<_> = cells[3]
            .split(", ")
            .filter(|name| *name != "none")
            .map(str::to_owned)
            .collect();
        capabilities.sort();
        (
            cells[1].replace('`', ""),
            (cells[2].to_owned(), capabilities),
        )
    };
    rows.map(row).collect()
}

/// Returns the privileges of a process, after checking that all its threads have the same and that
/// none can be regained.
fn privileges(pid: u32) -> Privileges {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let threads = tasks.filter_map(|task| {
        // A thread may have ended.
        let status = fs::read_to_string(task.unwrap().path().join("status")).ok()?;
        Some(of_thread(&status))
    });
    let mut threads: Vec<_> = threads.collect();
    threads.dedup();
    assert_eq!(threads.len(), 1, "threads differ: {threads:?}");
    threads.remove(0)
}

fn of_thread(status: &str) -> Privileges {
    let field = |name: &str| {
        let line = status.lines().find_map(|l| l.strip_prefix(name));
        line.unwrap().trim_start_matches(':').trim().to_owned()
    };
    let set = |name: &str| u64::from_str_radix(&field(name), 16).unwrap();
    let has = set("CapEff");
    assert_eq!((set("CapPrm"), set("CapBnd")), (has, has), "{status}");
    assert_eq!((set("CapInh"), set("CapAmb")), (0, 0), "{status}");
    assert_eq!(
        (field("NoNewPrivs"), field("Seccomp")),
        ("1".into(), "2".into()),
        "{status}"
    );
    let mut names: Vec<_> = (0..64)
        .filter(|number| has >> number & 1 == 1)
        .map(|number| {
            let known = CAPABILITIES.iter().find(|(known, _)| *known == number);
            known.map_or(number.to_string(), |(_, name)| (*name).to_owned())
        })
        .collect();
    names.sort();
    let user = match field("Uid").split_whitespace().next() {
        Some("0") => "root",
        _ => "another",
    };
    (user.to_owned(), names)
}

/// A job in a namespace of its own.
struct Job {
    host: Host,
    dir: tempfile::TempDir,
}

impl Job {
    fn new(name: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        // A relay that is not root reads its configuration here.
        fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
        let host = Host::new(&format!("priv-{name}"));
        Self { host, dir }
    }

    fn file(&self, name: &str, text: &str) -> String {
        let path = self.dir.path().join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, PermissionsExt::from_mode(0o644)).unwrap();
        path.to_str().unwrap().to_owned()
    }

    fn path(&self, name: &str) -> String {
        self.dir.path().join(name).to_str().unwrap().to_owned()
    }

    /// Starts `taut` and returns it once it has written a line with `words`.
    fn start(&self, line: &str, words: &str) -> Child {
        let mut command = Command::new(env!("CARGO_BIN_EXE_taut"));
        command.args(line.split(' ')).stdin(Stdio::null());
        command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .env("TAUT_LOG", "info");
        let mut child = Child::spawn(self.host.0.clone(), command).unwrap();
        let pipes = child.pipes();
        let outputs: [Box<dyn std::io::Read + Send>; 2] = [
            Box::new(pipes.stdout.take().unwrap()),
            Box::new(pipes.stderr.take().unwrap()),
        ];
        let (tell, told) = std::sync::mpsc::channel();
        for output in outputs {
            let tell = tell.clone();
            std::thread::spawn(move || {
                // Read to the end, so that the job never waits for a reader.
                for line in BufReader::new(output).lines().map_while(Result::ok) {
                    let _ = tell.send(line);
                }
            });
        }
        drop(tell);
        let mut seen = String::new();
        let until = Instant::now() + PATIENCE;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match told.recv_timeout(left) {
                Ok(line) if line.contains(words) => return child,
                Ok(line) => seen += &(line + "\n"),
                Err(_) => panic!("{line}: no `{words}` in: {seen}"),
            }
        }
    }

    /// Compares the privileges of a job that says nothing before its end with its row.
    fn assert_row_of_silent(&self, row: &str, line: &str) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_taut"));
        command.args(line.split(' ')).stdin(Stdio::null());
        command.stdout(Stdio::null()).stderr(Stdio::inherit());
        let child = Child::spawn(self.host.0.clone(), command).unwrap();
        let until = Instant::now() + PATIENCE;
        // The filter of system calls comes last.
        while !fs::read_to_string(format!("/proc/{}/status", child.id()))
            .unwrap()
            .contains("Seccomp:\t2")
        {
            assert!(Instant::now() < until, "{line}: it enters no sandbox");
            std::thread::yield_now();
        }
        assert_eq!(&privileges(child.id()), &documented()[row], "{row}: {line}");
    }

    /// Compares the privileges of a job with its row.
    fn assert_row(&self, row: &str, line: &str, words: &str) {
        let child = self.start(line, words);
        let documented = documented();
        let expected = documented
            .get(row)
            .unwrap_or_else(|| panic!("no row `{row}`"));
        assert_eq!(&privileges(child.id()), expected, "{row}: {line}");
    }
}

const FORWARD: &str = "[[relay.forward]]\nlisten = \"127.0.0.1:PORT\"\nto = \"127.0.0.1:9\"\n";

fn forward(port: u16) -> String {
    FORWARD.replace("PORT", &port.to_string())
}

#[test]
fn a_relay_has_what_its_configuration_needs() {
    let job = Job::new("relay");
    let plain = "relay --listen 127.0.0.1:8080 --to 127.0.0.1:9";
    job.assert_row("taut relay", plain, "listen=");
    let file = job.file("plain.toml", &forward(8080));
    job.assert_row("taut relay", &format!("relay --config {file}"), "listen=");
    let low = plain.replace("8080", "80");
    job.assert_row("taut relay, ports below 1024", &low, "listen=");
    let marked = forward(8080) + "upstream_mark = 7\n";
    let file = job.file("marked.toml", &marked);
    job.assert_row(
        "taut relay, upstream_mark",
        &format!("relay --config {file}"),
        "listen=",
    );
    for line in ["link add eth0 type veth peer name eth1", "link set eth0 up"] {
        assert!(job.host.ip(line).status.success());
    }
    let early = forward(8080) + "early_syn = true\n";
    let file = job.file("early.toml", &early);
    job.assert_row(
        "taut relay, early SYN, interception or turbo start",
        &format!("relay --config {file}"),
        "listen=",
    );
}

#[test]
fn a_relay_whose_configuration_is_roots_alone_stays_root_without_capabilities() {
    let job = Job::new("root");
    let file = job.file("taut.toml", &forward(8080));
    fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).unwrap();
    let child = job.start(&format!("relay --config {file}"), "listen=");
    assert_eq!(privileges(child.id()), ("root".into(), Vec::new()));
}

/// A member of a mesh.
const FAR: &str = "[[member]]\nname = \"far\"\nkeys = [\"KEY\"]\naddresses = [\"127.0.0.1:9\"]\n";

#[test]
fn a_relay_of_a_mesh_has_what_turbo_start_needs() {
    let job = Job::new("mesh");
    let keygen = |name: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_taut"));
        command.args(["mesh", "keygen", &job.path(name)]);
        let made = command.output().unwrap();
        assert!(made.status.success(), "{made:?}");
        String::from_utf8(made.stdout).unwrap().trim().to_owned()
    };
    let (own, far) = (keygen("own"), keygen("far"));
    let list = FAR.replace("KEY", &far)
        + &FAR
            .replace("KEY", &own)
            .replace("far", "own")
            .replace("\"127.0.0.1:9\"", "");
    let members = job.file("members.toml", &list);
    let mesh = |more: &str| {
        format!(
            "{}via = \"far\"\n[relay.mesh]\nprivate_key_file = {:?}\nmembers_file = {members:?}\n{more}",
            forward(8080),
            job.path("own")
        )
    };
    let file = job.file("turbo.toml", &mesh(""));
    let line = format!("relay --config {file}");
    let row = "taut relay, early SYN, interception or turbo start";
    job.assert_row(row, &line, "listen=");
    let file = job.file("plain.toml", &mesh("turbo = false\n"));
    let line = format!("relay --config {file}");
    job.assert_row("taut relay, mesh without turbo start", &line, "listen=");
}

#[test]
fn a_relay_that_intercepts_has_the_capabilities_of_the_table() {
    let job = Job::new("intercept");
    let file = job.file(
        "taut.toml",
        "[[relay.forward]]\nlisten = \"0.0.0.0:8080\"\ntransparent = true\nports = [81]\nallow = [\"*:81\"]\n",
    );
    let row = "taut relay, early SYN, interception or turbo start";
    job.assert_row(row, &format!("relay --config {file}"), "intercepting by");
}

#[test]
fn a_relay_of_another_user_can_intercept_with_nft() {
    if !has_programs(&["nft"]) {
        return;
    }
    let job = Job::new("nft");
    let config = "[relay]\nuser = \"nobody\"\nintercept_by = \"nft\"\n\
                  [[relay.forward]]\nlisten = \"0.0.0.0:8080\"\ntransparent = true\nports = [81]\nallow = [\"*:81\"]\n";
    let file = job.file("taut.toml", config);
    let child = job.start(
        &format!("relay --config {file}"),
        "intercepting by nftables",
    );
    let kept = ["BPF", "NET_ADMIN", "NET_BIND_SERVICE", "PERFMON"]
        .map(str::to_owned)
        .to_vec();
    assert_eq!(privileges(child.id()), ("another".into(), kept));
}

#[test]
fn a_name_server_has_nothing() {
    let job = Job::new("dns");
    let file = job.file(
        "taut.toml",
        "[mesh.dns]\nzone = \"steer.example.org\"\nlisten = \"127.0.0.1:5353\"\nuser = \"nobody\"\n\
         [[mesh.dns.name_server]]\nname = \"ns1\"\naddresses = [\"127.0.0.1\"]\n\
         [[mesh.dns.relay]]\nname = \"a\"\naddresses = [\"192.0.2.1\"]\n\
         [[mesh.dns.name]]\nname = \"www\"\n",
    );
    let line = format!("mesh dns --config {file}");
    job.assert_row("taut mesh dns", &line, "answering for");
}

#[test]
fn snoop_has_what_new_taps_need() {
    let job = Job::new("snoop");
    let _tap = job.host.0.run(|| Tap::create("vnet0").unwrap()).unwrap();
    let control = job.path("control");
    let line = format!("snoop --tap vnet0 --control {control}");
    job.assert_row("taut snoop", &line, "serving");
    let line = format!("{line} --qmp vnet0={}", job.path("monitor"));
    job.assert_row("taut snoop --qmp", &line, "serving");
}

#[test]
fn who_looks_at_connections_has_what_it_takes_to_see_them() {
    let job = Job::new("observe");
    let listener = job.host.listener();
    let _open = job.host.connection(&listener);
    let port = listener.local_addr().unwrap().port();
    let words = format!(":{port}\"");
    job.assert_row("taut top", "top --json --own-netns", &words);
    job.assert_row("taut watch", "watch --own-netns --open-every 100ms", &words);
    job.assert_row(
        "taut status --serve",
        "status --serve 127.0.0.1:9460",
        "serving the page",
    );
    job.assert_row_of_silent("taut why", "why --own-netns --for 1m");
}

#[test]
fn a_guest_has_what_it_takes_to_find_its_gaps() {
    let job = Job::new("guest");
    job.assert_row_of_silent("taut guest", "guest status --for 1m");
}

#[test]
fn tune_has_what_it_takes_to_set_buffers_only_if_it_sets_them() {
    let job = Job::new("tune");
    let listener = job.host.listener();
    let _open = job.host.connection(&listener);
    // A filter that nothing passes is the one thing that tune says at once.
    let advise = format!("tune --own-netns --journal {} port 1", job.path("journal"));
    let words = "leave all connections alone";
    job.assert_row("taut tune", &advise, words);
    job.assert_row("taut tune --apply", &format!("{advise} --apply"), words);
}

#[test]
fn a_unit_gives_its_job_the_capabilities_of_the_table() {
    let documented = documented();
    // The names of rows, and what a unit leaves out on purpose (docs/packages.md).
    for (unit, row, without) in [
        ("mesh-dns", None, &[][..]),
        ("relay", Some("taut relay, ports below 1024"), &[]),
        ("snoop", Some("taut snoop"), &[]),
        ("watch", Some("taut watch"), &["SYS_NICE"]),
        ("tune", Some("taut tune --apply"), &[]),
        ("guest", Some("taut guest"), &[]),
    ] {
        let path = format!("../../packaging/systemd/taut-{unit}.service");
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
        let text = fs::read_to_string(path).unwrap();
        let line = text
            .lines()
            .find_map(|l| l.strip_prefix("CapabilityBoundingSet="));
        let given: BTreeSet<_> = line
            .unwrap()
            .split(' ')
            .map(|c| c.replace("CAP_", ""))
            .collect();
        let mut expected: BTreeSet<_> = match row {
            Some(row) => documented[row].1.iter().cloned().collect(),
            // It gives its capability up when it has its port.
            None => ["NET_BIND_SERVICE".to_owned()].into(),
        };
        for capability in without {
            assert!(expected.remove(*capability), "{unit}: {capability}");
        }
        assert_eq!(given, expected, "{unit}");
    }
}

#[test]
fn a_check_has_the_rights_of_the_relay() {
    let job = Job::new("check");
    // Root without CAP_DAC_OVERRIDE cannot read it.
    let members = job.file("members", "not a list");
    fs::set_permissions(&members, PermissionsExt::from_mode(0o600)).unwrap();
    chown(&members, Some(65_534), None).unwrap();
    let mesh = format!(
        "{}[relay.mesh]\nprivate_key_file = \"/k\"\nmembers_file = {members:?}\nlisten = \":1\"\n",
        forward(8080)
    );
    let file = job.file("taut.toml", &mesh);
    let mut command = Command::new(env!("CARGO_BIN_EXE_taut"));
    command.args(["relay", "--check", "--config", &file]);
    let output = command.output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("Permission denied"), "{said}");
}

#[test]
fn a_check_makes_nothing() {
    let job = Job::new("unmade");
    let [routes, control] = ["new/routes", "made/control"].map(|name| job.path(name));
    let config = format!(
        "[relay]\nuser = \"nobody\"\ncontrol = {control:?}\n{}[relay.mesh]\nprivate_key_file = \"/k\"\nmembers_file = \"/m\"\n\
         routes_file = {routes:?}\n",
        forward(8080)
    );
    let file = job.file("taut.toml", &config);
    let mut command = Command::new(env!("CARGO_BIN_EXE_taut"));
    command.args(["relay", "--check", "--config", &file]);
    let output = command.output().unwrap();
    // There is no key.
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    for file in [routes, control] {
        assert!(!Path::new(&file).parent().unwrap().exists(), "{file}");
    }
}

/// The rows whose jobs the tests above run.
const RUN: [&str; 15] = [
    "taut relay",
    "taut relay, ports below 1024",
    "taut relay, upstream_mark",
    "taut relay, mesh without turbo start",
    "taut relay, early SYN, interception or turbo start",
    "taut mesh dns",
    "taut snoop",
    "taut snoop --qmp",
    "taut top",
    "taut watch",
    "taut status --serve",
    "taut why",
    "taut tune",
    "taut tune --apply",
    "taut guest",
];

#[test]
fn every_row_of_the_table_is_compared_with_a_running_job() {
    let documented = documented();
    let rows: BTreeSet<_> = documented.keys().map(String::as_str).collect();
    assert_eq!(rows, RUN.into());
}

#[test]
fn every_job_and_reason_is_in_the_table() {
    let documented = documented();
    assert!(documented.len() >= 10, "{documented:?}");
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/security.md");
    let page = fs::read_to_string(page).unwrap();
    for (job, (_, capabilities)) in &documented {
        // "taut tune --apply" has the reasons of "tune", too.
        let name = job.strip_prefix("taut ").unwrap();
        for capability in capabilities {
            let reasons = page.lines().filter_map(|line| {
                let mut cells = line.strip_prefix('|')?.split('|').map(str::trim);
                (cells.next() == Some(capability)).then_some(cells.next()?)
            });
            let mut jobs = reasons.flat_map(|jobs| jobs.split(", "));
            let is_for = |of: &str| {
                of == "as BPF"
                    || name == of
                    || name.starts_with(&format!("{of} "))
                    || name.starts_with(&format!("{of},"))
            };
            assert!(jobs.any(is_for), "{job}: why {capability}?");
        }
    }
}

#[test]
fn without_the_sandbox_capabilities_are_dropped_all_the_same() {
    let job = Job::new("free");
    let line = "relay --no-sandbox --listen 127.0.0.1:8080 --to 127.0.0.1:9";
    let child = job.start(line, "listen=");
    let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
    assert!(status.contains("Seccomp:\t0"), "{status}");
    assert!(status.contains("CapEff:\t0000000000000000"), "{status}");
}
