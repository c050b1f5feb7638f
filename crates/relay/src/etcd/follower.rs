//! The task that follows the list of members in etcd for as long as the relay runs.

use std::sync::Arc;
use std::time::Duration;

use taut_mesh::etcd::{
    Keys, Request, WatchMessage, offer, present, read_list, read_present, watch_list, watch_message,
};
use taut_sys::plural::counted;
use tokio::time::{Instant, sleep, sleep_until};

use super::announce::{Announced, Announcer};
use super::connection::{Connection, Stream};
use super::decide::{Outcome, decide};
use super::endpoints::{Backoff, Endpoints};
use super::failure::Failure;
use super::host::{Host, Settings};
use super::status::ListStatus;
use super::tls::{Renewal, Tls, expiry};
use super::{log_in, random_unit};
use crate::config::Endpoint;

/// The interval at which the configuration is checked for a change, and whether the relay drains.
const SETTINGS_EVERY: Duration = Duration::from_secs(1);

/// Follows the list of members in etcd while the configuration of `node` says so.
pub(crate) async fn follow(node: Arc<impl Host>) {
    let mut announcer = Announcer::new();
    loop {
        match node.etcd_settings() {
            None => {
                node.list().stop_following();
                sleep(SETTINGS_EVERY).await;
            }
            Some(settings) => {
                let follower = Follower {
                    node: &node,
                    keys: Keys::new(&settings.etcd.prefix),
                    settings: &settings,
                    announcer: &mut announcer,
                };
                follower.run().await;
            }
        }
    }
}

struct Follower<'a, H> {
    node: &'a Arc<H>,
    settings: &'a Settings,
    keys: Keys,
    announcer: &'a mut Announcer,
}

