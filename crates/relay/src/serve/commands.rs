//! Carries out the commands of operators.

use std::os::unix::net::UnixListener;
use std::sync::Arc;

use taut_sys::control_socket::ControlError;
use taut_sys::plural::counted;
use tokio::sync::Notify;

use super::takeover::Offer;
use super::{Reload, ServeError};
use crate::config::{Config, Control};
use crate::control::protocol::{Answer, Filter, Request};
use crate::control::{self, MAX_ROWS, Reply};
use crate::metrics::Metrics;
use crate::node::SharedHandle;
use crate::rows_mailbox::Question;
use crate::session_list::{SessionFilter, prefix};

/// What commands act on.
pub(super) struct Commands {
    pub(super) node: Arc<SharedHandle>,
    pub(super) metrics: Metrics,
    pub(super) reload: Reload,
    pub(super) offer: Arc<Offer>,
    /// Notified when the whole relay drains.
    pub(super) drain: Arc<Notify>,
}

/// A control socket that was opened before the relay became another user, who could not open it.
pub struct ControlSocket(Result<UnixListener, ControlError>);

// === impl ControlSocket ===

impl ControlSocket {
    /// Opens the socket that `config` names. `None`: the relay takes no commands.
    pub fn open(config: &Config) -> Option<Self> {
        Self::open_at(config, false)
    }

    /// With `replace`, replaces that of a running process.
    fn open_at(config: &Config, replace: bool) -> Option<Self> {
        let path = config.control_path()?;
        Some(Self(taut_sys::control_socket::listen(path, replace)))
    }
}

/// Returns the control socket, which is `opened` or is opened now. At its default path it
/// is not essential: the relay runs without it if another relay has it, or if the directory cannot be
/// used. Nor is it for a process that `replaces` another one, which drains already.
pub(super) fn listen(
    config: &Config,
    opened: Option<ControlSocket>,
    replaces: bool,
) -> Result<Option<UnixListener>, ServeError> {
    let opened = opened.or_else(|| ControlSocket::open_at(config, replaces));
    match opened {
        None => Ok(None),
        Some(ControlSocket(Ok(listener))) => Ok(Some(listener)),
        Some(ControlSocket(Err(error))) if config.control == Control::Default || replaces => {
            tracing::warn!(
                "no commands: {error}; set relay.control to choose another path, or \"off\""
            );
            Ok(None)
        }
        Some(ControlSocket(Err(error))) => Err(error.into()),
    }
}

/// Takes commands at the control socket.
pub(super) fn start(listener: UnixListener, commands: Commands) -> Result<(), ServeError> {
    control::serve(listener, Arc::new(move |request| commands.handle(request)))?;
    Ok(())
}

// === impl Commands ===

impl Commands {
    fn handle(&self, request: Request) -> Reply {
        let drains_all = matches!(
            request,
            Request::Drain {
                forward: None,
                peer: None,
                address: None,
                undo: false
            }
        );
        let drain = self.drain.clone();
        Reply {
            answer: self.answer(request).unwrap_or_else(Answer::Error),
            // Without sessions the relay then ends at once.
            then: drains_all.then(|| Box::new(move || drain.notify_one()) as Box<_>),
        }
    }

    fn answer(&self, request: Request) -> Result<Answer, String> {
        Ok(match request {
            Request::Status => {
                let mut status = self.node.status(&self.metrics);
                status.handover = self.offer.path();
                Answer::Status(Box::new(status))
            }
            Request::Sessions { filter, limit } => {
                let (sessions, matching) = self.node.sessions(parse(filter)?, limit.min(MAX_ROWS));
                Answer::Sessions { sessions, matching }
            }
            Request::End { filter } => {
                let filter = parse(filter)?;
                if filter.is_empty() {
                    return Err(
                        "give --session, --forward, --peer or --client; `taut relay sessions` lists the sessions"
                            .into(),
                    );
                }
                let sessions = self.node.end_sessions(filter.clone());
                tracing::info!(sessions, "an operator has ended sessions");
                Answer::Ended { sessions }
            }
            Request::Drain {
                forward,
                peer,
                address,
                undo,
            } => match (forward, peer, address) {
                (None, None, None) => self.drain_all(undo)?,
                (Some(forward), None, None) => self.drain_forward(&forward, undo)?,
                (None, Some(peer), None) => self.drain_peer(&peer, undo)?,
                (None, None, Some(address)) => self.drain_address(&address, undo)?,
                _ => return Err("name one of a forward, a peer and an address".into()),
            },
            Request::Mesh => self.node.ask_rows(Question::Mesh)?,
            Request::Rtt {
                limit,
                prefixes_only,
                known,
            } => self.node.ask_rows(Question::Rtt {
                limit,
                prefixes_only,
                known,
            })?,
            Request::Reload => {
                let mut notes = (self.reload)()
                    .map_err(|error| format!("{error}; keeping the former configuration"))?;
                tracing::info!("an operator: the configuration has been read again");
                notes.push("the configuration has been read again".to_owned());
                Answer::Done { notes }
            }
        })
    }
}

impl Commands {
    fn drain_all(&self, undo: bool) -> Result<Answer, String> {
        if undo {
            return Err(
                "give --forward, --peer or --address: what is drained no longer; a relay that drains as a whole \
                 cannot go back, start another"
                    .into(),
            );
        }
        let sessions = counted(self.metrics.sessions(), "session");
        Ok(done(format!(
            "the relay drains, with {sessions} open; it ends with the last, or after relay.drain_timeout"
        )))
    }

    fn drain_forward(&self, name: &str, undo: bool) -> Result<Answer, String> {
        let drained = self.node.drain_forward(name, undo);
        drained.map_err(|error| error.to_string())?;
        self.offer.renew(&self.node);
        let what = match undo {
            true => "accepts connections again",
            false => "accepts no more connections; its sessions continue",
        };
        tracing::info!("an operator: forward {name} {what}");
        Ok(done(format!("forward {name} {what}")))
    }

    fn drain_peer(&self, name: &str, undo: bool) -> Result<Answer, String> {
        let drained = self.node.drain_peer(name, undo);
        drained.map_err(|error| error.to_string())?;
        let what = match undo {
            true => "new sessions go there again",
            false => "new sessions go around it; its sessions continue",
        };
        tracing::info!("an operator: relay {name}: {what}");
        Ok(done(format!("relay {name}: {what}")))
    }

    fn drain_address(&self, addr: &str, undo: bool) -> Result<Answer, String> {
        let drained = self.node.drain_address(addr, undo);
        drained.map_err(|error| error.to_string())?;
        let what = match undo {
            true => "new sessions go there again",
            false => "new sessions go to other addresses; its sessions continue",
        };
        tracing::info!("an operator: address {addr}: {what}");
        Ok(done(format!("address {addr}: {what}")))
    }
}

fn done(note: String) -> Answer {
    Answer::Done { notes: vec![note] }
}

fn parse(filter: Filter) -> Result<SessionFilter, String> {
    Ok(SessionFilter {
        id: filter.id.map(|id| id.parse()).transpose()?,
        forward: filter.forward,
        peer: filter.peer,
        client: filter.client.map(|client| prefix(&client)).transpose()?,
    })
}
