//! Namespaces for the tests of profiles.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs;
use std::process::Command;

use taut_observe::namespaces::{self, Namespace};
use taut_sys::interface;
use taut_sys::netns::Netns;

use super::settings::Profile;
use super::visit::{Found, Room, Space, visit};
use crate::actuate::{Actuators, Undone};
use crate::journal::Journal;

/// A namespace in which everything is as lax as it can be. It goes with this.
pub(crate) struct Host(pub(crate) Netns);

impl Host {
    pub(crate) fn new(name: &str) -> Self {
        assert!(
            rustix::process::geteuid().is_root(),
            "this test makes network namespaces and must run as root; `make test` does"
        );
        let host =
            Self(Netns::create(&format!("taut-tune-{}-{name}", std::process::id())).unwrap());
        host.ip("link add va type veth peer name vb");
        for (name, value) in [
            ("ipv4/tcp_syncookies", "0"),
            ("ipv4/conf/all/accept_source_route", "1"),
            ("ipv4/conf/all/accept_redirects", "1"),
        ] {
            host.set(name, value);
        }
        host
    }

    pub(crate) fn ip(&self, line: &str) {
        let mut command = Command::new("ip");
        command.args(["-n", self.0.name()]).args(line.split(' '));
        let output = command.output().unwrap();
        assert!(output.status.success(), "{line}: {output:?}");
    }

    pub(crate) fn namespace(&self) -> Namespace {
        namespaces::named(self.0.name()).unwrap()
    }

    pub(crate) fn set(&self, name: &str, value: &str) {
        let write = || fs::write(format!("/proc/sys/net/{name}"), value).unwrap();
        self.0.run(write).unwrap();
    }

    pub(crate) fn get(&self, name: &str) -> String {
        let read = || fs::read_to_string(format!("/proc/sys/net/{name}")).unwrap();
        self.0.run(read).unwrap().trim().to_owned()
    }

    pub(crate) fn index(&self, name: &str) -> u32 {
        let name = CString::new(name).unwrap();
        self.0
            .run(|| interface::index(&name).unwrap().unwrap())
            .unwrap()
    }

    /// All settings of the namespace and of its interfaces, by path.
    pub(crate) fn settings(&self) -> BTreeMap<String, String> {
        let read = || {
            let mut all = BTreeMap::new();
            let mut directories = vec!["/proc/sys/net".to_owned()];
            while let Some(directory) = directories.pop() {
                for entry in fs::read_dir(&directory).unwrap().flatten() {
                    let path = entry.path().display().to_string();
                    match entry.file_type().unwrap().is_dir() {
                        true => directories.push(path),
                        // Some are written only.
                        false => all.extend(fs::read_to_string(&path).ok().map(|is| (path, is))),
                    }
                }
            }
            all
        };
        let mut all = self.0.run(read).unwrap();
        // It is drawn by lot.
        all.retain(|path, _| !path.ends_with("tcp_fastopen_key"));
        all
    }

    /// Those of `conf/default`.
    pub(crate) fn defaults(&self) -> BTreeMap<String, String> {
        let mut all = self.settings();
        all.retain(|path, _| path.contains("/conf/default/"));
        assert!(all.len() > 20);
        all
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = Netns::delete(self.0.name());
    }
}

pub(crate) fn actuators() -> (Actuators, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::free(&dir.path().join("journal")).unwrap();
    (Actuators::new(journal), dir)
}

pub(crate) fn room() -> Room {
    Room {
        interfaces: 100,
        entries: 100,
        is_short: false,
    }
}

/// A look, which sets what is too lax.
pub(crate) fn tighten(host: &Host, space: &mut Space, actuators: &mut Actuators) -> Vec<Found> {
    let journal = Some(actuators.journal_mut());
    let found = visit(
        &host.namespace(),
        Profile::Security,
        space,
        journal,
        &mut room(),
    );
    let found = found.unwrap();
    assert!(found.iter().all(|found| matches!(found.made, Some(Ok(())))));
    found
}

pub(crate) fn undone(restored: usize, gone: usize, others: usize) -> Undone {
    Undone {
        restored,
        gone,
        others,
        failed: 0,
    }
}

pub(crate) const REDIRECTS: &str = "ipv4/conf/va/accept_redirects";
