//! The parallel program: MPICH among the guests over TCP, with one process in each guest.
//!
//! Guests have no sshd. MPICH's launcher prints the command for each host (`-launcher manual`), and
//! the lab makes the guests run it.

use std::fs::{self, File};
use std::io;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use taut_sys::child::Child;

use super::network::{CLIENT_ADDRESS, GUESTS, address};
use super::plan::{Arm, Mpi, Pattern};
use super::rig::{IN_STEP, Rig};
use crate::experiment::guests::guest::talk::Start;
use crate::experiment::guests::uml::NO_WIDE_REGISTERS;
use crate::peer::program::Program;

/// MPICH's launcher.
pub(super) const MPIEXEC: Program = Program {
    name: "mpiexec.hydra",
    version: "--version",
    package: "mpich",
};
/// The compiler of `collectives.c`.
const COMPILER: &str = "gcc";
const SOURCE: &str = include_str!("collectives.c");

/// How long the program may take to do each pattern and size once.
const PATIENCE: Duration = Duration::from_secs(180);
/// How long the program may take to start, and to end.
const START: Duration = Duration::from_secs(60);
/// The pause between two reads of the program's output.
const PAUSE: Duration = Duration::from_millis(10);

/// The duration of a collective operation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Timed {
    pub(super) pattern: Pattern,
    /// The size of a message.
    pub(super) bytes: usize,
    /// The time of the slowest process.
    pub(super) seconds: f64,
}

/// The program, ready to run.
pub(super) struct Collectives(PathBuf);

// === impl Collectives ===

impl Collectives {
    /// Compiles the program into the world's directory, where guests find it.
    pub(super) fn compile(rig: &Rig) -> io::Result<Self> {
        let program = rig.dir().join("collectives");
        let source = rig.dir().join("collectives.c");
        fs::write(&source, SOURCE)?;
        let output = Command::new(COMPILER)
            .args(["-O2", "-o"])
            .arg(&program)
            .arg(&source)
            .arg("-l:libmpich.so.12")
            .stdin(Stdio::null())
            .output()
            .map_err(|e| io::Error::other(format!("{COMPILER}: {e} (Debian package gcc)")))?;
        match output.status.success() {
            true => Ok(Self(program)),
            false => Err(io::Error::other(
                String::from_utf8_lossy(&output.stderr).into_owned(),
            )),
        }
    }

    /// Runs the program once, and shares the cores as soon as all processes have started.
    pub(super) fn run(&self, rig: &mut Rig, arm: Arm, mpi: &Mpi) -> io::Result<Vec<Timed>> {
        let done = self.attempt(rig, arm, mpi);
        rig.open();
        done.map_err(|e| rig.explained(&e))
    }

    fn attempt(&self, rig: &mut Rig, arm: Arm, mpi: &Mpi) -> io::Result<Vec<Timed>> {
        let said = rig.dir().join("mpiexec.log");
        let out = File::create(&said)?;
        let hosts: Vec<String> = (0..GUESTS)
            .map(|guest| address(guest).to_string())
            .collect();
        let mut command = MPIEXEC.command();
        command
            .args(["-localhost", &CLIENT_ADDRESS.to_string()])
            .args(["-launcher", "manual", "-ppn", "1"])
            .args(["-hosts", &hosts.join(","), "-n", &GUESTS.to_string()])
            .arg(&self.0)
            .args(mpi.sizes.iter().map(usize::to_string))
            // Processes inherit this environment.
            .env(NO_WIDE_REGISTERS.0, NO_WIDE_REGISTERS.1)
            .env("UCX_TLS", "tcp,self")
            .env("UCX_NET_DEVICES", "vec0")
            .stdin(Stdio::null())
            .stderr(out.try_clone()?)
            .stdout(out);
        let started = Instant::now();
        let mut mpiexec = rig.client().spawn(command)?;
        rig.place(&mpiexec)?;
        let text = wait_for(&mut mpiexec, &said, START, |text| proxies(text).is_some())?;
        for (guest, proxy) in proxies(&text).unwrap_or_default().into_iter().enumerate() {
            rig.guest(guest).start(proxy)?;
        }
        let is_ready = |text: &str| text.lines().any(|line| line == "ready");
        wait_for(&mut mpiexec, &said, START, is_ready)?;
        rig.begin(arm);
        tracing::debug!("all processes have started after {:?}", started.elapsed());
        let began = Instant::now();
        let mut in_step = began;
        let has_enough = |text: &str| {
            if in_step.elapsed() > IN_STEP {
                rig.begin(arm);
                in_step = Instant::now();
            }
            let least = mpi.least_often(&timed_in(text));
            least >= mpi.times || least > 0 && began.elapsed() > mpi.lasts
        };
        let text = wait_for(&mut mpiexec, &said, PATIENCE, has_enough)?;
        rig.open();
        // Ending the launcher ends its processes in the guests.
        mpiexec.signal(Signal::TERM)?;
        match mpiexec.wait_for(START)? {
            Some(_) => Ok(timed_in(&text)),
            None => Err(failed(&format!("does not end within {START:?}"), &text)),
        }
    }
}

