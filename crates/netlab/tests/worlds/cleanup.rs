//! However a world ends, everything that it created is removed, and nothing else.

use std::io::{BufRead, BufReader, Read};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, Signal};
use taut_netlab::link::shape::{LinkSpec, Shape};
use taut_netlab::world::{World, WorldBuilder};
use taut_sys::netns::{Netns, NetnsId};

use crate::root;

fn build() -> World {
    let link = LinkSpec::both(Shape::delay(Duration::from_millis(1)));
    WorldBuilder::new("cleanup")
        .host("a")
        .host("b")
        .link("a", "b", link)
        .build()
        .unwrap()
}

/// Returns the paths of the world `id` that exist: namespaces, directory and record.
fn traces(id: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for dir in [
        "/run/netns",
        "/run/taut/lab",
        std::env::temp_dir().to_str().unwrap(),
    ] {
        let entries = std::fs::read_dir(dir)
            .unwrap()
            .map(|entry| entry.unwrap().path());
        found.extend(entries.filter(|path| path.to_str().unwrap().contains(id)));
    }
    found
}

/// Sweeps, and waits if another test is removing the world `id` already.
fn sweep(id: &str) {
    World::sweep().unwrap();
    if let Ok(record) = std::fs::File::open(Path::new("/run/taut/lab").join(id)) {
        rustix::fs::flock(&record, rustix::fs::FlockOperation::LockExclusive).unwrap();
    }
}

fn sleep() -> Command {
    let mut command = Command::new("sleep");
    // Longer than any test takes, and short enough that a test which fails to kill it still ends.
    command.arg("60");
    command
}

#[test]
fn a_dropped_world_leaves_nothing_behind() {
    root::required();
    let world = build();
    let id = world.id().to_owned();
    std::fs::write(world.dir().join("file"), "x").unwrap();
    let memory = world.tcp_memory().unwrap();
    let group = memory.map(|memory| memory.path().to_owned());
    assert!(group.as_ref().is_none_or(|group| group.exists()));
    // Two namespaces, the directory and the record.
    assert_eq!(traces(&id).len(), 4, "{:?}", traces(&id));
    let mut orphan = world.host("a").spawn(sleep()).unwrap();
    let quota = world.cpu_quota(0.5).unwrap();
    let quota = quota.map(|quota| quota.processes());
    if let Some(processes) = &quota {
        std::fs::write(processes, orphan.id().to_string()).unwrap();
    }
    drop(world);
    assert_eq!(traces(&id), [] as [PathBuf; 0]);
    assert!(group.is_none_or(|group| !group.exists()));
    assert!(quota.is_none_or(|processes| !processes.exists()));
    // Killed with its world, although its handle still exists.
    use std::os::unix::process::ExitStatusExt;
    assert_eq!(orphan.wait().unwrap().signal(), Some(9));
}

#[test]
fn a_panic_tears_its_world_down_and_leaves_its_thread_where_it_was() {
    root::required();
    let home = Netns::current().unwrap().id();
    let mut id = String::new();
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let world = build();
        id = world.id().to_owned();
        world.host("a").run(|| panic!("inside the host")).unwrap();
    }));
    assert_eq!(
        *panicked.unwrap_err().downcast::<&str>().unwrap(),
        "inside the host"
    );
    assert_eq!(traces(&id), [] as [PathBuf; 0]);
    assert_eq!(Netns::current().unwrap().id(), home);
}

/// Another process of this test binary. It builds a world and prints the world's identifier and the pid
/// of a process in it.
struct Other {
    process: Child,
    world: String,
    inhabitant: u32,
}

// === impl Other ===

impl Other {
    fn start() -> Self {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "cleanup::build_a_world_and_wait",
                "--ignored",
                "--nocapture",
            ])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(process.stdout.as_mut().unwrap()).lines();
        let line = lines
            .by_ref()
            .map(Result::unwrap)
            .find(|line| line.starts_with("world "));
        let line = line.expect("the other process built no world");
        let [_, world, pid] = line.split(' ').collect::<Vec<_>>().try_into().unwrap();
        Self {
            process,
            world: world.to_owned(),
            inhabitant: pid.parse().unwrap(),
        }
    }

    fn end_with(mut self, signal: Signal) -> String {
        let pid = Pid::from_raw(self.process.id() as i32).unwrap();
        // `wait` would close it, and the process would end by itself.
        let _stdin = self.process.stdin.take();
        rustix::process::kill_process(pid, signal).unwrap();
        let status = self.process.wait().unwrap();
        use std::os::unix::process::ExitStatusExt;
        assert_eq!(status.signal(), Some(signal.as_raw()));
        self.world
    }
}

