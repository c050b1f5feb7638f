//! Dropping privileges after start-up.
//!
//! User, capabilities, bounding set and no_new_privs are attributes of a thread, and the system
//! calls change the calling thread only. (The C library's `setresuid` changes all threads; there is
//! no equivalent for capabilities.) [`drop_to`] and [`limit_to`] therefore require a single-threaded
//! process. Threads that are started later inherit the reduced privileges.

use nix::unistd::User;
use rustix::thread::{self as t, CapabilitySet, CapabilitySets};

use crate::Errno;

/// A capability that a daemon of Taut may keep (capabilities(7)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Capability {
    /// Bind ports below `net.ipv4.ip_unprivileged_port_start`.
    NetBindService,
    /// Routes, IP_TRANSPARENT, SO_MARK.
    NetAdmin,
    /// IP_TRANSPARENT without the rest of [`Capability::NetAdmin`].
    NetRaw,
    /// Pipes and descriptors beyond a user's limits.
    SysResource,
    /// Load BPF programs.
    Bpf,
    /// Load BPF programs that trace.
    Perfmon,
    /// Enter network namespaces.
    SysAdmin,
    /// Read other users' `/proc/PID`, borrow their descriptors.
    SysPtrace,
    /// Read files and directories of other users, such as `/proc/PID/fd`.
    DacReadSearch,
    /// Write to files and sockets of other users.
    DacOverride,
    /// Read the addresses of the kernel's functions (`/proc/kallsyms`).
    Syslog,
}

/// A failure to drop privileges. The process must exit: it may have dropped some of them.
#[derive(Debug, thiserror::Error)]
pub enum PrivilegesError {
    /// Other threads exist, which would keep their privileges.
    #[error(
        "cannot drop privileges while {0} threads run: only the calling thread would drop them; \
         drop them before starting other threads"
    )]
    Threads(usize),
    /// The process's threads cannot be counted.
    #[error("cannot count the threads of this process in /proc/self/task: {0}; is /proc mounted?")]
    Count(std::io::Error),
    /// The user does not exist.
    #[error("there is no user `{0}`; create it (useradd --system {0}) or name another user")]
    NoUser(String),
    /// The user database cannot be read.
    #[error("cannot look up user `{user}`: {source}")]
    LookUp {
        /// The user's name.
        user: String,
        /// The error of the look-up.
        source: std::io::Error,
    },
    /// The process lacks a capability in `keep`.
    #[error("this process lacks {0}, which it needs; start it as root or with that capability")]
    Missing(&'static str),
    /// A system call failed.
    #[error("cannot {what}: {source}; start as root, or configure no user to switch to")]
    Call {
        /// The action of the call, as an infinitive.
        what: &'static str,
        /// The call's error.
        source: Errno,
    },
}

/// Switches to `user` and its groups (`None`: keeps the current user), keeps the capabilities in
/// `keep` and drops all others permanently. They are also removed from the bounding set, and
/// no_new_privs is set, so that executed programs cannot regain them. Without CAP_SETPCAP, the
/// bounding set stays as it is, and no_new_privs alone prevents that.
///
/// Call it before any thread starts, including those of tracing and tokio.
///
/// # Errors
/// [`PrivilegesError`]; the process should exit then.
pub fn drop_to(user: Option<&str>, keep: &[Capability]) -> Result<(), PrivilegesError> {
    // Look the user up first: the look-up may open files and sockets that the user cannot.
    let user = user.map(look_up).transpose()?;
    require_one_thread()?;
    let had = call("read capabilities", t::capabilities(None))?;
    if let Some(missing) = keep.iter().find(|c| !had.permitted.contains(c.set())) {
        return Err(PrivilegesError::Missing(missing.name()));
    }
    drop_all_but(set_of(keep), had, user.as_ref())
}

/// Drops all capabilities except those in `keep`, as [`drop_to`] does. A capability in `keep` that
/// the process does not have is no error: it reports itself what it cannot do.
///
/// # Errors
/// [`PrivilegesError`]; the process should exit then.
pub fn limit_to(keep: &[Capability]) -> Result<(), PrivilegesError> {
    require_one_thread()?;
    let had = call("read capabilities", t::capabilities(None))?;
    drop_all_but(set_of(keep) & had.permitted, had, None)
}

fn require_one_thread() -> Result<(), PrivilegesError> {
    let threads = std::fs::read_dir("/proc/self/task").map_err(PrivilegesError::Count)?;
    match threads.count() {
        1 => Ok(()),
        threads => Err(PrivilegesError::Threads(threads)),
    }
}

fn set_of(capabilities: &[Capability]) -> CapabilitySet {
    let sets = capabilities.iter().map(|c| c.set());
    sets.fold(CapabilitySet::empty(), |all, set| all | set)
}

