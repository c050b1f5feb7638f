//! The tutorials of docs/tutorials, as written: each command is run on its host, a network namespace, and what the page
//! promises has to appear.
//!
//! In a page, `HOST# COMMAND` in a block `console` is a command, and the lines up to the next one are what it prints. Of
//! these,
//!
//! - a word with a digit stands for any word with a digit (addresses, numbers, times), but `0` for `0`, a number that is not 0
//!   for another such, and a number of three digits, such as a status of HTTP, for itself; a key stands for any key, and the name
//!   of a congestion control of the kernel for any of these;
//! - `(likely)` at the end of a line may be missing, or be there too;
//! - `...` alone stands for any number of lines;
//! - a command that only asks, or has failed without a change, is repeated until it prints what is promised, for a while: what
//!   it asks for takes time.
//!
//! Every command has to succeed.
//!
//! `HOST_KEY` in a command is the key that `taut mesh keygen` has printed on that host, and `HOST_ADDRESS` its address. The name
//! `HOST.example` leads to a host.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use taut_netlab::link::shape::{LinkSpec, Shape};
use taut_netlab::units::BitsPerSecond;
use taut_netlab::world::{World, WorldBuilder};
use taut_sys::child::Child;
use taut_sys::probe::{Answer, bpf};
use taut_sys::tap::Tap;
use taut_sys_testing::skip;

const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn a_mesh_on_three_hosts() {
    if !skip::has_programs(&["curl", "python3"]) {
        return;
    }
    let far = Shape::delay(Duration::from_millis(49)).rate(BitsPerSecond::mega(200));
    let near = Shape::delay(Duration::from_millis(1)).rate(BitsPerSecond::mega(200));
    let world = WorldBuilder::new("tutorial-mesh")
        .host("office")
        .host("cloud")
        .host("server")
        .link("office", "cloud", LinkSpec::both(far))
        .link("cloud", "server", LinkSpec::both(near))
        .build()
        .unwrap();
    Tutorial::new(&world, "mesh.md").run();
}

#[test]
fn a_slow_download_explained_and_repaired() {
    if !skip::has_programs(&["curl", "python3", "sysctl"]) {
        return;
    }
    let path = Shape::delay(Duration::from_millis(25)).rate(BitsPerSecond::mega(50));
    let world = WorldBuilder::new("tutorial-slow")
        .host("client")
        .host("server")
        .link("client", "server", LinkSpec::both(path))
        .build()
        .unwrap();
    let buffers = || {
        let read = || fs::read_to_string("/proc/sys/net/ipv4/tcp_rmem").unwrap();
        world.host("client").netns().run(read).unwrap()
    };
    let before = buffers();
    Tutorial::new(&world, "slow-download.md").run();
    assert_eq!(buffers(), before, "the page restores what it has changed");
}

#[test]
fn a_consolidated_host() {
    if !skip::has_programs(&["socat"]) {
        return;
    }
    let path = Shape::delay(Duration::from_millis(1)).rate(BitsPerSecond::mega(200));
    let world = WorldBuilder::new("tutorial-host")
        .host("client")
        .host("host")
        .host("guest")
        .link("client", "host", LinkSpec::both(path))
        .sysctl("host", "net.ipv4.ip_forward", "1")
        .build()
        .unwrap();
    let _guest = Guest::new(&world);
    Tutorial::new(&world, "consolidated-host.md").run();
}

/// A guest: the namespace `guest`, behind a tap of `host`. A thread carries the frames between the two, and does nothing half
/// of the time, as a guest that shares its CPU.
struct Guest {
    over: Arc<AtomicBool>,
    carries: Option<thread::JoinHandle<()>>,
}

impl Guest {
    fn new(world: &World) -> Self {
        let [host, guest] = ["host", "guest"].map(|name| world.host(name).netns());
        let ring = host.run(|| Tap::create("vnet0").unwrap()).unwrap();
        let device = guest.run(|| Tap::create("eth0").unwrap()).unwrap();
        let (guest, via) = (world.addr("guest"), world.addr("host"));
        // 10.77.128.2 is the host's end of the link (taut_netlab::world::plan).
        for (name, line) in [
            ("guest", "link set eth0 up".to_owned()),
            ("guest", format!("route add {via} dev eth0")),
            ("guest", format!("route add default via {via} src {guest}")),
            ("host", "link set vnet0 up".to_owned()),
            ("host", format!("route add {guest} dev vnet0")),
            ("client", format!("route add {guest} via 10.77.128.2")),
        ] {
            let mut ip = Command::new("ip");
            ip.args(["-n", world.host(name).netns().name()]);
            let done = ip.args(line.split(' ')).output().unwrap();
            assert!(done.status.success(), "{name}: {line}: {done:?}");
        }
        let over = Arc::new(AtomicBool::new(false));
        let carries = thread::spawn({
            let over = Arc::clone(&over);
            move || carry(&ring, &device, &over)
        });
        Self {
            over,
            carries: Some(carries),
        }
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        if let Some(carries) = self.carries.take() {
            let _ = carries.join();
        }
    }
}

