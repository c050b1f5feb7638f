//! System calls of each job fail from a seed: while it starts, while it works, and while it ends. The job
//! goes on, or ends with a sentence. It never panics, leaks, delivers a wrong byte, or leaves something
//! that `taut doctor --repair` does not remove.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use std::{fs, thread};

use rustix::process::{Pid, Signal, kill_process};
use taut_sys_testing::skip::has_programs;

use crate::kills::{Seed, number};
use crate::programs;
use crate::rig::{Machine, TAUT, jobs, start};

mod injector;
mod names;

use injector::{Injector, Plan};

/// The number of faults, unless `TAUT_FAULTS` gives another one.
const FAULTS: u64 = 250;
/// The time limit of every wait in this test. It is not the time that anything should take.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often a condition is checked.
const CHECK: Duration = Duration::from_millis(5);
/// The number of sessions of one run that are open at the same time.
const SESSIONS: usize = 8;
/// The faults that a relay has while it forwards. It survives them, so one run has many.
const FAULTS_OF_A_RELAY: u64 = 350;
/// The longest time in which it gets them. With few faults among its calls, it gets fewer.
const TRAFFIC: Duration = Duration::from_secs(15);
/// The pipes that a relay may keep for later sessions.
const PIPES: usize = 4;
/// The connections that the near relay of the mesh holds ready.
const POOL: usize = 4;
/// How long the number of descriptors stays the same in a relay without sessions that has begun.
const SETTLED: Duration = Duration::from_secs(1);

/// Where relays listen in the machine's network namespace.
const PLAIN: SocketAddr = local(9442);
const NEAR: SocketAddr = local(9443);
const NEAR_MESH: SocketAddr = local(9444);
const FAR_MESH: SocketAddr = local(9445);
/// Where the name server listens.
const NAMES: SocketAddr = local(9446);

const fn local(port: u16) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port)
}

/// When faults begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Start,
    Work,
    End,
}

/// The open descriptors of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Descriptors {
    pipes: usize,
    others: usize,
}

/// A job under faults.
struct Job {
    child: Child,
    injector: Injector,
    said: Arc<Mutex<String>>,
    readers: Vec<thread::JoinHandle<()>>,
}

// === impl Job ===

impl Job {
    fn start(machine: &Machine, args: &[&str], plan: Plan, seed: u64, from_main: bool) -> Self {
        let mut command = machine.command(TAUT, args);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let (mut child, injector) = Injector::spawn(command, plan, seed, from_main);
        let said = Arc::new(Mutex::new(String::new()));
        let outputs: [Box<dyn std::io::Read + Send>; 2] = [
            Box::new(child.stdout.take().unwrap()),
            Box::new(child.stderr.take().unwrap()),
        ];
        let readers = outputs.map(|mut output| {
            let said = said.clone();
            thread::spawn(move || {
                let mut part = [0; 4096];
                while let Ok(length @ 1..) = output.read(&mut part) {
                    *said.lock().unwrap() += &String::from_utf8_lossy(&part[..length]);
                }
            })
        });
        Self {
            child,
            injector,
            said,
            readers: readers.into(),
        }
    }

    fn said(&self) -> String {
        self.said.lock().unwrap().clone()
    }

    /// Waits until it has begun its work or has ended.
    fn wait_for_start(&mut self, args: &[&str]) {
        let ready = [
            "forwarding",
            "relaying",
            "\"applied\"",
            "serving",
            "answering for",
        ];
        // `watch` says nothing when it is ready.
        let begun = |injector: &Injector| args[0] == "watch" && injector.seen() > 1_500;
        self.wait_for(&ready, begun);
    }

    /// Waits until the log has one of the words, the job has ended, or the condition holds.
    fn wait_for(&mut self, words: &[&str], or: impl Fn(&Injector) -> bool) {
        let until = Instant::now() + PATIENCE;
        while !words.iter().any(|words| self.said().contains(words))
            && !or(&self.injector)
            && self.child.try_wait().unwrap().is_none()
        {
            assert!(
                Instant::now() < until,
                "it neither begins nor ends: {}\n{}",
                self.injector.made(),
                self.said()
            );
            thread::sleep(CHECK);
        }
    }

