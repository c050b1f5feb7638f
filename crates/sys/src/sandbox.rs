//! A sandbox for a whole process: a filter of system calls (seccomp) and of files (Landlock).
//!
//! Both are attributes of a thread and are inherited by threads and processes that start later.
//! [`Sandbox::enter`] therefore requires a single-threaded process, as [`crate::privileges`] does.
//! Neither can be lifted again, and both set no_new_privs.
//!
//! A system call that is not allowed returns EPERM, and the kernel's audit log names it; a file that
//! is not allowed is an EACCES.

use std::io;
use std::path::PathBuf;

use landlock::{
    ABI, Access, AccessFs, CompatLevel, Compatible, Ruleset, RulesetAttr, RulesetCreatedAttr,
    RulesetStatus, path_beneath_rules,
};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule,
};

mod calls;

/// The version of Landlock whose rights are restricted (Linux 6.10); an older kernel restricts those
/// that it knows.
const RIGHTS: ABI = ABI::V5;

/// What a process can do once it has entered. The default allows the system calls that every job
/// makes, and all files.
#[derive(Clone, Debug, Default)]
pub struct Sandbox {
    /// Groups of system calls besides those that every job makes.
    pub calls: Vec<Calls>,
    /// The files; `None`: all. With it, the process can also no longer reach into others that are not
    /// in the sandbox: ptrace(2), pidfd_getfd(2), `/proc/PID/fd` and `/proc/PID/ns` are refused.
    pub files: Option<Files>,
}

/// A group of system calls that only some jobs make.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Calls {
    /// Execute programs.
    Execute,
    /// Load and use BPF programs, and attach them to events.
    Bpf,
    /// Enter namespaces that exist.
    EnterNamespaces,
    /// Borrow descriptors of other processes.
    BorrowDescriptors,
}

/// The files that a process may use, each with everything below it. Missing ones are skipped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Files {
    /// Files that it may read.
    pub read: Vec<PathBuf>,
    /// Files that it may write to, and directories in which it may create, change, rename and remove
    /// files.
    pub write: Vec<PathBuf>,
    /// Directories in which it may create, rename and remove sockets. It may also remove other files
    /// there.
    pub sockets: Vec<PathBuf>,
    /// Directories in which it may create and remove files and directories, and write to none: pins of
    /// BPF objects.
    pub pins: Vec<PathBuf>,
    /// Programs that it may read and execute.
    pub execute: Vec<PathBuf>,
}

/// A part of the sandbox that this kernel lacks.
#[derive(Debug, thiserror::Error)]
pub enum Lacking {
    /// The kernel has no filter of system calls, or refuses it.
    #[error(
        "system calls are not filtered: the kernel refuses the filter ({0}); it needs CONFIG_SECCOMP_FILTER, and a container \
         that allows seccomp(2)"
    )]
    Calls(io::Error),
    /// The kernel has no Landlock, or it is off.
    #[error(
        "files are not restricted: this kernel has no Landlock, or it is not in its `lsm=` (Linux 5.13 or newer, \
         CONFIG_SECURITY_LANDLOCK)"
    )]
    Files,
}

