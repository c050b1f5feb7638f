//! What a relay may do while it runs, by its configuration.

use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Component, Path, PathBuf};

use taut_relay::config::{Config, Forward, Handover, MeshConfig};
use taut_relay::net::addr::Listen;
use taut_relay::session_log::Target;
use taut_sys::privileges::{Capability, Unprivileged};
use taut_sys::sandbox::{Calls, Files, Sandbox};

use crate::confine::{folder_of, make_folder_of};

/// The places of programs.
const PROGRAMS: [&str; 6] = ["/usr", "/bin", "/sbin", "/lib", "/lib64", "/nix/store"];

/// Directories that hold files of many programs. A relay may write to none as a whole.
const SHARED: [&str; 14] = [
    "/",
    "/home",
    "/mnt",
    "/opt",
    "/root",
    "/run",
    "/run/taut",
    "/srv",
    "/tmp",
    "/var",
    "/var/cache",
    "/var/lib",
    "/var/log",
    "/var/tmp",
];

/// Directories in which other programs look for what they run or obey, at every depth. A relay may write
/// below them only in a directory that is Taut's by its name.
const OF_THE_SYSTEM: [&str; 9] = [
    "/bin",
    "/boot",
    "/etc",
    "/lib",
    "/lib64",
    "/nix/store",
    "/sbin",
    "/usr",
    "/var/spool",
];

/// Pseudo file systems.
const OF_THE_KERNEL: [&str; 3] = ["/dev", "/proc", "/sys"];

/// The user of a relay.
#[derive(Debug)]
pub(super) enum User {
    /// The one that started it, who is not root, or the one in the configuration.
    AsConfigured,
    /// One without rights, because the relay needs nothing of root's.
    Unprivileged(Unprivileged),
    /// Root, for this reason.
    Root(&'static str),
}

impl User {
    /// Returns the user of a relay that reads `file` at each reload.
    pub(super) fn of(config: &Config, file: Option<&Path>) -> Self {
        if config.user.is_some() || !taut_sys::probe::is_root() {
            return Self::AsConfigured;
        }
        if let Some(reason) = needs_root(config) {
            return Self::Root(reason);
        }
        match Unprivileged::choose() {
            None => Self::Root("it may not switch to another user (CAP_SETUID, CAP_SETGID)"),
            Some(user) if file.is_some_and(|file| !user.can_read(file)) => {
                Self::Root("others than root cannot read its configuration, which a reload reads")
            }
            Some(user) => Self::Unprivileged(user),
        }
    }
}

/// Returns what a relay with this configuration does that only root can do, or the user whose files
/// it uses.
pub(super) fn needs_root(config: &Config) -> Option<&'static str> {
    if config.mesh.is_some() {
        return Some("the files of [relay.mesh] may be root's");
    }
    if intercepts(config) {
        return Some("it intercepts connections");
    }
    if config.forwards.iter().any(|f| f.early_syn) {
        return Some("it has early SYN");
    }
    if matches!(config.session_log, Some(Target::File(_))) {
        return Some("it writes a session log");
    }
    if matches!(config.handover, Handover::At(_)) {
        return Some("it hands its sockets over to processes of the same user");
    }
    None
}

/// Returns the capabilities that a relay needs, including those for a reload.
pub(super) fn needed(config: &Config) -> Vec<Capability> {
    let mut needed = Vec::new();
    let has_early_syn = config.forwards.iter().any(|f| f.early_syn);
    let marks = config.forwards.iter().any(|f| f.path.mark.is_some());
    // Buffers and routes of mesh legs, interception, marks of packets.
    if config.mesh.is_some()
        || has_early_syn
        || intercepts(config)
        || marks
        || wants_restricted(config)
    {
        needed.push(Capability::NetAdmin);
    }
    // The locks of a network namespace, for interception and routes, are ports below 1024.
    let takes_locks = config.mesh.is_some() || has_early_syn || intercepts(config);
    if takes_locks || ports(config).any(|port| (1..first_unprivileged()).contains(&port)) {
        needed.push(Capability::NetBindService);
    }
    let turbo = config.mesh.as_ref().is_some_and(MeshConfig::wants_turbo);
    if turbo || has_early_syn || intercepts(config) {
        needed.extend([Capability::Bpf, Capability::Perfmon]);
    }
    needed
}

