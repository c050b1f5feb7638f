//! `taut tour`: a slow download is explained and repaired, and another is made faster by relays, on a
//! network that is made for it.
//!
//! The tour runs in an [`Enclosure`], with which everything goes: its processes, network namespaces and
//! files. The process outside only waits, and passes on a signal that ends it.

mod buffers;
mod job;
mod network;
mod relays;
mod text;

use std::io::{self, IsTerminal as _};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::event::{PollFd, PollFlags};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::low_level::{emulate_default_handler, pipe};
use taut_sys::enclosure::Enclosure;
use taut_sys::privileges::{self, Capability};
use taut_sys::probe;

use self::network::Network;
use self::text::Pause;
use crate::failure::{Failure, print};

/// See a slow download explained and repaired, on a made network
#[derive(clap::Args)]
#[command(after_help = "Examples:
  sudo taut tour         it waits for Enter before it repairs
  sudo taut tour --yes   it does not wait

It takes about half a minute. Its network is made of network namespaces, which only the tour sees. \
Everything is removed at the end, also after Ctrl-C or a kill. Of this machine only the list of congestion controls is \
changed, to which the relays add one while they run.")]
pub(crate) struct Args {
    /// Do not wait for Enter
    #[arg(long, help_heading = "Output")]
    yes: bool,

    /// Run inside the enclosure (used by `taut tour` itself)
    #[arg(long, hide = true, help_heading = "Output")]
    inside: bool,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    match args.inside {
        true => show(args),
        false => enclose(args),
    }
}

/// Runs the tour in an enclosure, and says how to begin on real hosts.
fn enclose(args: &Args) -> Result<(), Failure> {
    if !probe::is_root() {
        return Err(Failure::Run(
            "the tour makes a network of network namespaces, which only root can: run `sudo taut tour`"
                .into(),
        ));
    }
    let failed = |what| move |e: io::Error| Failure::Run(format!("cannot {what}: {e}"));
    // Before the start, so that no signal ends this process without the sentence below.
    let interrupts = Interrupts::catch().map_err(failed("handle signals"))?;
    let program = std::env::current_exe().map_err(failed("find the program's own path"))?;
    let mut inside = Command::new(program);
    inside.args(["tour", "--inside"]);
    inside.args(args.yes.then_some("--yes"));
    // The directory that is empty in an enclosure, and goes with it.
    inside.env("TMPDIR", "/run");
    Enclosure::ignore_job_control();
    let mut tour = Enclosure::spawn(inside).map_err(|e| {
        let hint = privileges::hint(&e, &[Capability::SysAdmin]);
        Failure::Run(format!("cannot make namespaces for the tour: {e}{hint}"))
    })?;
    let waited = interrupts.wait_for(&tour);
    if let Some(signal) = waited.map_err(failed("wait for the tour"))? {
        tour.kill().map_err(failed("end the tour"))?;
        if io::stdout().is_terminal() {
            // The cursor is behind a question, or what the terminal shows of Ctrl-C.
            print("\n")?;
        }
        crate::log::say("the tour has ended early; everything that it made is removed");
        // A shell expects the signal in the exit status.
        let _ = emulate_default_handler(signal);
    }
    match tour.wait().map_err(failed("wait for the tour"))?.success() {
        true => text::ending(),
        false => Err(Failure::Run(
            "the tour failed; its network, processes and files are removed".into(),
        )),
    }
}

/// Shows the tour, as the first process of an enclosure.
fn show(args: &Args) -> Result<(), Failure> {
    let pause = Pause::new(args.yes);
    text::beginning()?;
    let network = Network::make()?;
    buffers::show(&network, &pause)?;
    relays::show(&network, &pause)
}

/// The signals that end the tour.
struct Interrupts {
    /// Readable once there was one.
    woken: UnixStream,
    /// Its number.
    last: Arc<AtomicUsize>,
}

// === impl Interrupts ===

impl Interrupts {
    fn catch() -> io::Result<Self> {
        let (woken, wakes) = UnixStream::pair()?;
        let last = Arc::new(AtomicUsize::new(0));
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            // Handlers run in this order.
            let number = usize::try_from(signal).unwrap_or_default();
            signal_hook::flag::register_usize(signal, Arc::clone(&last), number)?;
            pipe::register(signal, wakes.try_clone()?)?;
        }
        Ok(Self { woken, last })
    }

    /// Waits until the process in the enclosure ends or a signal comes. Returns the signal.
    fn wait_for(&self, tour: &impl AsFd) -> io::Result<Option<i32>> {
        loop {
            let mut fds = [
                PollFd::new(tour, PollFlags::IN),
                PollFd::new(&self.woken, PollFlags::IN),
            ];
            match rustix::event::poll(&mut fds, None) {
                Err(rustix::io::Errno::INTR) => continue,
                other => other?,
            };
            let signal = i32::try_from(self.last.load(Ordering::Relaxed)).unwrap_or_default();
            return Ok((!fds[1].revents().is_empty()).then_some(signal));
        }
    }
}