    fn descriptors(&self) -> Descriptors {
        let mut found = Descriptors {
            pipes: 0,
            others: 0,
        };
        let all = fs::read_dir(format!("/proc/{}/fd", self.child.id()));
        for one in all.into_iter().flatten().map_while(Result::ok) {
            match fs::read_link(one.path()) {
                Ok(to) if to.to_string_lossy().starts_with("pipe:") => found.pipes += 1,
                _ => found.others += 1,
            }
        }
        found
    }

    /// Returns the descriptors once their number stays the same.
    fn settled(&self) -> Descriptors {
        let (mut since, mut last) = (Instant::now(), self.descriptors());
        let until = since + PATIENCE;
        while since.elapsed() < SETTLED && Instant::now() < until {
            let now = self.descriptors();
            if now != last {
                (since, last) = (Instant::now(), now);
            }
            thread::sleep(CHECK);
        }
        last
    }

    fn end(&mut self) -> (ExitStatus, String) {
        // A job that has ended has its status already.
        let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
        let until = Instant::now() + PATIENCE;
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(
                Instant::now() < until,
                "it does not end: {}\n{}",
                self.injector.made(),
                self.said()
            );
            thread::sleep(CHECK);
        };
        for reader in self.readers.drain(..) {
            reader.join().unwrap();
        }
        (status, self.said())
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Checks how a job has ended.
fn assert_ending(status: ExitStatus, said: &str, context: &str) {
    assert!(!said.contains("panicked"), "a panic: {context}\n{said}");
    assert_eq!(status.signal(), None, "{context}\n{said}");
    let has_sentence = said.lines().any(|line| line.starts_with("taut: "));
    assert!(
        status.success() || has_sentence,
        "{status} without a sentence: {context}\n{said}"
    );
}

/// Byte `position` of session `session`.
fn byte(session: u64, position: usize) -> u8 {
    let mut z = session.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (position as u64 / 8);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (z >> (8 * (position % 8))) as u8
}

/// How a session has ended.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    Whole,
    Broken,
    /// What no fault excuses.
    Wrong(String),
}

/// Sends `length` bytes through a relay to an echo server, and checks what comes back. A session is wrong
/// if a byte is, if the end comes early but without an error, or if nothing comes for a long time.
fn session(machine: &Machine, to: SocketAddr, id: u64, length: usize) -> Outcome {
    let Ok(mut stream) = machine
        .host
        .0
        .run(|| TcpStream::connect_timeout(&to, PATIENCE))
        .unwrap()
    else {
        return Outcome::Broken;
    };
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut writer = stream.try_clone().unwrap();
    let sent = thread::spawn(move || {
        let data: Vec<_> = (0..length).map(|position| byte(id, position)).collect();
        writer.write_all(&data)?;
        writer.shutdown(Shutdown::Write)
    });
    let (mut position, mut part) = (0, vec![0; 65_536]);
    let mut was_closed = false;
    let outcome = loop {
        match stream.read(&mut part) {
            Ok(0) if position == length => break Outcome::Whole,
            Ok(0) => {
                // Now: the shutdown below lets a later reset close it, too.
                was_closed = is_closed(&stream);
                let what = format!("ends after {position} of {length} bytes without an error");
                break Outcome::Wrong(what);
            }
            Ok(count) => {
                let mut rest = part[..count].iter().zip(position..);
                let wrong = |(found, at): &(&u8, usize)| *at >= length || **found != byte(id, *at);
                if let Some((_, at)) = rest.find(wrong) {
                    break Outcome::Wrong(format!("has a wrong byte at {at} of {length}"));
                }
                position += count;
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                break Outcome::Wrong(format!("hangs after {position} of {length} bytes"));
            }
            Err(_) => break Outcome::Broken,
        }
    };
    let _ = stream.shutdown(Shutdown::Both);
    let is_reset = |error: std::io::Error| error.kind() == std::io::ErrorKind::ConnectionReset;
    match (sent.join().unwrap().is_err_and(is_reset), outcome) {
        // The kernel reports a reset once, here to the writer; the reader then sees an end. A connection whose
        // peer has ended the stream is open at that moment, or closed because the writer is done.
        (true, Outcome::Wrong(what)) if was_closed && what.starts_with("ends") => Outcome::Broken,
        (_, outcome) => outcome,
    }
}

/// Returns whether a connection is in state CLOSE, in which it has no peer (getpeername(2)).
fn is_closed(stream: &TcpStream) -> bool {
    stream.peer_addr().is_err()
}

