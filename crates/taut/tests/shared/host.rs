//! A network namespace for a test, and connections in it.

use std::net::{TcpListener, TcpStream};
use std::process::{Command, Output};
use std::sync::Arc;

use taut_sys::netns::Netns;

/// A network namespace whose `lo` is up. Dropping it deletes the namespace.
pub(crate) struct Host(pub(crate) Arc<Netns>);

impl Host {
    pub(crate) fn new(name: &str) -> Self {
        assert!(
            rustix::process::geteuid().is_root(),
            "this test creates network namespaces and must run as root, as `make test` does"
        );
        let netns = Netns::create(&format!("taut-observe-{}-{name}", std::process::id())).unwrap();
        let host = Self(Arc::new(netns));
        let up = host.ip("link set lo up");
        assert!(up.status.success());
        host
    }

    pub(crate) fn name(&self) -> &str {
        self.0.name()
    }

    pub(crate) fn ip(&self, line: &str) -> Output {
        let mut command = Command::new("ip");
        command.args(["-n", self.name()]).args(line.split(' '));
        command.output().unwrap()
    }

    pub(crate) fn listener(&self) -> TcpListener {
        let bind = || TcpListener::bind("127.0.0.1:0").unwrap();
        self.0.run(bind).unwrap()
    }

    /// Connects to `listener` and returns both ends.
    pub(crate) fn connection(&self, listener: &TcpListener) -> (TcpStream, TcpStream) {
        let to = listener.local_addr().unwrap();
        let client = self.0.run(|| TcpStream::connect(to).unwrap()).unwrap();
        (client, listener.accept().unwrap().0)
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = Netns::delete(self.name());
    }
}
