//! Programs in a guest beside `taut-lab`: servers, and the ranks of a parallel program.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};

use rustix::io::Errno;
use rustix::mount::MountFlags;
use rustix::process::{Pid, Signal, WaitOptions};

use super::Guest;
use super::talk::{Ran, Start};

/// The file system that programs can write to, in the guest's memory. All other file systems are
/// the host's and read-only.
pub(in crate::experiment) const SCRATCH: &str = "/mnt";
/// The number of bytes kept of a program's output.
const SAID: usize = 16 << 10;
/// The directory in which the C library creates shared memory.
const SHARED_MEMORY: &str = "/dev/shm";

/// The running programs, each the leader of a process group. Their output goes to the guest's
/// console.
#[derive(Default)]
pub(super) struct Programs {
    prepared: bool,
    running: BTreeMap<String, Child>,
}

// === impl Programs ===

impl Programs {
    /// Runs a program until it ends.
    pub(super) fn run(&mut self, start: &Start, guest: &Guest) -> io::Result<Ran> {
        let output = self.command(start, guest)?.output();
        let output = output.map_err(|e| io::Error::other(format!("{}: {e}", start.program)))?;
        let said = [output.stdout, output.stderr].concat();
        let said = &said[said.len().saturating_sub(SAID)..];
        Ok(Ran {
            status: output.status.code(),
            said: String::from_utf8_lossy(said).into_owned(),
        })
    }

    /// Starts a program, replacing a running program of the same name.
    pub(super) fn start(&mut self, start: &Start, guest: &Guest) -> io::Result<()> {
        let mut command = self.command(start, guest)?;
        if let Some(before) = self.running.remove(&start.name) {
            end(before)?;
        }
        let child = command
            .process_group(0)
            .spawn()
            .map_err(|e| io::Error::other(format!("{}: {e}", start.program)))?;
        self.running.insert(start.name.clone(), child);
        Ok(())
    }

    fn command(&mut self, start: &Start, guest: &Guest) -> io::Result<Command> {
        if !self.prepared {
            prepare(guest)?;
            self.prepared = true;
        }
        let mut command = Command::new(&start.program);
        command
            .args(&start.args)
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .env("HOME", SCRATCH)
            .env("TMPDIR", SCRATCH)
            .envs(start.env.iter().cloned())
            .current_dir(SCRATCH)
            .stdin(Stdio::null());
        Ok(command)
    }
}

/// Sets up what programs need of a machine but `taut-lab` does not.
fn prepare(guest: &Guest) -> io::Result<()> {
    std::fs::create_dir_all(SHARED_MEMORY)?;
    for at in [SCRATCH, SHARED_MEMORY] {
        rustix::mount::mount("tmpfs", at, "tmpfs", MountFlags::empty(), None)?;
    }
    // MPI takes processes on hosts of the same name for processes on one host.
    Ok(rustix::system::sethostname(
        guest.address.to_string().as_bytes(),
    )?)
}

/// Kills a program's process group and waits until all its processes have ended, which frees their
/// ports.
fn end(mut child: Child) -> io::Result<()> {
    let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    if let Some(group) = group {
        match rustix::process::kill_process_group(group, Signal::KILL) {
            // The program had already ended.
            Err(Errno::SRCH) | Ok(()) => {}
            Err(e) => return Err(e.into()),
        }
    }
    child.wait()?;
    let Some(group) = group else { return Ok(()) };
    // The program's children are now children of this process, which is init.
    loop {
        match rustix::process::waitpgid(group, WaitOptions::empty()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(Errno::CHILD) => return Ok(()),
            Err(e) => return Err(e.into()),
        }
    }
}
