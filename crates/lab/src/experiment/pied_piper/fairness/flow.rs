//! One flow: a download whose bytes are watched as they come.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::share::Arrivals;
use crate::experiment::ExperimentError;
use crate::peer::curl::{self, Digest};
use taut_netlab::world::Host;

/// What is downloaded from where, and when.
pub(super) struct Flow<'a> {
    pub(super) client: &'a Host,
    pub(super) at: SocketAddr,
    pub(super) file: String,
    pub(super) digest: Digest,
    /// After the contest's begin.
    pub(super) delay: Duration,
}

impl Flow<'_> {
    /// Downloads, and says what came when after `begin`.
    pub(super) fn run(&self, begin: Instant) -> Result<Arrivals, ExperimentError> {
        std::thread::sleep((begin + self.delay).saturating_duration_since(Instant::now()));
        let mut arrivals = Arrivals::default();
        curl::watch(self.client, self.at, &self.file, self.digest, |bytes| {
            arrivals.note(begin.elapsed(), bytes);
        })?;
        Ok(arrivals)
    }
}