/// Returns the sandbox of a relay that keeps these capabilities. Makes missing directories, so the process
/// must have the user that it keeps.
pub(super) fn sandbox(config: &Config, kept: &[Capability]) -> Sandbox {
    let mut calls = Vec::new();
    let mut files = Files {
        // A reload may name other files.
        read: vec!["/".into()],
        write: lists(config)
            .map(|(_, path)| make_folder_of(path))
            .collect(),
        sockets: sockets(config)
            .map(|(_, path)| make_folder_of(path))
            .collect(),
        ..Files::default()
    };
    if let Some(Target::File(path)) = &config.session_log {
        files.write.extend(log_places(path));
    }
    if kept.contains(&Capability::Bpf) {
        calls.push(Calls::Bpf);
    }
    if intercepts(config) {
        // nft.
        calls.push(Calls::Execute);
        files.execute.extend(PROGRAMS.map(PathBuf::from));
        files.write.push("/dev/null".into());
    }
    Sandbox {
        calls,
        files: Some(files),
    }
}

/// Returns whether connections are intercepted, or clients' addresses used.
fn intercepts(config: &Config) -> bool {
    let of = |f: &Forward| f.transparent.is_some() || f.identity.borrow;
    config.forwards.iter().any(of) || config.mesh.as_ref().is_some_and(|mesh| mesh.borrow)
}

/// Returns whether a congestion control is named that only CAP_NET_ADMIN may choose.
fn wants_restricted(config: &Config) -> bool {
    let of = |f: &'_ Forward| [f.client_congestion.clone(), f.upstream_congestion.clone()];
    let mut named = config.forwards.iter().flat_map(of).flatten().peekable();
    if named.peek().is_none() {
        return false;
    }
    let path = "/proc/sys/net/ipv4/tcp_allowed_congestion_control";
    let allowed = std::fs::read_to_string(path).unwrap_or_default();
    !named.all(|name| allowed.split_whitespace().any(|word| word == name))
}

/// Returns every port that is listened on.
fn ports(config: &Config) -> impl Iterator<Item = u16> {
    let mesh = config.mesh.iter().flat_map(|mesh| &mesh.listen);
    let listen = config.forwards.iter().flat_map(|f| &f.listen).chain(mesh);
    let pages = config.metrics.iter().chain(&config.admin);
    listen.chain(pages).map(Listen::port)
}

/// Returns the first port that every process may listen on (ip(7)).
fn first_unprivileged() -> u16 {
    let text = std::fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start");
    let first = text.ok().and_then(|text| text.trim().parse().ok());
    first.unwrap_or(1024)
}

/// Returns the sockets that the relay puts into a directory, with their keys in the configuration.
fn sockets(config: &Config) -> impl Iterator<Item = (&'static str, &Path)> {
    // By default it is in the directory of the control socket.
    let handover = match &config.handover {
        Handover::At(path) => Some(path.as_path()),
        Handover::Default | Handover::Off => None,
    };
    let control = config.control_path();
    let control = control.map(|path| ("control", path));
    control
        .into_iter()
        .chain(handover.map(|path| ("handover", path)))
}

/// Returns the lists that the relay keeps, with their keys in the configuration.
fn lists(config: &Config) -> impl Iterator<Item = (&'static str, &Path)> {
    let mesh = config.mesh.as_ref();
    // The list of members from etcd is kept in its file.
    let members = mesh.filter(|mesh| mesh.etcd.is_some());
    let members = members.map(|mesh| ("mesh.members_file", mesh.members_file.as_path()));
    let routes = mesh.and_then(|mesh| mesh.routes_file.as_deref());
    members
        .into_iter()
        .chain(routes.map(|path| ("mesh.routes_file", path)))
}

/// Returns the directories of the lists.
pub(super) fn list_folders(config: &Config) -> Vec<PathBuf> {
    lists(config)
        .map(|(_, path)| folder_of(path).to_owned())
        .collect()
}

/// Returns why the sandbox cannot have what the relay writes: a list is replaced by a new file, and a
/// socket by a new one, which takes the right to remove every file of the directory.
pub(super) fn refusal(config: &Config) -> Option<String> {
    let mut places = lists(config)
        .map(|place| (place, "/var/lib/taut"))
        .chain(sockets(config).map(|place| (place, "/run/taut/relay")));
    let ((key, path), better) = places.find(|((_, path), _)| is_shared(folder_of(path)))?;
    Some(format!(
        "relay.{key}: {} is in a directory of many programs, and the sandbox lets no relay write there; choose a \
         directory of its own, such as {better}, or start with --no-sandbox",
        path.display()
    ))
}