fn drop_all_but(
    kept: CapabilitySet,
    had: CapabilitySets,
    user: Option<&UserIds>,
) -> Result<(), PrivilegesError> {
    // Both steps need capabilities that are dropped below.
    if had.effective.contains(CapabilitySet::SETPCAP) {
        empty_bounding_set(kept)?;
    }
    if let Some(user) = user {
        switch_user(user)?;
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
    call("drop capabilities", t::set_capabilities(None, sets))?;
    call("set no_new_privs", t::set_no_new_privs(true))
}

/// Returns what to do about a refused call that takes `needed`, as the end of a sentence.
pub fn advice(needed: &[Capability]) -> String {
    let has =
        rustix::thread::capabilities(None).map_or(CapabilitySet::empty(), |sets| sets.effective);
    advice_to(rustix::process::geteuid().is_root(), has, needed)
}

fn advice_to(is_root: bool, has: CapabilitySet, needed: &[Capability]) -> String {
    let names = |capabilities: &mut dyn Iterator<Item = &Capability>| {
        let names: Vec<_> = capabilities.map(|capability| capability.name()).collect();
        names.join(" and ")
    };
    let missing = names(&mut needed.iter().filter(|c| !has.contains(c.set())));
    match (missing.is_empty(), is_root) {
        (false, false) => format!("run this as root ({missing})"),
        (false, true) => format!(
            "root lacks {missing} here: have the container, unit or namespace it runs in give it that"
        ),
        (true, _) => format!(
            "this process has {}, but its container, namespace or a security module forbids it",
            names(&mut needed.iter())
        ),
    }
}

struct UserIds {
    uid: rustix::process::Uid,
    gid: rustix::process::Gid,
    groups: Vec<rustix::process::Gid>,
}

fn look_up(name: &str) -> Result<UserIds, PrivilegesError> {
    use rustix::process::{Gid, Uid};
    let failed = |e: nix::Error| PrivilegesError::LookUp {
        user: name.to_owned(),
        source: e.into(),
    };
    let unknown = || PrivilegesError::NoUser(name.to_owned());
    let user = User::from_name(name).map_err(failed)?.ok_or_else(unknown)?;
    let text = std::ffi::CString::new(name).map_err(|_| unknown())?;
    let groups = nix::unistd::getgrouplist(&text, user.gid).map_err(failed)?;
    Ok(UserIds {
        uid: Uid::from_raw(user.uid.as_raw()),
        gid: Gid::from_raw(user.gid.as_raw()),
        groups: groups.iter().map(|g| Gid::from_raw(g.as_raw())).collect(),
    })
}

/// Removes every capability except `kept` from the bounding set.
fn empty_bounding_set(kept: CapabilitySet) -> Result<(), PrivilegesError> {
    for number in 0..64 {
        let capability = CapabilitySet::from_bits_retain(1 << number);
        match rustix::thread::capability_is_in_bounding_set(capability) {
            Ok(true) if !kept.contains(capability) => call(
                "empty the bounding set",
                rustix::thread::remove_capability_from_bounding_set(capability),
            )?,
            Ok(_) => {}
            // The kernel has no further capabilities.
            Err(_) => break,
        }
    }
    Ok(())
}

fn switch_user(user: &UserIds) -> Result<(), PrivilegesError> {
    // Otherwise changing the user drops every capability, including those in `keep`.
    call("keep capabilities", t::set_keep_capabilities(true))?;
    call("set the groups", t::set_thread_groups(&user.groups))?;
    let gid = user.gid;
    call("set the group", t::set_thread_res_gid(gid, gid, gid))?;
    let uid = user.uid;
    call("set the user", t::set_thread_res_uid(uid, uid, uid))?;
    call("stop keeping capabilities", t::set_keep_capabilities(false))
}

fn call<T>(what: &'static str, result: Result<T, Errno>) -> Result<T, PrivilegesError> {
    result.map_err(|source| PrivilegesError::Call { what, source })
}

// === impl Capability ===

impl Capability {
    /// Returns the name as in capabilities(7).
    pub fn name(self) -> &'static str {
        match self {
            Self::NetBindService => "CAP_NET_BIND_SERVICE",
            Self::NetAdmin => "CAP_NET_ADMIN",
            Self::NetRaw => "CAP_NET_RAW",
            Self::SysResource => "CAP_SYS_RESOURCE",
            Self::Bpf => "CAP_BPF",
            Self::Perfmon => "CAP_PERFMON",
            Self::SysAdmin => "CAP_SYS_ADMIN",
            Self::SysPtrace => "CAP_SYS_PTRACE",
            Self::DacReadSearch => "CAP_DAC_READ_SEARCH",
            Self::DacOverride => "CAP_DAC_OVERRIDE",
            Self::Syslog => "CAP_SYSLOG",
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
            Self::SysAdmin => CapabilitySet::SYS_ADMIN,
            Self::SysPtrace => CapabilitySet::SYS_PTRACE,
            Self::DacReadSearch => CapabilitySet::DAC_READ_SEARCH,
            Self::DacOverride => CapabilitySet::DAC_OVERRIDE,
            Self::Syslog => CapabilitySet::SYSLOG,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_who_is_not_root_is_told_to_be_root() {
        let needed = [Capability::NetAdmin, Capability::SysPtrace];
        let none = CapabilitySet::empty();
        let all = CapabilitySet::all();
        assert_eq!(
            advice_to(false, none, &needed),
            "run this as root (CAP_NET_ADMIN and CAP_SYS_PTRACE)"
        );
        let lacks = advice_to(true, CapabilitySet::NET_ADMIN, &needed);
        assert!(
            lacks.starts_with("root lacks CAP_SYS_PTRACE here: "),
            "{lacks}"
        );
        let refused = advice_to(true, all, &needed);
        assert!(!refused.contains("root"), "{refused}");
        assert!(refused.contains("security module"), "{refused}");
    }
}
