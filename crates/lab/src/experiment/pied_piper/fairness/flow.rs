//! One flow: a download that records when its bytes arrive.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::share::Arrivals;
use crate::experiment::ExperimentError;
use crate::peer::curl::{self, Digest};
use taut_netlab::world::Host;

/// The source, the file and the start of a flow.
pub(super) struct Flow<'a> {
    pub(super) client: &'a Host,
    pub(super) at: SocketAddr,
    pub(super) file: String,
    pub(super) digest: Digest,
    /// When it starts, after the start of the contest.
    pub(super) delay: Duration,
}

impl Flow<'_> {
    /// Downloads, and returns when how many bytes arrived after `begin`.
    pub(super) fn run(&self, begin: Instant) -> Result<Arrivals, ExperimentError> {
        std::thread::sleep((begin + self.delay).saturating_duration_since(Instant::now()));
        let mut arrivals = Arrivals::default();
        curl::watch(self.client, self.at, &self.file, self.digest, |bytes| {
            arrivals.note(begin.elapsed(), bytes);
        })?;
        Ok(arrivals)
    }
}
