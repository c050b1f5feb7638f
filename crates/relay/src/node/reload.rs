//! Adopts another configuration while the node runs.
//!
//! As at the start, all resources are acquired before anything changes, so that a configuration
//! that fails changes nothing. Then the workers are notified. Sessions keep the configuration that
//! they started with.

use std::sync::{Arc, PoisonError};

use super::assemble::{Assembly, Names, assemble};
use super::control::without;
use super::descriptors::{Ceilings, ceilings};
use super::error::StartError;
use super::handle::{Present, SharedHandle};
use super::kernel_tls::TlsPlace;
use super::look_ups::look_up_ahead;
use super::mesh::{Identity, load_members};
use super::next_hop::note_relays;
use super::start::announce;
use super::threads::early_reader;
use crate::config::{Config, Forward};
use crate::route::listener::NewListener;
use crate::route::peer::Peer;
use crate::route::table::{Mesh, Route, Setup};
use crate::worker::Order;
use crate::worker::mailbox::Message;

impl SharedHandle {
    /// Adopts `config`, without the forwards and relays that an operator has drained. Settings that need a
    /// restart keep their values; returns a sentence for each, which is also logged. Blocks for as
    /// long as the resolver takes; reloads are serialised.
    ///
    /// # Errors
    /// [`StartError`]; nothing has changed then.
    pub(crate) fn reload(&self, config: &Config) -> Result<Vec<String>, StartError> {
        // Before the lock is taken, for which the control thread may wait.
        // A list that cannot be read is an error of the reload itself.
        let members = { config.mesh.as_ref() }.and_then(|mesh| load_members(mesh).ok());
        look_up_ahead(config, members.as_ref());
        self.adopt(Source::Config(config))
    }

    /// Reads the list of members again.
    ///
    /// # Errors
    /// [`StartError`]; nothing has changed then.
    pub(super) fn reload_members(&self) -> Result<(), StartError> {
        self.adopt(Source::Members).map(drop)
    }

    /// Leaves out what is drained now. The files are those of the present configuration; the list of members
    /// stays what it is.
    ///
    /// # Errors
    /// [`StartError`]; nothing has changed then.
    pub(super) fn adopt_drains(&self) -> Result<(), StartError> {
        self.adopt(Source::Drains).map(drop)
    }

    fn adopt(&self, source: Source<'_>) -> Result<Vec<String>, StartError> {
        let mut present = self.present.lock().unwrap_or_else(PoisonError::into_inner);
        // The log is reopened first, even if the reload fails: it may have been rotated.
        self.reopen_log();
        let config = match source {
            Source::Config(config) => config,
            Source::Members | Source::Drains => &present.config,
        };
        if !self.accepts() {
            if !matches!(source, Source::Drains) {
                self.adopt_members(config)?;
            }
            return Ok(Vec::new());
        }
        let setup = self.shared.setup();
        let members = setup.mesh.as_ref().map(|mesh| mesh.local.members.clone());
        let names = Names {
            checked: matches!(source, Source::Config(_)),
            drained: present.drained_peers.clone(),
            members: members.filter(|_| matches!(source, Source::Drains)),
        };
        let mut config = config.clone();
        let mut notes = Vec::new();
        let mut note = |note: String| {
            tracing::warn!("{note}");
            notes.push(note);
        };
        for kept in keep_what_stays(&mut config, &present.config) {
            note(format!(
                "{kept} cannot be changed while the relay runs; restart to apply it"
            ));
        }
        let workers = self.mailboxes.len();
        let ceilings = match ceilings(&config, workers) {
            Ok(ceilings) => ceilings,
            Err(error) => {
                note(format!("{error}; keeping the former max_sessions"));
                config.max_sessions = present.config.max_sessions;
                Ceilings {
                    sessions: self.shared.places.max(),
                    queued: self.shared.queue.max(),
                }
            }
        };
        let wanted = config;
        let config = without(&present.drained, &wanted);
        let Assembly {
            setup,
            listeners,
            mut holdings,
            ..
        } = assemble(
            &config,
            workers,
            &self.turbo,
            &present.holdings,
            &self.registry,
            Vec::new(),
            &names,
        )?;
        let targets = setup.routes.iter().flat_map(|route| route.targets());
        for targets in targets.filter(|targets| names.checked && !targets.has_address()) {
            // The log says so as of any other thing that is broken.
            notes.push(format!(
                "cannot look up {}; until it has an address, its sessions are reset",
                targets.destination()
            ));
        }
        let setup = Arc::new(setup);
        let watch = self.watch(&config, &setup, &present)?;

        // Nothing below fails. The node may have been told to drain meanwhile.
        if self.shared.ordered() != Order::Run {
            self.adopt_members(&config)?;
            return Ok(notes);
        }
        holdings.setup = Some(setup.clone());
        self.publish(&config, &setup, &ceilings, listeners);
        let before = present.holdings.setup.as_deref();
        // The drain of a next relay changes where forwards lead, not the forwards that are logged.
        let drains_a_relay = matches!(source, Source::Drains)
            && before.is_some_and(|before| before.routes.len() == setup.routes.len());
        if !drains_a_relay {
            announce(&config, &setup, before);
        }
        self.changed.notify_one();
        self.unknown.notify_one();
        present.config = wanted;
        present.holdings = holdings;
        if let Watch::Replace(reader) = watch {
            // Dropped outside the lock, because dropping joins a thread.
            let old = std::mem::replace(&mut *self.early(), reader);
            drop(old);
        }
        Ok(notes)
    }

