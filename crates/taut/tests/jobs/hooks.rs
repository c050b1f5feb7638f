//! The hook scripts in packaging/hooks, with stubs for the programs that they call.

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// A guest's XML as libvirt passes it to hooks, shortened.
const XML: &str = "<domain type='kvm' id='7'>
  <name>web</name>
  <devices>
    <disk type='file' device='disk'>
      <target dev='vda' bus='virtio'/>
    </disk>
    <interface type='bridge'>
      <mac address='52:54:00:6b:3c:58'/>
      <source bridge='br0'/>
      <target dev='tap-web' managed='no'/>
      <model type='virtio'/>
    </interface>
    <interface type='network'>
      <target dev='vnet3'/>
    </interface>
    <channel type='unix'>
      <target type='virtio' name='org.qemu.guest_agent.0' state='connected'/>
    </channel>
  </devices>
</domain>
";

/// A directory with stub programs, which log their calls.
struct Stubs(tempfile::TempDir);

impl Stubs {
    fn new() -> Self {
        let stubs = Self(tempfile::tempdir().unwrap());
        stubs.add("taut", "exit 0");
        stubs
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.0.path().join(name)
    }

    /// Adds a stub `name` that logs its name and arguments and then runs `body`.
    fn add(&self, name: &str, body: &str) {
        let calls = self.path("calls");
        let text = format!(
            "#!/bin/bash\necho {name} \"$@\" >>{}\n{body}\n",
            calls.display()
        );
        let bin = self.path("bin");
        fs::create_dir_all(&bin).unwrap();
        // Another process writes it. A process that another test starts meanwhile inherits descriptors
        // of this one, and while it had one that writes the stub, the stub could not be executed (ETXTBSY).
        let write = "printf %s \"$1\" >\"$0\" && chmod 755 \"$0\"";
        let written = Command::new("sh")
            .args(["-c", write])
            .arg(bin.join(name))
            .arg(text)
            .status();
        assert!(written.unwrap().success());
    }

    fn script(&self, hook: &str, args: &[&str]) -> Command {
        let hooks = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/hooks");
        let mut command = Command::new(hooks.join(hook));
        let path = format!("{}:/usr/bin:/bin", self.path("bin").display());
        command.args(args).env("PATH", path);
        command.env("TAUT_SYS_CLASS_NET", self.path("net"));
        command.env_remove("TAUT_DRAIN_WAIT");
        command
    }

    fn run(&self, hook: &str, args: &[&str]) -> Output {
        let mut command = self.script(hook, args);
        command.stdin(Stdio::null()).output().unwrap()
    }

