//! A guest: Debian's kernel in QEMU, with a shell on a serial line.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use taut_sys::child::Child;
use taut_sys_testing::skip;

use crate::snoop_guests::monitor::Monitor;
use crate::snoop_guests::world::{GUEST, GUEST_MAC, World};
use crate::snoop_guests::{PATIENCE, wait_until};

/// Which of the kernels that `scripts/on-kernel` downloads.
const KERNEL: &str = "6.12";

/// What the guest starts with. Commands come on its second serial line; each is answered by what it prints and
/// a line with its exit status. The shell that reads them is not process 1, which orphans belong to: a child's
/// end interrupts `read`, and busybox then drops what it has read of the line.
const INIT: &str = "#!/bin/sh
export PATH=/usr/sbin:/usr/bin:/busybox HOME=/root
/bin/busybox mkdir /busybox
/bin/busybox --install -s /busybox
mount -t devtmpfs dev /dev
exec </dev/null >/dev/console 2>&1
mount -t proc proc /proc
mount -t sysfs sys /sys
modprobe virtio_pci
modprobe virtio_net
echo '4096 1048576 6291456' >/proc/sys/net/ipv4/tcp_rmem
mkfifo /tmp/idle
(
    exec 3<>/dev/ttyS1
    stty raw -echo <&3
    echo '= 0' >&3
    while read -r line <&3; do
        eval \"$line\" >&3 2>&3
        echo \"= $?\" >&3
    done
) &
while :; do sleep 3600; done
";

/// How a machine starts.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Start {
    /// It boots.
    Boot,
    /// It boots, and the host's kernel carries its frames (vhost-net).
    BootVhost,
    /// It waits for a machine that migrates to it.
    Incoming,
}

pub(crate) struct Machine {
    child: Child,
    dir: PathBuf,
    pub(crate) monitor: Monitor,
    console: BufReader<UnixStream>,
}

// === impl Machine ===

impl Machine {
    /// A machine whose network device is at this tap. Waits until its shell answers, or its monitor if it waits for
    /// a migration.
    pub(crate) fn start(world: &World, tap: &str, start: Start) -> Self {
        let dir = world.dir.path().join(tap);
        fs::create_dir(&dir).unwrap();
        let vhost = match start {
            Start::BootVhost => "on,vhostforce=on",
            Start::Boot | Start::Incoming => "off",
        };
        let mut command = Command::new("qemu-system-x86_64");
        command
            .args("-nodefaults -no-user-config -display none -smp 1 -m 256".split(' '))
            // With others QEMU 7.2 spoils the flags in cmpxchg16b, and Linux 6.12 dies of that: see scripts/on-kernel.
            .args("-accel tcg -cpu Skylake-Client-v4,-cx16".split(' '))
            .arg("-kernel")
            .arg(kernel())
            .arg("-initrd")
            .arg(initrd(world))
            .arg("-append")
            .arg("console=ttyS0 oops=panic panic=-1 mitigations=off tsc=reliable nowatchdog quiet")
            .arg("-serial")
            .arg(format!("file:{}", dir.join("log").display()))
            .arg("-serial")
            .arg(listening(&dir.join("console")))
            .arg("-qmp")
            .arg(listening(&dir.join("monitor")))
            .arg("-qmp")
            .arg(listening(&qmp(world, tap)))
            .arg("-netdev")
            .arg(format!(
                "tap,id=net,ifname={tap},script=no,downscript=no,vhost={vhost}"
            ))
            .arg("-device")
            // With event_idx one interrupt that QEMU loses is the last: see scripts/on-kernel.
            .arg(format!(
                "virtio-net-pci,id=nic,netdev=net,mac={GUEST_MAC},event_idx=off,romfile="
            ))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(fs::File::create(dir.join("errors")).unwrap());
        if start == Start::Incoming {
            command
                .arg("-incoming")
                .arg(format!("unix:{}", dir.join("incoming").display()));
        }
        let child = Child::spawn(world.host.clone(), command).unwrap();
        let console = wait_until("the guest's console", || {
            UnixStream::connect(dir.join("console")).ok()
        });
        console.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut machine = Self {
            child,
            monitor: Monitor::connect(&dir.join("monitor")),
            dir,
            console: BufReader::new(console),
        };
        if start != Start::Incoming {
            machine.boots();
        }
        machine
    }

    /// Waits until the guest's shell answers.
    pub(crate) fn boots(&mut self) {
        assert_eq!(self.answer(), (String::new(), 0));
        self.configure_network();
    }

    /// Gives the network device the guest's address.
    pub(crate) fn configure_network(&mut self) {
        self.run("ip link set lo up; ip link set eth0 up");
        self.run(&format!("ip addr add {GUEST}/24 dev eth0"));
    }

    /// Runs a line of shell in the guest, which has to succeed, and returns what it prints.
    pub(crate) fn run(&mut self, line: &str) -> String {
        writeln!(self.console.get_mut(), "{line}").unwrap();
        let (said, status) = self.answer();
        assert_eq!(status, 0, "in the guest, {line}: {said}");
        said
    }

