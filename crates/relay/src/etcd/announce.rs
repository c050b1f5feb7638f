//! Announces this relay in etcd under a lease, which expires when the relay is gone.

use std::time::Duration;

use taut_mesh::etcd::{
    Keys, Lease, Presence, Registered, check_kept, grant, keep, lease, register, registered, renew,
    revoke,
};
use taut_mesh::members::MemberName;
use taut_sys::random;
use tokio::time::Instant;

use super::connection::Connection;
use super::failure::Failure;

/// The announcement of this process. It outlives connections.
#[derive(Debug)]
pub(super) struct Announcer {
    presence: Presence,
    lease: Option<Lease>,
    is_registered: bool,
    /// The time since which another process has had the name.
    taken_since: Option<Instant>,
}

/// The result of a step of the announcer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Announced {
    /// This relay is announced.
    Yes,
    /// Another process has the name. It may be a killed one whose lease has not expired.
    NotYet,
    /// Another process keeps the name for longer than a lease of a killed one lasts.
    Duplicate,
}

impl Announcer {
    pub(super) fn new() -> Self {
        Self {
            presence: Presence {
                instance: u128::from_ne_bytes(random::bytes()),
            },
            lease: None,
            is_registered: false,
            taken_since: None,
        }
    }

    /// Returns whether this relay holds a lease.
    pub(super) fn has_lease(&self) -> bool {
        self.lease.is_some()
    }

    /// Keeps the lease, or obtains one, and announces `name` under it.
    pub(super) async fn announce(
        &mut self,
        connection: &mut Connection,
        keys: &Keys,
        name: &MemberName,
        term: Duration,
    ) -> Result<Announced, Failure> {
        let kept = match self.lease {
            Some(lease) if check_kept(&connection.call(&keep(lease.id)).await?)? => Some(lease),
            _ => None,
        };
        let lease = match kept {
            Some(lease) => lease,
            None => {
                (self.lease, self.is_registered) = (None, false);
                let granted = lease(&connection.call(&grant(term.as_secs())).await?)?;
                self.lease = Some(granted);
                granted
            }
        };
        if !self.is_registered {
            let ask = register(keys, name, self.presence, lease.id);
            match registered(&connection.call(&ask).await?)? {
                Registered::Done => {}
                // Under a lease whose reply was lost, or that is about to expire.
                Registered::Taken(Some(other)) if other == self.presence => {
                    let ask = renew(keys, name, self.presence, lease.id);
                    connection.call(&ask).await?;
                }
                Registered::Taken(_) => {
                    let now = Instant::now();
                    let since = *self.taken_since.get_or_insert(now);
                    return Ok(match now.duration_since(since) > term * 2 {
                        true => Announced::Duplicate,
                        false => Announced::NotYet,
                    });
                }
            }
            (self.is_registered, self.taken_since) = (true, None);
        }
        Ok(Announced::Yes)
    }

    /// The announcement is no longer there although the lease is: make it again.
    pub(super) fn is_gone(&mut self) {
        self.is_registered = false;
    }

    /// Gives the lease back. If that fails, it expires.
    pub(super) async fn withdraw(&mut self, connection: &mut Connection) -> Result<(), Failure> {
        self.is_registered = false;
        match self.lease.take() {
            Some(lease) => connection.call(&revoke(lease.id)).await.map(drop),
            None => Ok(()),
        }
    }
}
