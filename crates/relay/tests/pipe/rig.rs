//! Two relays with a link between them.

use std::net::SocketAddr;
use std::sync::OnceLock;
use std::time::Duration;

use rustix::event::PollFlags;
use rustix::net::sockopt;
use taut_netlab::link::shape::{LinkSpec, Shape};
use taut_netlab::world::{World, WorldBuilder};
use taut_relay::turbo::congestion_control::{Pipe, PipeOptions};
use taut_sys::Errno;
use taut_sys::socket::{Keepalive, LegOptions, Listener, Stream};

#[path = "../shared/poll.rs"]
mod poll;
#[path = "../shared/wait.rs"]
mod wait;

use poll::wait_for;
pub(crate) use wait::wait_until;

/// A test that waits longer than this for something has failed.
const PATIENCE: Duration = Duration::from_secs(60);

/// The window of a mesh leg, in bytes.
pub(crate) const WINDOW: u32 = 2_000_000;

/// The one pipe of all tests, with the default options.
pub(crate) fn pipe() -> &'static Pipe {
    static PIPE: OnceLock<Pipe> = OnceLock::new();
    PIPE.get_or_init(|| {
        assert!(
            rustix::process::geteuid().is_root(),
            "this test registers a congestion control and makes network namespaces, and must run as \
             root; `make test` does"
        );
        Pipe::load(&PipeOptions::default()).unwrap()
    })
}

pub(crate) struct Relays {
    world: World,
    port: u16,
    v6: bool,
}

impl Relays {
    /// The pipe remembers rates by address, and every world has the same ones: `number` gives the
    /// far relay an address that no other test uses.
    pub(crate) fn new(name: &str, number: usize, there: Shape, back: Shape) -> Self {
        let mut world = WorldBuilder::new(name).host("near");
        for spare in 0..number {
            world = world.host(&format!("spare{spare}"));
        }
        let link = LinkSpec::each(there, back);
        let world = world.host("far").link("near", "far", link).build().unwrap();
        Self {
            world,
            port: 7000,
            v6: false,
        }
    }

    /// Connects over IPv6.
    pub(crate) fn over_ipv6(self) -> Self {
        Self { v6: true, ..self }
    }

    pub(crate) fn far(&self) -> SocketAddr {
        let far = self.world.host("far");
        match self.v6 {
            true => (far.addr6(), self.port).into(),
            false => (far.addr(), self.port).into(),
        }
    }

    /// Cuts the link.
    pub(crate) fn cut(&self) {
        self.world.cut("near", "far", true);
    }

    pub(crate) fn near_sysctl(&self, key: &str) -> String {
        self.world.host("near").sysctl(key).unwrap()
    }

    /// Makes the far end listen with `options`.
    pub(crate) fn listen(&mut self, options: &LegOptions) -> Listener {
        self.port += 1;
        let addr = self.far();
        let far = self.world.host("far");
        far.run(|| Listener::bind(addr, 16, options))
            .unwrap()
            .unwrap()
    }

    /// Connects near to `listener`; returns both ends.
    pub(crate) fn connect(&self, listener: &Listener, options: &LegOptions) -> (Stream, Stream) {
        let addr = listener.local_addr().unwrap();
        let near = self.world.host("near");
        let near = near
            .run(|| Stream::connect(addr, options))
            .unwrap()
            .unwrap();
        wait_for(&near, PollFlags::OUT);
        near.take_error().unwrap();
        wait_for(listener, PollFlags::IN);
        let (far, _) = listener.accept().unwrap();
        (near, far)
    }
}

/// The options of a leg without settings.
pub(crate) fn plain() -> LegOptions {
    LegOptions::new(Keepalive {
        idle: Duration::from_secs(60),
        interval: Duration::from_secs(15),
        probes: 4,
    })
}

/// The options of a leg between relays.
pub(crate) fn mesh() -> LegOptions {
    LegOptions {
        congestion: Some(pipe().name().to_owned()),
        receive_buffer: Some(4 << 20),
        ..plain()
    }
}

/// Returns the name of a socket's congestion control.
pub(crate) fn congestion(stream: &Stream) -> String {
    sockopt::tcp_congestion(stream).unwrap()
}

/// Returns a stream's congestion window in bytes.
pub(crate) fn window(stream: &Stream) -> u32 {
    let info = stream.info().unwrap();
    info.snd_cwnd * info.snd_mss
}

/// Queues `len` bytes, waiting for room.
pub(crate) fn send(stream: &Stream, len: usize) {
    let block = [0; 1 << 16];
    let mut left = len;
    while left > 0 {
        match stream.send(&block[..left.min(block.len())]) {
            Ok(n) => left -= n,
            Err(Errno::AGAIN) => wait_for(stream, PollFlags::OUT),
            Err(e) => panic!("send: {e}"),
        }
    }
}

/// Reads `len` bytes, or up to the end of the stream.
pub(crate) fn receive(stream: &Stream, len: usize) -> usize {
    let mut block = vec![0; 1 << 18];
    let mut got = 0;
    while got < len {
        match stream.recv(&mut block) {
            Ok(0) => break,
            Ok(n) => got += n,
            Err(Errno::AGAIN) => wait_for(stream, PollFlags::IN),
            Err(e) => panic!("receive: {e}"),
        }
    }
    got
}
