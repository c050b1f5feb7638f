//! Locks that belong to a network namespace.
//!
//! Such a lock must be the same one for every process of the namespace, whatever `/proc`, `/run` or
//! other mount it sees, and out of reach of other users, or any of them could take it first and keep
//! a job from running. So the lock is a UDP port below 1024 of a loopback address, which no service
//! uses. Binding it needs CAP_NET_BIND_SERVICE in the namespace. The kernel releases it when the
//! process ends, and `ss -lunp` names who has it. Nothing is received there.

use std::fs;
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::net::{AddressFamily, SocketAddrAny, SocketFlags, SocketType, sockopt};

use crate::Errno;

/// A port that no service has (IANA).
const PORT: u16 = 4;

/// What is done by one process of a network namespace at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exclusive {
    /// Interception of connections.
    Interception = 1,
    /// Routes with metrics.
    RouteMetrics = 2,
    /// Tuning of the namespace.
    Tuning = 3,
    /// Tuning of this and all other namespaces that a process of this one finds.
    TuningOfAll = 4,
}

/// The exclusive right to do something in the network namespace in which it was taken, until dropped.
///
/// A process can share it with the one that replaces it. Both have it then, and the last of them is the one
/// that removes what it protects ([`NetnsLock::into_sole`]).
#[derive(Debug)]
pub struct NetnsLock {
    what: Exclusive,
    socket: OwnedFd,
    /// Another process has, or had, a duplicate.
    shared: AtomicBool,
}

// === impl Exclusive ===

impl Exclusive {
    fn address(self) -> SocketAddrV4 {
        SocketAddrV4::new(Ipv4Addr::new(127, 84, 65, self as u8), PORT)
    }
}

// === impl NetnsLock ===

impl NetnsLock {
    /// Takes the lock in the network namespace of the calling thread. Returns `None` if another
    /// process, or another part of this one, has it.
    ///
    /// # Errors
    /// The system's: `PermissionDenied` without CAP_NET_BIND_SERVICE.
    pub fn take(what: Exclusive) -> io::Result<Option<Self>> {
        let flags = SocketFlags::CLOEXEC;
        let socket = rustix::net::socket_with(AddressFamily::INET, SocketType::DGRAM, flags, None)?;
        // The loopback device of a new namespace is down.
        sockopt::set_ip_freebind(&socket, true)?;
        match rustix::net::bind(&socket, &what.address()) {
            Err(Errno::ADDRINUSE) => return Ok(None),
            other => other?,
        }
        // Nothing is received: a packet does not fit.
        sockopt::set_socket_recv_buffer_size(&socket, 0)?;
        Ok(Some(Self {
            what,
            socket,
            shared: AtomicBool::new(false),
        }))
    }

    /// Returns a duplicate for another process, which passes it to [`NetnsLock::adopt`].
    ///
    /// # Errors
    /// Those of dup(2).
    pub fn share(&self) -> io::Result<OwnedFd> {
        self.shared.store(true, Ordering::SeqCst);
        self.socket.try_clone()
    }

    /// Has the lock together with the process that shared it. Returns `None` if the descriptor is not this
    /// lock.
    pub fn adopt(what: Exclusive, shared: OwnedFd) -> Option<Self> {
        let address = rustix::net::getsockname(&shared).ok()?;
        let is_it = address == SocketAddrAny::from(what.address())
            && sockopt::socket_type(&shared) == Ok(SocketType::DGRAM);
        is_it.then_some(Self {
            what,
            socket: shared,
            shared: AtomicBool::new(true),
        })
    }

    /// Returns whether another process has, or had, the lock together with this one.
    pub fn is_shared(&self) -> bool {
        self.shared.load(Ordering::SeqCst)
    }

    /// Gives the lock up, and takes it again if no other process has it, in the network namespace of the
    /// calling thread. Returns `None` if one has.
    ///
    /// # Errors
    /// Those of [`NetnsLock::take`].
    pub fn into_sole(self) -> io::Result<Option<Self>> {
        if !self.is_shared() {
            return Ok(Some(self));
        }
        let what = self.what;
        drop(self);
        Self::take(what)
    }

