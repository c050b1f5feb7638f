//! Locks that belong to a network namespace.
//!
//! Such a lock must be out of reach of other users, or any of them could take it first and keep a
//! job from running. A name of a UNIX or TCP socket is not; a directory is, but network namespaces
//! share directories, and a job with few privileges cannot create one. So the lock is on a file of
//! `/proc/sys/net`: every namespace has its own, and only root and processes with CAP_NET_ADMIN in
//! the namespace may open it. The kernel releases the lock when the process ends.
//!
//! A container, or a unit of systemd's with `ProtectProc=`, that has a `/proc` of its own and shares the
//! network namespace has another file: there two processes can hold the same lock.
//! [`NetnsLock::is_taken`] finds them also there, if its caller may see their descriptors.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt as _;

use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use rustix::fs::FlockOperation;

/// A file with mode 0600, in every namespace since Linux 4.15. Its content is of no importance here, and
/// is neither read nor written.
const FILE: &str = "/proc/sys/net/ipv4/tcp_fastopen_key";

/// What is done by one process of a network namespace at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exclusive {
    /// Interception of connections.
    Interception = 0,
    /// Routes with metrics.
    RouteMetrics = 1,
}

/// The exclusive right to do something in the network namespace in which it was taken, until dropped.
#[derive(Debug)]
pub struct NetnsLock {
    _file: File,
}

// === impl NetnsLock ===

impl NetnsLock {
    /// Takes the lock in the network namespace of the calling thread. Returns `None` if another
    /// process, or another part of this one, has it.
    ///
    /// # Errors
    /// The system's: `PermissionDenied` without CAP_NET_ADMIN.
    pub fn take(what: Exclusive) -> io::Result<Option<Self>> {
        let file = File::open(FILE)?;
        // The file may be read-only, so the lock is a shared one, which needs no right to write. This
        // makes it exclusive. It is held only for the next two calls.
        rustix::fs::flock(&file, FlockOperation::LockExclusive)?;
        if is_locked(&file, what)? {
            return Ok(None);
        }
        let lock = byte(what, libc::F_RDLCK);
        fcntl(&file, FcntlArg::F_OFD_SETLK(&lock))?;
        rustix::fs::flock(&file, FlockOperation::Unlock)?;
        Ok(Some(Self { _file: file }))
    }

    /// Returns whether a process has the lock in the network namespace of the calling thread, or may
    /// have it through another `/proc`.
    ///
    /// # Errors
    /// As [`NetnsLock::take`].
    pub fn is_taken(what: Exclusive) -> io::Result<bool> {
        Ok(is_locked(&File::open(FILE)?, what)? || is_open_elsewhere()?)
    }
}

/// Returns whether a lock of another open file conflicts with an exclusive one.
fn is_locked(file: &File, what: Exclusive) -> io::Result<bool> {
    let mut lock = byte(what, libc::F_WRLCK);
    fcntl(file, FcntlArg::F_OFD_GETLK(&mut lock))?;
    Ok(i32::from(lock.l_type) != libc::F_UNLCK)
}

/// Returns whether another process of this network namespace has the file open in another `/proc`. (In
/// the same one, the lock itself tells.)
fn is_open_elsewhere() -> io::Result<bool> {
    let netns = fs::read_link("/proc/thread-self/ns/net")?;
    let here = fs::metadata(FILE)?.dev();
    let own = std::process::id().to_string();
    let processes = fs::read_dir("/proc")?.flatten();
    let mut descriptors = processes
        .filter(|process| process.file_name().to_str() != Some(&*own))
        .map(|process| process.path())
        // Processes end meanwhile, and some may not be looked at.
        .filter(|process| fs::read_link(process.join("ns/net")).is_ok_and(|of| of == netns))
        .filter_map(|process| fs::read_dir(process.join("fd")).ok())
        .flat_map(Iterator::flatten)
        .map(|descriptor| descriptor.path());
    Ok(descriptors.any(|descriptor| {
        fs::read_link(&descriptor).is_ok_and(|file| file.as_os_str() == FILE)
            && fs::metadata(&descriptor).is_ok_and(|file| file.dev() != here)
    }))
}

