//! The pages that a relay serves over HTTP: its metrics, and what administrators look at.

use std::io;
use std::net::TcpListener;
use std::os::fd::{AsFd, OwnedFd};

use tokio::task::JoinHandle;

use super::ServeError;
use crate::admin;
use crate::config::Config;
use crate::handover::Passed;
use crate::net::addr::Listen;
use crate::node::Node;

/// The listeners of pages.
pub(super) struct Pages {
    metrics: Option<TcpListener>,
    admin: Option<TcpListener>,
}

// === impl Pages ===

impl Pages {
    /// Listens at the addresses of `config`, or takes over the inherited sockets that are bound to them.
    pub(super) fn listen(config: &Config, inherited: &mut Vec<Passed>) -> Result<Self, ServeError> {
        let mut page = |addr: Option<Listen>, what, key| {
            let listener = addr.map(|addr| {
                listener(&addr, inherited).map_err(|source| ServeError::Page {
                    what,
                    key,
                    addr,
                    source,
                })
            });
            listener.transpose()
        };
        Ok(Self {
            metrics: page(config.metrics, "metrics", "metrics")?,
            admin: page(config.admin, "the admin page", "admin")?,
        })
    }

    /// Serves the pages. Returns what serves them, and duplicates of the listeners for the next process.
    pub(super) fn serve(self, node: &Node) -> io::Result<(Vec<JoinHandle<()>>, Vec<OwnedFd>)> {
        let mut served = Vec::new();
        let mut offered = Vec::new();
        if let Some(listener) = self.metrics {
            offered.push(listener.as_fd().try_clone_to_owned()?);
            served.push(serve_metrics(listener, node)?);
        }
        if let Some(listener) = self.admin {
            offered.push(listener.as_fd().try_clone_to_owned()?);
            served.push(serve_admin(listener, node)?);
        }
        Ok((served, offered))
    }
}

fn serve_metrics(listener: TcpListener, node: &Node) -> io::Result<JoinHandle<()>> {
    let addr = listener.local_addr()?;
    let listener = tokio::net::TcpListener::from_std(listener)?;
    tracing::info!(%addr, "serving OpenMetrics at /metrics");
    let metrics = node.metrics();
    let encode = move || metrics.encode();
    let handle = node.handle();
    let ready = move || handle.accepts();
    Ok(tokio::spawn(taut_exposition::serve_with(
        listener, encode, ready,
    )))
}

fn serve_admin(listener: TcpListener, node: &Node) -> io::Result<JoinHandle<()>> {
    let addr = listener.local_addr()?;
    let listener = tokio::net::TcpListener::from_std(listener)?;
    tracing::info!("serving the admin page at http://{addr}/");
    if !addr.ip().is_loopback() {
        tracing::warn!(
            "the admin page at {addr} has no password: anyone who can connect sees the relay's state; let \
             only operators reach it, or set relay.admin to 127.0.0.1:{} and use ssh -L",
            addr.port()
        );
    }
    let (handle, metrics) = (node.handle(), node.metrics());
    let state = move || {
        let sessions = handle.some_sessions(admin::SESSIONS);
        admin::State::new(handle.status(&metrics), sessions)
    };
    let handle = node.handle();
    let mesh = move || handle.mesh_status();
    Ok(tokio::spawn(admin::serve(
        listener,
        addr.port(),
        state,
        mesh,
    )))
}

/// Returns an inherited listener at `addr`, or a new one.
fn listener(listen: &Listen, inherited: &mut Vec<Passed>) -> io::Result<TcpListener> {
    let addrs = listen.addrs_here();
    // The last one is that of `Listen::open`.
    let is_it = |passed: &Passed| addrs.last() == Some(&passed.addr);
    let place = inherited.iter().position(is_it);
    let Some(place) = place else {
        return listen.open();
    };
    let listener = TcpListener::from(inherited.swap_remove(place).fd);
    listener.set_nonblocking(true)?;
    Ok(listener)
}