/// Starts an echo server that lives as long as the process.
fn echo(machine: &Machine) -> SocketAddr {
    let listener: TcpListener = machine.host.listener();
    let to = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            thread::spawn(move || {
                let mut part = vec![0; 65_536];
                let mut stream = stream;
                while let Ok(length) = stream.read(&mut part) {
                    if length == 0 {
                        let _ = stream.shutdown(Shutdown::Write);
                        return;
                    }
                    if stream.write_all(&part[..length]).is_err() {
                        return;
                    }
                }
            });
        }
    });
    to
}

/// Runs sessions until the job has had enough faults. Returns how many were whole and broken.
fn traffic(machine: &Machine, job: &Job, to: SocketAddr, seed: u64, enough: u64) -> [u64; 2] {
    let mut outcomes = [0; 2];
    let mut draw = Seed(seed);
    let until = Instant::now() + TRAFFIC;
    let is_enough = |job: &Job| job.injector.count() >= enough || Instant::now() > until;
    let mut id = seed << 16;
    while !is_enough(job) {
        thread::scope(|scope| {
            let begun: Vec<_> = (0..SESSIONS)
                .map(|_| {
                    id += 1;
                    let (id, length) = (id, (draw.next().powi(2) * 300_000.0) as usize);
                    scope.spawn(move || session(machine, to, id, length))
                })
                .collect();
            for one in begun {
                match one.join().unwrap() {
                    Outcome::Whole => outcomes[0] += 1,
                    Outcome::Broken => outcomes[1] += 1,
                    Outcome::Wrong(what) => {
                        panic!("a session {what}: {}\n{}", job.injector.made(), job.said())
                    }
                }
            }
        });
    }
    outcomes
}

/// Returns the command lines of all jobs.
fn all_jobs(machine: &Machine, echo: SocketAddr) -> Vec<Vec<String>> {
    let [near, far] = mesh(machine, echo);
    let names = names::configure(machine.dir.path(), NAMES);
    let plain = machine.dir.path().join("plain.toml").display().to_string();
    let text = format!(
        "[[relay.forward]]\nlisten = \"{PLAIN}\"\nto = \"{echo}\"\n[relay]\nmax_pipes = {PIPES}\n\
         control = \"off\"\n"
    );
    fs::write(&plain, text).unwrap();
    let more = [
        vec!["relay", "--config", &plain],
        vec!["relay", "--config", &near],
        vec!["relay", "--config", &far],
        vec!["mesh", "dns", "--config", &names],
        vec!["top", "--batch", "-n", "3", "--interval", "50ms"],
        vec!["why", "--for", "500ms"],
    ];
    let owned = |job: Vec<&str>| job.into_iter().map(str::to_owned).collect();
    let mut all = jobs(machine);
    all.extend(more.into_iter().map(owned));
    all
}

/// Writes the configurations of two relays, with TLS between them. Sessions go through both to `echo`.
fn mesh(machine: &Machine, echo: SocketAddr) -> [String; 2] {
    let dir = machine.dir.path().display();
    let mut members = String::new();
    for (name, listen) in [("near", NEAR_MESH), ("far", FAR_MESH)] {
        let made = machine.run(TAUT, &["mesh", "keygen", &format!("{dir}/{name}")]);
        assert!(made.status.success(), "{made:?}");
        let key = String::from_utf8(made.stdout).unwrap();
        members += &format!(
            "[[member]]\nname = \"{name}\"\nkeys = [\"{}\"]\naddresses = [\"{listen}\"]\n",
            key.trim_end()
        );
    }
    fs::write(format!("{dir}/members"), members).unwrap();
    [("near", NEAR_MESH), ("far", FAR_MESH)].map(|(name, listen)| {
        let forward = match name {
            "near" => {
                format!("[[relay.forward]]\nlisten = \"{NEAR}\"\nto = \"{echo}\"\nvia = \"far\"\n")
            }
            _ => String::new(),
        };
        let text = format!(
            "{forward}[relay]\ncontrol = \"off\"\nmax_pipes = {PIPES}\n[relay.mesh]\n\
             private_key_file = \"{dir}/{name}\"\nmembers_file = \"{dir}/members\"\n\
             listen = \"{listen}\"\nallow = [\"127.0.0.1/32:{}\"]\npool_min = {POOL}\npool_max = {POOL}\n",
            echo.port()
        );
        let path = format!("{dir}/{name}.toml");
        fs::write(&path, text).unwrap();
        path
    })
}

