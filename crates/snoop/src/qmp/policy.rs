//! Decides from what QEMU says when early ACKs have to stop at a tap.
//!
//! A machine that is to be moved, is stopped or was reset may never take what is in its tap's ring, or take it
//! late. Until it runs nothing more is acknowledged for its guest.

use super::message::{Event, MigrationStatus};

/// Why there are no early ACKs at a machine's tap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// The machine is being migrated or saved.
    Migrating,
    /// Its processors are stopped, or it sleeps.
    Stopped,
    /// It was reset: its guest has lost all its connections.
    Reset,
    /// One of its devices was unplugged, perhaps the one at the tap.
    Unplugged,
    /// QEMU has closed its monitor, as it does when it ends.
    Disconnected,
}

/// What has to be done at the machine's tap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Give no early ACKs as long as this stands.
    pub hold: Option<Why>,
    /// Something has happened since the last verdict: give none until the guest has sent something.
    pub until_heard: Option<Why>,
}

/// What is known of a machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    stopped: bool,
    migrating: bool,
    until_heard: Option<Why>,
    /// QEMU has said how it is, and not only what happens.
    known: bool,
    /// The last verdict; `None`: there was none since the connection was made.
    hold: Option<Option<Why>>,
}

// === impl Why ===

impl Why {
    /// For logs and `status`: what has happened to the guest.
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
    /// Notes QEMU's answer about the processors, which is the first that it gives.
    pub fn on_running(&mut self, running: bool) {
        self.stopped = !running;
    }

    /// Notes QEMU's answer about a migration.
    pub fn on_migration(&mut self, status: MigrationStatus) {
        self.migrating = status == MigrationStatus::UnderWay;
        self.known = true;
    }

    /// Notes an event.
    pub fn on_event(&mut self, event: Event) {
        match event {
            // After a shutdown the machine, if QEMU does not end, is stopped.
            Event::Stop | Event::Suspend | Event::Shutdown => self.stopped = true,
            Event::Resume | Event::Wakeup => self.stopped = false,
            Event::Migration(status) => self.migrating = status == MigrationStatus::UnderWay,
            Event::Reset => self.until_heard = Some(Why::Reset),
            Event::DeviceDeleted => {
                self.until_heard.get_or_insert(Why::Unplugged);
            }
        }
    }

    /// Notes that the connection to QEMU was lost. What was known of the machine may not be true any more.
    pub fn on_disconnected(&mut self) {
        *self = Self {
            until_heard: Some(Why::Disconnected),
            ..Self::default()
        };
    }