    /// Returns the calls since the last call of this function.
    fn calls(&self) -> Vec<String> {
        let text = fs::read_to_string(self.path("calls")).unwrap_or_default();
        let _ = fs::remove_file(self.path("calls"));
        text.lines().map(str::to_owned).collect()
    }
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Runs the hook as libvirt does, with the guest's XML on standard input.
fn libvirt(stubs: &Stubs, args: &[&str]) -> Output {
    let mut command = stubs.script("libvirt/qemu", args);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(XML.as_bytes()).unwrap();
    drop(stdin);
    child.wait_with_output().unwrap()
}

#[test]
fn the_libvirt_hook_turns_taps_on_and_off_with_their_guest() {
    let stubs = Stubs::new();
    assert!(
        libvirt(&stubs, &["web", "started", "begin", "-"])
            .status
            .success()
    );
    assert_eq!(
        stubs.calls(),
        ["taut snoop --on tap-web", "taut snoop --on vnet3"]
    );
    assert!(
        libvirt(&stubs, &["web", "stopped", "end", "-"])
            .status
            .success()
    );
    assert_eq!(
        stubs.calls(),
        [
            "taut snoop --off tap-web --wait 1",
            "taut snoop --off vnet3 --wait 1"
        ]
    );
}

#[test]
fn the_libvirt_hook_ignores_other_operations_and_never_fails() {
    let stubs = Stubs::new();
    stubs.add("taut", "exit 1");
    for args in [
        ["web", "prepare", "begin", "-"],
        ["web", "start", "begin", "-"],
        ["web", "migrate", "begin", "-"],
        ["web", "restore", "begin", "-"],
        ["web", "reconnect", "begin", "-"],
        ["web", "attach", "begin", "-"],
        ["web", "release", "end", "migrated"],
        ["web", "started", "begin", "-"],
        ["web", "stopped", "end", "-"],
    ] {
        let output = libvirt(&stubs, &args);
        // A failure would cancel libvirt's operation, and libvirt would read output as the guest's new XML.
        assert!(output.status.success(), "{args:?}");
        assert!(output.stdout.is_empty(), "{args:?}");
        let calls = stubs.calls();
        let acts = ["started", "stopped"].contains(&args[1]);
        assert_eq!(calls.is_empty(), !acts, "{args:?}: {calls:?}");
    }
}

#[test]
fn the_proxmox_hook_drains_before_a_stop_and_turns_on_after_a_start() {
    let stubs = Stubs::new();
    for tap in ["tap100i0", "tap100i1", "tap1000i0", "tap10i0"] {
        fs::create_dir_all(stubs.path("net").join(tap)).unwrap();
    }
    for phase in ["pre-start", "post-stop"] {
        assert!(
            stubs
                .run("proxmox/hookscript", &["100", phase])
                .status
                .success()
        );
        assert!(stubs.calls().is_empty(), "{phase}");
    }
    assert!(
        stubs
            .run("proxmox/hookscript", &["100", "post-start"])
            .status
            .success()
    );
    assert_eq!(
        stubs.calls(),
        ["taut snoop --on tap100i0", "taut snoop --on tap100i1"]
    );
    stubs.add("taut", "exit 1");
    let output = stubs.run("proxmox/hookscript", &["100", "pre-stop"]);
    assert!(output.status.success(), "the guest must stop anyway");
    assert!(said(&output).contains("tap100i0: taut snoop --off failed"));
    assert_eq!(
        stubs.calls(),
        [
            "taut snoop --off tap100i0 --wait 10",
            "taut snoop --off tap100i1 --wait 10"
        ]
    );
    let output = stubs.run("proxmox/hookscript", &["*", "pre-stop"]);
    assert!(!output.status.success() && said(&output).contains("is not a VMID"));
}

/// The output of `taut snoop status` for three taps.
const STATUS: &str = "case $2 in status) printf '%s\\n' 'vnet3: on, ring of 1000, lost 0' '  to guest: acked 7' \
                      'tap100i0: on, ring of 1000' 'tap100i1: off, ring of 1000';; esac";

#[test]
fn a_command_runs_while_its_taps_are_drained() {
    let stubs = Stubs::new();
    stubs.add("taut", STATUS);
    stubs.add("virsh", "exit 3");
    let args = [
        "vnet3",
        "--",
        "virsh",
        "migrate",
        "--live",
        "a guest",
        "qemu+ssh://b/system",
    ];
    let output = stubs.run("drained", &args);
    assert_eq!(output.status.code(), Some(3), "{}", said(&output));
    assert_eq!(
        stubs.calls(),
        [
            "taut snoop status",
            "taut snoop --off vnet3 --wait 60",
            "virsh migrate --live a guest qemu+ssh://b/system",
            "taut snoop --on vnet3",
        ]
    );

    stubs.add("qm", "");
    let output = stubs.run(
        "drained",
        &["tap100i*", "eth*", "--", "qm", "suspend", "100"],
    );
    assert!(output.status.success());
    assert_eq!(
        stubs.calls(),
        [
            "taut snoop status",
            "taut snoop --off tap100i0 --wait 60",
            "taut snoop --off tap100i1 --wait 60",
            "qm suspend 100",
            // The other tap was off before.
            "taut snoop --on tap100i0",
        ]
    );
}

#[test]
fn a_command_does_not_run_if_a_tap_is_not_drained() {
    let stubs = Stubs::new();
    stubs.add("taut", &format!("{STATUS}; [[ $2 != --off ]]"));
    stubs.add("virsh", "");
    let output = stubs.run("drained", &["vnet3", "--", "virsh", "suspend", "web"]);
    assert_eq!(output.status.code(), Some(125));
    assert!(
        said(&output).contains("vnet3 is not drained"),
        "{}",
        said(&output)
    );
    assert_eq!(
        stubs.calls(),
        [
            "taut snoop status",
            "taut snoop --off vnet3 --wait 60",
            "taut snoop --on vnet3"
        ]
    );
    for args in [&["vnet3"][..], &["--", "virsh"], &["vnet3", "--"]] {
        assert_eq!(
            stubs.run("drained", args).status.code(),
            Some(125),
            "{args:?}"
        );
    }
}

#[test]
fn a_command_runs_if_snoop_is_not_running() {
    let stubs = Stubs::new();
    stubs.add("taut", "exit 1");
    stubs.add("virsh", "");
    let output = stubs.run("drained", &["vnet3", "--", "virsh", "suspend", "web"]);
    assert!(output.status.success(), "{}", said(&output));
    assert_eq!(stubs.calls(), ["taut snoop status", "virsh suspend web"]);
}

const SNAPSHOT: [&str; 10] = [
    "--api",
    "/run/fc.sock",
    "--tap",
    "tap0",
    "--tap",
    "tap1",
    "--state",
    "/srv/state",
    "--memory",
    "/srv/memory",
];

fn request(method: &str, path: &str, body: &str) -> String {
    format!(
        "curl --silent --show-error --fail-with-body --unix-socket /run/fc.sock -X {method} http://localhost{path} \
         -H Content-Type: application/json -d {body}"
    )
}

#[test]
fn a_snapshot_drains_and_pauses_the_microvm_first() {
    let stubs = Stubs::new();
    stubs.add("curl", "");
    let output = stubs.run("firecracker/snapshot", &SNAPSHOT);
    assert!(output.status.success(), "{}", said(&output));
    let whole = [
        "taut snoop --off tap0 --wait 60".to_owned(),
        "taut snoop --off tap1 --wait 60".to_owned(),
        request("PATCH", "/vm", r#"{"state": "Paused"}"#),
        request(
            "PUT",
            "/snapshot/create",
            r#"{"snapshot_type": "Full", "snapshot_path": "/srv/state", "mem_file_path": "/srv/memory"}"#,
        ),
        request("PATCH", "/vm", r#"{"state": "Resumed"}"#),
        "taut snoop --on tap0".to_owned(),
        "taut snoop --on tap1".to_owned(),
    ];
    assert_eq!(stubs.calls(), whole);

    let args = [&SNAPSHOT[..], &["--stay-paused"]].concat();
    assert!(stubs.run("firecracker/snapshot", &args).status.success());
    assert_eq!(stubs.calls(), whole[..4]);
}

#[test]
fn a_failed_snapshot_resumes_the_microvm_and_its_taps() {
    let stubs = Stubs::new();
    stubs.add(
        "curl",
        "[[ $* != */snapshot/create* ]] || { echo 'no space'; exit 22; }",
    );
    let output = stubs.run("firecracker/snapshot", &SNAPSHOT);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        said(&output).contains("refuses PUT /snapshot/create: no space"),
        "{}",
        said(&output)
    );
    let calls = stubs.calls();
    let end = [
        request("PATCH", "/vm", r#"{"state": "Resumed"}"#),
        "taut snoop --on tap0".to_owned(),
        "taut snoop --on tap1".to_owned(),
    ];
    assert_eq!(calls[calls.len() - 3..], end);

    stubs.add("taut", "[[ $* != *--off?tap1* ]]");
    let output = stubs.run("firecracker/snapshot", &SNAPSHOT);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        said(&output).contains("tap1 is not drained"),
        "{}",
        said(&output)
    );
    let calls = stubs.calls();
    assert!(
        calls.iter().all(|call| call.starts_with("taut")),
        "{calls:?}"
    );
    assert_eq!(calls[2..], ["taut snoop --on tap0", "taut snoop --on tap1"]);

    for args in [&["--api", "/run/fc.sock"][..], &["--state"], &["--what"]] {
        let output = stubs.run("firecracker/snapshot", args);
        assert_eq!(output.status.code(), Some(1), "{args:?}");
    }
}
