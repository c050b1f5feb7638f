//! A guest with one of Debian's kernels, emulated by QEMU, on a tap. It is for experiments that
//! need a kernel in common use, or a kernel that supports modules and BPF.
//!
//! The guest has one processor. Its thread can be kept off its core while the devices' thread runs
//! elsewhere, as on a hypervisor that gives its network separate cores.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_setaffinity};

use super::guest::Guest;
use super::uml::Booting;
use crate::peer::program::Program;
use taut_netlab::world::Host;

/// The file that the initial file system of every guest with this kernel is based on.
const BASE: &str = "base-with-virtio.cpio";
/// The file name of the build of `crates/guest/kmod`; it is in the kernel's folder.
const MODULE: &str = "taut_pvtcp.ko";
/// The emulator.
pub(in crate::experiment) const EMULATOR: Program = Program {
    name: "qemu-system-x86_64",
    version: "--version",
    package: "qemu-system-x86",
};
/// The name of the guest's network device.
pub(in crate::experiment) const DEVICE: &str = "eth0";
/// The default folder of kernels.
const KERNELS: &str = "target/kernels";
/// The environment variable that names another folder.
const KERNELS_VAR: &str = "TAUT_LAB_KERNELS";
/// The guest's memory, in MiB. The RAM file system, which holds `taut` and `taut-lab`, uses some of
/// it.
const MEMORY_MIB: u32 = 1024;
/// The CPU model. QEMU 7.2 corrupts the flags when a single processor executes `cmpxchg16b`, which
/// crashes Linux 6.12 in its allocator, so the model does not report that instruction.
const PROCESSOR_MODEL: &str = "Skylake-Client-v4,-cx16";
/// The name that QEMU gives the first processor's thread.
const PROCESSOR: &str = "CPU 0/TCG";
/// The kernel modules that every guest loads.
const MODULES: [&str; 1] = ["virtio_net"];

/// A kernel for guests, downloaded by `scripts/on-kernel`.
#[derive(Clone, Debug)]
pub(in crate::experiment) struct Kernel {
    folder: PathBuf,
}

/// The additions to a guest's file system.
pub(in crate::experiment) struct Files {
    /// Programs and files, placed at the same paths as on the host. A program's libraries are
    /// included.
    pub(in crate::experiment) with: Vec<PathBuf>,
    /// Kernel modules besides those for the network.
    pub(in crate::experiment) modules: Vec<&'static str>,
}

// === impl Kernel ===

impl Kernel {
    /// Returns the kernel of this name, such as `6.12`.
    ///
    /// # Errors
    /// If the kernel was not downloaded.
    pub(in crate::experiment) fn find(name: &str) -> io::Result<Self> {
        let kernels = std::env::var_os(KERNELS_VAR).unwrap_or_else(|| KERNELS.into());
        let folder = fs::canonicalize(&kernels)
            .unwrap_or_else(|_| kernels.into())
            .join(name);
        match folder.join(BASE).is_file() {
            true => Ok(Self { folder }),
            false => Err(io::Error::other(format!(
                "there is no Linux {name} for guests in {}; download it with\n\n    scripts/on-kernel {name}\n\n({KERNELS_VAR} names another folder)",
                folder.display()
            ))),
        }
    }

    /// Returns its release, such as `6.12.57+deb12-cloud-amd64`.
    pub(in crate::experiment) fn release(&self) -> io::Result<String> {
        let image = self.image()?;
        let name = image.file_name().and_then(|name| name.to_str());
        Ok(name
            .unwrap_or_default()
            .trim_start_matches("vmlinuz-")
            .to_owned())
    }

    /// Returns the module that `scripts/guest-module` has built for this kernel.
    ///
    /// # Errors
    /// If the module was not built.
    pub(in crate::experiment) fn module(&self) -> io::Result<PathBuf> {
        let module = self.folder.join(MODULE);
        match module.is_file() {
            true => Ok(module),
            false => Err(io::Error::other(format!(
                "there is no {}; build it with\n\n    scripts/guest-module KERNEL",
                module.display()
            ))),
        }
    }