/// Carries frames both ways for 20 ms of 40, until it is over.
fn carry(ring: &Tap, device: &Tap, over: &AtomicBool) {
    const TURN: Duration = Duration::from_millis(20);
    let mut frame = vec![0; Tap::MAX_READ];
    let mut pass = |from: &Tap, to: &Tap| {
        while let Ok(read) = from.read(&mut frame) {
            let _ = to.write(&frame[..read]);
        }
    };
    while !over.load(Ordering::Relaxed) {
        let began = Instant::now();
        while began.elapsed() < TURN {
            pass(ring, device);
            pass(device, ring);
            let left = TURN.saturating_sub(began.elapsed());
            let mut fds = [ring, device].map(|tap| PollFd::new(tap, PollFlags::IN));
            let _ = poll(&mut fds, Some(&Timespec::try_from(left).unwrap()));
        }
        thread::sleep(TURN);
    }
}

#[test]
fn a_guest_that_is_off_its_cpu() {
    if !skip::has_programs(&["sysctl"]) {
        return;
    }
    if let Answer::No(why) = bpf::tcp_congestion_ops() {
        skip::skip(&format!("this kernel: {why}"));
        return;
    }
    let _loads = crate::programs::alone();
    let control = "net.ipv4.tcp_congestion_control";
    let world = WorldBuilder::new("tutorial-guest")
        .host("guest")
        .sysctl("guest", control, "reno")
        .build()
        .unwrap();
    Tutorial::new(&world, "guest.md").run();
}

/// A command of a page.
#[derive(Debug)]
struct Step {
    line: usize,
    host: String,
    command: String,
    promised: Vec<String>,
}

/// A page, and a shell on each host.
struct Tutorial {
    page: &'static str,
    steps: Vec<Step>,
    shells: Vec<(String, Shell)>,
    /// Words in commands, and what they stand for.
    stands_for: Vec<(String, String)>,
    /// The host on which the congestion controls of `taut guest` are loaded.
    loaded: Option<String>,
    _dir: tempfile::TempDir,
}

/// A shell on a host, with directories of its own.
struct Shell {
    child: Child,
    input: std::process::ChildStdin,
    lines: Receiver<String>,
}

impl Tutorial {
    fn new(world: &World, page: &'static str) -> Self {
        let path = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../../docs/tutorials")
            .join(page);
        let steps = steps(&fs::read_to_string(path).unwrap());
        let dir = tempfile::tempdir().unwrap();
        let hosts = world.hosts().iter();
        let names: String = hosts
            .map(|host| format!("{} {}.example\n", host.addr(), host.name()))
            .collect();
        let shells = world.hosts().iter().map(|host| {
            let etc = dir.path().join(host.name());
            (host.name().to_owned(), Shell::new(host, &etc, &names))
        });
        let addresses = world.hosts().iter().map(|host| {
            let name = host.name().to_uppercase();
            (format!("{name}_ADDRESS"), host.addr().to_string())
        });
        Self {
            page,
            steps,
            shells: shells.collect(),
            stands_for: addresses.collect(),
            loaded: None,
            _dir: dir,
        }
    }