    /// Starts a receiver of one connection. An earlier one at this port has ended.
    pub(crate) fn receive(&mut self, port: u16) {
        // With an input that never ends, because at its end `nc` would send a FIN. The digest's file has its name when
        // it is whole.
        let digest = format!("/tmp/{port}");
        self.run(&format!("rm -f {digest}"));
        self.run(&format!(
            "( (nc -l -p {port} <>/tmp/idle | sha256sum >{digest}.part; mv {digest}.part {digest}) & )"
        ));
        self.run(&format!("until netstat -tln | grep -q :{port}; do :; done"));
    }

    /// The digest of what was received at this port, when the sender has ended.
    pub(crate) fn received(&mut self, port: u16) -> String {
        self.run(&format!("until [ -e /tmp/{port} ]; do :; done"));
        let digest = self.run(&format!("cat /tmp/{port}"));
        digest.split(' ').next().unwrap_or_default().to_owned()
    }

    /// A counter of TCP's in the guest (`nstat`).
    pub(crate) fn counter(&mut self, name: &str) -> u64 {
        let counters = self.run("grep ^TcpExt: /proc/net/netstat");
        let (names, values) = counters.split_once('\n').unwrap();
        let mut counters = names.split(' ').zip(values.split(' '));
        let (_, value) = counters.find(|(counter, _)| *counter == name).unwrap();
        value.trim().parse().unwrap()
    }

    /// Where another machine migrates to.
    pub(crate) fn incoming(&self) -> String {
        format!("unix:{}", self.dir.join("incoming").display())
    }

    /// Ends QEMU as a crash would.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
    }

    fn answer(&mut self) -> (String, u32) {
        let mut said = String::new();
        loop {
            let mut line = String::new();
            let read = self.console.read_line(&mut line).unwrap();
            assert!(read > 0, "the guest is gone; it has said: {said}");
            match line.strip_prefix("= ") {
                Some(status) => return (said, status.trim().parse().unwrap()),
                None => said.push_str(&line),
            }
        }
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for name in ["log", "errors"] {
                let text = fs::read_to_string(self.dir.join(name)).unwrap_or_default();
                let lines: Vec<_> = text.lines().collect();
                let end = &lines[lines.len().saturating_sub(20)..];
                eprintln!("{}/{name}:\n{}", self.dir.display(), end.join("\n"));
            }
        }
    }
}

/// Where `taut snoop` finds the monitor of the guest at this tap.
pub(crate) fn qmp(world: &World, tap: &str) -> PathBuf {
    world.dir.path().join(format!("{tap}.qmp"))
}

fn listening(path: &Path) -> String {
    format!("unix:{},server=on,wait=off", path.display())
}

/// Returns whether guests can run here. Otherwise reports the test as skipped.
pub(crate) fn can_run() -> bool {
    if !skip::has_programs(&["qemu-system-x86_64", "cpio"]) {
        return false;
    }
    let folder = kernels();
    let is_there = folder.join("base-with-virtio.cpio").is_file();
    if !is_there {
        let folder = folder.display();
        skip::skip(&format!(
            "no kernel for guests in {folder}; `make guests` downloads it"
        ));
    }
    is_there
}

/// Returns where `scripts/on-kernel` puts the kernel.
fn kernels() -> PathBuf {
    let top = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let kernels = std::env::var_os("TAUT_LAB_KERNELS").map_or_else(
        || {
            let target = std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
            Path::new(top).join(target).join("kernels")
        },
        PathBuf::from,
    );
    kernels.join(KERNEL)
}

fn kernel() -> PathBuf {
    let boot = fs::read_dir(kernels().join("boot")).unwrap();
    let mut files = boot.map(|entry| entry.unwrap().path());
    let image = files.find(|path| path.to_string_lossy().contains("vmlinuz-"));
    image.unwrap()
}

/// The base of all guests, and on top of it an `init`.
fn initrd(world: &World) -> PathBuf {
    let initrd = world.dir.path().join("initrd");
    if initrd.exists() {
        return initrd;
    }
    let root = world.dir.path().join("root");
    fs::create_dir(&root).unwrap();
    fs::write(root.join("init"), INIT).unwrap();
    fs::set_permissions(root.join("init"), fs::Permissions::from_mode(0o755)).unwrap();
    let mut cpio = Command::new("cpio")
        .args("--create --format=newc --owner=0:0 --quiet".split(' '))
        .current_dir(&root)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    writeln!(cpio.stdin.take().unwrap(), "init").unwrap();
    let packed = cpio.wait_with_output().unwrap();
    assert!(packed.status.success());
    let mut whole = fs::read(kernels().join("base-with-virtio.cpio")).unwrap();
    whole.extend(packed.stdout);
    fs::write(&initrd, whole).unwrap();
    initrd
}
