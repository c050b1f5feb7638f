//! Child processes that run in a network namespace and never outlive their parent.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child as StdChild, Command, ExitStatus};
use std::sync::mpsc::{self, SyncSender};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags, Signal};
use rustix::thread::LinkNameSpaceType;

use crate::netns::Netns;

/// A running process and the group it leads. Dropping it kills the group and reaps the process.
#[derive(Debug)]
pub struct Child {
    child: StdChild,
    pid: Pid,
    pidfd: OwnedFd,
    reaped: Option<ExitStatus>,
}

/// Returns the user and system CPU time of all waited-for children, their own waited-for children
/// included (getrusage(2), RUSAGE_CHILDREN).
///
/// # Errors
/// Those of getrusage(2); none are known for valid arguments.
pub fn children_cpu_time() -> io::Result<Duration> {
    let usage = nix::sys::resource::getrusage(nix::sys::resource::UsageWho::RUSAGE_CHILDREN)?;
    let time = |time: nix::sys::time::TimeVal| {
        let micros = u64::try_from(time.tv_usec()).unwrap_or_default();
        Duration::from_secs(u64::try_from(time.tv_sec()).unwrap_or_default())
            + Duration::from_micros(micros)
    };
    Ok(time(usage.user_time()) + time(usage.system_time()))
}

// === impl Child ===

impl Child {
    /// Starts `command` in `netns`, as the leader of its own process group. The kernel kills the
    /// process when this one ends for any reason.
    ///
    /// Only the network namespace changes; `/sys` still shows the caller's devices.
    ///
    /// # Errors
    /// Those of `Command::spawn`, and of entering the namespace.
    pub fn spawn(netns: Arc<Netns>, mut command: Command) -> io::Result<Self> {
        let parent = rustix::process::getpid();
        // SAFETY: the closure runs between fork and exec and only makes system calls on existing
        // memory: it does not allocate, take a lock or run a destructor.
        unsafe {
            command.pre_exec(move || {
                rustix::thread::move_into_link_name_space(
                    netns.as_fd(),
                    Some(LinkNameSpaceType::Network),
                )?;
                rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
                // If the parent died before the line above, the signal never arrives.
                if rustix::process::getppid() != Some(parent) {
                    return Err(rustix::io::Errno::SRCH.into());
                }
                Ok(())
            });
        }
        command.process_group(0);

        let mut child = on_spawn_thread(move || command.spawn())??;
        let opened = i32::try_from(child.id())
            .ok()
            .and_then(Pid::from_raw)
            .ok_or(rustix::io::Errno::SRCH)
            .and_then(|pid| {
                // The child has not been waited for, so its PID cannot have been reused.
                Ok((pid, rustix::process::pidfd_open(pid, PidfdFlags::empty())?))
            });
        match opened {
            Ok((pid, pidfd)) => Ok(Self {
                child,
                pid,
                pidfd,
                reaped: None,
            }),
            Err(e) => {
                let _ = child.kill();
                let _ = child.wait();
                Err(e.into())
            }
        }
    }

    /// Returns the PID. It is not reused until the process has been waited for.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Gives access to the pipes that the command set up, so that the caller can take them.
    pub fn pipes(&mut self) -> &mut StdChild {
        &mut self.child
    }

    /// Sends `signal` to the process alone. Succeeds if the process has already ended.
    ///
    /// # Errors
    /// `PermissionDenied`.
    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        match rustix::process::pidfd_send_signal(&self.pidfd, signal) {
            Err(rustix::io::Errno::SRCH) => Ok(()),
            other => Ok(other?),
        }
    }

    /// Sends `signal` to the whole process group. Does nothing once the process was reaped: its
    /// PID may have been reused.
    ///
    /// # Errors
    /// `PermissionDenied`.
    pub fn signal_group(&self, signal: Signal) -> io::Result<()> {
        if self.reaped.is_some() {
            return Ok(());
        }
        match rustix::process::kill_process_group(self.pid, signal) {
            Err(rustix::io::Errno::SRCH) => Ok(()),
            other => Ok(other?),
        }
    }

    /// Returns the exit status, or `None` while the process runs.
    ///
    /// # Errors
    /// Those of `waitpid`.
    pub fn try_wait(&mut self) -> io::Result<Option<ExitStatus>> {
        if self.reaped.is_none() {
            self.reaped = self.child.try_wait()?;
        }
        Ok(self.reaped)
    }

    /// Waits until the process ends.
    ///
    /// # Errors
    /// Those of `waitpid`.
    pub fn wait(&mut self) -> io::Result<ExitStatus> {
        let status = self.child.wait()?;
        self.reaped = Some(status);
        Ok(status)
    }

    /// Waits for the process to end, up to `limit`. Returns `None` if it still runs after that.
    ///
    /// # Errors
    /// Those of `poll` and `waitpid`.
    pub fn wait_for(&mut self, limit: Duration) -> io::Result<Option<ExitStatus>> {
        if self.reaped.is_none() {
            let deadline = Instant::now() + limit;
            let mut fds = [PollFd::new(&self.pidfd, PollFlags::IN)];
            loop {
                let left = deadline.saturating_duration_since(Instant::now());
                let left = Timespec::try_from(left).map_err(|_| io::ErrorKind::InvalidInput)?;
                match rustix::event::poll(&mut fds, Some(&left)) {
                    Err(rustix::io::Errno::INTR) => {}
                    Err(e) => return Err(e.into()),
                    Ok(_) => break,
                }
            }
        }
        self.try_wait()
    }

    /// Kills the whole group and reaps the process.
    ///
    /// # Errors
    /// Those of `kill` and `waitpid`.
    pub fn kill(&mut self) -> io::Result<ExitStatus> {
        self.signal_group(Signal::KILL)?;
        self.wait()
    }
}

impl AsFd for Child {
    /// The pidfd: readable once the process has ended.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // Drop cannot report an error, and there is no remedy.
        let _ = self.kill();
    }
}

type Job = Box<dyn FnOnce() + Send>;

/// Runs `job` on a thread that lives as long as the process.
///
/// PR_SET_PDEATHSIG fires when the *thread* that forked ends, so a child started from a caller's
/// thread would be killed when that thread returns.
fn on_spawn_thread<T: Send + 'static>(job: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
    static SPAWNER: OnceLock<SyncSender<Job>> = OnceLock::new();
    let spawner = SPAWNER.get_or_init(|| {
        // Unbuffered: each caller waits for its own job.
        let (sender, jobs) = mpsc::sync_channel::<Job>(0);
        let body = move || jobs.into_iter().for_each(|job| job());
        // If the thread cannot be started, the receiver is dropped and the send below fails.
        let _ = std::thread::Builder::new()
            .name("taut-spawner".to_owned())
            .spawn(body);
        sender
    });
    let (answer, result) = mpsc::sync_channel(1);
    let gone = || io::Error::other("the thread that starts processes could not be started");
    spawner
        .send(Box::new(move || {
            let _ = answer.send(job());
        }))
        .map_err(|_| gone())?;
    result.recv().map_err(|_| gone())
}