    /// Returns whether a process has the lock in the network namespace of the calling thread.
    ///
    /// # Errors
    /// The system's.
    pub fn is_taken(what: Exclusive) -> io::Result<bool> {
        // Binding the port to find out would keep a process that starts at that moment from it.
        let sockets = fs::read_to_string("/proc/thread-self/net/udp")?;
        let address = what.address();
        let local = format!(
            "{:08X}:{PORT:04X}",
            u32::from_ne_bytes(address.ip().octets())
        );
        Ok(sockets
            .lines()
            .any(|line| line.split_whitespace().nth(1) == Some(&local)))
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

    fn take(netns: &Netns, what: Exclusive) -> Option<NetnsLock> {
        netns.run(|| NetnsLock::take(what)).unwrap().unwrap()
    }

    #[test]
    fn a_lock_is_held_once_in_a_namespace_and_free_after_that() {
        let [one, other] = [netns("one"), netns("other")];
        let is_taken = |what| one.run(|| NetnsLock::is_taken(what)).unwrap().unwrap();
        let held = take(&one, Exclusive::Interception).unwrap();
        assert!(take(&one, Exclusive::Interception).is_none());
        assert!(is_taken(Exclusive::Interception));
        assert!(!is_taken(Exclusive::RouteMetrics));
        assert!(take(&one, Exclusive::RouteMetrics).is_some());
        assert!(take(&other, Exclusive::Interception).is_some());
        drop(held);
        assert!(!is_taken(Exclusive::Interception));
        assert!(take(&one, Exclusive::Interception).is_some());
    }

    #[test]
    fn of_two_processes_that_share_a_lock_the_last_one_is_told_so() {
        let netns = netns("shared");
        let sole = |lock: NetnsLock| netns.run(|| lock.into_sole()).unwrap().unwrap();
        let what = Exclusive::Interception;
        let first = sole(take(&netns, what).unwrap()).unwrap();
        assert!(!first.is_shared());
        let adopt = |what| NetnsLock::adopt(what, first.share().unwrap());
        assert!(adopt(Exclusive::Tuning).is_none());
        let second = adopt(what).unwrap();
        assert!(first.is_shared() && second.is_shared());
        assert!(sole(first).is_none());
        assert!(take(&netns, what).is_none());
        let second = sole(second).unwrap();
        assert!(take(&netns, what).is_none());
        drop(second);
        assert!(take(&netns, what).is_some());
        let other = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        assert!(NetnsLock::adopt(what, other.into()).is_none());
    }

    /// Another container of the same network namespace, or a service with mounts of its own.
    #[test]
    fn a_process_with_a_proc_of_its_own_finds_the_lock() {
        let netns = netns("proc");
        let held = take(&netns, Exclusive::Tuning).unwrap();
        let mut other = Command::new("unshare");
        let own_proc = ["--mount", "--pid", "--fork", "--mount-proc"];
        other.args(own_proc).args(["cat", "/proc/net/udp"]);
        let seen = netns.run(|| other.output()).unwrap().unwrap();
        assert_eq!(String::from_utf8_lossy(&seen.stdout).lines().count(), 2);
        drop(held);
        let seen = netns.run(|| other.output()).unwrap().unwrap();
        assert_eq!(String::from_utf8_lossy(&seen.stdout).lines().count(), 1);
    }

    #[test]
    fn a_user_without_privileges_cannot_hold_it_and_one_with_the_capability_can() {
        let netns = netns("users");
        let bind = "import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.setsockopt(0, 15, 1); s.bind(('127.84.65.1', 4)); print('bound')";
        let said = |command: &mut Command| {
            let output = netns.run(|| command.output()).unwrap().unwrap();
            let text = [output.stdout, output.stderr].concat();
            String::from_utf8(text).unwrap().trim().to_owned()
        };
        let python = |program: &str, args: &[&str]| {
            let mut command = Command::new(program);
            // Debian's: the first one of root's PATH may be one that others cannot execute.
            command.args(args).args(["/usr/bin/python3", "-c", bind]);
            command
        };
        let refused = "PermissionError: [Errno 13] Permission denied";
        let nobody = ["--reuid=65534", "--regid=65534", "--clear-groups"];
        let unprivileged = said(&mut python("setpriv", &nobody));
        assert!(unprivileged.ends_with(refused), "{unprivileged}");
        let capable = [
            "--inh-caps=+net_bind_service",
            "--ambient-caps=+net_bind_service",
        ];
        let capable = [&nobody[..], &capable].concat();
        assert_eq!(said(&mut python("setpriv", &capable)), "bound");
        // The administrator of another user namespace has no right in this network namespace.
        let mut elsewhere = python("unshare", &["--user", "--map-root-user"]);
        elsewhere.uid(65_534).gid(65_534);
        let elsewhere = said(&mut elsewhere);
        assert!(elsewhere.ends_with(refused), "{elsewhere}");
    }
}
