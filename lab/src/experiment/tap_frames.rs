//! TAP devices of hosts, for a thread that forwards frames between them.

use std::io;
use std::os::fd::AsFd as _;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use taut_sys::tap::{Tap, TapError};

use crate::experiment::ExperimentError;
use taut_netlab::world::World;

/// Creates a TAP called `name` in a host's namespace.
pub(super) fn make_tap(world: &World, host: &str, name: &str) -> Result<Tap, ExperimentError> {
    let made = world.host(host).run(|| Tap::create(name))?;
    made.map_err(|e: TapError| ExperimentError::Machine {
        action: "create a tap".into(),
        source: io::Error::other(e),
    })
}

/// Reads the next frame into `buffer` and returns its length; `None` if there is none.
pub(super) fn next(tap: &Tap, buffer: &mut [u8]) -> io::Result<Option<usize>> {
    match tap.read(buffer) {
        Ok(len) => Ok(Some(len)),
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(e) => Err(e),
    }
}

/// Waits until one of `taps` has a frame or `limit` has passed.
pub(super) fn wait_for<const N: usize>(taps: [&Tap; N], limit: Duration) -> io::Result<()> {
    let fds = taps.map(|tap| tap.as_fd());
    let mut fds = fds.each_ref().map(|fd| PollFd::new(fd, PollFlags::IN));
    let limit = Timespec::try_from(limit).map_err(io::Error::other)?;
    match rustix::event::poll(&mut fds, Some(&limit)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(e) => Err(e.into()),
    }
}
