//! Giving up what a process does not need once it has started.
//!
//! User, capabilities, bounding set and no_new_privs belong to each thread of a process, and the
//! system calls change one thread. (The C library's `setresuid` reaches all of them; nothing does
//! so for capabilities.) So [`drop_to`] insists on being called while there is one thread only, and
//! the threads that are started later inherit what it leaves.

use nix::unistd::User;
use rustix::thread::{CapabilitySet, CapabilitySets};

use crate::Errno;

/// A capability that a long-running job of Taut may keep (capabilities(7)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Capability {
    /// Bind ports below `net.ipv4.ip_unprivileged_port_start`.
    NetBindService,
    /// Routes, IP_TRANSPARENT, SO_MARK.
    NetAdmin,
    /// IP_TRANSPARENT without the rest of [`Capability::NetAdmin`].
    NetRaw,
    /// Pipes and descriptors beyond the limits of a user.
    SysResource,
    /// Load BPF programs.
    Bpf,
    /// Load BPF programs that trace.
    Perfmon,
}

/// Why privileges were not given up. The process must not go on: it may have given up some.
#[derive(Debug, thiserror::Error)]
pub enum PrivilegesError {
    /// There are other threads, which would keep theirs.
    #[error(
        "cannot give up privileges while {0} threads run: only one would give up its own; this \
         must be done before others are started"
    )]
    Threads(usize),
    /// The threads of this process cannot be counted.
    #[error("cannot count the threads of this process in /proc/self/task: {0}; is /proc mounted?")]
    Count(std::io::Error),
    /// No such user.
    #[error("there is no user `{0}`; make it (useradd --system {0}) or name another")]
    NoUser(String),
    /// The user database cannot be asked.
    #[error("cannot look up user `{user}`: {source}")]
    LookUp {
        /// The user.
        user: String,
        /// Why.
        source: std::io::Error,
    },
    /// A capability that is to be kept is not there.
    #[error("this process has no {0} to keep; start it as root, or with that capability")]
    Missing(&'static str),
    /// A system call failed.
    #[error("cannot {what}: {source}; start as root, or without a user to change to")]
    Call {
        /// What was tried.
        what: &'static str,
        /// Why it failed.
        source: Errno,
    },
}

/// Becomes `user`, with its group and the groups it is in (`None`: whoever this is), keeps the
/// capabilities `keep` and gives up all others, for good: out of the bounding set too, and with
/// no_new_privs, so that no program that is executed gets any back. Without the capability to
/// change it (CAP_SETPCAP) the bounding set stays; no_new_privs then does its work.
///
/// To be called before any thread is started, tracing's and tokio's included.
///
/// # Errors
/// [`PrivilegesError`]; the process should then end.
pub fn drop_to(user: Option<&str>, keep: &[Capability]) -> Result<(), PrivilegesError> {
    use rustix::thread as t;

    // Looked up first: it may open files and sockets that the user could not.
    let user = user.map(look_up).transpose()?;
    let threads = std::fs::read_dir("/proc/self/task")
        .map_err(PrivilegesError::Count)?
        .count();
    if threads != 1 {
        return Err(PrivilegesError::Threads(threads));
    }
    let had = call("read capabilities", t::capabilities(None))?;
    if let Some(missing) = keep.iter().find(|c| !had.permitted.contains(c.set())) {
        return Err(PrivilegesError::Missing(missing.name()));
    }
    let kept = keep
        .iter()
        .fold(CapabilitySet::empty(), |all, c| all | c.set());

    // Both need capabilities that are gone afterwards.
    if had.effective.contains(CapabilitySet::SETPCAP) {
        empty_bounding_set(kept)?;
    }
    if let Some(user) = user {
        become_user(&user)?;
    }
    call(
        "clear ambient capabilities",
        t::clear_ambient_capability_set(),
    )?;
    let sets = CapabilitySets {
        effective: kept,
        permitted: kept,
        inheritable: CapabilitySet::empty(),
    };
    call("give up capabilities", t::set_capabilities(None, sets))?;
    call("set no_new_privs", t::set_no_new_privs(true))
}

struct Target {
    uid: rustix::process::Uid,
    gid: rustix::process::Gid,
    groups: Vec<rustix::process::Gid>,
}

fn look_up(name: &str) -> Result<Target, PrivilegesError> {
    use rustix::process::{Gid, Uid};
    let failed = |e: nix::Error| PrivilegesError::LookUp {
        user: name.to_owned(),
        source: e.into(),
    };
    let unknown = || PrivilegesError::NoUser(name.to_owned());
    let user = User::from_name(name).map_err(failed)?.ok_or_else(unknown)?;
    let text = std::ffi::CString::new(name).map_err(|_| unknown())?;
    let groups = nix::unistd::getgrouplist(&text, user.gid).map_err(failed)?;
    Ok(Target {
        uid: Uid::from_raw(user.uid.as_raw()),
        gid: Gid::from_raw(user.gid.as_raw()),
        groups: groups.iter().map(|g| Gid::from_raw(g.as_raw())).collect(),
    })
}

/// Leaves only `kept` in it.
fn empty_bounding_set(kept: CapabilitySet) -> Result<(), PrivilegesError> {
    for number in 0..64 {
        let capability = CapabilitySet::from_bits_retain(1 << number);
        match rustix::thread::capability_is_in_bounding_set(capability) {
            Ok(true) if !kept.contains(capability) => call(
                "empty the bounding set",
                rustix::thread::remove_capability_from_bounding_set(capability),
            )?,
            Ok(_) => {}
            // The kernel knows no more of them.
            Err(_) => break,
        }
    }
    Ok(())
}

fn become_user(user: &Target) -> Result<(), PrivilegesError> {
    use rustix::thread as t;
    // Without it the change of user takes every capability, also those that are to be kept.
    call("keep capabilities", t::set_keep_capabilities(true))?;
    call("set the groups", t::set_thread_groups(&user.groups))?;
    let gid = user.gid;
    call("set the group", t::set_thread_res_gid(gid, gid, gid))?;
    let uid = user.uid;
    call("set the user", t::set_thread_res_uid(uid, uid, uid))?;
    call("end keeping capabilities", t::set_keep_capabilities(false))
}

fn call<T>(what: &'static str, result: Result<T, Errno>) -> Result<T, PrivilegesError> {
    result.map_err(|source| PrivilegesError::Call { what, source })
}

// === impl Capability ===

impl Capability {
    /// As capabilities(7) writes it.
    pub fn name(self) -> &'static str {
        match self {
            Self::NetBindService => "CAP_NET_BIND_SERVICE",
            Self::NetAdmin => "CAP_NET_ADMIN",
            Self::NetRaw => "CAP_NET_RAW",
            Self::SysResource => "CAP_SYS_RESOURCE",
            Self::Bpf => "CAP_BPF",
            Self::Perfmon => "CAP_PERFMON",
        }
    }

    fn set(self) -> CapabilitySet {
        match self {
            Self::NetBindService => CapabilitySet::NET_BIND_SERVICE,
            Self::NetAdmin => CapabilitySet::NET_ADMIN,
            Self::NetRaw => CapabilitySet::NET_RAW,
            Self::SysResource => CapabilitySet::SYS_RESOURCE,
            Self::Bpf => CapabilitySet::BPF,
            Self::Perfmon => CapabilitySet::PERFMON,
        }
    }
}