impl Mpi {
    /// Returns the repetitions of the least repeated operation.
    fn least_often(&self, timed: &[Timed]) -> usize {
        let all = Pattern::ALL
            .into_iter()
            .flat_map(|pattern| self.sizes.iter().map(move |bytes| (pattern, *bytes)));
        all.map(|one| timed.iter().filter(|t| (t.pattern, t.bytes) == one).count())
            .min()
            .unwrap_or(0)
    }
}

/// Waits until there is enough output, and returns all of it.
fn wait_for(
    mpiexec: &mut Child,
    said: &std::path::Path,
    patience: Duration,
    mut enough: impl FnMut(&str) -> bool,
) -> io::Result<String> {
    let deadline = Instant::now() + patience;
    loop {
        let text = fs::read_to_string(said)?;
        if enough(&text) {
            return Ok(text);
        }
        if let Some(status) = mpiexec.wait_for(PAUSE)? {
            // The program's last output.
            let text = fs::read_to_string(said)?;
            return match enough(&text) {
                true => Ok(text),
                false => Err(failed(&format!("ended early ({status})"), &text)),
            };
        }
        if Instant::now() > deadline {
            let how = format!("has made no progress for {patience:?}");
            return Err(failed(&how, &text));
        }
    }
}

fn failed(how: &str, said: &str) -> io::Error {
    let lines: Vec<&str> = said.lines().collect();
    let end = lines[lines.len().saturating_sub(5)..].join(" | ");
    io::Error::other(format!("mpiexec {how}; the end of its output: {end}"))
}

/// Returns the command of each guest, or `None` until all commands are printed.
fn proxies(said: &str) -> Option<Vec<Start>> {
    if !said.lines().any(|line| line.trim() == "HYDRA_LAUNCH_END") {
        return None;
    }
    let commands = said.lines().filter_map(|l| l.strip_prefix("HYDRA_LAUNCH:"));
    let starts = commands.filter_map(|command| {
        let mut words = command.split_whitespace().map(str::to_owned);
        Some(Start {
            name: "mpi".to_owned(),
            program: words.next()?,
            args: words.collect(),
            env: Vec::new(),
        })
    });
    Some(starts.take(GUESTS).collect())
}

/// Parses all timings in the output. The last line may be incomplete.
fn timed_in(said: &str) -> Vec<Timed> {
    let whole = said.rsplit_once('\n').map_or("", |(whole, _)| whole);
    whole.lines().filter_map(timed).collect()
}

/// Parses a line such as `broadcast 64000 0.120034`.
fn timed(line: &str) -> Option<Timed> {
    let mut words = line.split_whitespace();
    let name = words.next()?;
    let pattern = Pattern::ALL.into_iter().find(|p| p.name() == name)?;
    let bytes = words.next()?.parse().ok()?;
    let seconds: f64 = words.next()?.parse().ok()?;
    let sound = seconds.is_finite() && seconds >= 0.0 && words.next().is_none();
    sound.then_some(Timed {
        pattern,
        bytes,
        seconds,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_line_of_the_program_is_read() {
        let line = timed("alltoall 64000 0.120034").unwrap();
        assert_eq!(line.pattern, Pattern::Alltoall);
        assert_eq!((line.bytes, line.seconds), (64_000, 0.120_034));
        for other in [
            "ready",
            "alltoall 64000",
            "alltoall x 0.1",
            "gather 1 0.1",
            "broadcast 1 -0.1",
            "broadcast 1 NaN",
            "broadcast 1 0.1 more",
        ] {
            assert_eq!(timed(other), None, "{other}");
        }
    }

    #[test]
    fn a_run_lasts_until_all_has_been_done() {
        let mpi = Mpi {
            sizes: vec![1_000, 64_000],
            times: 2,
            lasts: Duration::ZERO,
        };
        let said = "ready\nbroadcast 1000 0.1\nalltoall 1000 0.1\nbroadcast 64000 0.1\n";
        assert_eq!(mpi.least_often(&timed_in(said)), 0);
        let said = format!("{said}alltoall 64000 0.1");
        assert_eq!(mpi.least_often(&timed_in(&said)), 0, "of half a line");
        assert_eq!(mpi.least_often(&timed_in(&format!("{said}\n"))), 1);
    }

    #[test]
    fn what_guests_are_to_run_is_known_when_all_is_said() {
        let line =
            "HYDRA_LAUNCH: /usr/bin/hydra_pmi_proxy --control-port 10.78.0.1:41697 --proxy-id ";
        let said: String = (0..GUESTS).map(|id| format!("{line}{id} \n")).collect();
        assert!(proxies(&said).is_none());
        let starts = proxies(&format!("{said}HYDRA_LAUNCH_END\n")).unwrap();
        assert_eq!(starts.len(), GUESTS);
        assert_eq!(starts[3].program, "/usr/bin/hydra_pmi_proxy");
        assert_eq!(starts[3].args.last().unwrap(), "3");
    }

    proptest! {
        #[test]
        fn whatever_it_says_is_read_without_harm(said in "(HYDRA_LAUNCH:|broadcast |\\PC|\n){0,20}") {
            let _ = proxies(&said);
            let _ = timed_in(&said);
        }
    }
}
