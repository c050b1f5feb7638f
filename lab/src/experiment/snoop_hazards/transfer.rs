//! A transfer, in the form that a cell passes to its hazard.

use std::net::TcpStream;
use std::time::Instant;

use super::plan::Draws;

/// A transfer: its connection, and its random choices.
pub(super) struct Transfer {
    pub(super) sender: TcpStream,
    pub(super) receiver: TcpStream,
    pub(super) draws: Draws,
    pub(super) seed: u64,
    pub(super) deadline: Instant,
}