    /// Runs every command, and fails at the first whose output is not as promised.
    fn run(mut self) {
        for step in &self.steps {
            let place = format!("docs/tutorials/{}:{}", self.page, step.line);
            let shell = self.shells.iter_mut().find(|(host, _)| *host == step.host);
            let (_, shell) =
                shell.unwrap_or_else(|| panic!("{place}: there is no host {}", step.host));
            let mut command = step.command.clone();
            for (word, meaning) in &self.stands_for {
                command = command.replace(word, meaning);
            }
            assert!(
                !command.contains("> /run/taut/"),
                "{place}: /run/taut is there only after a job has made it"
            );
            let began = Instant::now();
            loop {
                let registers = command.starts_with("taut guest up");
                let _allowed = registers.then(crate::programs::keep_allowed);
                let (status, said) = shell
                    .run(&command)
                    .unwrap_or_else(|e| panic!("{place}: {e}"));
                let kept = match status {
                    0 => keeps(&step.promised, &said),
                    _ => Err(format!("success, and has the exit status {status}")),
                };
                if let Err(missing) = kept {
                    let again = can_be_repeated(&command) && began.elapsed() < PATIENCE;
                    assert!(
                        again,
                        "{place}: {command}\npromises: {missing}\nand prints:\n{}",
                        said.join("\n")
                    );
                    println!("{place}: again after {:?}: {missing}", began.elapsed());
                    continue;
                }
                if command.starts_with("taut mesh keygen") {
                    let word = format!("{}_KEY", step.host.to_uppercase());
                    self.stands_for.push((word, said[0].clone()));
                }
                if command.starts_with("taut guest up") {
                    self.loaded = Some(step.host.clone());
                } else if command == "taut guest down" {
                    self.loaded = None;
                }
                break;
            }
        }
    }
}

impl Drop for Tutorial {
    /// The congestion controls are of the whole machine: a page that fails does not leave them.
    fn drop(&mut self) {
        let Some(loaded) = &self.loaded else { return };
        let shell = self.shells.iter_mut().find(|(host, _)| host == loaded);
        if let Some((_, shell)) = shell {
            println!("{:?}", shell.run("taut guest down"));
        }
    }
}

impl Shell {
    fn new(host: &taut_netlab::world::Host, etc: &Path, names: &str) -> Self {
        let copied = Command::new("cp")
            .args(["-a", "/etc"])
            .arg(etc)
            .status()
            .unwrap();
        assert!(copied.success());
        fs::write(etc.join("hosts"), format!("127.0.0.1 localhost\n{names}")).unwrap();
        let mut command = Command::new("unshare");
        let taut = Path::new(env!("CARGO_BIN_EXE_taut")).parent().unwrap();
        let path = std::env::var("PATH").unwrap();
        command
            .args(["--mount", "sh", "-euc"])
            .arg(
                "mount --bind \"$0\" /etc; mkdir -p /run/taut; mount -t tmpfs -o mode=755 tmpfs /run/taut; mount -t tmpfs tmpfs /srv; \
                 mount -t bpf -o mode=700 bpf /sys/fs/bpf; \
                 exec bash --norc 2>&1",
            )
            .arg(etc)
            .env("PATH", format!("{}:{path}", taut.display()))
            .env_remove("TAUT_LOG")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = host.spawn(command).unwrap();
        let pipes = child.pipes();
        let input = pipes.stdin.take().unwrap();
        let output = BufReader::new(pipes.stdout.take().unwrap());
        let (tell, lines) = channel();
        thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if tell.send(line).is_err() {
                    break;
                }
            }
        });
        Self {
            child,
            input,
            lines,
        }
    }

    /// Runs a command, and returns its exit status and what it prints.
    fn run(&mut self, command: &str) -> Result<(i32, Vec<String>), String> {
        const END: &str = "=== the command has ended with status ";
        writeln!(
            self.input,
            "{{ {command}\n}} </dev/null; status=$?; echo; echo \"{END}$status\""
        )
        .map_err(|e| format!("{command}: the shell has ended: {e}"))?;
        let mut said = Vec::new();
        let status = loop {
            let line = self.lines.recv_timeout(PATIENCE).map_err(|_| {
                format!(
                    "{command}: no end after {PATIENCE:?}; {said:?}; {:?}",
                    self.child
                )
            })?;
            match line.strip_prefix(END) {
                Some(status) => break status.parse().map_err(|e| format!("{line}: {e}"))?,
                None => said.push(line),
            }
        };
        // One of them ends a line that the command has left open.
        while said.last().is_some_and(String::is_empty) {
            said.pop();
        }
        Ok((status, said))
    }
}

