//! Processes and guests: pidfds, cgroups, virtual machines, kprobes.

use std::fs::{self, File};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::{env, io};

use rustix::process::{PidfdFlags, getpid, pidfd_open};

use super::Answer;

/// A descriptor that stands for a process, and is never another's when the number is used again.
pub fn pidfd() -> Answer {
    Answer::of(pidfd_open(getpid(), PidfdFlags::empty()).map_err(io::Error::from))
}

/// The cgroup v2 hierarchy is mounted.
pub fn cgroup_v2() -> Answer {
    match mounts().iter().any(|m| m.kind == "cgroup2") {
        true => Answer::Yes,
        false => Answer::No("no cgroup2 file system is mounted".to_owned()),
    }
}

/// Groups of processes can be stopped as one, by either version of cgroups.
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
    // The root of the hierarchy cannot be frozen and has no such file; every other group has.
    let groups = fs::read_dir(&root.at).into_iter().flatten().flatten();
    let mut groups = groups.map(|g| g.path()).filter(|g| g.is_dir()).peekable();
    if groups.peek().is_none() {
        return Answer::Unknown("there is no cgroup to look at, and none is made".to_owned());
    }
    match groups.any(|g| g.join("cgroup.freeze").exists()) {
        true => Answer::Yes,
        false => Answer::No("no cgroup has cgroup.freeze".to_owned()),
    }
}

/// Hardware virtualisation: a virtual machine with a processor can be made. It is closed at once.
///
/// Under another hypervisor `/dev/kvm` may be there and a machine be made, yet not a processor.
pub fn kvm() -> Answer {
    /// linux/kvm.h: `_IO(0xAE, 0x01)` and `_IO(0xAE, 0x41)`. Both take a number, the type of
    /// machine and the number of the processor, and return a descriptor.
    const KVM_CREATE_VM: libc::Ioctl = 0xAE01;
    const KVM_CREATE_VCPU: libc::Ioctl = 0xAE41;
    let make = |on: BorrowedFd<'_>, request| -> io::Result<OwnedFd> {
        // SAFETY: `on` is open, and neither request reads or writes memory of ours.
        let fd = unsafe { libc::ioctl(on.as_raw_fd(), request, 0 as libc::c_ulong) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the call has just made this descriptor and nobody else owns it.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    };
    let made = || {
        let kvm = File::options().read(true).write(true).open("/dev/kvm")?;
        let machine = make(kvm.as_fd(), KVM_CREATE_VM)?;
        make(machine.as_fd(), KVM_CREATE_VCPU)
    };
    match Answer::of(made()).about("/dev/kvm") {
        // KVM in software (kvm_pvm) goes this far too, and then fails to boot ordinary kernels.
        Answer::Yes if !processor_virtualises() => Answer::Unknown(
            "a machine can be made, but without vmx or svm it may not boot a guest".to_owned(),
        ),
        answer => answer,
    }
}

/// Whether the processor says that it has hardware support. Only x86 says so.
fn processor_virtualises() -> bool {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let mut flags = text.lines().filter(|l| l.starts_with("flags"));
    !cfg!(target_arch = "x86_64")
        || flags.any(|l| l.split_whitespace().any(|f| f == "vmx" || f == "svm"))
}

/// A program of this name is in `PATH`, or where administrators' programs are.
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

/// Kernel functions can be traced at their entry and return.
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

/// proc_mounts(5): device, place, kind, options.
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
