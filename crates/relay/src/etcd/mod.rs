//! Follows the signed list of members in etcd, and announces this relay there.
//!
//! The follower is a task beside the relay's other periodic ones, without privileges. It reads and watches one
//! key, verifies the list that it finds ([`mod@decide`]), and writes a list that may take the place of the present
//! one to `members_file`. The watcher of that file adopts it, as if an operator had written it. So the relay has
//! one way to change its members, a start needs no etcd, and losing etcd changes nothing.
//!
//! The announcement (`announce.rs`) is a hint for operators. No decision of the relay depends on it, because
//! everyone who may write to etcd can forge or remove it.
//!
//! | bound | value | when it is reached |
//! |---|---|---|
//! | connections | 2 | |
//! | a connection, a call | `timeout`, 5 s | failed; the next endpoint |
//! | time between two attempts | random, up to 0.5 s, doubled with each failure up to [`endpoints::LONGEST`] | |
//! | a reply, or a line of a watch | 4 MiB | failed; the next endpoint |
//! | a list | 1 MiB, 4,096 members | refused |
//! | addresses of an endpoint | 8 | further ones are not tried |
//! | waiting for the first list at the start | [`FIRST_PATIENCE`] | the start fails |

use std::sync::Arc;
use std::time::Duration;

use taut_exposition::runtime;
use taut_mesh::etcd::{Keys, authenticate, offer, read_list, token};
use taut_mesh::members::Members;
use taut_sys::plural::counted;
use tokio::runtime::Builder;
use tokio::time::{Instant, sleep};

mod announce;
mod connection;
mod decide;
mod endpoints;
mod failure;
mod follower;
mod host;
mod list_file;
mod secret;
mod status;
mod tls;

pub(crate) use follower::follow;
pub(crate) use host::{Host, Settings};
pub(crate) use status::{EtcdState, ListState, ListStatus};

use connection::Connection;
use decide::{Outcome, decide};
use endpoints::Endpoints;
use failure::Failure;
use tls::Tls;

use crate::config::{Endpoint, EtcdConfig, MeshConfig};

/// How long a start without a list of members waits for one.
const FIRST_PATIENCE: Duration = Duration::from_secs(30);

/// The reason why a relay without a list of members got none from etcd.
#[derive(Debug, thiserror::Error)]
pub enum FirstListError {
    /// No server could be used.
    #[error(
        "relay.mesh.members_file: {file} does not exist, and no list could be read from etcd ({endpoint}: \
         {problem}); write a signed list there, or mend the connection"
    )]
    Unreadable {
        /// The file.
        file: String,
        /// The endpoint that was tried last.
        endpoint: String,
        /// Why it could not be used.
        problem: String,
    },
    /// The list is not acceptable.
    #[error("relay.mesh.etcd: the list of members in etcd is refused: {0}")]
    Refused(String),
}

/// Obtains the first list of members from etcd, if the file does not exist yet. Waits until a server can be
/// used, at most [`FIRST_PATIENCE`].
pub(crate) async fn first_list(mesh: &MeshConfig) -> Result<(), FirstListError> {
    let Some(etcd) = &mesh.etcd else {
        return Ok(());
    };
    if mesh.members_file.exists() {
        return Ok(());
    }
    let deadline = Instant::now() + FIRST_PATIENCE;
    let mut endpoints = Endpoints::new(etcd.endpoints.len());
    loop {
        let endpoint = &etcd.endpoints[endpoints.current()];
        match read_once(etcd, endpoint).await {
            Ok(list) => {
                return match decide(mesh, None, list) {
                    Outcome::Adopted(members) => {
                        let count = counted(members.iter().len(), "member");
                        tracing::info!("the first list of members comes from {endpoint}: {count}");
                        Ok(())
                    }
                    Outcome::Unchanged => Ok(()),
                    Outcome::Refused(refusal) => Err(FirstListError::Refused(refusal.to_string())),
                };
            }
            Err(failure) => {
                tracing::warn!("no list of members yet: {endpoint}: {failure}");
                let wait = endpoints.failed(random_unit());
                if Instant::now() + wait >= deadline {
                    return Err(FirstListError::Unreadable {
                        file: mesh.members_file.display().to_string(),
                        endpoint: endpoint.to_string(),
                        problem: failure.to_string(),
                    });
                }
                sleep(wait).await;
            }
        }
    }
}

/// Reads the list in etcd for a check of the configuration, and changes nothing. Blocks.
///
/// # Errors
/// A sentence on what prevents it, for all endpoints.
pub(crate) fn check(mesh: &MeshConfig, etcd: &EtcdConfig) -> Result<Arc<Members>, String> {
    let runtime = runtime::build(Builder::new_current_thread().enable_all());
    let runtime = runtime.map_err(|e| e.to_string())?;
    // A caller may have a runtime of its own.
    let read = || {
        runtime.block_on(async {
            let mut problems = Vec::new();
            for endpoint in &etcd.endpoints {
                match read_once(etcd, endpoint).await {
                    Ok(list) => return Ok(list),
                    Err(failure) => problems.push(format!("{endpoint}: {failure}")),
                }
            }
            Err(format!("relay.mesh.etcd: {}", problems.join("; ")))
        })
    };
    let list = std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().spawn_scoped(scope, read);
        let thread = thread.map_err(|e| format!("relay.mesh.etcd: cannot start a thread: {e}"))?;
        Ok::<_, String>(thread.join())
    })?;
    let list = list.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
    let refused =
        |refusal| format!("relay.mesh.etcd: the list of members in etcd is refused: {refusal}");
    decide::verify(&mesh.members_key, list).map_err(refused)
}

/// Connects to an endpoint and reads the list.
async fn read_once(etcd: &EtcdConfig, endpoint: &Endpoint) -> Result<Option<String>, Failure> {
    let tls = Tls::load(etcd)?;
    let (mut connection, _) = Connection::open(endpoint, tls.as_ref(), etcd.timeout).await?;
    log_in(etcd, &mut connection).await?;
    let reply = connection
        .call(&read_list(&Keys::new(&etcd.prefix)))
        .await?;
    Ok(offer(&reply)?.list)
}

/// Obtains a token, if the configuration has a user.
async fn log_in(etcd: &EtcdConfig, connection: &mut Connection) -> Result<(), Failure> {
    let Some(login) = &etcd.login else {
        return Ok(());
    };
    let password = secret::read_password(&login.password_file)?;
    let reply = connection
        .call(&authenticate(&login.user, &password))
        .await?;
    connection.set_token(&token(&reply)?)
}

/// Returns a random number from 0 to 1.
fn random_unit() -> f64 {
    f64::from(u32::from_ne_bytes(taut_sys::random::bytes())) / f64::from(u32::MAX)
}