/// Returns the commands of a page.
fn steps(page: &str) -> Vec<Step> {
    let mut steps = Vec::<Step>::new();
    let mut console = false;
    let mut end = None;
    for (i, line) in page.lines().enumerate() {
        if line.starts_with("```") {
            console = line == "```console";
            continue;
        }
        if !console {
            continue;
        }
        let last = steps.last_mut();
        if let (Some(word), Some(step)) = (&end, last) {
            step.command += &format!("\n{line}");
            if line == word {
                end = None;
            }
            continue;
        }
        if let Some(step) = steps.last_mut().filter(|step| step.command.ends_with('\\')) {
            step.command += &format!("\n{line}");
            continue;
        }
        let command = line.split_once("# ").or_else(|| line.split_once("$ "));
        let command = command.filter(|(host, _)| host.bytes().all(|b| b.is_ascii_lowercase()));
        match (command, steps.last_mut()) {
            (Some((host, command)), _) => {
                let word = command
                    .split_once("<<'")
                    .and_then(|(_, rest)| rest.split('\'').next());
                end = word.map(str::to_owned);
                steps.push(Step {
                    line: i + 1,
                    host: host.to_owned(),
                    command: command.to_owned(),
                    promised: Vec::new(),
                });
            }
            (None, Some(step)) => step.promised.push(line.to_owned()),
            (None, None) => panic!("line {}: output without a command", i + 1),
        }
    }
    assert!(steps.len() > 3, "{steps:?}");
    steps
}

/// Returns whether a command can be repeated: it only asks, or has changed nothing if it fails, as where another test has
/// registered the congestion controls.
fn can_be_repeated(command: &str) -> bool {
    let asks = [
        "curl ",
        "taut why",
        "taut relay status",
        "taut relay --check",
        "taut snoop status",
        "taut guest status",
        "taut guest up",
        "taut tune --own-netns --for",
    ];
    asks.iter().any(|ask| command.starts_with(ask))
}

/// Returns the promised line that is missing, if one is.
fn keeps(promised: &[String], said: &[String]) -> Result<(), String> {
    let mut rest = said.iter();
    let mut anywhere = false;
    for line in promised {
        if line == "..." {
            anywhere = true;
            continue;
        }
        let is_kept = match anywhere {
            true => rest.any(|said| matches(line, said)),
            false => rest.next().is_some_and(|said| matches(line, said)),
        };
        if !is_kept {
            return Err(line.clone());
        }
        anywhere = false;
    }
    match !promised.is_empty() && !anywhere && rest.next().is_some() {
        true => Err("nothing more".to_owned()),
        false => Ok(()),
    }
}

fn matches(promised: &str, said: &str) -> bool {
    let sure = |line: &str| line.strip_suffix(" (likely)").unwrap_or(line).to_owned();
    let (promised, said) = (sure(promised), sure(said));
    let (promised, said) = (promised.split_whitespace(), said.split_whitespace());
    let (promised, said): (Vec<_>, Vec<_>) = (promised.collect(), said.collect());
    let is_key = |word: &str| word.len() == 44 && word.ends_with('=');
    let has_digit = |word: &str| word.bytes().any(|b| b.is_ascii_digit());
    let is_control = |word: &str| ["cubic", "bbr", "reno"].contains(&word);
    let alike = |p: &str, s: &str| {
        p == s
            || is_key(p) && is_key(s)
            || has_digit(p) && has_digit(s) && is_number_like(p, s)
            || is_control(p) && is_control(s)
    };
    promised.len() == said.len() && promised.iter().zip(&said).all(|(p, s)| alike(p, s))
}

/// Returns whether a number may be printed for a promised one. Other words with digits may.
fn is_number_like(promised: &str, said: &str) -> bool {
    let number = |word: &str| {
        let word = word.trim_matches([',', ';', ':', '(', ')', '%']);
        word.parse::<f64>().ok()
    };
    let is_code = promised.len() == 3 && promised.bytes().all(|b| b.is_ascii_digit());
    match (number(promised), number(said)) {
        _ if is_code => false,
        (Some(promised), Some(said)) => (promised == 0.0) == (said == 0.0),
        (Some(_), None) => false,
        (None, _) => true,
    }
}

#[test]
fn promised_lines_are_compared_as_the_first_lines_of_this_file_say() {
    let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
    let kept = |promised: &str, said: &str| keeps(&lines(promised), &lines(said)).is_ok();
    assert!(kept("10.0.0.1:80 is slow", "10.0.0.2:443 is slow"));
    assert!(!kept("10.0.0.1:80 is slow", "10.0.0.2:443 is fast"));
    assert!(!kept("a", "a\nb"));
    assert!(kept("a\n...", "a\nb"));
    assert!(kept("...\nb", "a\nb"));
    assert!(!kept("...\nc", "a\nb"));
    assert!(kept("", "anything"));
    assert!(kept("5 lost, 12 sent", "7 lost, 3.5 sent"));
    assert!(!kept("0 lost", "7 lost"));
    assert!(!kept("12 sent", "0 sent"));
    assert!(!kept("200", "404"));
    assert!(kept("is limited by A (likely)", "is limited by A"));
    assert!(kept("is limited by A", "is limited by A (likely)"));
}