impl<H: Host> Follower<'_, H> {
    /// Uses one server after the other until the settings change.
    async fn run(mut self) {
        let endpoints_of = &self.settings.etcd.endpoints;
        let mut endpoints = Endpoints::new(endpoints_of.len());
        while self.settings_are_current() {
            let endpoint = &endpoints_of[endpoints.current()];
            if let Err(failure) = self.use_server(endpoint, &mut endpoints).await {
                tracing::debug!("{endpoint}: {failure}");
                self.status().failed(endpoint, &failure);
                sleep(endpoints.failed(random_unit())).await;
            }
        }
    }

    /// Reads and watches at one server until it fails or the settings change.
    async fn use_server(
        &mut self,
        endpoint: &Endpoint,
        endpoints: &mut Endpoints,
    ) -> Result<(), Failure> {
        let mut renewal = Renewal::new(&self.settings.etcd);
        let tls = Tls::load(&self.settings.etcd)?;
        let (mut connection, certificate) = self.connect(endpoint, tls.as_ref()).await?;
        let mut expiries = tls
            .as_ref()
            .map_or_else(Vec::new, |tls| tls.expiries.clone());
        expiries.extend(
            certificate
                .and_then(|c| expiry(&c))
                .map(|at| ("server", at)),
        );
        self.status().connected(endpoint, expiries);
        let mut watch: Option<Stream> = None;
        let mut last_seen = None;
        let mut ended_watches = Backoff::default();
        loop {
            let read = offer(&self.call(&mut connection, &read_list(&self.keys)).await?)?;
            self.status().read(endpoint);
            // A watch that has missed a change is replaced.
            if last_seen.as_ref().is_some_and(|seen| *seen != read.list) {
                watch = None;
            }
            last_seen = Some(read.list.clone());
            self.consider(read.list).await;
            let mut stream = match watch.take() {
                Some(stream) => stream,
                None => {
                    let (other, _) = self.connect(endpoint, tls.as_ref()).await?;
                    other.stream(&watch_list(&self.keys, read.revision)).await?
                }
            };
            let read_again = Instant::now() + self.interval();
            let mut announce_at = Instant::now();
            let mut announcements: u32 = 0;
            let ended = loop {
                let withdraws = !self.node.accepts() && self.announcer.has_lease();
                if Instant::now() >= announce_at || withdraws {
                    announcements += 1;
                    // Relays that start together announce themselves soon after one another. The names of a
                    // large mesh are too long to be read each time.
                    let lists = announcements.is_power_of_two();
                    let announced = self.announce(&mut connection, lists).await;
                    if self.is_disconnected(announced) {
                        // The watch has a connection of its own, and goes on.
                        (connection, _) = self.connect(endpoint, tls.as_ref()).await?;
                    }
                    announce_at = Instant::now() + self.announce_interval();
                }
                let message = tokio::select! {
                    line = stream.next() => Some(watch_message(&line?)?),
                    () = sleep_until(read_again) => break false,
                    () = sleep(SETTINGS_EVERY) => None,
                };
                match message {
                    Some(WatchMessage::Changed(change)) => {
                        endpoints.succeeded();
                        self.status().change_reported();
                        last_seen = Some(change.list.clone());
                        self.consider(change.list).await;
                    }
                    // The watch has begun.
                    Some(WatchMessage::Quiet) => endpoints.succeeded(),
                    Some(WatchMessage::Ended { compacted }) => {
                        self.status().watch_ended(compacted);
                        break true;
                    }
                    None => {}
                }
                if !self.settings_are_current() || self.is_renewed(&mut renewal) {
                    return Ok(());
                }
            };
            if ended {
                let wait = ended_watches.failed(1, random_unit());
                // At most until the lease must be renewed.
                sleep(wait.min(self.announce_interval())).await;
            } else {
                ended_watches.succeeded();
                watch = Some(stream);
            }
        }
    }

    async fn connect(
        &self,
        endpoint: &Endpoint,
        tls: Option<&Tls>,
    ) -> Result<(Connection, Option<Vec<u8>>), Failure> {
        let etcd = &self.settings.etcd;
        let (mut connection, certificate) = Connection::open(endpoint, tls, etcd.timeout).await?;
        log_in(etcd, &mut connection).await?;
        Ok((connection, certificate))
    }

    /// Makes a call, with a new token if the present one has expired.
    async fn call(
        &self,
        connection: &mut Connection,
        request: &Request,
    ) -> Result<Vec<u8>, Failure> {
        match connection.call(request).await {
            Err(failure) if failure.wants_token() && self.settings.etcd.login.is_some() => {
                log_in(&self.settings.etcd, connection).await?;
                connection.call(request).await
            }
            other => other,
        }
    }

    /// Decides on a list, on a thread that may block for the file.
    async fn consider(&self, list: Option<String>) {
        let (mesh, node) = (self.settings.mesh.clone(), self.node.clone());
        let decided = tokio::task::spawn_blocking(move || {
            let running = node.members();
            decide(&mesh, running.as_deref(), list)
        });
        // The panic hook has reported a panic.
        let Ok(outcome) = decided.await else { return };
        if let Outcome::Adopted(members) = &outcome {
            let serial = members.statement().map_or(0, |s| s.serial);
            tracing::info!(
                "etcd has a new list of members, serial {serial}: {}, written to {}",
                counted(members.iter().len(), "member"),
                self.settings.mesh.members_file.display()
            );
        }
        self.status().decided(&outcome);
    }

    /// Announces this relay, or withdraws the announcement if the relay drains, and reads, if `lists`, which
    /// relays have announced themselves. Does so with a new token if the present one has expired.
    async fn announce(&mut self, connection: &mut Connection, lists: bool) -> Result<(), Failure> {
        match self.try_to_announce(connection, lists).await {
            Err(failure) if failure.wants_token() && self.settings.etcd.login.is_some() => {
                log_in(&self.settings.etcd, connection).await?;
                self.try_to_announce(connection, lists).await
            }
            other => other,
        }
    }

    async fn try_to_announce(
        &mut self,
        connection: &mut Connection,
        lists: bool,
    ) -> Result<(), Failure> {
        let term = self.settings.etcd.lease.filter(|_| self.node.accepts());
        if let Some(term) = term {
            let (keys, name) = (&self.keys, &self.settings.name);
            let announced = self
                .announcer
                .announce(connection, keys, name, term)
                .await?;
            self.status().announced(
                announced == Announced::Yes,
                announced == Announced::Duplicate,
            );
        } else {
            self.announcer.withdraw(connection).await?;
        }
        if lists {
            self.list_present(connection).await?;
        }
        Ok(())
    }

    /// Records whether the announcement has failed. The server stays in use all the same, because relays
    /// need only its list. Returns whether further calls need a new connection.
    fn is_disconnected(&self, announced: Result<(), Failure>) -> bool {
        let failure = announced.err();
        let text = failure.as_ref().map(Failure::to_string);
        if self.status().set_announcement(text.clone())
            && let Some(text) = text
        {
            tracing::warn!(
                "this relay cannot announce itself in etcd, or read which relays have: {text}; it follows \
                 the list of members all the same"
            );
        }
        failure.is_some_and(|failure| failure.ends_connection())
    }

    /// Reads which relays have announced themselves.
    async fn list_present(&mut self, connection: &mut Connection) -> Result<(), Failure> {
        let reply = self.call(connection, &read_present(&self.keys)).await?;
        let present = present(&reply, &self.keys)?;
        if !present.names.contains(&self.settings.name) {
            self.announcer.is_gone();
        }
        self.status().set_present(present.names);
        Ok(())
    }

    fn status(&self) -> &ListStatus {
        self.node.list()
    }

    /// Returns whether to connect again because certificates were renewed. If the new ones cannot be used, the
    /// present connections stay.
    fn is_renewed(&self, renewal: &mut Renewal) -> bool {
        let etcd = &self.settings.etcd;
        if !renewal.is_complete(etcd) {
            return false;
        }
        match Tls::load(etcd) {
            Ok(_) => {
                tracing::info!("the certificates for etcd were renewed; connecting with them");
                true
            }
            Err(failure) => {
                tracing::warn!(
                    "the certificates for etcd have changed and cannot be used: {failure}; the present \
                     connection stays, correct the files"
                );
                false
            }
        }
    }

    fn settings_are_current(&self) -> bool {
        self.node.etcd_settings().as_ref() == Some(self.settings)
    }

    /// Returns `interval`, ± 10 %, so that relays that started together do not read together.
    fn interval(&self) -> Duration {
        self.settings
            .etcd
            .interval
            .mul_f64(0.9 + 0.2 * random_unit())
    }

    /// Returns the time after which the lease is renewed: a third of its term, so that one failure does not
    /// end it.
    fn announce_interval(&self) -> Duration {
        self.settings
            .etcd
            .lease
            .unwrap_or(self.settings.etcd.interval)
            / 3
    }
}