    /// Has the workers adopt a configuration. Nothing here fails.
    fn publish(
        &self,
        config: &Config,
        setup: &Arc<Setup>,
        ceilings: &Ceilings,
        listeners: Vec<Vec<NewListener>>,
    ) {
        self.shared.places.set_max(ceilings.sessions);
        self.shared.queue.set_max(ceilings.queued);
        let per_source = config.per_source(ceilings.sessions);
        let per_shared = config.per_shared_source();
        self.shared.sources.set_limits(per_source, per_shared);
        self.shared
            .arrivals
            .set_rate(config.max_connects_per_source);
        note_relays(&self.relays, setup);
        self.shared.replace(setup.clone());
        // Before the workers dial: a connection has the rate that its leg has at that time.
        self.start_legs(config, setup);
        for (mailbox, listeners) in self.mailboxes.iter().zip(listeners) {
            let _ = mailbox.post(Message::Reloaded {
                setup: setup.clone(),
                listeners,
            });
        }
    }

    /// Adopts the list of members that `config` names, and nothing else of it: a draining node opens no
    /// listener, but a relay that is removed from the list must lose its sessions here, too.
    fn adopt_members(&self, config: &Config) -> Result<(), StartError> {
        let setup = self.shared.setup();
        let (Some(mesh), Some(wanted)) = (&setup.mesh, &config.mesh) else {
            return Ok(());
        };
        let mut mesh = Mesh::clone(mesh);
        let identity = Identity::load(wanted, &TlsPlace::of(config))?;
        identity.replaces(&mesh.local.members, wanted)?;
        let current = |peer: &Arc<Peer>| {
            let member = identity.local.members.by_name(peer.name.as_str())?;
            Some(Arc::new(Peer {
                keys: identity.keys_with(member),
                tls: identity.dial_tls(member),
                ..Peer::clone(peer)
            }))
        };
        mesh.peers = mesh.peers.iter().filter_map(current).collect();
        mesh.local = identity.local;
        mesh.key = identity.key;
        let setup = Arc::new(Setup {
            mesh: Some(Arc::new(mesh)),
            ..Setup::clone(&setup)
        });
        note_relays(&self.relays, &setup);
        self.shared.replace(setup.clone());
        for mailbox in &self.mailboxes {
            let _ = mailbox.post(Message::Reloaded {
                setup: setup.clone(),
                listeners: Vec::new(),
            });
        }
        Ok(())
    }

    /// Starts early SYN for these routes in a new reader. Until the old reader ends, both may
    /// report the same SYN; the limiter counts it once.
    fn watch(
        &self,
        config: &Config,
        setup: &Setup,
        present: &Present,
    ) -> Result<Watch, StartError> {
        let before = present.holdings.setup.as_deref();
        let same = before.is_some_and(|before| watched(before).eq(watched(setup)));
        if same {
            return Ok(Watch::Keep);
        }
        let Some(table) = &self.shared.early else {
            return Ok(Watch::Keep);
        };
        if watched(setup).next().is_none() {
            return Ok(Watch::Replace(None));
        }
        let reader = early_reader(config, setup, table.clone(), self.mailboxes.clone())?;
        Ok(Watch::Replace(Some(reader)))
    }
}

/// What is adopted.
#[derive(Clone, Copy)]
enum Source<'a> {
    /// A configuration, and the files that it names.
    Config(&'a Config),
    /// The list of members; the configuration stays.
    Members,
    /// What an operator has drained; the configuration and the list of members stay.
    Drains,
}

