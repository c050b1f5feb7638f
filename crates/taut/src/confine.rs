//! What each job may do while it runs: capabilities, system calls and files. The table in
//! docs/security.md says why, and `tests/jobs/privileges.rs` compares the two.

use std::io::Write as _;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use taut_sys::privileges::{self, Capability};
use taut_sys::sandbox::{Calls, Files, Lacking, Sandbox};

use crate::failure::Failure;

/// The option that turns the sandbox off.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct SandboxArgs {
    /// Allow all system calls and files, to find out whether the sandbox is at fault; capabilities are dropped all the
    /// same
    #[arg(long, help_heading = "Privileges")]
    pub(crate) no_sandbox: bool,
}

/// What a job may do.
#[derive(Debug)]
pub(crate) struct Confinement {
    /// The capabilities that it keeps, of those that the process has.
    pub(crate) keep: Vec<Capability>,
    /// `None`: `--no-sandbox`.
    pub(crate) sandbox: Option<Sandbox>,
}

/// What is to be reported of a confined process.
#[derive(Debug)]
#[must_use]
pub(crate) struct Confined {
    is_in_sandbox: bool,
    lacking: Vec<Lacking>,
}

/// Returns what `why` may do.
pub(crate) fn explainer(args: SandboxArgs) -> Confinement {
    let mut confinement = observer(args);
    // Name the functions in which packets are dropped.
    confinement.keep.push(Capability::Syslog);
    confinement
}

/// Returns what `top` and `watch` may do.
pub(crate) fn observer(args: SandboxArgs) -> Confinement {
    let mut confinement = adviser(args);
    // Measure whether this machine was descheduled, with a thread that waits for no other.
    confinement.keep.push(Capability::SysNice);
    confinement
}

/// Returns what `status --serve` may do.
pub(crate) fn page(args: SandboxArgs) -> Confinement {
    let mut confinement = observer(args);
    // The control socket of a relay belongs to the relay's user.
    confinement.keep.push(Capability::DacOverride);
    confinement
}

/// Returns what a job may do that looks at the connections of the whole machine, such as `tune` without
/// `--apply`.
pub(crate) fn adviser(args: SandboxArgs) -> Confinement {
    Confinement {
        keep: vec![
            // Enter the network namespaces of containers.
            Capability::SysAdmin,
            // Find the processes of sockets, and the namespaces of processes.
            Capability::SysPtrace,
            Capability::DacReadSearch,
            // Load the programs that read and count, in each namespace that appears.
            Capability::Bpf,
            Capability::Perfmon,
            // A buffer for the kernel's reports of ends that holds a burst.
            Capability::NetAdmin,
        ],
        // No restriction of files: it would also forbid to look into other processes.
        sandbox: args.sandbox(vec![Calls::Bpf, Calls::EnterNamespaces]),
    }
}

/// Returns what `tune --apply` and `tune --undo` may do. With the same capabilities they also force
/// buffers, and set sysctls and routes of each namespace.
pub(crate) fn tuner(args: SandboxArgs) -> Confinement {
    let calls = vec![Calls::Bpf, Calls::EnterNamespaces, Calls::BorrowDescriptors];
    let mut confinement = adviser(args);
    // The lock of the network namespace is a port below 1024.
    confinement.keep.push(Capability::NetBindService);
    Confinement {
        sandbox: args.sandbox(calls),
        ..confinement
    }
}

/// Returns what `snoop` may do, with its control socket in `control` and its records in `records`.
pub(crate) fn snoop(
    args: SandboxArgs,
    control: &Path,
    records: &Path,
    watches_machines: bool,
) -> Confinement {
    let mut keep = vec![
        // Programs at taps that appear, their rings and queueing disciplines.
        Capability::NetAdmin,
        Capability::Bpf,
        Capability::Perfmon,
        // The packet socket through which a tap gets copies again.
        Capability::NetRaw,
    ];
    if watches_machines {
        // The monitors' sockets belong to the users of the machines.
        keep.push(Capability::DacOverride);
    }
    let files = Files {
        // Not only /proc and /sys: each directory above the records is opened, to check its owner.
        read: vec!["/".into()],
        write: vec![records.to_owned()],
        sockets: vec![make_folder_of(control)],
        ..Files::default()
    };
    let sandbox = Sandbox {
        calls: vec![Calls::Bpf],
        files: Some(files),
    };
    Confinement {
        keep,
        sandbox: (!args.no_sandbox).then_some(sandbox),
    }
}

