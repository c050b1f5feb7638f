//! Decides from QEMU's messages when early ACKs must stop at a tap.
//!
//! A machine that is about to be moved, is stopped or was reset may take the data in its tap's ring
//! late or never. Its guest gets no early ACKs until it runs again.

use super::message::{Event, MigrationStatus};

/// The reason why a machine's tap gets no early ACKs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HoldReason {
    /// The machine is being migrated or saved.
    Migrating,
    /// The machine's processors are stopped, or it is suspended.
    Stopped,
    /// The machine was reset, and its guest lost all connections.
    Reset,
    /// A device of the machine was unplugged, perhaps the one at the tap.
    Unplugged,
    /// QEMU closed its monitor, as it does when it exits.
    Disconnected,
}

/// Restricts early ACKs at a machine's tap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Restriction {
    /// While set, there are no early ACKs.
    pub hold: Option<HoldReason>,
    /// If set, there are no early ACKs until the guest has sent something after this event.
    pub until_heard: Option<HoldReason>,
}

/// The known state of a machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    stopped: bool,
    migrating: bool,
    until_heard: Option<HoldReason>,
    /// Whether QEMU has answered the queries, so that the state is complete.
    known: bool,
    /// The last reported hold; `None`: none reported since the connection was made.
    hold: Option<Option<HoldReason>>,
}

// === impl HoldReason ===

impl HoldReason {
    /// Returns the phrase for logs and `status`.
    pub fn phrase(self) -> &'static str {
        match self {
            Self::Migrating => "the guest is being migrated or saved",
            Self::Stopped => "the guest is stopped",
            Self::Reset => "the guest was reset and has not sent anything since",
            Self::Unplugged => {
                "a device of the guest was unplugged, and it has not sent anything since"
            }
            Self::Disconnected => {
                "QEMU closed its monitor, and the guest has not sent anything since"
            }
        }
    }
}

// === impl Policy ===

impl Policy {
    /// Records QEMU's answer about the processors, which is its first answer.
    pub fn on_running(&mut self, running: bool) {
        self.stopped = !running;
    }

    /// Records QEMU's answer about a migration.
    pub fn on_migration(&mut self, status: MigrationStatus) {
        self.migrating = status == MigrationStatus::UnderWay;
        self.known = true;
    }

    /// Records an event.
    pub fn on_event(&mut self, event: Event) {
        match event {
            // After a shutdown the machine is stopped, unless QEMU exits.
            Event::Stop | Event::Suspend | Event::Shutdown => self.stopped = true,
            Event::Resume | Event::Wakeup => self.stopped = false,
            Event::Migration(status) => self.migrating = status == MigrationStatus::UnderWay,
            Event::Reset => self.until_heard = Some(HoldReason::Reset),
            Event::DeviceDeleted => {
                self.until_heard.get_or_insert(HoldReason::Unplugged);
            }
        }
    }

    /// Records that the connection to QEMU was lost: the known state may be outdated.
    pub fn on_disconnected(&mut self) {
        *self = Self {
            until_heard: Some(HoldReason::Disconnected),
            ..Self::default()
        };
    }

