//! A node: everything it needs is acquired before anything is started, so that a start either
//! succeeds or leaves nothing behind.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use taut_mesh::key::Keys;
use tokio::sync::mpsc;

use crate::config::Config;
use crate::intercept::Interception;
use crate::metrics::Metrics;
use crate::net::addr::ListenAddr;
use crate::turbo::route_metrics::RouteMetrics;
use crate::worker::Order;

mod assemble;
mod bind;
mod descriptors;
mod early_syn_thread;
mod ended;
mod error;
mod handle;
mod holdings;
mod look_ups;
mod loops;
mod next_hop;
mod reload;
mod start;
mod threads;

pub use ended::WorkerLost;
pub use error::{ListenProblem, StartError};
pub(crate) use handle::SharedHandle;

use ended::Ended;

/// How long the end waits for the session log's last records to be written.
const LOG_PATIENCE: Duration = Duration::from_secs(5);

/// A running relay node.
#[derive(Debug)]
pub struct Node {
    shared: Arc<SharedHandle>,
    metrics: Metrics,
    threads: Vec<JoinHandle<()>>,
    /// Until no more sessions are taken.
    routes: Option<RouteMetrics>,
    /// Until the last session has ended, for its packets have to be brought here.
    intercept: Option<Interception>,
    ended: mpsc::UnboundedReceiver<Ended>,
}

// === impl Node ===

impl Node {
    /// The addresses listened on, with the ports the kernel chose where it was asked to, in the
    /// order of the configuration.
    pub fn listen_addrs(&self) -> Vec<ListenAddr> {
        let setup = self.shared.shared.setup();
        let routes = setup.routes.iter();
        routes.flat_map(|route| &route.listen).copied().collect()
    }

    /// The addresses at which other relays are listened to.
    pub fn mesh_addrs(&self) -> Vec<ListenAddr> {
        let setup = self.shared.shared.setup();
        let mesh = setup.mesh.iter();
        mesh.flat_map(|mesh| &mesh.listen).copied().collect()
    }

    /// What it counts.
    pub fn metrics(&self) -> Metrics {
        self.metrics.clone()
    }

    pub(crate) fn handle(&self) -> Arc<SharedHandle> {
        self.shared.clone()
    }

    /// Puts others in place of the mesh's keys. Sessions go on; connections that none uses, and
    /// that were made with a key which is no longer held, are closed.
    pub fn replace_keys(&self, keys: Keys) {
        self.shared.replace_keys(keys);
    }

    /// Puts another configuration to work. Sessions go on, and keep what they began with; listeners
    /// at unchanged addresses keep their sockets and queues; what only a restart can change stays
    /// and is said in a warning each.
    ///
    /// Blocks for as long as the resolver takes for names that are new.
    ///
    /// # Errors
    /// [`StartError`], and then nothing has changed.
    pub fn reload(&self, config: &Config) -> Result<(), StartError> {
        self.shared.reload(config)
    }

    /// Takes no more connections; [`Node::ended`] returns when the last session has ended.
    pub fn drain(&mut self) {
        // What is foreseen now could not be served.
        self.shared.forget_early();
        self.shared.order(Order::Drain);
        // The process that goes on has its own.
        self.routes = None;
    }

    /// Resets what is still open.
    pub fn stop(&self) {
        self.shared.order(Order::Stop);
    }

    /// Waits until every worker has ended as it was ordered to.
    ///
    /// # Errors
    /// [`WorkerLost`] as soon as one has ended otherwise.
    pub async fn ended(&mut self) -> Result<(), WorkerLost> {
        while let Some(ended) = self.ended.recv().await {
            match ended {
                Ended::AsOrdered => {}
                Ended::Failed(e) => return Err(WorkerLost::Failed(e.into())),
                Ended::Panicked => return Err(WorkerLost::Panicked),
            }
        }
        Ok(())
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.stop();
        for thread in self.threads.drain(..) {
            // A panic has been reported by `ended` and by the panic hook.
            let _ = thread.join();
        }
        self.routes = None;
        self.intercept = None;
        // Nothing is recorded any more.
        let log = self.shared.log().take();
        if log.is_some_and(|log| !log.finish(LOG_PATIENCE)) {
            tracing::warn!("the session log's last records could not be written in time");
        }
    }
}
