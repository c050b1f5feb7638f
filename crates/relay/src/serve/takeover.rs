//! From process to process: the sockets of the one that ran before, and those for the next.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Notify;
use tokio::task::spawn_blocking;

use super::ServeError;
use crate::config::Config;
use crate::handover::{self, Giver, Passed, Taken};
use crate::node::SharedHandle;

/// What is taken from the process that runs already, if there is one.
pub(super) struct Takeover(Option<Taken>);

/// What is offered to the next process.
pub(super) struct Offer {
    giver: Mutex<Option<Giver>>,
    /// The metrics' listener, which is offered with the node's.
    metrics: Option<OwnedFd>,
    taken: Arc<Notify>,
}

// === impl Takeover ===

impl Takeover {
    /// Asks for the sockets; the other process goes on until it is told that this one serves.
    pub(super) async fn begin(config: &Config) -> Result<Self, ServeError> {
        let Some(path) = config.handover.clone() else {
            return Ok(Self(None));
        };
        let taken = spawn_blocking(move || handover::take(&path)).await;
        let taken = taken.unwrap_or_else(|e| std::panic::resume_unwind(e.into_panic()))?;
        Ok(Self(taken))
    }

    pub(super) fn sockets(&mut self) -> Vec<Passed> {
        self.0.as_mut().map(Taken::take_sockets).unwrap_or_default()
    }

    /// This process accepts: the other one may drain.
    pub(super) async fn serving(self) {
        let Some(taken) = self.0 else { return };
        match spawn_blocking(move || taken.serving()).await {
            Ok(Ok(())) => tracing::info!("took over from the process that ran before"),
            Ok(Err(error)) => tracing::warn!("{error}; it may go on beside this one"),
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
    }
}

// === impl Offer ===

impl Offer {
    pub(super) fn start(
        config: &Config,
        node: Arc<SharedHandle>,
        metrics: Option<OwnedFd>,
    ) -> Result<Self, ServeError> {
        let taken = Arc::new(Notify::new());
        let offer = Self {
            giver: Mutex::new(None),
            metrics,
            taken: taken.clone(),
        };
        if let Some(path) = &config.handover {
            let sockets = offer.sockets(&node)?;
            let giver = Giver::start(path, sockets, move || taken.notify_one())?;
            *offer.giver() = Some(giver);
        }
        Ok(offer)
    }

    /// The node listens elsewhere now.
    pub(super) fn renew(&self, node: &SharedHandle) {
        if let Some(giver) = &*self.giver() {
            let sockets = self.sockets(node);
            let offered = sockets.map(|sockets| giver.offer(sockets).map_err(|e| e.to_string()));
            if let Err(error) | Ok(Err(error)) = offered.map_err(|e| e.to_string()) {
                tracing::warn!("{error}; a next process is offered what was offered before");
            }
        }
    }

    /// Waits until another process serves in the place of this one.
    pub(super) async fn taken(&self) {
        self.taken.notified().await;
    }

    /// Offers nothing any more.
    pub(super) fn end(&self) {
        let giver = self.giver().take();
        drop(giver);
    }

    fn sockets(&self, node: &SharedHandle) -> std::io::Result<Vec<OwnedFd>> {
        let mut sockets = node.sockets()?;
        if let Some(metrics) = &self.metrics {
            sockets.push(metrics.try_clone()?);
        }
        Ok(sockets)
    }

    fn giver(&self) -> std::sync::MutexGuard<'_, Option<Giver>> {
        self.giver.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