/// Returns why the running relay could not keep a list of a new configuration: it can write in these
/// directories alone, and make none.
pub(super) fn outside(config: &Config, folders: &[PathBuf]) -> Option<String> {
    let folders: Vec<_> = folders.iter().flat_map(|f| f.canonicalize()).collect();
    lists(config).find_map(|(key, path)| {
        let folder = folder_of(path);
        let place = resolve(folder);
        if !folders.iter().any(|inside| place.starts_with(inside)) {
            return Some(format!(
                "relay.{key}: the sandbox lets the running relay write its lists only in the directories that the \
                 configuration named at its start, and {} is in none of them; restart the relay to change it",
                path.display()
            ));
        }
        let error = folder.canonicalize().err()?;
        Some(format!(
            "relay.{key}: the directory {} cannot be used: {error}. The sandbox lets the running relay make no directory: \
             make it for the relay's user, and reload again",
            folder.display()
        ))
    })
}

/// Returns what the relay writes for its log: the file, and its directory, in which a file is created
/// after a rotation. A directory of many programs is left out.
fn log_places(path: &Path) -> Vec<PathBuf> {
    if !is_shared(folder_of(path)) {
        let folder = make_folder_of(path);
        // The log may be a link to elsewhere.
        return path.canonicalize().into_iter().chain([folder]).collect();
    }
    // Only a file that exists can be in the sandbox. If it cannot be opened, the relay reports it.
    let mut log = std::fs::OpenOptions::new();
    let _ = log.append(true).create(true).mode(0o640).open(path);
    // A pipe has no path, and needs none.
    path.canonicalize().into_iter().collect()
}

/// Returns whether a directory holds files of many programs, or anybody may write to it. One that is
/// missing is judged by the place where it would be.
fn is_shared(folder: &Path) -> bool {
    let place = resolve(folder);
    let is_of_the_system = |root: &&str| {
        let below = place.strip_prefix(root).ok();
        below.is_some_and(|below| !below.iter().any(is_name_of_taut))
    };
    let mode = place.metadata().map_or(0, |found| found.mode());
    SHARED.iter().any(|shared| place == Path::new(shared))
        || OF_THE_SYSTEM.iter().any(is_of_the_system)
        || OF_THE_KERNEL.iter().any(|root| place.starts_with(root))
        || mode & 0o002 != 0
}

fn is_name_of_taut(name: &std::ffi::OsStr) -> bool {
    name.as_encoded_bytes().starts_with(b"taut")
}

