//! Namespaces for the tests of profiles.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs;
use std::process::Command;

use taut_observe::namespaces::Namespace;
use taut_sys::interface;

use super::settings::Profile;
use super::visit::{LaxSetting, Room, VisitedNamespace, visit};
use crate::actuate::Actuators;
use crate::testing::TestNetns;
use crate::undo::UndoSummary;

/// A namespace in which all settings are as lax as possible.
pub(crate) struct Host(pub(crate) TestNetns);

impl Host {
    pub(crate) fn new(name: &str) -> Self {
        let host = Self(TestNetns::new(name));
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
        self.0.namespace()
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

    /// Returns all settings of the namespace and of its interfaces, by path below /proc/sys/net.
    pub(crate) fn settings(&self) -> BTreeMap<String, String> {
        self.0.run(taut_sys_testing::network::settings).unwrap()
    }

    /// Returns the settings of `conf/default`.
    pub(crate) fn defaults(&self) -> BTreeMap<String, String> {
        let mut all = self.settings();
        all.retain(|path, _| path.contains("/conf/default/"));
        assert!(all.len() > 20);
        all
    }
}

pub(crate) fn room() -> Room {
    Room {
        interfaces: 100,
        entries: 100,
        is_short: false,
    }
}

/// Visits the namespace and tightens lax settings.
pub(crate) fn tighten(
    host: &Host,
    visited: &mut VisitedNamespace,
    actuators: &mut Actuators,
) -> Vec<LaxSetting> {
    let journal = Some(actuators.journal_mut());
    let found = visit(
        &host.namespace(),
        Profile::Security,
        visited,
        journal,
        &mut room(),
    );
    let found = found.unwrap();
    assert!(found.iter().all(|lax| matches!(lax.result, Some(Ok(())))));
    found
}

/// Returns a summary without failures.
pub(crate) fn undone(restored: usize, gone: usize, foreign: usize) -> UndoSummary {
    UndoSummary {
        restored,
        gone,
        foreign,
        failed: 0,
    }
}

pub(crate) const REDIRECTS: &str = "ipv4/conf/va/accept_redirects";
