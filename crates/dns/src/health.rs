//! Whether a relay is up, from the results of probes.
//!
//! A relay goes down after several failures in a row and comes back after several successes, so that
//! one lost packet does not move its clients away and a relay that comes and goes does not get them back
//! at each success.

/// Failures in a row after which a relay is down.
pub const FALL: u8 = 3;

/// Successes in a row after which it is up again.
pub const RISE: u8 = 2;

/// What is known of one relay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Health {
    state: Option<bool>,
    /// Results in a row that contradict the state.
    against: u8,
}

// === impl Health ===

impl Health {
    /// Returns whether the relay is up. A relay that has not been probed yet counts as up.
    pub fn is_up(self) -> bool {
        self.state.unwrap_or(true)
    }

    /// Takes the result of a probe, and returns whether the relay is up now if that has changed. The
    /// first result decides at once.
    pub fn record(&mut self, succeeded: bool) -> Option<bool> {
        let was = self.is_up();
        match self.state {
            None => self.state = Some(succeeded),
            Some(state) if state == succeeded => self.against = 0,
            Some(_) => {
                self.against += 1;
                let enough = if succeeded { RISE } else { FALL };
                if self.against >= enough {
                    *self = Self {
                        state: Some(succeeded),
                        against: 0,
                    };
                }
            }
        }
        (self.is_up() != was).then_some(self.is_up())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changes(health: &mut Health, results: &str) -> Vec<(usize, bool)> {
        let results = results.chars().enumerate();
        let changes = results.filter_map(|(i, c)| Some((i, health.record(c == '+')?)));
        changes.collect()
    }

    #[test]
    fn a_relay_goes_down_after_three_failures_in_a_row() {
        let mut health = Health::default();
        assert_eq!(changes(&mut health, "+--+--+---"), [(9, false)]);
        assert!(!health.is_up());
    }

    #[test]
    fn a_relay_comes_back_after_two_successes_in_a_row() {
        let mut health = Health::default();
        assert_eq!(changes(&mut health, "-+-+-++"), [(0, false), (6, true)]);
    }

    #[test]
    fn a_relay_that_is_down_at_the_first_probe_is_down_at_once() {
        let mut health = Health::default();
        assert!(health.is_up());
        assert_eq!(health.record(false), Some(false));
    }
}
