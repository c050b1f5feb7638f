//! Dropping privileges after start-up.
//!
//! User, capabilities, bounding set and no_new_privs are attributes of a thread, and the system
//! calls change the calling thread only. (The C library's `setresuid` changes all threads; there is
//! no equivalent for capabilities.) [`drop_to`] and [`limit_to`] therefore require a single-threaded
//! process. Threads that are started later inherit the reduced privileges.

use std::os::unix::fs::MetadataExt as _;

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
    /// Run threads in real time.
    SysNice,
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
    #[error("cannot {what}: {source}{}", call_hint(*.source))]
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

/// Becomes `user`, and otherwise does what [`limit_to`] does.
///
/// # Errors
/// [`PrivilegesError`]; the process should exit then.
pub fn become_unprivileged(
    user: &Unprivileged,
    keep: &[Capability],
) -> Result<(), PrivilegesError> {
    require_one_thread()?;
    let had = call("read capabilities", t::capabilities(None))?;
    drop_all_but(set_of(keep) & had.permitted, had, Some(&user.ids))
}

/// Returns whether this process has the capability.
pub fn has(capability: Capability) -> bool {
    t::capabilities(None).is_ok_and(|sets| sets.permitted.contains(capability.set()))
}

/// Calls `start`; programs that the calling thread executes in it have `capabilities`, of those that
/// this process has. Without, a program of a user other than root has none (capabilities(7), ambient).
///
/// # Errors
/// [`PrivilegesError::Call`]; `start` is not called then.
pub fn with_inherited<T>(
    capabilities: &[Capability],
    start: impl FnOnce() -> T,
) -> Result<T, PrivilegesError> {
    let had = call("read capabilities", t::capabilities(None))?;
    let inherited = set_of(capabilities) & had.permitted;
    let sets = CapabilitySets {
        inheritable: inherited,
        ..had
    };
    call(
        "set inheritable capabilities",
        t::set_capabilities(None, sets),
    )?;
    // Only a kernel or a securebit that forbids them refuses, and then the program says what it lacks.
    for capability in inherited.iter() {
        let _ = t::configure_capability_in_ambient_set(capability, true);
    }
    let result = start();
    call(
        "clear ambient capabilities",
        t::clear_ambient_capability_set(),
    )?;
    call(
        "set inheritable capabilities",
        t::set_capabilities(None, had),
    )?;
    Ok(result)
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

/// Returns what to do about a call that failed and takes `needed`, to be appended to its error: nothing
/// unless the kernel denied the call, because any other reason has nothing to do with privileges.
pub fn hint(error: &std::io::Error, needed: &[Capability]) -> String {
    match error.kind() {
        std::io::ErrorKind::PermissionDenied => format!("; {}", advice(needed)),
        _ => String::new(),
    }
}

/// Returns what to do about a BPF program that the kernel has refused, to be appended to the error: the
/// capabilities that this process lacks, or else `requirement`, what the kernel has to have. (EACCES alone
/// says little: the verifier returns it, too.)
pub fn program_hint(is_denied: bool, needed: &[Capability], requirement: &str) -> String {
    match is_denied && !needed.iter().all(|capability| has(*capability)) {
        true => format!("; {}", advice(needed)),
        false => format!("; {requirement}"),
    }
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

/// An unused UID, for a process that needs no rights.
#[derive(Debug)]
pub struct Unprivileged {
    ids: UserIds,
}

/// UIDs between those of people and those that systemd allocates to services (`DynamicUser=`), so that
/// no other user has the same one (systemd's UIDS-GIDS.md).
const UNUSED: std::ops::RangeInclusive<u32> = 60_578..=61_183;
/// The number of them that are looked up.
const TRIED: u32 = 16;

#[derive(Debug)]
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

// === impl Unprivileged ===

impl Unprivileged {
    /// Returns a user that the user database does not have. `None` if this process may not become one.
    pub fn choose() -> Option<Self> {
        let may = CapabilitySet::SETUID | CapabilitySet::SETGID;
        let has = t::capabilities(None).ok()?.effective;
        if !has.contains(may) {
            return None;
        }
        let ids = UserIds::unused()?;
        let id_is_mapped = is_mapped("/proc/self/uid_map", ids.uid.as_raw())
            && is_mapped("/proc/self/gid_map", ids.gid.as_raw());
        id_is_mapped.then_some(Self { ids })
    }

    /// Returns whether the permissions of the file and of the directories above it let this user read it.
    pub fn can_read(&self, path: &std::path::Path) -> bool {
        let Ok(path) = path.canonicalize() else {
            return false;
        };
        let allows = |path: &std::path::Path, read: bool| {
            let Ok(found) = path.metadata() else {
                return false;
            };
            let wanted = if read { 0o4 } else { 0o1 };
            let (uid, gid) = (self.ids.uid.as_raw(), found.gid());
            let mode = match found.uid() == uid {
                true => found.mode() >> 6,
                false if self.ids.groups.iter().any(|g| g.as_raw() == gid) => found.mode() >> 3,
                false => found.mode(),
            };
            mode & wanted != 0
        };
        allows(&path, true) && path.ancestors().skip(1).all(|above| allows(above, false))
    }
}

impl std::fmt::Display for Unprivileged {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "user {}", self.ids.uid.as_raw())
    }
}

