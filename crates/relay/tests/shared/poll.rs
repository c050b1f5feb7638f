//! Waits for a socket for as long as the including module's `PATIENCE`.

use std::os::fd::AsFd;

use rustix::event::{PollFd, PollFlags};

use super::PATIENCE;

pub(crate) fn wait_for(socket: impl AsFd, what: PollFlags) {
    let mut fds = [PollFd::new(&socket, what)];
    let patience = PATIENCE.try_into().unwrap();
    let ready = rustix::event::poll(&mut fds, Some(&patience)).unwrap();
    assert_eq!(ready, 1, "waited in vain for {what:?}");
}
