//! A process with namespaces of its own: whatever it makes disappears with it.
//!
//! The process is the first of a PID namespace, so however it ends, the kernel kills all others in
//! that namespace. It starts in an empty network namespace, and in a mount namespace with an empty
//! `/run` and a `/proc` that shows no other processes. Named network namespaces, sockets and records
//! below `/run` are visible to no one else, and the kernel frees them with the last process.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitStatus};
use std::sync::mpsc::{self, SyncSender};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::mount::{MountFlags, MountPropagationFlags};
use rustix::process::{Pid, PidfdFlags, Signal};
use rustix::thread::UnshareFlags;

/// A running process in an enclosure. Dropping it kills the process and all that it has started.
#[derive(Debug)]
pub struct Enclosure {
    process: Child,
    pidfd: OwnedFd,
    /// Ends the thread that started the process, which must not end before the process.
    _keeps_thread: SyncSender<()>,
}

// === impl Enclosure ===

impl Enclosure {
    /// Starts `command` in an enclosure. It stays in the caller's process group, so it can read the
    /// terminal. The kernel kills it when this process ends for any reason.
    ///
    /// # Errors
    /// `PermissionDenied` without CAP_SYS_ADMIN; those of unshare(2), mount(2) and `Command::spawn`.
    pub fn spawn(command: Command) -> io::Result<Self> {
        let (answer, started) = mpsc::sync_channel(1);
        let (keeps_thread, end) = mpsc::sync_channel::<()>(0);
        // On a thread of its own, because the namespaces of a thread that has unshared them stay
        // unshared, and a thread with another PID namespace for children can start no threads.
        let body = move || {
            let _ = answer.send(spawn_here(command));
            // PR_SET_PDEATHSIG fires when the thread that forked ends.
            let _ = end.recv();
        };
        std::thread::Builder::new()
            .name("taut-enclosure".to_owned())
            .spawn(body)?;
        let gone = || io::Error::other("the thread that starts the process has ended");
        let (process, pidfd) = started.recv().map_err(|_| gone())??;
        Ok(Self {
            process,
            pidfd,
            _keeps_thread: keeps_thread,
        })
    }

    /// Has this process, and what it starts, go on in the background and when somebody types Ctrl-Z. The
    /// first process of a PID namespace cannot be stopped, and would go on alone. A read from the terminal in the
    /// background is then an error (EIO).
    pub fn ignore_job_control() {
        for signal in [libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU] {
            // SAFETY: SIG_IGN is no function, so nothing runs when the signal comes.
            unsafe { libc::signal(signal, libc::SIG_IGN) };
        }
    }

    /// Waits until the process and all that it has started have ended.
    ///
    /// # Errors
    /// Those of waitpid(2).
    pub fn wait(&mut self) -> io::Result<ExitStatus> {
        // The first process of a PID namespace is reported only after the kernel has killed and
        // reaped all others.
        self.process.wait()
    }

    /// Kills the process and all that it has started, and waits until they have ended.
    ///
    /// # Errors
    /// Those of kill(2) and waitpid(2).
    pub fn kill(&mut self) -> io::Result<ExitStatus> {
        self.process.kill()?;
        self.wait()
    }
}

impl AsFd for Enclosure {
    /// The pidfd: readable once the process has ended.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }
}

impl Drop for Enclosure {
    fn drop(&mut self) {
        // Drop cannot report an error, and there is no remedy.
        let _ = self.kill();
    }
}

/// Changes the calling thread's namespaces and starts the process in them.
fn spawn_here(mut command: Command) -> io::Result<(Child, OwnedFd)> {
    let parent = rustix::process::pidfd_open(rustix::process::getpid(), PidfdFlags::empty())?;
    let namespaces = UnshareFlags::NEWPID | UnshareFlags::NEWNS | UnshareFlags::NEWNET;
    // SAFETY: unsharing is unsound only for the descriptor table (CLONE_FILES), which stays shared.
    // The thread runs nothing after this function.
    unsafe { rustix::thread::unshare_unsafe(namespaces) }?;
    // Or the mounts below would appear in the namespace that this one is a copy of. What is unmounted
    // there is unmounted here, too.
    let slave = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    rustix::mount::mount_change(c"/", slave)?;
    let safe = MountFlags::NOSUID | MountFlags::NODEV;
    rustix::mount::mount(c"tmpfs", c"/run", c"tmpfs", safe, Some(c"mode=755"))?;
    // SAFETY: the closure runs between fork and exec and only makes system calls on existing
    // memory: it does not allocate, take a lock or run a destructor.
    unsafe {
        command.pre_exec(move || {
            rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
            // If the parent ended before the line above, the signal never arrives. Its process ID
            // is 0 here whether it lives or not.
            let mut fds = [PollFd::new(&parent, PollFlags::IN)];
            if rustix::event::poll(&mut fds, Some(&Timespec::default()))? > 0 {
                return Err(rustix::io::Errno::SRCH.into());
            }
            // Shows the PID namespace of the process that mounts it.
            rustix::mount::mount(c"proc", c"/proc", c"proc", safe, None)?;
            Ok(())
        });
    }
    let mut process = command.spawn()?;
    let opened = i32::try_from(process.id())
        .ok()
        .and_then(Pid::from_raw)
        .ok_or(rustix::io::Errno::SRCH)
        .and_then(|pid| rustix::process::pidfd_open(pid, PidfdFlags::empty()));
    match opened {
        Ok(pidfd) => Ok((process, pidfd)),
        Err(e) => {
            let _ = process.kill();
            let _ = process.wait();
            Err(e.into())
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::process::Stdio;

    use super::*;
    use crate::netns::NetnsId;
    use crate::probe::is_root;

    fn shell(script: &str) -> Option<String> {
        if !is_root() {
            println!("skipped: needs root");
            return None;
        }
        let mut sh = Command::new("sh");
        sh.args(["-c", script]).stdin(Stdio::null());
        let mut sh = Enclosure::spawn(piped(sh)).unwrap();
        let mut out = sh.process.stdout.take().unwrap();
        let text = io::read_to_string(&mut out).unwrap();
        assert!(sh.wait().unwrap().success());
        Some(text)
    }

    fn piped(mut command: Command) -> Command {
        command.stdout(Stdio::piped());
        command
    }

    #[test]
    fn it_sees_no_process_file_or_network_of_the_machine() {
        let Some(text) =
            shell("echo $$; ls -d /proc/[0-9]*; ls -A /run; readlink /proc/self/ns/net")
        else {
            return;
        };
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[0], "1", "{text}");
        assert!(lines.len() <= 4, "only its own processes: {text}");
        let own = NetnsId::of_process(std::process::id()).unwrap();
        assert!(!text.contains(&own.inode().to_string()), "{text}");
    }

    #[test]
    fn what_it_mounts_and_starts_goes_with_it() {
        let made = "mkdir /run/mine && mount -t tmpfs tmpfs /run/mine && (sleep 1000 & echo $!)";
        if shell(made).is_none() {
            return;
        }
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        assert!(!mounts.contains("/run/mine"), "{mounts}");
    }

    #[test]
    fn a_killed_enclosure_has_ended_when_kill_returns() {
        if !is_root() {
            println!("skipped: needs root");
            return;
        }
        let mut cat = Command::new("cat");
        cat.stdin(Stdio::piped());
        let mut cat = Enclosure::spawn(cat).unwrap();
        let path = format!("/proc/{}", cat.process.id());
        assert!(fs::exists(&path).unwrap());
        cat.kill().unwrap();
        assert!(!fs::exists(&path).unwrap());
    }
}