/// Returns a lock of the byte that stands for `what`.
fn byte(what: Exclusive, kind: libc::c_int) -> libc::flock {
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the kernel's constants are small, and their types differ"
    )]
    libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: what as libc::off_t,
        l_len: 1,
        l_pid: 0,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "in a test, a panic is the report")]
mod tests {
    use std::os::unix::process::CommandExt as _;
    use std::process::Command;

    use super::*;
    use crate::netns::Netns;

    /// A namespace, which is deleted when this is dropped.
    struct Space(Netns);

    impl Drop for Space {
        fn drop(&mut self) {
            let _ = Netns::delete(self.0.name());
        }
    }

    impl std::ops::Deref for Space {
        type Target = Netns;

        fn deref(&self) -> &Netns {
            &self.0
        }
    }

    fn netns(name: &str) -> Space {
        assert!(
            rustix::process::geteuid().is_root(),
            "this test makes network namespaces and must run as root; `make test` does"
        );
        Space(Netns::create(&format!("taut-lock-{}-{name}", std::process::id())).unwrap())
    }

    #[test]
    fn a_lock_is_held_once_in_a_namespace_and_free_after_that() {
        let [one, other] = [netns("one"), netns("other")];
        let take = |netns: &Netns, what| netns.run(|| NetnsLock::take(what)).unwrap().unwrap();
        let is_taken = |what| one.run(|| NetnsLock::is_taken(what)).unwrap().unwrap();
        let held = take(&one, Exclusive::Interception).unwrap();
        assert!(take(&one, Exclusive::Interception).is_none());
        assert!(is_taken(Exclusive::Interception));
        assert!(!is_taken(Exclusive::RouteMetrics));
        assert!(take(&one, Exclusive::RouteMetrics).is_some());
        assert!(take(&other, Exclusive::Interception).is_some());
        drop(held);
        // A child that another test has just forked may have the file, too.
        let began = std::time::Instant::now();
        while is_taken(Exclusive::Interception) && began.elapsed().as_secs() < 60 {
            std::thread::yield_now();
        }
        assert!(!is_taken(Exclusive::Interception));
        assert!(take(&one, Exclusive::Interception).is_some());
    }

    #[test]
    fn a_process_with_a_proc_of_its_own_is_seen() {
        let netns = netns("proc");
        let mut holder = Command::new("unshare");
        holder
            .args(["--mount", "--pid", "--fork", "--mount-proc", "sh", "-c"])
            .arg(format!("exec 3< {FILE}; echo ready; read -r end"))
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped());
        let mut holder = netns.run(|| holder.spawn()).unwrap().unwrap();
        let mut line = String::new();
        let mut said = std::io::BufReader::new(holder.stdout.as_mut().unwrap());
        std::io::BufRead::read_line(&mut said, &mut line).unwrap();
        let is_taken = || netns.run(|| NetnsLock::is_taken(Exclusive::Interception));
        assert!(is_taken().unwrap().unwrap());
        drop(holder.stdin.take());
        holder.wait().unwrap();
        assert!(!is_taken().unwrap().unwrap());
    }

    #[test]
    fn a_user_without_privileges_cannot_hold_it_and_one_with_cap_net_admin_can() {
        let netns = netns("users");
        let opens = |args: &[&str]| {
            let mut command = Command::new("setpriv");
            command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
            let command = command.args(args).args(["head", "-c0", FILE]);
            netns.run(|| command.output()).unwrap().unwrap().status
        };
        assert!(!opens(&[]).success());
        let capable = ["--inh-caps=+net_admin", "--ambient-caps=+net_admin"];
        assert!(opens(&capable).success());
        // The file is not opened for a process of another namespace's administrator, either.
        let mut elsewhere = Command::new("unshare");
        elsewhere.args(["--user", "--map-root-user", "head", "-c0", FILE]);
        let elsewhere = elsewhere.uid(65_534).gid(65_534);
        let status = netns.run(|| elsewhere.output()).unwrap().unwrap().status;
        assert!(!status.success());
    }
}
