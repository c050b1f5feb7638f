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
    /// The time from the start of the contest to the start of the flow.
    pub(super) delay: Duration,
}

impl Flow<'_> {
    /// Downloads the file, and returns how many bytes arrived at which times after `begin`.
    pub(super) fn run(&self, begin: Instant) -> Result<Arrivals, ExperimentError> {
        std::thread::sleep((begin + self.delay).saturating_duration_since(Instant::now()));
        let mut arrivals = Arrivals::default();
        curl::watch(self.client, self.at, &self.file, self.digest, |bytes| {
            arrivals.note(begin.elapsed(), bytes);
        })?;
        Ok(arrivals)
    }
}