/// Returns the absolute path of a directory without links. What is missing of it is kept as written,
/// because it would be made so.
fn resolve(folder: &Path) -> PathBuf {
    let folder = std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
    let found = folder
        .ancestors()
        .find_map(|above| Some((above, above.canonicalize().ok()?)));
    let Some((above, mut place)) = found else {
        return folder;
    };
    let missing = folder.strip_prefix(above).unwrap_or(Path::new(""));
    for part in missing.components() {
        match part {
            Component::ParentDir => drop(place.pop()),
            part => place.push(part),
        }
    }
    place
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "in a test, a panic is the report")]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn config(text: &str) -> Config {
        Config::parse(text, Path::new("taut.toml")).unwrap()
    }

    const PLAIN: &str = "[[relay.forward]]\nlisten = \"127.0.0.1:8080\"\nto = \"192.0.2.1:80\"\n";

    #[test]
    fn a_plain_forward_needs_nothing_of_roots() {
        let config = config(PLAIN);
        assert_eq!((needs_root(&config), needed(&config)), (None, Vec::new()));
        let sandbox = sandbox(&config, &[]);
        assert_eq!(sandbox.calls, []);
        let files = sandbox.files.unwrap();
        assert_eq!(files.execute, Vec::<PathBuf>::new());
    }

    #[test]
    fn a_capability_is_kept_for_what_needs_it_alone() {
        use Capability::{Bpf, NetAdmin, NetBindService, Perfmon};
        let low = PLAIN.replace("8080", "80");
        assert_eq!(needed(&config(&low)), [NetBindService]);
        let marked = format!("{PLAIN}upstream_mark = 7\n");
        assert_eq!(needed(&config(&marked)), [NetAdmin]);
        for more in ["early_syn = true", "source = \"client\""] {
            let config = config(&format!("{PLAIN}{more}\n"));
            assert_eq!(
                needed(&config),
                [NetAdmin, NetBindService, Bpf, Perfmon],
                "{more}"
            );
            assert!(needs_root(&config).is_some(), "{more}");
        }
        let transparent = "[[relay.forward]]\nlisten = \"127.0.0.1:8080\"\ntransparent = true\nports = [81]\n\
                           allow = [\"*:81\"]\n";
        let config = config(transparent);
        assert_eq!(needed(&config), [NetAdmin, NetBindService, Bpf, Perfmon]);
        let sandbox = sandbox(&config, &needed(&config));
        assert_eq!(sandbox.calls, [Calls::Bpf, Calls::Execute]);
    }
    #[test]
    fn a_relay_may_write_to_no_directory_of_many_programs() {
        let dir = tempfile::tempdir().unwrap();
        let own = dir.path().canonicalize().unwrap();
        let written = |log: &Path| {
            let text = format!("[relay]\ncontrol = \"off\"\nsession_log = {log:?}\n{PLAIN}");
            sandbox(&config(&text), &[]).files.unwrap().write
        };
        assert_eq!(written(&own.join("log")), [own.as_path()]);
        assert_eq!(written(Path::new("/dev/null")), [Path::new("/dev/null")]);
        let stdout = written(Path::new("/dev/stdout"));
        assert!(!stdout.iter().any(|place| place.is_dir()), "{stdout:?}");
        let shared = PathBuf::from(format!("/tmp/taut-{}.log", std::process::id()));
        assert_eq!(written(&shared), [shared.as_path()]);
        std::fs::remove_file(shared).unwrap();
        // A directory that everybody may write to, wherever it is.
        std::fs::set_permissions(&own, PermissionsExt::from_mode(0o1777)).unwrap();
        assert_eq!(written(&own.join("log")), [own.join("log")]);
    }

    #[test]
    fn a_list_needs_a_directory_that_the_sandbox_has() {
        let dir = tempfile::tempdir().unwrap();
        let with = |path: &Path| {
            config(&format!(
                "{PLAIN}[relay.mesh]\nprivate_key_file = \"/k\"\nmembers_file = \"/m\"\nroutes_file = {path:?}\n"
            ))
        };
        let shared = refusal(&with(Path::new("/tmp/routes"))).unwrap();
        assert!(
            shared.starts_with("relay.mesh.routes_file: /tmp/routes is"),
            "{shared}"
        );
        let own = with(&dir.path().join("one/routes"));
        assert_eq!(refusal(&own), None);
        let folders = list_folders(&own);
        assert_eq!(folders, [dir.path().join("one")]);
        assert!(!folders[0].exists(), "only the sandbox makes directories");
        sandbox(&own, &[]);
        assert_eq!(outside(&own, &folders), None);
        assert_eq!(
            outside(&with(&dir.path().join("one/other")), &folders),
            None
        );
        let other = outside(&with(&dir.path().join("two/routes")), &folders).unwrap();
        assert!(other.contains("restart the relay"), "{other}");
        let missing = outside(&with(&dir.path().join("one/new/routes")), &folders).unwrap();
        assert!(
            missing.contains("one/new cannot be used") && missing.contains("reload again"),
            "{missing}"
        );
        assert!(!folders[0].join("new").exists());
    }

    #[test]
    fn a_socket_needs_a_directory_whose_other_files_the_relay_may_remove() {
        let dir = tempfile::tempdir().unwrap();
        for key in ["control", "handover"] {
            let with = |path: &Path| config(&format!("[relay]\n{key} = {path:?}\n{PLAIN}"));
            let shared = refusal(&with(Path::new("/run/relay.sock"))).unwrap();
            assert!(
                shared.starts_with(&format!("relay.{key}: /run/relay.sock is")),
                "{shared}"
            );
            assert_eq!(refusal(&with(&dir.path().join("new/relay.sock"))), None);
            assert!(!dir.path().join("new").exists());
        }
        assert_eq!(refusal(&config(PLAIN)), None);
    }

    #[test]
    fn directories_of_the_system_are_shared_at_every_depth() {
        for shared in [
            "/etc",
            "/etc/cron.d",
            "/etc/missing/below",
            "/usr/local/bin",
            "/var/log",
            "/var/cache",
            "/var/spool/cron",
            "/tmp/missing/../../etc/cron.d",
            "/run/taut",
        ] {
            assert!(is_shared(Path::new(shared)), "{shared}");
        }
        for own in [
            "/etc/taut",
            "/var/log/taut-relay",
            "/usr/local/etc/taut/mesh",
            "/run/taut/relay",
        ] {
            assert!(!is_shared(Path::new(own)), "{own}");
        }
    }
}
