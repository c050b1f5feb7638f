//! Handover between processes: takes the previous process's sockets and offers them to the next.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use taut_sys::activation;
use tokio::sync::Notify;
use tokio::task::spawn_blocking;

use super::ServeError;
use crate::config::{Config, Handover};
use crate::handover::{self, Giver, HandoverError, Inherited, Life, Successor, Taken};
use crate::intercept::InterceptError;
use crate::node::{SharedHandle, StartError};

/// What the previous process hands over, if there is one.
pub(super) struct Takeover {
    taken: Option<Taken>,
    path: PathBuf,
    has_lock: bool,
}

/// The sockets offered to the next process.
pub(super) struct Offer {
    path: Option<PathBuf>,
    giver: Mutex<Option<Giver>>,
    /// The listeners of the metrics and of the admin page, offered together with the node's listeners.
    pages: Vec<OwnedFd>,
    /// The process that has taken over.
    taken: Arc<(OnceLock<Successor>, Notify)>,
}

// === impl Takeover ===

impl Takeover {
    /// Requests the sockets: at a path of the configuration if a process is there, at the default path only if
    /// this process `replaces` another one. That one continues until [`Takeover::serving`].
    pub(super) async fn begin(config: &Config, replaces: bool) -> Result<Self, ServeError> {
        let is_named = matches!(config.handover, Handover::At(_));
        let path = config.handover_path().filter(|_| is_named || replaces);
        let place = path.clone();
        let taken = match place {
            Some(place) => spawn_blocking(move || handover::take(&place))
                .await
                .unwrap_or_else(|e| std::panic::resume_unwind(e.into_panic()))?,
            None => None,
        };
        if replaces && taken.is_none() {
            return Err(ServeError::NobodyToReplace(path));
        }
        Ok(Self {
            taken,
            path: path.unwrap_or_default(),
            has_lock: false,
        })
    }

    /// Returns whether another process is being replaced.
    pub(super) fn replaces(&self) -> bool {
        self.taken.is_some()
    }

    pub(super) fn inherited(&mut self) -> Inherited {
        let taken = self.taken.as_mut();
        let inherited = taken.map(Taken::take_inherited).unwrap_or_default();
        self.has_lock = inherited.interception.is_some();
        inherited
    }

    /// Names the process that is to be replaced, if it is what keeps this one from starting.
    pub(super) fn explain(&self, error: StartError) -> ServeError {
        match error {
            StartError::Intercept(InterceptError::Taken) if self.replaces() && !self.has_lock => {
                ServeError::NotPassedOn
            }
            error => error.into(),
        }
    }

    /// Reports to the other process that this one accepts, so that it drains.
    pub(super) async fn serving(self) -> Option<Life> {
        let Self { taken, path, .. } = self;
        let taken = taken?;
        // Before the other process can end, which would otherwise be the end of the service.
        if let Err(error) = activation::become_main_process() {
            tracing::warn!(
                "the service manager cannot be told that this process takes over: {error}"
            );
        }
        match spawn_blocking(move || tell(taken, &path)).await {
            Ok(Ok(life)) => {
                tracing::info!("took over from the previous process");
                life
            }
            Ok(Err(error)) => {
                tracing::warn!("{error}; it may continue beside this one");
                None
            }
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
    }
}

/// Reports that this process accepts: once more if the other one has given up waiting for that.
fn tell(taken: Taken, path: &Path) -> Result<Option<Life>, HandoverError> {
    let error = match taken.serving() {
        Ok(life) => return Ok(Some(life)),
        Err(error) => error,
    };
    tracing::debug!("{error}; asking again");
    match handover::take(path)? {
        Some(again) => again.serving().map(Some),
        // It has ended.
        None => Ok(None),
    }
}

// === impl Offer ===

impl Offer {
    /// Offers the sockets. By default that is not essential, and for a relay that takes commands only: another
    /// relay with the same paths may run. Nor is it for a process that `replaces` another one, which drains already.
    pub(super) fn start(
        config: &Config,
        takes_commands: bool,
        replaces: bool,
        node: &SharedHandle,
        pages: Vec<OwnedFd>,
    ) -> Result<Self, ServeError> {
        let mut offer = Self {
            path: None,
            giver: Mutex::new(None),
            pages,
            taken: Arc::default(),
        };
        let is_named = matches!(config.handover, Handover::At(_));
        let Some(path) = config
            .handover_path()
            .filter(|_| is_named || takes_commands)
        else {
            return Ok(offer);
        };
        let sockets = match offer.sockets(node) {
            Ok(sockets) => sockets,
            // Nobody else serves any more.
            Err(error) if replaces => {
                tracing::warn!("no process can replace this one: {error}");
                return Ok(offer);
            }
            Err(error) => return Err(error.into()),
        };
        let taken = offer.taken.clone();
        let giver = Giver::start(&path, sockets, node.interception(), move |by| {
            // The drain begins before the successor hears of it.
            let by = taken.0.get_or_init(|| by);
            taken.1.notify_one();
            by.draining();
        });
        match giver {
            Ok(giver) => {
                *offer.giver() = Some(giver);
                offer.path = Some(path);
            }
            Err(error) if is_named && !replaces => return Err(error.into()),
            Err(error) if is_named => tracing::warn!("no process can replace this one: {error}"),
            // `taut relay upgrade` says so.
            Err(error) => tracing::debug!("no process can replace this one: {error}"),
        }
        Ok(offer)
    }

    /// Returns the path at which sockets are offered.
    pub(super) fn path(&self) -> Option<PathBuf> {
        self.path.clone()
    }

    /// Offers the node's present listeners.
    pub(super) fn renew(&self, node: &SharedHandle) {
        if let Some(giver) = &*self.giver() {
            let sockets = self.sockets(node);
            let offered = sockets.map(|sockets| giver.offer(sockets).map_err(|e| e.to_string()));
            if let Err(error) | Ok(Err(error)) = offered.map_err(|e| e.to_string()) {
                tracing::warn!("{error}; the former sockets stay offered to the next process");
            }
        }
    }

    /// Waits until another process has taken over.
    pub(super) async fn taken(&self) {
        self.taken.1.notified().await;
    }

    /// Returns whether the process that has taken over has ended since.
    pub(super) fn successor_has_ended(&self) -> bool {
        self.taken.0.get().is_some_and(Successor::has_ended)
    }

    /// Stops offering sockets.
    pub(super) fn end(&self) {
        let giver = self.giver().take();
        drop(giver);
    }

    fn sockets(&self, node: &SharedHandle) -> std::io::Result<Vec<OwnedFd>> {
        let mut sockets = node.sockets()?;
        for page in &self.pages {
            sockets.push(page.try_clone()?);
        }
        Ok(sockets)
    }

    fn giver(&self) -> std::sync::MutexGuard<'_, Option<Giver>> {
        self.giver.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