/// Returns what `guest` may do; only `up` and `down` change something.
pub(crate) fn guest(args: SandboxArgs, changes: bool) -> Confinement {
    let mut files = Files {
        read: vec!["/".into()],
        ..Files::default()
    };
    if changes {
        files.write = vec![
            taut_guest::load::DIRECTORY.into(),
            taut_guest::default_control::SETTING.into(),
        ];
        files.pins = vec![taut_guest::load::BPF_FS.into()];
    }
    let sandbox = Sandbox {
        calls: vec![Calls::Bpf],
        files: Some(files),
    };
    Confinement {
        // Load and pin congestion controls, and set the default.
        keep: vec![
            Capability::SysAdmin,
            Capability::NetAdmin,
            Capability::Bpf,
            Capability::Perfmon,
            // Find the kernel's tick by the name of its function.
            Capability::Syslog,
        ],
        sandbox: (!args.no_sandbox).then_some(sandbox),
    }
}

/// Returns the sandbox of `mesh dns`, which keeps no capability.
pub(crate) fn dns(args: SandboxArgs) -> Option<Sandbox> {
    let files = Files {
        // A reload may name other files.
        read: vec!["/".into()],
        ..Files::default()
    };
    (!args.no_sandbox).then_some(Sandbox {
        calls: Vec::new(),
        files: Some(files),
    })
}

/// Returns the directory of a file.
pub(crate) fn folder_of(file: &Path) -> &Path {
    match file.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

/// Returns the directory of a file, and makes it if it is missing, as the job would later: a sandbox
/// can only name what exists. If that fails, the job reports it when it opens the file.
pub(crate) fn make_folder_of(file: &Path) -> PathBuf {
    let folder = folder_of(file);
    let mut builder = std::fs::DirBuilder::new();
    let _ = builder.recursive(true).mode(0o755).create(folder);
    folder.to_owned()
}

// === impl SandboxArgs ===

impl SandboxArgs {
    fn sandbox(self, calls: Vec<Calls>) -> Option<Sandbox> {
        (!self.no_sandbox).then_some(Sandbox { calls, files: None })
    }
}

// === impl Confinement ===

impl Confinement {
    /// Drops all other capabilities and enters the sandbox, while the process has one thread.
    pub(crate) fn enter(&self) -> Result<Confined, Failure> {
        let run = |e: &dyn std::fmt::Display| Failure::Run(e.to_string());
        privileges::limit_to(&self.keep).map_err(|e| run(&e))?;
        enter(self.sandbox.as_ref())
    }
}

/// Enters the sandbox, if there is one, while the process has one thread.
pub(crate) fn enter(sandbox: Option<&Sandbox>) -> Result<Confined, Failure> {
    let entered = sandbox.map(Sandbox::enter).transpose();
    let entered = entered.map_err(|e| Failure::Run(e.to_string()))?;
    Ok(Confined {
        is_in_sandbox: entered.is_some(),
        lacking: entered.unwrap_or_default(),
    })
}

// === impl Confined ===

impl Confined {
    /// Returns whether the process can use only the files of its sandbox.
    pub(crate) fn restricts_files(&self) -> bool {
        let lacks = |lacking: &Lacking| matches!(lacking, Lacking::Files);
        self.is_in_sandbox && !self.lacking.iter().any(lacks)
    }

    /// Logs what the kernel lacks.
    pub(crate) fn log(&self) {
        for lacking in &self.lacking {
            tracing::warn!("{lacking}");
        }
        if self.is_in_sandbox {
            tracing::debug!(
                "in the sandbox: a system call that it does not allow returns EPERM, and the kernel's log names it (type=1326); \
                 --no-sandbox does without"
            );
        }
    }

    /// Says it on standard error, for a command without a log.
    pub(crate) fn say(&self) {
        for lacking in &self.lacking {
            // The reader may be gone; the error is ignored.
            let _ = writeln!(std::io::stderr(), "taut: {lacking}");
        }
    }
}
