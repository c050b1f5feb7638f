//! A worker's listeners, and what becomes of them when the configuration changes.

use std::collections::BTreeSet;
use std::sync::Arc;

use taut_sys::epoll::Interest;

use super::{ACCEPTS, BACKLOG, Door, DoorId, NewDoor, Worker, listener_token};
use crate::setup::Setup;

impl Worker {
    /// Another configuration is at work. Listeners that are no part of it are closed after what is
    /// in their queues, others get their new purpose and keep their queues.
    pub(super) fn reload(&mut self, setup: Arc<Setup>, doors: Vec<NewDoor>) {
        let wanted: BTreeSet<_> = doors.iter().map(|door| door.id).collect();
        let unwanted: Vec<_> = self.doors.keys().copied().collect();
        for id in unwanted.into_iter().filter(|id| !wanted.contains(id)) {
            self.close_door(id);
        }
        for door in doors {
            self.hang(door);
        }
        self.setup = setup;
        self.reload_mesh();
    }

    fn hang(&mut self, new: NewDoor) {
        let NewDoor {
            id,
            listener,
            purpose,
            options,
        } = new;
        let Some(listener) = listener else {
            if let Some(door) = self.doors.get_mut(&id) {
                if let Err(error) = door.listener.set_options(&options) {
                    tracing::warn!(%error, "a listener keeps the options that it had");
                }
                door.purpose = purpose;
            }
            return;
        };
        let watched = self
            .poller
            .add(&*listener, listener_token(id), Interest::Read);
        let mut door = Door::new(listener, purpose);
        if let Err(error) = watched {
            tracing::warn!(%error, "cannot watch a listener; trying again shortly");
            door.resting_until = Some(self.shop.now);
        }
        self.doors.insert(id, door);
    }

    /// Takes what is already waiting, so that nobody who was let in by the kernel is thrown out,
    /// and then no more.
    pub(super) fn close_door(&mut self, id: DoorId) {
        // The queue is no longer than this; without a bound, arrivals could keep it open.
        let rounds = BACKLOG as usize / ACCEPTS + 1;
        (0..rounds).find(|_| !self.accept(id));
        if let Some(door) = self.doors.remove(&id) {
            // Another process may have the same socket; then closing it would not end the reports.
            let _ = self.poller.remove(&*door.listener);
        }
    }
}
