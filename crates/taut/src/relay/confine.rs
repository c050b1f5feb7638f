//! What a relay may do while it runs, by its configuration.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use taut_relay::config::{Config, Control, Forward, MeshConfig};
use taut_relay::net::addr::Listen;
use taut_relay::session_log::Target;
use taut_sys::privileges::{Capability, Unprivileged};
use taut_sys::sandbox::{Calls, Files, Sandbox};

/// The user that a relay without `user` becomes, if there is one of this name.
pub(super) const USER: &str = "taut";

/// The places of programs.
const PROGRAMS: [&str; 6] = ["/usr", "/bin", "/sbin", "/lib", "/lib64", "/nix/store"];

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
        match Unprivileged::choose(USER) {
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
    if config.handover.is_some() {
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
    if ports(config).any(|port| (1..first_unprivileged()).contains(&port)) {
        needed.push(Capability::NetBindService);
    }
    let turbo = config.mesh.as_ref().is_some_and(MeshConfig::wants_turbo);
    if turbo || has_early_syn || intercepts(config) {
        needed.extend([Capability::Bpf, Capability::Perfmon]);
    }
    needed
}

/// Returns the sandbox of a relay that keeps these capabilities.
pub(super) fn sandbox(config: &Config, kept: &[Capability]) -> Sandbox {
    let mut calls = Vec::new();
    let mut files = Files {
        // A reload may name other files.
        read: vec!["/".into()],
        write: directories(config),
        execute: Vec::new(),
    };
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
    let listen = listen.flat_map(|l: &Listen| l.addrs.iter().map(|addr| addr.0.port()));
    let pages = [config.metrics, config.admin].into_iter().flatten();
    listen.chain(pages.map(|addr: SocketAddr| addr.port()))
}

/// Returns the first port that every process may listen on (ip(7)).
fn first_unprivileged() -> u16 {
    let text = std::fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start");
    let first = text.ok().and_then(|text| text.trim().parse().ok());
    first.unwrap_or(1024)
}

/// Returns the directories that the relay writes to. Those that are missing are made, as the relay
/// would make them later.
fn directories(config: &Config) -> Vec<PathBuf> {
    let log = match &config.session_log {
        Some(Target::File(path)) => Some(path.as_path()),
        Some(Target::Stdout) | None => None,
    };
    let control = match &config.control {
        Control::Off => None,
        Control::Default => Some(Path::new(taut_relay::control::PATH)),
        Control::At(path) => Some(path.as_path()),
    };
    let mesh = config.mesh.as_ref();
    // The list of members from etcd is kept in its file.
    let members = mesh.filter(|mesh| mesh.etcd.is_some());
    let members = members.map(|mesh| mesh.members_file.as_path());
    let routes = mesh.and_then(|mesh| mesh.routes_file.as_deref());
    let files = [log, control, config.handover.as_deref(), members, routes];
    let directories = files.into_iter().flatten().map(crate::confine::folder_of);
    directories.collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "in a test, a panic is the report")]
mod tests {
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
            assert_eq!(needed(&config), [NetAdmin, Bpf, Perfmon], "{more}");
            assert!(needs_root(&config).is_some(), "{more}");
        }
        let transparent = "[[relay.forward]]\nlisten = \"127.0.0.1:8080\"\ntransparent = true\nports = [81]\n\
                           allow = [\"*:81\"]\n";
        let config = config(transparent);
        assert_eq!(needed(&config), [NetAdmin, Bpf, Perfmon]);
        let sandbox = sandbox(&config, &needed(&config));
        assert_eq!(sandbox.calls, [Calls::Bpf, Calls::Execute]);
    }
}