    fn image(&self) -> io::Result<PathBuf> {
        let found = fs::read_dir(self.folder.join("boot"))?
            .flatten()
            .map(|entry| entry.path())
            .find(|path| {
                let name = path.file_name().and_then(|name| name.to_str());
                name.is_some_and(|name| name.starts_with("vmlinuz-"))
            });
        found.ok_or_else(|| io::Error::other(format!("{} has no kernel", self.folder.display())))
    }

    /// Writes the initial file system: the base of all guests, and this guest's additions.
    fn initrd(&self, guest: &Guest, taut: &Path, files: &Files, dir: &Path) -> io::Result<PathBuf> {
        let root = dir.join("root");
        fs::create_dir_all(root.join("mnt"))?;
        let lab = std::env::current_exe()?;
        for path in files.with.iter().map(PathBuf::as_path).chain([taut, &lab]) {
            place(path, &root)?;
        }
        let modules: String = MODULES
            .iter()
            .chain(&files.modules)
            .map(|module| {
                format!("modprobe {module} || echo 'taut: this kernel has no module {module}'\n")
            })
            .collect();
        let args: Vec<String> = guest.to_args();
        let init = root.join("init");
        // `taut-lab guest` mounts the other file systems, as in a guest of User Mode Linux.
        fs::write(
            &init,
            format!(
                "#!/bin/sh\nexport PATH=/usr/sbin:/usr/bin:/busybox HOME=/root\n\
                 /bin/busybox mkdir /busybox\n/bin/busybox --install -s /busybox\n\
                 mount -t devtmpfs dev /dev\nexec </dev/null >/dev/console 2>&1\n\
                 mount -t proc proc /proc\nmount -t sysfs sys /sys\nmount -t bpf bpf /sys/fs/bpf\n\
                 mount -t cgroup2 cgroup /sys/fs/cgroup\nmount -t tmpfs run /run\n{modules}\
                 umount /proc\nexec {} guest {}\n",
                lab.display(),
                args.join(" ")
            ),
        )?;
        fs::set_permissions(&init, fs::Permissions::from_mode(0o755))?;
        let initrd = dir.join("initrd");
        let mut out = File::create(&initrd)?;
        io::copy(&mut File::open(self.folder.join(BASE))?, &mut out)?;
        pack(&root, &mut out)?;
        Ok(initrd)
    }
}

/// Copies a file, and a program's libraries, to the same paths in the guest.
fn place(path: &Path, root: &Path) -> io::Result<()> {
    let path = fs::canonicalize(path)?;
    copy(&path, root)?;
    let told = Command::new("ldd").arg(&path).output()?;
    for line in String::from_utf8_lossy(&told.stdout).lines() {
        let words = line.split_whitespace();
        let library = { words }.find(|word| word.starts_with('/'));
        if let Some(library) = library {
            copy(Path::new(library), root)?;
        }
    }
    Ok(())
}

fn copy(path: &Path, root: &Path) -> io::Result<()> {
    // The guest has the host's links to folders too (/lib to /usr/lib), so files go below their
    // real folder.
    let at = match (path.parent(), path.file_name()) {
        (Some(parent), Some(name)) => fs::canonicalize(parent)?.join(name),
        _ => path.to_owned(),
    };
    let to = root.join(at.strip_prefix("/").unwrap_or(&at));
    if to.exists() {
        return Ok(());
    }
    if let Some(parent) = to.parent() {
        fs::create_dir_all(parent)?;
    }
    fs::copy(path, &to)?;
    // Debug information would take most of the guest's memory. `strip` fails for files that are not
    // programs.
    let _ = Command::new("strip")
        .arg("--strip-debug")
        .arg(&to)
        .stderr(Stdio::null())
        .status();
    Ok(())
}

