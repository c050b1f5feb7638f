//! Child processes that live in a network namespace and never outlive their parent.

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

/// User and system time of this process's children that have ended and been waited for, theirs included.
///
/// # Errors
/// None that is known.
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
    /// Starts `command` in `netns`, as the leader of a process group of its own. It is killed when
    /// this process ends, however this process ends.
    ///
    /// Only the network namespace changes; `/sys` still shows the caller's devices.
    ///
    /// # Errors
    /// What `Command::spawn` returns, and the failure to enter the namespace.
    pub fn spawn(netns: Arc<Netns>, mut command: Command) -> io::Result<Self> {
        let parent = rustix::process::getpid();
        // SAFETY: between fork and exec only system calls are made, on memory that is already
        // there: nothing allocates, takes a lock or runs a destructor.
        unsafe {
            command.pre_exec(move || {
                rustix::thread::move_into_link_name_space(
                    netns.as_fd(),
                    Some(LinkNameSpaceType::Network),
                )?;
                rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
                // A parent that died before the line above will never be noticed by it.
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
                // Nobody has waited for the child yet, so its number cannot be another's.
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

    /// The process's number; it stays this process's until it has been waited for.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// The pipes that the command asked for, to be taken.
    pub fn pipes(&mut self) -> &mut StdChild {
        &mut self.child
    }

    /// Sends `signal` to the process alone. A process that has ended is no error.
    ///
    /// # Errors
    /// `PermissionDenied`.
    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        match rustix::process::pidfd_send_signal(&self.pidfd, signal) {
            Err(rustix::io::Errno::SRCH) => Ok(()),
            other => Ok(other?),
        }
    }

    /// Sends `signal` to the process's whole group. Does nothing once the process was reaped: its
    /// number may then be somebody else's.
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

    /// How it ended, or `None` while it runs.
    ///
    /// # Errors
    /// Those of `waitpid`.
    pub fn try_wait(&mut self) -> io::Result<Option<ExitStatus>> {
        if self.reaped.is_none() {
            self.reaped = self.child.try_wait()?;
        }
        Ok(self.reaped)
    }

    /// Waits until it ends.
    ///
    /// # Errors
    /// Those of `waitpid`.
    pub fn wait(&mut self) -> io::Result<ExitStatus> {
        let status = self.child.wait()?;
        self.reaped = Some(status);
        Ok(status)
    }

    /// Waits until it ends or `limit` has passed; `None` then, and it still runs.
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
        // Also after a wait: there is nobody to tell, and nothing left to do, when this fails.
        let _ = self.kill();
    }
}

type Job = Box<dyn FnOnce() + Send>;

/// Runs `job` on a thread that lives as long as the process.
///
/// PR_SET_PDEATHSIG fires when the *thread* that forked ends. Started from a caller's thread,
/// a child would be killed when that thread returns, long before anybody asked for it.
fn on_spawn_thread<T: Send + 'static>(job: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
    static SPAWNER: OnceLock<SyncSender<Job>> = OnceLock::new();
    let spawner = SPAWNER.get_or_init(|| {
        // No queue: each caller waits for its own job.
        let (sender, jobs) = mpsc::sync_channel::<Job>(0);
        let body = move || jobs.into_iter().for_each(|job| job());
        // Without a thread the receiver is dropped, and the send below says so.
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