/// The other relay of a mesh, without faults, killed at the end.
struct Peer(Child);

impl Peer {
    fn of(machine: &Machine, args: &[&str]) -> Option<Self> {
        let config = args.last()?;
        let other = match config.strip_suffix("/near.toml") {
            Some(dir) => format!("{dir}/far.toml"),
            None => format!("{}/near.toml", config.strip_suffix("/far.toml")?),
        };
        let (child, said) = start(machine, &["relay", "--config", &other]);
        assert!(said.last()?.contains("relaying"), "{said:?}");
        Some(Self(child))
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // It takes back what it has changed.
        let _ = kill_process(Pid::from_child(&self.0), Signal::TERM);
        let _ = self.0.wait();
    }
}

/// Waits until the relays of the mesh have all connections that they hold: those that are ready for sessions,
/// and one on which they measure. Workers dial by themselves, with pauses of a second while a relay starts.
fn wait_for_connections(machine: &Machine) {
    let [near, far] = [NEAR_MESH, FAR_MESH].map(|listen| format!("sport = :{}", listen.port()));
    let filter = ["-Htn", "state", "established", &near, "or", &far];
    let until = Instant::now() + PATIENCE;
    loop {
        let connections = machine.run("ss", &filter);
        assert!(connections.status.success(), "{connections:?}");
        let connections = String::from_utf8_lossy(&connections.stdout).into_owned();
        if connections.lines().count() == POOL + 1 {
            return;
        }
        assert!(Instant::now() < until, "not {POOL} + 1:\n{connections}");
        thread::sleep(CHECK);
    }
}

/// Runs a job once with faults in one phase. Returns the number of faults.
fn run(machine: &Machine, job: &[String], phase: Phase, seed: u64, clean: &str) -> u64 {
    let args: Vec<_> = job.iter().map(String::as_str).collect();
    let _loads = (args[0] == "guest").then(programs::alone);
    if args == ["guest", "down"] {
        let up = machine.run(TAUT, &["guest", "up"]);
        assert!(up.status.success(), "{up:?}");
    }
    let peer = Peer::of(machine, &args);
    let from_main = phase == Phase::Start;
    let plan = Plan::new(seed, from_main);
    let mut process = Job::start(machine, &args, plan, seed, from_main);
    process.wait_for_start(&args);
    let is_plain = args
        .last()
        .is_some_and(|last| last.ends_with("/plain.toml"));
    let relayed = match &peer {
        Some(_) => Some(NEAR),
        None => is_plain.then_some(PLAIN),
    };
    let mut outcomes = [0; 2];
    match (phase, relayed) {
        (Phase::Work, Some(to)) => {
            if peer.is_some() {
                wait_for_connections(machine);
            }
            let before = process.settled();
            process.injector.set(true);
            outcomes = traffic(machine, &process, to, seed, FAULTS_OF_A_RELAY);
            process.injector.set(false);
            assert_recovered(machine, &mut process, to, seed);
            assert_closed(machine, &process, before);
        }
        (Phase::Work, None) if args[0] == "mesh" => {
            process.injector.set(true);
            outcomes = names::ask(machine, NAMES, || {
                process.injector.count() >= 60 || process.said().contains("taut: ")
            });
            process.injector.set(false);
            if process.child.try_wait().unwrap().is_none() {
                names::assert_recovered(machine, NAMES);
            }
        }
        (Phase::Work, None) => {
            process.injector.set(true);
            let seen = process.injector.seen();
            process.wait_for(&[], |injector| {
                injector.count() >= 10 || injector.seen() > seen + 80
            });
        }
        (Phase::End, _) => process.injector.set(true),
        (Phase::Start, _) => {}
    }
    let injector = process.injector.clone();
    let (status, said) = process.end();
    drop(peer);
    let context = format!(
        "{args:?} in {phase:?}, seed {seed}, {outcomes:?}: {}",
        injector.made()
    );
    assert_ending(status, &said, &context);
    assert_starts(machine, &args, &context);
    assert_nothing_left(machine, &args, clean, &context, &said);
    injector.count()
}