// === impl UserIds ===

impl UserIds {
    /// Returns a user and a group that the database does not have. Two processes seldom get the same.
    fn unused() -> Option<Self> {
        use rustix::process::{Gid, Uid};
        let (first, count) = (*UNUSED.start(), UNUSED.clone().count() as u32);
        let mut tried = (0..TRIED).map(|i| first + std::process::id().wrapping_add(i) % count);
        let id = tried.find(|&id| {
            matches!(User::from_uid(id.into()), Ok(None))
                && matches!(nix::unistd::Group::from_gid(id.into()), Ok(None))
        })?;
        let gid = Gid::from_raw(id);
        Some(Self {
            uid: Uid::from_raw(id),
            gid,
            groups: vec![gid],
        })
    }
}

/// Returns whether a user namespace has the number (user_namespaces(7)).
fn is_mapped(map: &str, id: u32) -> bool {
    let text = std::fs::read_to_string(map).unwrap_or_default();
    text.lines().any(|line| {
        let mut fields = line.split_ascii_whitespace().map(str::parse::<u32>);
        match (fields.next(), fields.next(), fields.next()) {
            (Some(Ok(first)), _, Some(Ok(count))) => {
                id.checked_sub(first).is_some_and(|n| n < count)
            }
            _ => false,
        }
    })
}

fn call_hint(source: Errno) -> &'static str {
    match source {
        Errno::PERM | Errno::ACCESS => "; start as root, or configure no user to switch to",
        _ => "",
    }
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
            Self::SysNice => "CAP_SYS_NICE",
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
            Self::SysNice => CapabilitySet::SYS_NICE,
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

    #[test]
    fn privileges_are_named_only_if_the_kernel_denied_the_call() {
        let needed = [Capability::NetAdmin];
        for denied in [Errno::PERM, Errno::ACCESS] {
            let said = hint(&denied.into(), &needed);
            assert!(said.contains("CAP_NET_ADMIN"), "{said}");
        }
        for other in [Errno::NODEV, Errno::BUSY, Errno::INVAL, Errno::OPNOTSUPP] {
            assert_eq!(hint(&other.into(), &needed), "", "{other}");
        }
        let requirement = "it needs Linux 6.6";
        assert_eq!(
            program_hint(false, &needed, requirement),
            "; it needs Linux 6.6"
        );
        // Nothing is missing, so the kernel's denial is the verifier's.
        assert_eq!(program_hint(true, &[], requirement), "; it needs Linux 6.6");
    }
}
