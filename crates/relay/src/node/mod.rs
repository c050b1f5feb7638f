//! A node. Its workers start last, after all resources have been acquired, so that a start either succeeds or leaves
//! nothing behind.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::mpsc;

use crate::config::Config;
use crate::control::protocol::MeshStatus;
use crate::intercept::Interception;
use crate::metrics::Metrics;
use crate::net::addr::ListenAddr;
use crate::turbo::route_metrics::RouteMetrics;
use crate::worker::Order;

mod assemble;
mod at_once;
mod bind;
mod check;
mod check_peers;
mod conditions;
mod control;
mod descriptors;
mod early_syn_thread;
mod ended;
mod error;
mod handle;
mod holdings;
mod kernel_tls;
mod legs;
mod look_ups;
mod loops;
mod members_watch;
mod mesh;
mod next_hop;
mod reload;
mod start;
mod threads;
mod windows_thread;

pub use check::{Findings, check};
pub use check_peers::{PeerCheck, check_peers};
pub(crate) use conditions::INTERVAL as CONDITION_INTERVAL;
pub(crate) use descriptors::{CHECKS, LOOK_UPS};
pub use ended::WorkerLost;
pub use error::{ListenProblem, StartError};
pub(crate) use handle::{Check, SharedHandle};
pub use mesh::MeshError;

use ended::Ended;
use windows_thread::WindowsThread;

/// The time that a stopping node waits for the session log's last records.
const LOG_PATIENCE: Duration = Duration::from_secs(5);

/// A running relay node.
#[derive(Debug)]
pub struct Node {
    handle: Arc<SharedHandle>,
    metrics: Metrics,
    threads: Vec<JoinHandle<()>>,
    /// `None` if the node started without a mesh.
    windows: Option<WindowsThread>,
    /// Dropped when the node accepts no more sessions.
    routes: Option<RouteMetrics>,
    /// Kept until the last session has ended, because packets of its sessions must be delivered
    /// here.
    intercept: Option<Interception>,
    ended: mpsc::UnboundedReceiver<Ended>,
}

// === impl Node ===

impl Node {
    /// Returns the addresses of the forwards in configuration order, with the ports that the kernel
    /// chose.
    pub fn listen_addrs(&self) -> Vec<ListenAddr> {
        let setup = self.handle.shared.setup();
        let routes = setup.routes.iter();
        routes.flat_map(|route| &route.listen).copied().collect()
    }

    /// Returns the addresses of the mesh port.
    pub fn mesh_addrs(&self) -> Vec<ListenAddr> {
        let setup = self.handle.shared.setup();
        let mesh = setup.mesh.iter();
        mesh.flat_map(|mesh| &mesh.listen).copied().collect()
    }

    /// Returns the node's metrics.
    pub fn metrics(&self) -> Metrics {
        self.metrics.clone()
    }

    /// Returns the mesh as this node knows it, which is what operators see. `None` without a mesh, or if the
    /// thread that knows does not answer within 5 s.
    pub fn mesh_status(&self) -> Option<MeshStatus> {
        self.handle.mesh_status().ok().flatten()
    }

    pub(crate) fn handle(&self) -> Arc<SharedHandle> {
        self.handle.clone()
    }

    /// Adopts another configuration. Sessions keep the configuration that they started with.
    /// Listeners at unchanged addresses keep their sockets and queues. Settings that need a restart
    /// keep their values, with a warning for each.
    ///
    /// Blocks for as long as the resolver takes for new names.
    ///
    /// # Errors
    /// [`StartError`]; nothing has changed then.
    pub fn reload(&self, config: &Config) -> Result<(), StartError> {
        self.handle.reload(config).map(drop)
    }

    /// Stops accepting connections; [`Node::ended`] returns after the last session.
    pub fn drain(&mut self) {
        // A leg dialled early from now on would find no client.
        self.handle.forget_early();
        if let Some(intercept) = &self.intercept {
            intercept.drain();
        }
        self.handle.order(Order::Drain);
        // The process that takes over keeps its own routes.
        self.routes = None;
    }

    /// Resets open sessions.
    pub fn stop(&self) {
        self.handle.order(Order::Stop);
    }

    /// Waits until every worker has ended as ordered.
    ///
    /// # Errors
    /// [`WorkerLost`] as soon as a worker ends without an order.
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
        self.windows = None;
        if let Some(rows) = &self.handle.rows {
            rows.stop();
        }
        for thread in self.threads.drain(..) {
            // `ended` and the panic hook have already reported a panic.
            let _ = thread.join();
        }
        self.routes = None;
        self.intercept = None;
        // The workers have ended, so no more records follow.
        let log = self.handle.log().take();
        if log.is_some_and(|log| !log.finish(LOG_PATIENCE)) {
            tracing::warn!("the session log is slow: its last records were not written within 5 s");
        }
    }
}