/// Checks that a job starts and stops normally after a run with faults.
fn assert_starts(machine: &Machine, args: &[&str], context: &str) {
    if args == ["guest", "up"] {
        // What is loaded completely is not loaded twice.
        machine.run(TAUT, &["guest", "down"]);
    }
    let peer = Peer::of(machine, args);
    let mut process = Job::start(machine, args, Plan::One(u64::MAX), 0, false);
    process.wait_for_start(args);
    let (status, said) = process.end();
    drop(peer);
    assert!(
        status.success() && !said.contains("ERROR"),
        "the next one: {status}\n{said}\nafter {context}"
    );
}

/// Checks that a relay has closed what it had opened since.
fn assert_closed(machine: &Machine, job: &Job, before: Descriptors) {
    let until = Instant::now() + PATIENCE;
    let kept = before.pipes + 2 * PIPES;
    loop {
        let now = job.descriptors();
        if now.others == before.others && now.pipes <= kept {
            return;
        }
        if Instant::now() > until {
            let files = format!("/proc/{}/fd", job.child.id());
            let open = [("ls", &["-l", &files][..]), ("ss", &["-anp"][..])];
            let open = open.map(|(program, args)| machine.run(program, args).stdout);
            panic!(
                "{before:?} before, {now:?} after: {}\n{}\n{}",
                job.injector.made(),
                String::from_utf8_lossy(&open.concat()),
                job.said()
            );
        }
        thread::sleep(CHECK);
    }
}

/// Checks that a relay works as before once faults have ceased.
fn assert_recovered(machine: &Machine, job: &mut Job, to: SocketAddr, seed: u64) {
    let until = Instant::now() + PATIENCE;
    while session(machine, to, seed, 100_000) != Outcome::Whole {
        let (said, made) = (job.said(), job.injector.made());
        assert!(
            Instant::now() < until,
            "it does not recover: {made}\n{said}"
        );
        assert!(job.child.try_wait().unwrap().is_none(), "{made}\n{said}");
        thread::sleep(CHECK);
    }
}

fn assert_nothing_left(machine: &Machine, args: &[&str], clean: &str, context: &str, said: &str) {
    if args[0] == "guest" {
        // What is loaded completely stays until it is unloaded; the rest is repaired below.
        machine.run(TAUT, &["guest", "down"]);
    }
    let state = machine.state();
    let (left, _) = machine.left(&["--repair"]);
    assert!(left.is_empty(), "{left:?} {context}\n{said}");
    let repaired = machine.state();
    assert_eq!(repaired, clean, "not repaired: {context}\n{said}");
    let is_quiet = state == clean
        || said.contains("taut: ")
        || said.contains("WARN")
        || said.contains("ERROR");
    assert!(is_quiet, "left without a word: {context}\n{said}\n{state}");
}

#[test]
fn a_job_whose_system_calls_fail_goes_on_or_ends_with_a_sentence() {
    if !has_programs(&["nft"]) {
        return;
    }
    let (enough, first) = (number("TAUT_FAULTS", FAULTS), number("TAUT_SEED", 1));
    let only = std::env::var("TAUT_FAULTS_JOB").unwrap_or_default();
    let (mut faults, mut runs, mut defects) = (0, 0, 0);
    let mut seed = first;
    while faults < enough {
        let machine = Machine::new("faults");
        let echo = echo(&machine);
        let clean = machine.state();
        let jobs = all_jobs(&machine, echo);
        for (at, job) in (0..).zip(&jobs) {
            let phase = [Phase::Start, Phase::Work, Phase::End][((seed + at) % 3) as usize];
            if !job.join(" ").contains(&only) {
                continue;
            }
            runs += 1;
            // The other runs are of interest too.
            let run = || run(&machine, job, phase, seed, &clean);
            match std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)) {
                Ok(count) => {
                    println!("seed {seed}: {job:?} in {phase:?}: {count}");
                    faults += count;
                }
                Err(_) => {
                    println!("FAILED: seed {seed}: {job:?} in {phase:?}");
                    defects += 1;
                    machine.left(&["--repair"]);
                    if machine.state() != clean {
                        // The jobs after it need another machine.
                        break;
                    }
                }
            }
        }
        seed += 1;
    }
    println!(
        "{faults} faults in {runs} runs, seeds {first} to {}",
        seed - 1
    );
    assert_eq!(defects, 0, "runs that failed; their reports are above");
}