    /// What follows from what was noted; `None`: what followed last time, or too little is known.
    pub fn verdict(&mut self) -> Option<Verdict> {
        // A migration first: the machine is stopped and may be continued in its course.
        let hold = match (self.migrating, self.stopped) {
            (true, _) => Some(Why::Migrating),
            (false, true) => Some(Why::Stopped),
            (false, false) => None,
        };
        let until_heard = self.until_heard.take();
        let is_new = self.hold != Some(hold) && (self.known || hold.is_some());
        if is_new {
            self.hold = Some(hold);
        }
        (is_new || until_heard.is_some()).then_some(Verdict { hold, until_heard })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SETUP: Event = Event::Migration(MigrationStatus::UnderWay);
    const COMPLETED: Event = Event::Migration(MigrationStatus::Completed);
    const FAILED: Event = Event::Migration(MigrationStatus::None);

    const MIGRATING: Verdict = Verdict {
        hold: Some(Why::Migrating),
        until_heard: None,
    };
    const STOPPED: Verdict = Verdict {
        hold: Some(Why::Stopped),
        until_heard: None,
    };
    const FREE: Verdict = Verdict {
        hold: None,
        until_heard: None,
    };

    fn unheard(why: Why) -> Verdict {
        Verdict {
            hold: None,
            until_heard: Some(why),
        }
    }

    /// The verdicts that follow from these events at a machine that runs.
    fn verdicts(events: &[Event]) -> Vec<Verdict> {
        let mut policy = Policy::default();
        policy.on_running(true);
        assert_eq!(policy.verdict(), None);
        policy.on_migration(MigrationStatus::None);
        assert_eq!(policy.verdict(), Some(FREE));
        let verdicts = events.iter().filter_map(|event| {
            policy.on_event(*event);
            policy.verdict()
        });
        verdicts.collect()
    }

    #[test]
    fn a_pause_holds_until_the_machine_runs() {
        assert_eq!(
            verdicts(&[Event::Stop, Event::Stop, Event::Resume, Event::Resume]),
            [STOPPED, FREE]
        );
        assert_eq!(verdicts(&[Event::Suspend, Event::Wakeup]), [STOPPED, FREE]);
    }

    #[test]
    fn a_migration_holds_from_its_beginning_and_the_source_after_its_end() {
        assert_eq!(
            verdicts(&[SETUP, SETUP, Event::Stop, COMPLETED]),
            [MIGRATING, STOPPED]
        );
    }

    #[test]
    fn a_machine_that_was_only_saved_is_held_until_it_goes_on() {
        assert_eq!(
            verdicts(&[SETUP, Event::Stop, COMPLETED, Event::Resume]),
            [MIGRATING, STOPPED, FREE]
        );
    }

    #[test]
    fn a_migration_that_fails_holds_no_longer() {
        assert_eq!(verdicts(&[SETUP, FAILED]), [MIGRATING, FREE]);
        assert_eq!(
            verdicts(&[SETUP, Event::Stop, Event::Resume, FAILED]),
            [MIGRATING, FREE]
        );
    }

    #[test]
    fn the_destination_of_a_migration_is_held_until_it_runs() {
        for end in [[Event::Resume, COMPLETED], [COMPLETED, Event::Resume]] {
            let mut policy = Policy::default();
            policy.on_running(false);
            policy.on_migration(MigrationStatus::None);
            assert_eq!(policy.verdict(), Some(STOPPED));
            policy.on_event(SETUP);
            assert_eq!(policy.verdict(), Some(MIGRATING));
            end.into_iter().for_each(|event| policy.on_event(event));
            assert_eq!(policy.verdict(), Some(FREE));
        }
    }

    #[test]
    fn after_a_reset_the_guest_has_to_be_heard() {
        assert_eq!(verdicts(&[Event::Reset]), [unheard(Why::Reset)]);
        assert_eq!(verdicts(&[Event::DeviceDeleted]), [unheard(Why::Unplugged)]);
        let stopped_and_reset = Verdict {
            until_heard: Some(Why::Reset),
            ..STOPPED
        };
        assert_eq!(
            verdicts(&[Event::Shutdown, Event::Stop, Event::Reset, Event::Resume]),
            [STOPPED, stopped_and_reset, FREE]
        );
    }

    #[test]
    fn what_happens_at_once_has_one_verdict() {
        let mut policy = Policy::default();
        for event in [
            Event::Stop,
            Event::DeviceDeleted,
            Event::Reset,
            Event::Resume,
        ] {
            policy.on_event(event);
        }
        assert_eq!(policy.verdict(), Some(unheard(Why::Reset)));
        assert_eq!(policy.verdict(), None);
    }

    #[test]
    fn without_a_monitor_the_guest_has_to_be_heard_whatever_was_known() {
        let mut policy = Policy::default();
        policy.on_event(SETUP);
        policy.on_event(Event::Stop);
        assert_eq!(policy.verdict(), Some(MIGRATING));
        policy.on_disconnected();
        assert_eq!(policy.verdict(), Some(unheard(Why::Disconnected)));
        // Another machine, at the same place.
        policy.on_running(true);
        policy.on_migration(MigrationStatus::None);
        assert_eq!(policy.verdict(), Some(FREE));
        assert_eq!(policy.verdict(), None);
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
        fn it_is_held_exactly_while_it_is_stopped_or_migrates(events in prop::collection::vec(any_event(), 0..40)) {
            let mut policy = Policy::default();
            policy.on_migration(MigrationStatus::None);
            prop_assert_eq!(policy.verdict(), Some(FREE));
            let (mut stopped, mut migrating, mut held) = (false, false, false);
            for event in events {
                match event {
                    Event::Stop | Event::Suspend | Event::Shutdown => stopped = true,
                    Event::Resume | Event::Wakeup => stopped = false,
                    Event::Migration(status) => migrating = status == MigrationStatus::UnderWay,
                    Event::Reset | Event::DeviceDeleted => {}
                }
                policy.on_event(event);
                if let Some(verdict) = policy.verdict() {
                    held = verdict.hold.is_some();
                    let passing = matches!(event, Event::Reset | Event::DeviceDeleted);
                    prop_assert_eq!(verdict.until_heard.is_some(), passing);
                }
                prop_assert_eq!(held, stopped || migrating);
            }
        }
    }
}