    /// Returns the restriction that follows from the recorded state. Returns `None` if it is
    /// unchanged or the state is incomplete.
    pub fn restriction(&mut self) -> Option<Restriction> {
        // A migration takes precedence: it may stop and continue the machine.
        let hold = match (self.migrating, self.stopped) {
            (true, _) => Some(HoldReason::Migrating),
            (false, true) => Some(HoldReason::Stopped),
            (false, false) => None,
        };
        let until_heard = self.until_heard.take();
        let is_new = self.hold != Some(hold) && (self.known || hold.is_some());
        if is_new {
            self.hold = Some(hold);
        }
        (is_new || until_heard.is_some()).then_some(Restriction { hold, until_heard })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SETUP: Event = Event::Migration(MigrationStatus::UnderWay);
    const COMPLETED: Event = Event::Migration(MigrationStatus::Completed);
    const FAILED: Event = Event::Migration(MigrationStatus::None);

    const MIGRATING: Restriction = Restriction {
        hold: Some(HoldReason::Migrating),
        until_heard: None,
    };
    const STOPPED: Restriction = Restriction {
        hold: Some(HoldReason::Stopped),
        until_heard: None,
    };
    const FREE: Restriction = Restriction {
        hold: None,
        until_heard: None,
    };

    fn unheard(why: HoldReason) -> Restriction {
        Restriction {
            hold: None,
            until_heard: Some(why),
        }
    }

    /// Returns the restrictions after these events of a running machine.
    fn restrictions(events: &[Event]) -> Vec<Restriction> {
        let mut policy = Policy::default();
        policy.on_running(true);
        assert_eq!(policy.restriction(), None);
        policy.on_migration(MigrationStatus::None);
        assert_eq!(policy.restriction(), Some(FREE));
        let restrictions = events.iter().filter_map(|event| {
            policy.on_event(*event);
            policy.restriction()
        });
        restrictions.collect()
    }

    #[test]
    fn a_pause_holds_until_the_machine_runs() {
        assert_eq!(
            restrictions(&[Event::Stop, Event::Stop, Event::Resume, Event::Resume]),
            [STOPPED, FREE]
        );
        assert_eq!(
            restrictions(&[Event::Suspend, Event::Wakeup]),
            [STOPPED, FREE]
        );
    }

    #[test]
    fn a_migration_holds_from_its_beginning_and_the_source_after_its_end() {
        assert_eq!(
            restrictions(&[SETUP, SETUP, Event::Stop, COMPLETED]),
            [MIGRATING, STOPPED]
        );
    }

    #[test]
    fn a_saved_machine_is_held_until_it_continues() {
        assert_eq!(
            restrictions(&[SETUP, Event::Stop, COMPLETED, Event::Resume]),
            [MIGRATING, STOPPED, FREE]
        );
    }

    #[test]
    fn a_migration_that_fails_holds_no_longer() {
        assert_eq!(restrictions(&[SETUP, FAILED]), [MIGRATING, FREE]);
        assert_eq!(
            restrictions(&[SETUP, Event::Stop, Event::Resume, FAILED]),
            [MIGRATING, FREE]
        );
    }

    #[test]
    fn the_destination_of_a_migration_is_held_until_it_runs() {
        for end in [[Event::Resume, COMPLETED], [COMPLETED, Event::Resume]] {
            let mut policy = Policy::default();
            policy.on_running(false);
            policy.on_migration(MigrationStatus::None);
            assert_eq!(policy.restriction(), Some(STOPPED));
            policy.on_event(SETUP);
            assert_eq!(policy.restriction(), Some(MIGRATING));
            end.into_iter().for_each(|event| policy.on_event(event));
            assert_eq!(policy.restriction(), Some(FREE));
        }
    }

    #[test]
    fn after_a_reset_the_guest_has_to_be_heard() {
        assert_eq!(restrictions(&[Event::Reset]), [unheard(HoldReason::Reset)]);
        assert_eq!(
            restrictions(&[Event::DeviceDeleted]),
            [unheard(HoldReason::Unplugged)]
        );
        let stopped_and_reset = Restriction {
            until_heard: Some(HoldReason::Reset),
            ..STOPPED
        };
        assert_eq!(
            restrictions(&[Event::Shutdown, Event::Stop, Event::Reset, Event::Resume]),
            [STOPPED, stopped_and_reset, FREE]
        );
    }

    #[test]
    fn what_happens_at_once_has_one_restriction() {
        let mut policy = Policy::default();
        for event in [
            Event::Stop,
            Event::DeviceDeleted,
            Event::Reset,
            Event::Resume,
        ] {
            policy.on_event(event);
        }
        assert_eq!(policy.restriction(), Some(unheard(HoldReason::Reset)));
        assert_eq!(policy.restriction(), None);
    }

    #[test]
    fn without_a_monitor_the_guest_has_to_be_heard_whatever_was_known() {
        let mut policy = Policy::default();
        policy.on_event(SETUP);
        policy.on_event(Event::Stop);
        assert_eq!(policy.restriction(), Some(MIGRATING));
        policy.on_disconnected();
        assert_eq!(
            policy.restriction(),
            Some(unheard(HoldReason::Disconnected))
        );
        // Another machine is now at the same socket.
        policy.on_running(true);
        policy.on_migration(MigrationStatus::None);
        assert_eq!(policy.restriction(), Some(FREE));
        assert_eq!(policy.restriction(), None);
    }

    fn any_event() -> impl Strategy<Value = Event> {
        prop_oneof![
            Just(Event::Stop),
            Just(Event::Resume),
            Just(Event::Suspend),
            Just(Event::Wakeup),
            Just(Event::Reset),
            Just(Event::Shutdown),
            Just(Event::DeviceDeleted),
            Just(SETUP),
            Just(COMPLETED),
            Just(FAILED),
        ]
    }

    proptest! {
        #[test]
        fn a_machine_is_held_exactly_while_it_is_stopped_or_migrates(events in prop::collection::vec(any_event(), 0..40)) {
            let mut policy = Policy::default();
            policy.on_migration(MigrationStatus::None);
            prop_assert_eq!(policy.restriction(), Some(FREE));
            let (mut stopped, mut migrating, mut held) = (false, false, false);
            for event in events {
                match event {
                    Event::Stop | Event::Suspend | Event::Shutdown => stopped = true,
                    Event::Resume | Event::Wakeup => stopped = false,
                    Event::Migration(status) => migrating = status == MigrationStatus::UnderWay,
                    Event::Reset | Event::DeviceDeleted => {}
                }
                policy.on_event(event);
                if let Some(restriction) = policy.restriction() {
                    held = restriction.hold.is_some();
                    let passing = matches!(event, Event::Reset | Event::DeviceDeleted);
                    prop_assert_eq!(restriction.until_heard.is_some(), passing);
                }
                prop_assert_eq!(held, stopped || migrating);
            }
        }
    }
}
