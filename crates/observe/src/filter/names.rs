//! Looks up the names in a filter: hosts, services, users, cgroups and processes of this machine.

use std::collections::BTreeSet;
use std::fs;
use std::net::{IpAddr, ToSocketAddrs as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Component, Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

/// The time that the resolver has to answer.
const LOOKUP: Duration = Duration::from_secs(5);
/// The maximum number of cgroups below one.
const CGROUPS: usize = 4096;
/// The maximum size of a file of names, in bytes.
const FILE: u64 = 4 << 20;
/// The maximum number of processes whose names are compared.
const PROCESSES: usize = 100_000;

/// Looks up the names in a filter.
pub trait Names {
    /// Returns the addresses of a host, of both families.
    ///
    /// # Errors
    /// A sentence that says why there are none.
    fn host(&self, name: &str) -> Result<Vec<IpAddr>, String>;

    /// Returns the port of a TCP service.
    fn service(&self, name: &str) -> Option<u16>;

    /// Returns the ID of a user.
    fn user(&self, name: &str) -> Option<u32>;

    /// Returns the IDs of the cgroup at this path and of all below it; empty if there is none.
    fn cgroups(&self, path: &str) -> BTreeSet<u64>;

    /// Returns the names of the processes that run.
    fn processes(&self) -> BTreeSet<String>;

    /// Whether a program with this name is installed.
    fn is_installed(&self, name: &str) -> bool;
}

/// This machine: `/proc`, `/etc`, `PATH` and the system's resolver.
#[derive(Clone, Copy, Debug, Default)]
pub struct Machine;

impl Names for Machine {
    fn host(&self, name: &str) -> Result<Vec<IpAddr>, String> {
        let (sender, receiver) = mpsc::sync_channel(1);
        let host = name.to_owned();
        // The resolver has no time limit, so the thread may wait until the process ends.
        let thread = std::thread::Builder::new().spawn(move || {
            let found = (&*host, 0).to_socket_addrs();
            let found = found.map(|all| all.map(|one| one.ip()).collect::<BTreeSet<_>>());
            let _ = sender.send(found);
        });
        thread.map_err(|error| format!("no thread can be started: {error}"))?;
        match receiver.recv_timeout(LOOKUP) {
            Ok(Ok(found)) if !found.is_empty() => Ok(found.into_iter().collect()),
            Ok(Ok(_)) => Err("it has no address".into()),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err(format!("no answer within {} s", LOOKUP.as_secs())),
        }
    }

    fn service(&self, name: &str) -> Option<u16> {
        service_in(&text("/etc/services")?, name)
    }

    fn user(&self, name: &str) -> Option<u32> {
        user_in(&text("/etc/passwd")?, name)
    }

    fn cgroups(&self, path: &str) -> BTreeSet<u64> {
        let inside = Path::new(path).components().filter_map(|part| match part {
            Component::Normal(name) => Some(name),
            _ => None,
        });
        let inside: PathBuf = inside.collect();
        let roots = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"];
        let root = roots
            .iter()
            .map(Path::new)
            .find(|root| root.join("cgroup.controllers").exists());
        let mut ids = BTreeSet::new();
        let mut left: Vec<PathBuf> = root.map(|root| root.join(inside)).into_iter().collect();
        while let Some(directory) = left.pop().filter(|_| ids.len() < CGROUPS) {
            // The ID of a cgroup is the inode of its directory.
            let metadata = fs::metadata(&directory).ok();
            let Some(metadata) = metadata.filter(fs::Metadata::is_dir) else {
                continue;
            };
            ids.insert(metadata.ino());
            let entries = fs::read_dir(&directory).into_iter().flatten().flatten();
            let below = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
            left.extend(below.map(|entry| entry.path()));
        }
        ids
    }

    fn processes(&self) -> BTreeSet<String> {
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = entries.filter(|entry| {
            let name = entry.file_name();
            name.as_encoded_bytes().iter().all(u8::is_ascii_digit)
        });
        pids.take(PROCESSES)
            .filter_map(|entry| fs::read(entry.path().join("comm")).ok())
            .map(|name| crate::sanitize::text(name.trim_ascii_end()))
            .collect()
    }

    fn is_installed(&self, name: &str) -> bool {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let usual = ["/usr/local/sbin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"];
        let mut folders = std::env::split_paths(&path).chain(usual.map(PathBuf::from));
        let is_program = |folder: PathBuf| {
            let file = fs::metadata(folder.join(name));
            file.is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
        };
        // A name with a slash would leave the folder.
        !name.is_empty() && !name.contains('/') && folders.any(is_program)
    }
}

/// Reads a file of names, unless it is too large.
fn text(path: &str) -> Option<String> {
    let size = fs::metadata(path).ok()?.len();
    let bytes = (size <= FILE).then(|| fs::read(path).ok())??;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// Finds a TCP service, or an alias of it, in the text of `/etc/services`.
fn service_in(services: &str, name: &str) -> Option<u16> {
    services.lines().find_map(|line| {
        let line = line.split('#').next().unwrap_or_default();
        let mut words = line.split_ascii_whitespace();
        let (service, port) = (words.next()?, words.next()?);
        let (port, protocol) = port.split_once('/')?;
        let matches = protocol == "tcp" && (service == name || words.any(|alias| alias == name));
        matches.then(|| port.parse().ok())?
    })
}

/// Finds a user in the text of `/etc/passwd`.
fn user_in(users: &str, name: &str) -> Option<u32> {
    users.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next()? == name).then(|| fields.nth(1)?.parse().ok())?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_and_users_are_found_by_their_names() {
        let services = "# a comment\nhttp\t\t80/tcp\t\twww\t# WorldWideWeb\nhttps 443/udp\nhttps 443/tcp\nbad x/tcp\n";
        assert_eq!(service_in(services, "https"), Some(443));
        assert_eq!(service_in(services, "www"), Some(80));
        assert_eq!(service_in(services, "bad"), None);
        assert_eq!(service_in(services, "#"), None);
        let users =
            "root:x:0:0:root:/root:/bin/sh\nwww-data:x:33:33::/var/www:/bin/false\nbroken\n";
        assert_eq!(user_in(users, "www-data"), Some(33));
        assert_eq!(user_in(users, "broken"), None);
    }

    #[test]
    fn this_machine_knows_its_own_names() {
        assert!(
            Machine
                .host("localhost")
                .unwrap()
                .iter()
                .all(IpAddr::is_loopback)
        );
        assert!(Machine.host("no-such-host.invalid").is_err());
        assert_eq!(Machine.user("root"), Some(0));
        assert!(Machine.is_installed("sh") && !Machine.is_installed("no-such-program"));
        assert!(!Machine.is_installed("") && !Machine.is_installed("../bin/sh"));
        let own = fs::read_to_string("/proc/self/comm").unwrap();
        assert!(Machine.processes().contains(own.trim_end()));
        assert!(Machine.cgroups("/no/such/group").is_empty());
    }
}
