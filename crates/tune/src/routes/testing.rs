//! A network namespace with routes, for tests.

use std::io::Write as _;
use std::process::{Command, Stdio};

use ipnet::IpNet;
use taut_observe::namespaces::Namespace;

use super::message::Route;
use super::metrics::Metrics;
use super::selection::Selector;
use super::table::{LIST_TRIES, RouteTable};
use crate::testing::TestNetns;

pub(crate) const TWENTY: Metrics = Metrics {
    initcwnd: Some(20),
    initrwnd: None,
};

/// A network namespace with a link for routes.
pub(crate) struct RouteHost {
    netns: TestNetns,
    pub(crate) namespace: Namespace,
}

impl RouteHost {
    pub(crate) fn new(name: &str) -> Self {
        Self::with_routes(name, &[] as &[&str])
    }

    /// Makes a namespace and runs these commands of `ip -batch` in it.
    pub(crate) fn with_routes(name: &str, lines: &[impl AsRef<str>]) -> Self {
        let netns = TestNetns::new(name);
        let host = Self {
            namespace: netns.namespace(),
            netns,
        };
        host.batch(&[
            "link add v0 type veth peer name v1",
            "link set v0 addrgenmode none",
            "link set v1 addrgenmode none",
            "link set v0 up",
            "link set v1 up",
            "address add 10.9.0.1/24 dev v0",
        ]);
        host.batch(lines);
        host
    }

    pub(crate) fn batch(&self, lines: &[impl AsRef<str>]) {
        let mut command = Command::new("ip");
        command.args(["-n", self.netns.name(), "-batch", "-"]);
        command.stdin(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let lines: Vec<&str> = lines.iter().map(AsRef::as_ref).collect();
        let mut stdin = child.stdin.take().unwrap();
        stdin
            .write_all((lines.join("\n") + "\n").as_bytes())
            .unwrap();
        drop(stdin);
        assert!(child.wait().unwrap().success());
    }

    pub(crate) fn ip(&self, line: &str) -> String {
        let mut command = Command::new("ip");
        command
            .args(["-n", self.netns.name()])
            .args(line.split(' '));
        let output = command.output().unwrap();
        assert!(output.status.success(), "ip {line}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Returns the routes, without the state of their devices and what the kernel adds some time after a command.
    pub(crate) fn routes(&self) -> String {
        let all = self.ip("-d route show table all").replace(" linkdown", "");
        let lines = all
            .lines()
            .filter(|line| !line.starts_with("multicast ff00::/8 "));
        lines.collect::<Vec<_>>().join("\n")
    }

    pub(crate) fn cookie(&self) -> u64 {
        self.netns.cookie()
    }

    /// Opens the table for default routes.
    pub(crate) fn table(&self) -> RouteTable {
        let defaults = Selector::defaults();
        self.table_of(defaults.destinations())
    }

    pub(crate) fn table_of(&self, destinations: &[IpNet]) -> RouteTable {
        let destinations = destinations.iter().copied().collect();
        let table = RouteTable::open(&self.namespace, destinations);
        table.unwrap().unwrap()
    }
}

pub(crate) fn list(table: &mut RouteTable) -> Vec<Route> {
    table.list(LIST_TRIES, &|| true).unwrap()
}
