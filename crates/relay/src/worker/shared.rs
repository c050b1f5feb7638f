//! What all workers of a node share.

use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwap;

use crate::access::session_quota::SessionQuota;
use crate::early_syn::PendingTable;
use crate::route::table::Setup;
use crate::session_log::Recorder;
use crate::turbo::route_metrics::Relays;
use crate::worker::mailbox::Mailbox;
use crate::worker::resolver::Resolver;

/// What a node tells its workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Order {
    /// Take connections.
    Run = 0,
    /// Take no more, and end when the last session has.
    Drain = 1,
    /// Reset what is open and end.
    Stop = 2,
}

/// What all workers of a node share.
pub(crate) struct Shared {
    order: AtomicU8,
    open: AtomicU32,
    pub(crate) max_sessions: AtomicU32,
    /// Sessions of each source.
    pub(crate) sources: Arc<SessionQuota>,
    /// One for each worker.
    pub(crate) workers: u32,
    /// What workers take over when they are told.
    setup: ArcSwap<Setup>,
    /// There is one from the first time that sessions from the mesh are taken.
    pub(crate) resolver: OnceLock<Resolver>,
    /// Where sessions are recorded when they have ended.
    pub(super) log: Option<Recorder>,
    /// Who has an upstream leg for whom, when early SYN is on.
    pub(crate) early: Option<Arc<PendingTable>>,
    /// Which relays connect here, where that matters for routes.
    pub(crate) relays: Option<Arc<Relays>>,
    /// The workers', in their order.
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
            open: AtomicU32::new(0),
            max_sessions: AtomicU32::new(max_sessions),
            sources,
            workers,
            setup: ArcSwap::from_pointee(setup),
            resolver: OnceLock::new(),
            log,
            early,
            relays,
            mailboxes: OnceLock::new(),
        }
    }

    /// Makes the workers known to each other.
    pub(crate) fn introduce(&self, mailboxes: Vec<Arc<Mailbox>>) {
        // They are introduced once.
        let _ = self.mailboxes.set(mailboxes);
    }

    /// The configuration at work.
    pub(crate) fn setup(&self) -> Arc<Setup> {
        self.setup.load_full()
    }

    pub(crate) fn replace(&self, setup: Arc<Setup>) {
        self.setup.store(setup);
        self.relays_may_differ();
    }

    /// The relays that are dialled may have other addresses.
    pub(crate) fn relays_may_differ(&self) {
        if let Some(relays) = &self.relays {
            relays.changed().notify_one();
        }
    }

    pub(super) fn mailboxes(&self) -> &[Arc<Mailbox>] {
        self.mailboxes.get().map_or(&[], Vec::as_slice)
    }

    /// One worker's part of a figure that is the whole node's; at least 1 of at least 1.
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

    pub(super) fn admit(&self) -> bool {
        let max = self.max_sessions.load(Ordering::Relaxed);
        let admitted = self.open.fetch_add(1, Ordering::Relaxed) < max;
        if !admitted {
            self.release();
        }
        admitted
    }

    pub(super) fn release(&self) {
        self.open.fetch_sub(1, Ordering::Relaxed);
    }
}
