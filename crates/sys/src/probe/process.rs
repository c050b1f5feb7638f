//! Probes for processes and guests: pidfds, cgroups, virtual machines, kprobes, installed programs.

use std::fs::{self, File};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::{env, io};

use rustix::process::{PidfdFlags, getpid, pidfd_open};

use super::Answer;

/// Probes for pidfds, descriptors of a process that stay valid when its PID is reused.
pub fn pidfd() -> Answer {
    Answer::of(pidfd_open(getpid(), PidfdFlags::empty()).map_err(io::Error::from))
}

/// Probes for a mounted cgroup v2 hierarchy.
pub fn cgroup_v2() -> Answer {
    match mounts().iter().any(|m| m.kind == "cgroup2") {
        true => Answer::Yes,
        false => Answer::No("no cgroup2 file system is mounted".to_owned()),
    }
}

/// Probes for the cgroup freezer, of either version of cgroups.
pub fn freezer() -> Answer {
    let mounts = mounts();
    if mounts
        .iter()
        .any(|m| m.kind == "cgroup" && m.has_option("freezer"))
    {
        return Answer::Yes;
    }
    let Some(root) = mounts.iter().find(|m| m.kind == "cgroup2") else {
        return Answer::No("no cgroup file system with a freezer is mounted".to_owned());
    };
    // Every group except the root has this file; the root cannot be frozen.
    let groups = fs::read_dir(&root.at).into_iter().flatten().flatten();
    let mut groups = groups.map(|g| g.path()).filter(|g| g.is_dir()).peekable();
    if groups.peek().is_none() {
        return Answer::Unknown(
            "there is no cgroup to check, and the probe creates none".to_owned(),
        );
    }
    match groups.any(|g| g.join("cgroup.freeze").exists()) {
        true => Answer::Yes,
        false => Answer::No("no cgroup has cgroup.freeze".to_owned()),
    }
}

/// Probes for hardware virtualisation by creating a virtual machine with a processor, which is
/// closed at once.
///
/// Under another hypervisor `/dev/kvm` may exist and creating the machine may succeed, while
/// creating the processor fails.
pub fn kvm() -> Answer {
    /// linux/kvm.h: `_IO(0xAE, 0x01)` and `_IO(0xAE, 0x41)`. They take the machine type and the
    /// processor number and return a descriptor.
    const KVM_CREATE_VM: libc::Ioctl = 0xAE01;
    const KVM_CREATE_VCPU: libc::Ioctl = 0xAE41;
    let make = |on: BorrowedFd<'_>, request| -> io::Result<OwnedFd> {
        // SAFETY: `on` is open, and both requests take their argument by value.
        let fd = unsafe { libc::ioctl(on.as_raw_fd(), request, 0 as libc::c_ulong) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the call has just created this descriptor, which has no other owner.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    };
    let made = || {
        let kvm = File::options().read(true).write(true).open("/dev/kvm")?;
        let machine = make(kvm.as_fd(), KVM_CREATE_VM)?;
        make(machine.as_fd(), KVM_CREATE_VCPU)
    };
    match Answer::of(made()).about("/dev/kvm") {
        // KVM in software (kvm_pvm) also gets this far, but cannot boot ordinary kernels.
        Answer::Yes if !processor_virtualises() => Answer::Unknown(
            "a virtual machine can be created, but without vmx or svm it may not boot a guest"
                .to_owned(),
        ),
        answer => answer,
    }
}

/// Returns whether the CPU flags show hardware virtualisation. Always `true` except on x86-64, the
/// only architecture with such flags.
fn processor_virtualises() -> bool {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let mut flags = text.lines().filter(|l| l.starts_with("flags"));
    !cfg!(target_arch = "x86_64")
        || flags.any(|l| l.split_whitespace().any(|f| f == "vmx" || f == "svm"))
}

/// Probes for a program of this name in `PATH` and in the usual directories.
pub fn program(name: &str) -> Answer {
    let path = env::var_os("PATH").unwrap_or_default();
    let usual = ["/usr/bin", "/usr/sbin", "/usr/local/bin"].map(PathBuf::from);
    match env::split_paths(&path)
        .chain(usual)
        .any(|dir| dir.join(name).is_file())
    {
        true => Answer::Yes,
        false => Answer::No(format!("{name} is not installed")),
    }
}

/// Probes for tracing of kernel functions at their entry and return (kprobes).
pub fn kprobes() -> Answer {
    // The kernel registers this event source only when it was built with kprobes.
    match Path::new("/sys/bus/event_source/devices/kprobe/type").exists() {
        true => Answer::Yes,
        false => Answer::No("the kernel has no kprobe event source".to_owned()),
    }
}

struct Mount {
    kind: String,
    at: PathBuf,
    options: String,
}

impl Mount {
    fn has_option(&self, name: &str) -> bool {
        self.options.split(',').any(|o| o == name)
    }
}

/// Parses /proc/self/mounts: device, mount point, type, options (proc(5)).
fn mounts() -> Vec<Mount> {
    let text = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    text.lines()
        .filter_map(|line| {
            let mut fields = line.split(' ').skip(1);
            Some(Mount {
                at: fields.next()?.into(),
                kind: fields.next()?.to_owned(),
                options: fields.next()?.to_owned(),
            })
        })
        .collect()
}