/// The sandbox could not be entered.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// Other threads exist, which would stay outside.
    #[error(
        "cannot enter the sandbox while {0} threads run: the others would stay outside; enter it before starting threads"
    )]
    Threads(usize),
    /// The process's threads cannot be counted.
    #[error("cannot count the threads of this process in /proc/self/task: {0}; is /proc mounted?")]
    Count(io::Error),
    /// The filter of system calls cannot be built.
    #[error("cannot build the filter of system calls: {0}; with --no-sandbox the job runs without")]
    Filter(#[from] seccompiler::BackendError),
    /// The rules for files cannot be set.
    #[error("cannot restrict files with Landlock: {0}; with --no-sandbox the job runs without")]
    Files(#[from] landlock::RulesetError),
}

/// The flags of clone(2) that make a namespace.
const NEW_NAMESPACES: u64 = (libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET) as u64;

// === impl Sandbox ===

impl Sandbox {
    /// Restricts this process and everything that it starts from now on, for good. Returns what this
    /// kernel lacks.
    ///
    /// # Errors
    /// [`SandboxError`]; the process should exit then, since it may be restricted in part.
    pub fn enter(&self) -> Result<Vec<Lacking>, SandboxError> {
        let threads = std::fs::read_dir("/proc/self/task").map_err(SandboxError::Count)?;
        match threads.count() {
            1 => {}
            threads => return Err(SandboxError::Threads(threads)),
        }
        let mut lacking = Vec::new();
        if let Some(files) = &self.files
            && !files.restrict()?
        {
            lacking.push(Lacking::Files);
        }
        // Last: the calls of Landlock are not among those allowed.
        // The C library tries clone3 for each thread: that is nothing to log.
        let log = libc::SECCOMP_FILTER_FLAG_LOG;
        for (filter, flags) in [(missing_calls()?, 0), (self.allowed_calls()?, log)] {
            if let Err(error) = install(&filter, flags) {
                lacking.push(Lacking::Calls(error));
                break;
            }
        }
        Ok(lacking)
    }

    fn allowed_calls(&self) -> Result<BpfProgram, seccompiler::BackendError> {
        let groups = self.calls.iter().flat_map(|group| group.calls());
        let all = calls::EVERY_JOB.iter().chain(groups);
        let mut rules: std::collections::BTreeMap<_, _> =
            all.map(|call| (*call, Vec::new())).collect();
        // A user namespace would give the process every capability over what is in it, and much of
        // the kernel's code can be reached only with those. No job makes one of another kind.
        let (length, within) = (
            SeccompCmpArgLen::Dword,
            SeccompCmpOp::MaskedEq(NEW_NAMESPACES),
        );
        let flags = SeccompCondition::new(0, length, within, 0)?;
        rules.insert(libc::SYS_clone, vec![SeccompRule::new(vec![flags])?]);
        filter(
            rules,
            SeccompAction::Errno(libc::EPERM.cast_unsigned()),
            SeccompAction::Allow,
        )
    }
}

/// The flags of clone3 are in memory, where no filter sees them: it is reported as missing, and the C
/// library calls clone instead.
fn missing_calls() -> Result<BpfProgram, seccompiler::BackendError> {
    let rules = [(libc::SYS_clone3, Vec::new())].into();
    filter(
        rules,
        SeccompAction::Allow,
        SeccompAction::Errno(libc::ENOSYS.cast_unsigned()),
    )
}

fn filter(
    rules: std::collections::BTreeMap<i64, Vec<SeccompRule>>,
    others: SeccompAction,
    those: SeccompAction,
) -> Result<BpfProgram, seccompiler::BackendError> {
    let arch = std::env::consts::ARCH.try_into()?;
    SeccompFilter::new(rules, others, those, arch)?.try_into()
}

/// Installs a filter in all threads.
fn install(filter: &BpfProgram, flags: libc::c_ulong) -> io::Result<()> {
    rustix::thread::set_no_new_privs(true)?;
    let program = libc::sock_fprog {
        len: u16::try_from(filter.len()).map_err(io::Error::other)?,
        // The kernel does not write to it.
        filter: filter.as_ptr().cast_mut().cast(),
    };
    let flags = libc::SECCOMP_FILTER_FLAG_TSYNC | flags;
    // SAFETY: `program` points to `len` instructions of the kernel's layout (seccompiler's
    // `sock_filter` is repr(C) with the same fields), which the kernel copies.
    let result = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            flags,
            &raw const program,
        )
    };
    match result {
        0 => Ok(()),
        -1 => Err(io::Error::last_os_error()),
        thread => Err(io::Error::other(format!(
            "thread {thread} has another filter"
        ))),
    }
}

// === impl Files ===

impl Files {
    /// Returns whether the kernel has restricted the process.
    fn restrict(&self) -> Result<bool, landlock::RulesetError> {
        let read = AccessFs::ReadFile | AccessFs::ReadDir;
        let sockets = AccessFs::MakeSock | AccessFs::RemoveFile;
        let pin =
            AccessFs::MakeReg | AccessFs::MakeDir | AccessFs::RemoveFile | AccessFs::RemoveDir;
        let write = AccessFs::WriteFile | AccessFs::Truncate | AccessFs::MakeReg;
        let status = Ruleset::default()
            .set_compatibility(CompatLevel::BestEffort)
            .handle_access(AccessFs::from_all(RIGHTS))?
            .create()?
            .add_rules(path_beneath_rules(&self.read, read))?
            .add_rules(path_beneath_rules(
                &self.write,
                write | AccessFs::RemoveFile,
            ))?
            .add_rules(path_beneath_rules(&self.sockets, sockets))?
            .add_rules(path_beneath_rules(&self.pins, pin))?
            .add_rules(path_beneath_rules(&self.execute, read | AccessFs::Execute))?
            .restrict_self()?;
        Ok(status.ruleset != RulesetStatus::NotEnforced)
    }
}
