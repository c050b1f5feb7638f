//! Guests that are alive and do not take what was promised for them.
//!
//! A hole below what was promised shows in the guest's SACK, if something comes after it; a client may
//! make that look so. The last that was promised may be lost without a trace: the sender believes that
//! the guest has it, and nobody repeats it. What is left to see in either case is a guest that answers
//! others, and that not.

use std::collections::HashMap;

use crate::wire::{Broken, Bypass, Flow, Key, Mode};

/// Looks at a guest that was heard in between, and had acknowledged nothing of what was promised,
/// until the promise counts as broken. An acknowledgement is delayed by 500 ms at most (RFC 9293
/// 3.8.6.3), and looks are a second apart.
pub const LOOKS: u32 = 5;

/// What was seen of each promise.
#[derive(Debug, Default)]
pub(crate) struct Stalls {
    heard: u64,
    flows: HashMap<Key, Stall>,
}

#[derive(Clone, Copy, Debug)]
struct Stall {
    vm_seq: u32,
    looks: u32,
}

// === impl Stalls ===

impl Stalls {
    /// Looks at all flows of a guest from which `heard` packets have come up to now. Returns the
    /// promises that have just been found broken, each once.
    pub(crate) fn look(&mut self, heard: u64, flows: &[(Key, Flow)]) -> Vec<Broken> {
        let alive = heard != self.heard;
        self.heard = heard;
        let mut broken = Vec::new();
        let mut seen = HashMap::new();
        for (key, flow) in flows {
            // What is known to be lost need not be found again.
            if flow.promised() == 0 || flow.mode == Mode::Bypass(Bypass::BrokenPromise) {
                continue;
            }
            let mut stall = match self.flows.get(key) {
                Some(stall) if stall.vm_seq == flow.vm_seq => *stall,
                _ => Stall {
                    vm_seq: flow.vm_seq,
                    looks: 0,
                },
            };
            // Beyond LOOKS it has been told of.
            if alive && stall.looks <= LOOKS {
                stall.looks += 1;
                if stall.looks == LOOKS {
                    broken.push(Broken {
                        key: *key,
                        vm_seq: flow.vm_seq,
                        told_seq: flow.told_seq,
                    });
                }
            }
            seen.insert(*key, stall);
        }
        self.flows = seen;
        broken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(vm_seq: u32, told_seq: u32) -> (Key, Flow) {
        let key = Key {
            guest: ([10, 0, 0, 1], 80).into(),
            peer: ([10, 0, 0, 2], 5000).into(),
            vlan: None,
        };
        let flow = Flow {
            mode: Mode::Active,
            next_seq: told_seq,
            told_seq,
            vm_seq,
            rcv_edge: told_seq,
            grown_edge: told_seq,
            acked_segments: 1,
            acked_bytes: 1,
            suppressed: 0,
            lifted: 0,
            seen_ns: 0,
        };
        (key, flow)
    }

    /// Looks until the promise is found broken, at most 100 times, with a guest that sends `each`.
    fn found(each: u64, mut flow: impl FnMut(u32) -> (Key, Flow)) -> Option<u32> {
        let mut stalls = Stalls::default();
        (1..100).find(|n| !stalls.look(u64::from(*n) * each, &[flow(*n)]).is_empty())
    }

    #[test]
    fn a_promise_that_an_awake_guest_never_takes_is_broken() {
        assert_eq!(found(1, |_| flow(100, 200)), Some(LOOKS));
        // Also where the numbers wrap.
        assert_eq!(found(1, |_| flow(u32::MAX, 99)), Some(LOOKS));
    }

    #[test]
    fn a_guest_that_is_not_awake_has_broken_nothing() {
        assert_eq!(found(0, |_| flow(100, 200)), None);
    }

    #[test]
    fn a_guest_that_takes_some_of_it_now_and_then_has_broken_nothing() {
        assert_eq!(found(1, |n| flow(100 + n / (LOOKS - 1), 1_000_000)), None);
        assert_eq!(found(1, |_| flow(200, 200)), None);
    }

    #[test]
    fn each_is_told_of_once() {
        let mut stalls = Stalls::default();
        let told: usize = (1..100).map(|n| stalls.look(n, &[flow(1, 2)]).len()).sum();
        assert_eq!(told, 1);
    }
}