/// The action for the early SYN thread.
enum Watch {
    Keep,
    Replace(Option<super::early_syn_thread::Reader>),
}

/// Returns the numbers of the routes that use early SYN.
fn watched(setup: &Setup) -> impl Iterator<Item = u32> {
    let routes = setup
        .routes
        .iter()
        .filter(|route: &&Arc<Route>| route.early_syn);
    routes.map(|route| route.id)
}

/// Restores in `new` the settings that a running node cannot change, and returns their names.
fn keep_what_stays(new: &mut Config, old: &Config) -> Vec<&'static str> {
    let mut kept = Vec::new();
    let mut keep = |name, changed: bool| {
        if changed {
            kept.push(name);
        }
    };
    keep("relay.workers", new.workers != old.workers);
    new.workers = old.workers;
    keep("relay.metrics", new.metrics != old.metrics);
    new.metrics = old.metrics;
    keep("relay.admin", new.admin != old.admin);
    new.admin = old.admin;
    keep("relay.handover", new.handover != old.handover);
    new.handover = old.handover.clone();
    keep("relay.control", new.control != old.control);
    new.control = old.control.clone();
    keep("relay.user", new.user != old.user);
    new.user = old.user.clone();
    keep("relay.session_log", new.session_log != old.session_log);
    new.session_log = old.session_log.clone();
    keep(
        "relay.splice, splice_after, pipe_size or max_pipes",
        new.data != old.data,
    );
    new.data = old.data;
    keep(
        "relay.early_syn_devices",
        new.early_syn.devices != old.early_syn.devices,
    );
    new.early_syn = old.early_syn.clone();
    if new.mesh.is_none() && old.mesh.is_some() {
        keep("the absence of [relay.mesh]", true);
        new.mesh = old.mesh.clone();
    }
    let is_transparent = |f: &&Forward| f.transparent.is_some();
    let transparent = |config: &Config| -> Vec<Forward> {
        config
            .forwards
            .iter()
            .filter(is_transparent)
            .cloned()
            .collect()
    };
    let intercepted = |forwards: &[Forward]| -> Vec<_> {
        let parts = forwards.iter();
        parts
            .map(|f| (f.listen.clone(), f.transparent.clone()))
            .collect()
    };
    let (wanted, present) = (transparent(new), transparent(old));
    if intercepted(&wanted) != intercepted(&present) {
        keep("transparent forwards", true);
        new.forwards.retain(|f| f.transparent.is_none());
        new.forwards.extend(present);
    }
    let borrows = |config: &Config| {
        let forwards = config.forwards.iter().any(|f| f.identity.borrow);
        forwards || config.mesh.as_ref().is_some_and(|mesh| mesh.borrow)
    };
    if borrows(new) && !borrows(old) {
        keep("the first `source = \"client\"`", true);
        new.forwards
            .iter_mut()
            .for_each(|f| f.identity.borrow = false);
        new.mesh.iter_mut().for_each(|mesh| mesh.borrow = false);
    }
    let had_early_syn = old.forwards.iter().any(|f| f.early_syn);
    if !had_early_syn {
        let asked = new.forwards.iter().any(|f| f.early_syn);
        keep("early_syn of the first forward that has it", asked);
        new.forwards.iter_mut().for_each(|f| f.early_syn = false);
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Forward;

    fn config() -> Config {
        let listen = vec!["127.0.0.1:0".parse().unwrap()];
        let to = "127.0.0.1:9".parse().unwrap();
        Config::new(vec![Forward::new(listen, to)])
    }

    #[test]
    fn settings_that_need_a_restart_stay_and_are_named_once() {
        let old = config();
        let mut new = config();
        assert!(keep_what_stays(&mut new, &old).is_empty());
        new.workers = Some(7);
        new.metrics = Some("127.0.0.1:1".parse().unwrap());
        new.admin = Some("127.0.0.1:2".parse().unwrap());
        new.data.max_pipes = 1;
        new.data.splice_after = None;
        new.forwards[0].early_syn = true;
        new.timeouts.idle = Some(std::time::Duration::from_secs(1));
        assert_eq!(
            keep_what_stays(&mut new, &old),
            [
                "relay.workers",
                "relay.metrics",
                "relay.admin",
                "relay.splice, splice_after, pipe_size or max_pipes",
                "early_syn of the first forward that has it",
            ]
        );
        assert_eq!((new.workers, new.admin), (old.workers, old.admin));
        assert_eq!(new.data, old.data);
        assert!(!new.forwards[0].early_syn);
        assert!(new.timeouts.idle.is_some());
    }
}