/// Packs a folder into the archive format (cpio) that the kernel unpacks at boot.
fn pack(root: &Path, out: &mut File) -> io::Result<()> {
    let mut cpio = Command::new("cpio")
        .args(["--create", "--format=newc", "--owner=0:0", "--quiet"])
        .current_dir(root)
        .stdin(Stdio::piped())
        .stdout(out.try_clone()?)
        .spawn()
        .map_err(|e| io::Error::other(format!("cpio: {e} (Debian package cpio)")))?;
    let mut names = Vec::new();
    list(root, Path::new("."), &mut names)?;
    if let Some(mut stdin) = cpio.stdin.take() {
        for name in names {
            writeln!(stdin, "{}", name.display())?;
        }
    }
    match cpio.wait()?.success() {
        true => Ok(()),
        false => Err(io::Error::other("cpio could not pack the guest's files")),
    }
}

/// Lists folders before their contents.
fn list(root: &Path, folder: &Path, names: &mut Vec<PathBuf>) -> io::Result<()> {
    names.push(folder.to_owned());
    for entry in fs::read_dir(root.join(folder))? {
        let entry = entry?;
        let name = folder.join(entry.file_name());
        match entry.file_type()?.is_dir() {
            true => list(root, &name, names)?,
            false => names.push(name),
        }
    }
    Ok(())
}

/// Starts a guest on `tap` of `host`.
pub(in crate::experiment) fn start(
    kernel: &Kernel,
    host: &Host,
    taut: &Path,
    tap: &str,
    guest: Guest,
    files: &Files,
    dir: &Path,
) -> io::Result<Booting> {
    let initrd = kernel.initrd(&guest, taut, files, dir)?;
    let log = dir.join(format!("{tap}.log"));
    let mac = guest.mac.map(|byte| format!("{byte:02x}")).join(":");
    let mut command = EMULATOR.command();
    command
        .args([
            "-nodefaults",
            "-no-user-config",
            "-display",
            "none",
            "-no-reboot",
        ])
        .args(["-accel", "tcg", "-cpu", PROCESSOR_MODEL, "-smp", "1"])
        .args(["-m", &MEMORY_MIB.to_string()])
        .args(["-name", "guest,debug-threads=on"])
        .arg("-kernel")
        .arg(kernel.image()?)
        .arg("-initrd")
        .arg(&initrd)
        // Stopping the processor for tens of milliseconds confuses the clock watchdog. (A
        // hypervisor's guest has the hypervisor's clock, which is not watched.)
        .args([
            "-append",
            "console=ttyS0 oops=panic panic=-1 mitigations=off tsc=reliable nowatchdog quiet",
        ])
        .arg("-serial")
        .arg(format!("file:{}", log.display()))
        .arg("-netdev")
        .arg(format!(
            "tap,id=net,ifname={tap},script=no,downscript=no,vhost=off"
        ))
        .arg("-device")
        // With event_idx one interrupt that QEMU loses is the last: see scripts/on-kernel.
        .arg(format!("virtio-net-pci,netdev=net,mac={mac},event_idx=off"));
    command
        .current_dir(dir)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(File::create(dir.join(format!("{tap}.err")))?);
    let child = host.spawn(command)?;
    Ok(Booting::of(child, guest, log))
}

/// Pins the guest's processor to one core; its devices stay where they are.
pub(in crate::experiment) fn pin_processor(process: u32, core: usize) -> io::Result<()> {
    for task in fs::read_dir(format!("/proc/{process}/task"))? {
        let task = task?;
        let name = fs::read_to_string(task.path().join("comm")).unwrap_or_default();
        let id = task.file_name().to_str().and_then(|id| id.parse().ok());
        if name.trim() == PROCESSOR
            && let Some(id) = id.and_then(Pid::from_raw)
        {
            let mut set = CpuSet::new();
            set.set(core);
            return Ok(sched_setaffinity(Some(id), &set)?);
        }
    }
    Err(io::Error::other(
        "QEMU has no thread of the guest's processor",
    ))
}
