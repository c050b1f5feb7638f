//! Helpers for the tests of several modules.

use taut_observe::namespaces::{self, Namespace};
use taut_sys::netns::{self, Netns};

use crate::actuate::Actuators;
use crate::journal::Journal;

/// A network namespace that is deleted when the value is dropped.
pub(crate) struct TestNetns(Netns);

impl TestNetns {
    pub(crate) fn new(name: &str) -> Self {
        let name = format!("taut-tune-{}-{name}", std::process::id());
        let netns = Netns::create(&name);
        Self(
            netns.expect(
                "this test makes network namespaces and must run as root; `make test` does",
            ),
        )
    }

    pub(crate) fn name(&self) -> &str {
        self.0.name()
    }

    pub(crate) fn id(&self) -> netns::NetnsId {
        self.0.id()
    }

    pub(crate) fn namespace(&self) -> Namespace {
        namespaces::named(self.name()).unwrap()
    }

    pub(crate) fn cookie(&self) -> u64 {
        self.run(netns::cookie).unwrap().unwrap()
    }

    pub(crate) fn run<T: Send>(
        &self,
        run: impl FnOnce() -> T + Send,
    ) -> Result<T, netns::NetnsError> {
        self.0.run(run)
    }
}

impl Drop for TestNetns {
    fn drop(&mut self) {
        let _ = Netns::delete(self.0.name());
    }
}

/// Returns actuators with a journal in a temporary directory.
pub(crate) fn actuators() -> (Actuators, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::free(&dir.path().join("journal")).unwrap();
    (Actuators::new(journal, false), dir)
}