#[test]
#[ignore = "the other process of the tests below"]
fn build_a_world_and_wait() {
    taut_netlab::interrupt::tear_down_on_signals().unwrap();
    let world = build();
    let inhabitant = world.host("a").spawn(sleep()).unwrap();
    println!("\nworld {} {}", world.id(), inhabitant.id());
    // Waits until the test that started this process kills it or ends.
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
}

fn wait_for_the_end_of(pid: u32) {
    let pid = Pid::from_raw(pid as i32).unwrap();
    if let Ok(pidfd) = rustix::process::pidfd_open(pid, PidfdFlags::empty()) {
        let mut fds = [rustix::event::PollFd::new(
            &pidfd,
            rustix::event::PollFlags::IN,
        )];
        rustix::event::poll(&mut fds, None).unwrap();
    }
}

#[test]
fn a_killed_process_takes_its_children_with_it_and_a_sweep_removes_its_world_but_no_other() {
    root::required();
    let living = Other::start();
    let dying = Other::start();
    let own = build();
    let inhabitant = dying.inhabitant;
    let dead = dying.end_with(Signal::KILL);
    wait_for_the_end_of(inhabitant);

    sweep(&dead);
    assert_eq!(traces(&dead), [] as [PathBuf; 0]);
    for world in [&living.world, own.id()] {
        assert_eq!(traces(world).len(), 4, "{:?}", traces(world));
    }
    let a = Netns::open(&format!("taut-{}-a", living.world)).unwrap();
    assert_eq!(NetnsId::of_process(living.inhabitant), Some(a.id()));
    living.end_with(Signal::KILL);
}

#[test]
fn a_sweep_kills_processes_that_still_run_in_a_dead_world() {
    root::required();
    let dying = Other::start();
    // Started by another process than the world's, so it does not end with that.
    let mut stranger = Command::new("ip")
        .args([
            "netns",
            "exec",
            &format!("taut-{}-b", dying.world),
            "sleep",
            "1000",
        ])
        .spawn()
        .unwrap();
    let b = Netns::open(&format!("taut-{}-b", dying.world)).unwrap();
    while NetnsId::of_process(stranger.id()) != Some(b.id()) {
        std::thread::yield_now();
    }
    let dead = dying.end_with(Signal::KILL);
    sweep(&dead);
    assert_eq!(traces(&dead), [] as [PathBuf; 0]);
    use std::os::unix::process::ExitStatusExt;
    assert_eq!(stranger.wait().unwrap().signal(), Some(9));
}

#[test]
fn a_signal_tears_the_world_down_before_it_ends_the_process() {
    root::required();
    for signal in [Signal::INT, Signal::TERM] {
        let other = Other::start();
        let inhabitant = other.inhabitant;
        let id = other.end_with(signal);
        assert_eq!(traces(&id), [] as [PathBuf; 0]);
        wait_for_the_end_of(inhabitant);
    }
}

#[test]
fn namespaces_of_other_programs_are_left_alone() {
    root::required();
    let name = format!("taut-test-{}", std::process::id());
    let add = Command::new("ip")
        .args(["netns", "add", &name])
        .status()
        .unwrap();
    assert!(add.success());
    let inside = Netns::open(&name).unwrap();
    drop(build());
    World::sweep().unwrap();
    assert_eq!(Netns::open(&name).unwrap().id(), inside.id());
    // And `ip netns` can use the namespaces that this crate creates.
    let world = build();
    let host = world.host("a").netns().name().to_owned();
    let exec = Command::new("ip")
        .args(["netns", "exec", &host, "true"])
        .status()
        .unwrap();
    assert!(exec.success());
    Netns::delete(&name).unwrap();
    assert!(!Path::new("/run/netns").join(&name).exists());
}

#[test]
fn a_forged_record_removes_nothing_of_others() {
    root::required();
    let victim = Netns::create(&format!("taut-victim-{}", std::process::id())).unwrap();
    let dir = std::env::temp_dir().join(format!("taut-victim-{}", std::process::id()));
    std::fs::create_dir(&dir).unwrap();
    drop(build());
    let id = format!("forged{}", std::process::id());
    let record = Path::new("/run/taut/lab").join(&id);
    let text = format!(
        "world x\nnetns {}\ndir {}\nnetns half",
        victim.name(),
        dir.display()
    );
    std::fs::write(&record, text).unwrap();
    sweep(&id);
    assert!(!record.exists());
    assert_eq!(Netns::open(victim.name()).unwrap().id(), victim.id());
    assert!(dir.exists());
    Netns::delete(victim.name()).unwrap();
    std::fs::remove_dir(dir).unwrap();
}
