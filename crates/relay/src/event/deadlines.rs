//! When each session wants to be driven next: at most one entry a session.

use std::collections::BTreeSet;
use std::time::Instant;

use crate::event::token::Place;

/// The deadlines of a worker's sessions, in order.
#[derive(Debug, Default)]
pub(crate) struct Alarms(BTreeSet<(Instant, Place)>);

impl Alarms {
    /// Moves the alarm of `place` from `old` to `new`.
    pub(crate) fn set(&mut self, place: Place, old: Option<Instant>, new: Option<Instant>) {
        if old == new {
            return;
        }
        if let Some(old) = old {
            self.0.remove(&(old, place));
        }
        if let Some(new) = new {
            self.0.insert((new, place));
        }
    }

    /// The earliest.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.0.first().map(|&(at, _)| at)
    }

    /// Places whose time has come; their alarms stay until they are set anew.
    pub(crate) fn due(&self, now: Instant) -> impl Iterator<Item = Place> {
        self.0
            .iter()
            .take_while(move |&&(at, _)| at <= now)
            .map(|&(_, place)| place)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn alarms_come_in_order_and_move() {
        let t = |s| Instant::now() + Duration::from_secs(s);
        let (t1, t2, t3) = (t(1), t(2), t(3));
        let mut alarms = Alarms::default();
        alarms.set(Place(7), None, Some(t2));
        alarms.set(Place(8), None, Some(t1));
        assert_eq!(alarms.next(), Some(t1));
        assert_eq!(alarms.due(t2).collect::<Vec<_>>(), [Place(8), Place(7)]);
        alarms.set(Place(8), Some(t1), Some(t3));
        assert_eq!(alarms.due(t2).collect::<Vec<_>>(), [Place(7)]);
        alarms.set(Place(7), Some(t2), None);
        alarms.set(Place(8), Some(t3), None);
        assert_eq!(alarms.next(), None);
    }
}
