//! State that all workers of a node share.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwap;
use taut_mesh::member_quota::{MemberPermit, MemberQuota, default_limit};
use taut_mesh::members::MemberName;
use taut_mesh::places::SessionPlaces;

use crate::access::arrival_rate::ArrivalRate;
use crate::access::session_quota::{SessionQuota, UNLIMITED};
use crate::config::InboundLimits;
use crate::early_syn::PendingTable;
use crate::net::backend::BackendTable;
use crate::route::table::Setup;
use crate::rows_mailbox::RowsMailbox;
use crate::session_log::Recorder;
use crate::turbo::route_metrics::Relays;
use crate::worker::mailbox::Mailbox;
use crate::worker::queue::Queue;

/// An order to all workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Order {
    /// Accept connections.
    Run = 0,
    /// Accept no more connections, and end after the last session.
    Drain = 1,
    /// Reset open sessions and end.
    Stop = 2,
}

/// State that all workers of a node share.
pub(crate) struct Shared {
    order: AtomicU8,
    pub(crate) places: Arc<SessionPlaces>,
    /// Clients that wait for a place.
    pub(crate) queue: Arc<Queue>,
    /// Open sessions by source.
    pub(crate) sources: Arc<SessionQuota>,
    /// Open sessions by the member that they come from.
    pub(crate) members: Arc<MemberQuota>,
    /// The rate of each source's connections.
    pub(crate) arrivals: ArrivalRate,
    /// The rate of each source's connections to the mesh port that have not proven a key.
    pub(crate) unproven_arrivals: ArrivalRate,
    /// The number of workers.
    pub(crate) workers: u32,
    /// The configuration that workers adopt on [`super::mailbox::Message::Reloaded`].
    setup: ArcSwap<Setup>,
    /// The session log.
    pub(super) log: Option<Recorder>,
    /// The clients that have an early upstream leg, and its worker; `None` if early SYN is off.
    pub(crate) early: Option<Arc<PendingTable>>,
    /// The relays that connect here; set if routes to them get an initial window.
    pub(crate) relays: Option<Arc<Relays>>,
    /// What the node knows about the addresses of destinations.
    pub(crate) backends: Arc<BackendTable>,
    /// The thread that exchanges rows with other relays.
    pub(crate) rows: Option<Arc<RowsMailbox>>,
    /// The mailbox of each worker, by its index.
    mailboxes: OnceLock<Vec<Arc<Mailbox>>>,
}

// === impl Shared ===

impl Shared {
    pub(crate) fn new(
        workers: u32,
        max_sessions: u32,
        sources: Arc<SessionQuota>,
        setup: Setup,
        log: Option<Recorder>,
        early: Option<Arc<PendingTable>>,
        relays: Option<Arc<Relays>>,
    ) -> Self {
        let order = AtomicU8::new(Order::Run as u8);
        Self {
            order,
            places: SessionPlaces::new(max_sessions),
            queue: Arc::default(),
            sources,
            members: Arc::default(),
            arrivals: ArrivalRate::new(UNLIMITED),
            unproven_arrivals: ArrivalRate::new(unproven_rate(&setup)),
            workers,
            setup: ArcSwap::from_pointee(setup),
            log,
            early,
            relays,
            backends: Arc::default(),
            rows: None,
            mailboxes: OnceLock::new(),
        }
    }

    /// Sets what the node knows about the addresses of destinations.
    pub(crate) fn with_backends(self, backends: Arc<BackendTable>) -> Self {
        Self { backends, ..self }
    }

    /// Sets the rate at which a source may open connections.
    pub(crate) fn with_rate(self, rate: u32) -> Self {
        self.arrivals.set_rate(rate);
        self
    }

    /// Sets the thread that exchanges rows.
    pub(crate) fn with_rows(self, rows: Option<Arc<RowsMailbox>>) -> Self {
        Self { rows, ..self }
    }

    /// Sets where clients wait for a place.
    pub(crate) fn with_queue(self, queue: Arc<Queue>) -> Self {
        Self { queue, ..self }
    }

    /// Makes the workers' mailboxes known to each other.
    pub(crate) fn introduce(&self, mailboxes: Vec<Arc<Mailbox>>) {
        // Fails only if called twice, which does not happen.
        let _ = self.mailboxes.set(mailboxes);
    }

    /// Returns the present configuration.
    pub(crate) fn setup(&self) -> Arc<Setup> {
        self.setup.load_full()
    }

    pub(crate) fn replace(&self, setup: Arc<Setup>) {
        self.unproven_arrivals.set_rate(unproven_rate(&setup));
        self.setup.store(setup);
        self.relays_may_differ();
    }

    /// Reports that the addresses of relays may have changed.
    pub(crate) fn relays_may_differ(&self) {
        if let Some(relays) = &self.relays {
            relays.changed().notify_one();
        }
    }

    pub(super) fn mailboxes(&self) -> &[Arc<Mailbox>] {
        self.mailboxes.get().map_or(&[], Vec::as_slice)
    }

    /// Returns one worker's share of a limit of the whole node: 1 or more, unless the limit is 0.
    pub(super) fn share(&self, of_node: u32) -> u32 {
        of_node.div_ceil(self.workers)
    }

    pub(crate) fn order(&self, order: Order) {
        self.order.fetch_max(order as u8, Ordering::Release);
    }

    pub(crate) fn ordered(&self) -> Order {
        match self.order.load(Ordering::Acquire) {
            0 => Order::Run,
            1 => Order::Drain,
            _ => Order::Stop,
        }
    }

    /// Takes a place for a session of `member`. Returns `None` if it has its share of the sessions open.
    pub(super) fn admit_member(
        &self,
        member: &MemberName,
        limits: &InboundLimits,
    ) -> Option<MemberPermit> {
        let max = self.places.max();
        let limit = limits.max_sessions_per_member;
        self.members
            .admit(member, limit.unwrap_or_else(|| default_limit(max)))
    }
}

/// Returns the rate at which a source may open connections to the mesh port without proving a key.
fn unproven_rate(setup: &Setup) -> u32 {
    let mesh = setup.mesh.as_ref();
    mesh.map_or(UNLIMITED, |mesh| mesh.inbound.max_connects_per_source)
}
