//! What is known about names, and who waits for it. Pure: `now` is an argument.
//!
//! An answer that is out of date is used for [`RENEWED`] while it is renewed, and for [`STALE`] if nobody answers
//! (RFC 8767). A failure is remembered for some seconds. A name is looked up once at a time, for all who
//! ask for it.
//!
//! | bound | value | when it is reached | counter |
//! |---|---|---|---|
//! | names | [`MAX_NAMES`] | the one that nobody has asked for the longest is forgotten | |
//! | look-ups at the same time | [`MAX_LOOK_UPS`] | a name that is not known fails at once | `taut_relay_look_ups_refused_total{cause="all"}` |
//! | those of one party: this relay, or a member | [`MAX_OF_PARTY`] | the same | `{cause="party"}` |
//! | those who wait for a look-up | [`MAX_WAITING`] | the next one fails at once | `{cause="all"}` |

use std::collections::HashMap;
use std::hash::Hash;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The maximum number of names.
const MAX_NAMES: usize = 4096;
/// The maximum number of look-ups at the same time.
pub const MAX_LOOK_UPS: usize = 256;
/// The maximum number of look-ups of one party at the same time.
const MAX_OF_PARTY: usize = MAX_LOOK_UPS / 4;
/// How long an answer is used without being renewed. Shorter times to live apply.
const FRESH: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));
/// How long an answer that is out of date is used while it is renewed.
const RENEWED: Duration = Duration::from_secs(60);
/// The maximum number of those who wait for a look-up.
const MAX_WAITING: usize = 4096;
/// How long an answer is used while it cannot be renewed.
const STALE: Duration = Duration::from_secs(24 * 3600);
/// How long a failure is remembered. Shorter times to live apply.
const FAILED: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(5));

/// The addresses of a name, in the order in which they are to be tried.
pub type Addresses = Arc<[IpAddr]>;

/// Why a name has no address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The reason.
    pub text: Arc<str>,
    /// Whether a server has said that there is none. Otherwise none has answered.
    pub is_answer: bool,
    /// How long that holds, as the server says.
    pub ttl: Option<Duration>,
}

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// What is known, also if it is out of date.
    Known,
    /// The result of a look-up that has not ended yet.
    New,
}

/// What is known of a name, and what is to be done.
#[derive(Debug, PartialEq, Eq)]
pub enum Answer {
    /// The result. `starts`: a look-up is to be started, for which nobody waits.
    Known {
        /// The result.
        result: Result<Addresses, Failure>,
        /// Whether to start a look-up.
        starts: bool,
    },
    /// The result comes later. `starts`: a look-up is to be started.
    Waits {
        /// Whether to start a look-up.
        starts: bool,
    },
    /// There are too many look-ups.
    Refused(Refused),
}

/// Why a look-up is not started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// There are [`MAX_LOOK_UPS`].
    All,
    /// The party has [`MAX_OF_PARTY`].
    Party,
}

/// The names, the parties `P` that have asked, and those who wait, `W`.
#[derive(Debug)]
pub struct NameCache<P, W> {
    names: HashMap<Arc<str>, Name<P, W>>,
    /// The number of running look-ups of each party.
    running: HashMap<P, usize>,
    /// The number of questions so far.
    questions: u64,
}

#[derive(Debug)]
struct Name<P, W> {
    addresses: Option<Found>,
    failure: Option<(Failure, Instant)>,
    look_up: Option<LookUp<P, W>>,
    /// The number of the last question for it.
    asked: u64,
}

#[derive(Debug)]
struct Found {
    addresses: Addresses,
    fresh_until: Instant,
    usable_until: Instant,
}

#[derive(Debug)]
struct LookUp<P, W> {
    party: P,
    /// Those who wait, and for what.
    waiting: Vec<(W, Want)>,
}

// === impl NameCache ===

impl<P, W> Default for NameCache<P, W> {
    fn default() -> Self {
        Self {
            names: HashMap::new(),
            running: HashMap::new(),
            questions: 0,
        }
    }
}

impl<P: Clone + Eq + Hash, W> NameCache<P, W> {
    /// Asks for a name on behalf of a party. `waiter` is kept until [`finish`](Self::finish) if the answer
    /// is [`Answer::Waits`]; otherwise it is returned.
    pub fn ask(
        &mut self,
        name: &Arc<str>,
        party: &P,
        want: Want,
        now: Instant,
        waiter: W,
    ) -> (Answer, Option<W>) {
        self.questions += 1;
        let questions = self.questions;
        let refused = self.refused(party);
        let known = self.names.get_mut(name);
        if let Some(known) = known {
            known.asked = questions;
            if let Some(result) = known.result(now).filter(|_| want == Want::Known) {
                let starts = known.is_due(now) && refused.is_none();
                if starts {
                    self.begin(name, party, None);
                }
                return (Answer::Known { result, starts }, Some(waiter));
            }
            if let Some(look_up) = &mut known.look_up {
                if look_up.waiting.len() >= MAX_WAITING {
                    return (Answer::Refused(Refused::All), Some(waiter));
                }
                look_up.waiting.push((waiter, want));
                return (Answer::Waits { starts: false }, None);
            }
        }
        if let Some(why) = refused {
            return (Answer::Refused(why), Some(waiter));
        }
        self.begin(name, party, Some((waiter, want)));
        (Answer::Waits { starts: true }, None)
    }

    /// Ends the look-up of a name: with addresses and how long they hold, or without. Returns those who
    /// have waited, with what they get.
    pub fn finish(
        &mut self,
        name: &str,
        result: Result<(Addresses, Duration), Failure>,
        now: Instant,
    ) -> Vec<(W, Result<Addresses, Failure>)> {
        let Some(known) = self.names.get_mut(name) else {
            return Vec::new();
        };
        let look_up = known.look_up.take();
        let new = match result {
            Ok((addresses, ttl)) => {
                known.failure = None;
                known.addresses = Some(Found {
                    addresses: addresses.clone(),
                    fresh_until: now + ttl.clamp(FRESH.0, FRESH.1),
                    usable_until: now + STALE,
                });
                Ok(addresses)
            }
            Err(failure) => {
                if failure.is_answer {
                    known.addresses = None;
                }
                let ttl = failure.ttl.unwrap_or(FAILED.1).clamp(FAILED.0, FAILED.1);
                known.failure = Some((failure.clone(), now + ttl));
                Err(failure)
            }
        };
        // If no server has answered, what is known is used.
        let usable = known.usable(now).map(|found| Ok(found.addresses.clone()));
        let Some(look_up) = look_up else {
            return Vec::new();
        };
        if let Some(running) = self.running.get_mut(&look_up.party) {
            *running -= 1;
            if *running == 0 {
                self.running.remove(&look_up.party);
            }
        }
        let told = |(waiter, want)| match want {
            Want::New => (waiter, new.clone()),
            Want::Known => (waiter, usable.clone().unwrap_or_else(|| new.clone())),
        };
        look_up.waiting.into_iter().map(told).collect()
    }

    /// Returns why the party cannot start another look-up.
    fn refused(&self, party: &P) -> Option<Refused> {
        let all: usize = self.running.values().sum();
        let of_party = self.running.get(party).copied().unwrap_or_default();
        match () {
            () if of_party >= MAX_OF_PARTY => Some(Refused::Party),
            () if all >= MAX_LOOK_UPS => Some(Refused::All),
            () => None,
        }
    }

    /// Notes that a look-up runs.
    fn begin(&mut self, name: &Arc<str>, party: &P, waiter: Option<(W, Want)>) {
        if self.names.len() >= MAX_NAMES && !self.names.contains_key(name) {
            let idle = self.names.iter().filter(|(_, of)| of.look_up.is_none());
            let oldest = idle.min_by_key(|(_, of)| of.asked);
            if let Some(oldest) = oldest.map(|(name, _)| name.clone()) {
                self.names.remove(&oldest);
            }
        }
        let questions = self.questions;
        let known = self.names.entry(name.clone()).or_insert_with(|| Name {
            addresses: None,
            failure: None,
            look_up: None,
            asked: questions,
        });
        known.look_up = Some(LookUp {
            party: party.clone(),
            waiting: waiter.into_iter().collect(),
        });
        *self.running.entry(party.clone()).or_default() += 1;
    }
}

// === impl Name ===

impl<P, W> Name<P, W> {
    /// Returns what is known, if anything is.
    fn result(&self, now: Instant) -> Option<Result<Addresses, Failure>> {
        // What is out of date is used at once for a while, or if the last look-up has failed. (Who asks after a long
        // time waits for the present addresses: others may have the former ones by now.)
        let is_recent =
            |found: &&Found| now < found.fresh_until + RENEWED || self.failure.is_some();
        let found = self.usable(now).filter(is_recent);
        let failed = self.failure.as_ref().filter(|(_, until)| now < *until);
        match (found, failed) {
            (Some(found), _) => Some(Ok(found.addresses.clone())),
            (None, Some((failure, _))) => Some(Err(failure.clone())),
            (None, None) => None,
        }
    }

    /// Returns the addresses, unless they are too old to be used.
    fn usable(&self, now: Instant) -> Option<&Found> {
        { self.addresses.as_ref() }.filter(|found| now < found.usable_until)
    }

    /// Whether what is known has to be renewed.
    fn is_due(&self, now: Instant) -> bool {
        let is_fresh = { self.addresses.as_ref() }.is_some_and(|found| now < found.fresh_until);
        let has_failed = { self.failure.as_ref() }.is_some_and(|(_, until)| now < *until);
        !is_fresh && !has_failed && self.look_up.is_none()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    type Cache = NameCache<u32, u32>;

    impl Cache {
        fn asked(
            &mut self,
            name: &Arc<str>,
            party: u32,
            want: Want,
            now: Instant,
            of: u32,
        ) -> Answer {
            let (answer, waiter) = self.ask(name, &party, want, now, of);
            assert_eq!(waiter.is_none(), matches!(answer, Answer::Waits { .. }));
            answer
        }
    }

    fn name(text: &str) -> Arc<str> {
        text.into()
    }

    fn addresses(last: u8) -> Addresses {
        Arc::from([IpAddr::from([192, 0, 2, last])])
    }

    fn silence() -> Failure {
        Failure {
            text: "request timed out".into(),
            is_answer: false,
            ttl: None,
        }
    }

    fn missing() -> Failure {
        Failure {
            text: "no such name".into(),
            is_answer: true,
            ttl: None,
        }
    }

    const MINUTE: Duration = Duration::from_secs(60);

    /// Returns a cache that has just found the first address of a name.
    fn knows_web(now: Instant) -> (Cache, Arc<str>) {
        let (mut cache, web) = (Cache::default(), name("web.example"));
        cache.asked(&web, 1, Want::Known, now, 0);
        let _ = cache.finish(&web, Ok((addresses(1), MINUTE)), now);
        (cache, web)
    }

    #[test]
    fn all_who_ask_for_a_name_wait_for_one_look_up() {
        let (mut cache, now) = (Cache::default(), Instant::now());
        let dead = name("dead.example");
        for waiter in 0..3 {
            let answer = cache.asked(&dead, 1, Want::Known, now, waiter);
            let starts = waiter == 0;
            assert_eq!(answer, Answer::Waits { starts });
        }
        let told = cache.finish("dead.example", Ok((addresses(1), MINUTE)), now);
        assert_eq!(told, [0, 1, 2].map(|waiter| (waiter, Ok(addresses(1)))));
    }

    #[test]
    fn a_failure_is_remembered_for_seconds() {
        let (mut cache, now) = (Cache::default(), Instant::now());
        let dead = name("dead.example");
        cache.asked(&dead, 1, Want::Known, now, 0);
        let _ = cache.finish("dead.example", Err(silence()), now);
        let answer = cache.asked(&dead, 1, Want::Known, now + FAILED.1 / 2, 1);
        let known = Answer::Known {
            result: Err(silence()),
            starts: false,
        };
        assert_eq!(answer, known);
        let answer = cache.asked(&dead, 1, Want::Known, now + FAILED.1, 2);
        assert_eq!(answer, Answer::Waits { starts: true });
    }

    #[test]
    fn what_is_out_of_date_is_used_while_it_is_renewed_and_while_nobody_answers() {
        let mut now = Instant::now();
        let (mut cache, web) = knows_web(now);
        let known = |starts| Answer::Known {
            result: Ok(addresses(1)),
            starts,
        };
        assert_eq!(cache.asked(&web, 1, Want::Known, now, 1), known(false));
        // Ten minutes without a resolver.
        for _ in 0..60 {
            now += Duration::from_secs(10);
            let answer = cache.asked(&web, 1, Want::Known, now, 2);
            if answer == known(true) {
                assert_eq!(cache.asked(&web, 1, Want::Known, now, 3), known(false));
                let _ = cache.finish("web.example", Err(silence()), now);
            } else {
                assert_eq!(answer, known(false));
            }
        }
        // A server that says that the name is gone is believed.
        now += FAILED.1;
        assert_eq!(cache.asked(&web, 1, Want::Known, now, 4), known(true));
        let _ = cache.finish("web.example", Err(missing()), now);
        let answer = cache.asked(&web, 1, Want::Known, now, 5);
        assert!(
            matches!(answer, Answer::Known { result: Err(_), .. }),
            "{answer:?}"
        );
    }

    /// Its address may be another one's by now.
    #[test]
    fn who_asks_after_a_long_time_waits_and_gets_the_former_answer_if_there_is_no_other() {
        let now = Instant::now();
        let (mut cache, web) = knows_web(now);
        let later = now + FRESH.1 + RENEWED;
        let answer = cache.asked(&web, 1, Want::Known, later, 1);
        assert_eq!(answer, Answer::Waits { starts: true });
        let told = cache.finish("web.example", Err(silence()), later);
        assert_eq!(told, [(1, Ok(addresses(1)))]);
        // From now on nobody waits for a server that does not answer.
        let answer = cache.asked(&web, 1, Want::Known, later + MINUTE, 2);
        let known = Answer::Known {
            result: Ok(addresses(1)),
            starts: true,
        };
        assert_eq!(answer, known);
    }

    #[test]
    fn an_answer_of_a_day_ago_is_not_used() {
        let now = Instant::now();
        let (mut cache, web) = knows_web(now);
        let answer = cache.asked(&web, 1, Want::Known, now + STALE, 1);
        assert_eq!(answer, Answer::Waits { starts: true });
    }

    #[test]
    fn who_wants_a_new_result_gets_one_and_shares_a_running_look_up() {
        let now = Instant::now();
        let (mut cache, web) = knows_web(now);
        for waiter in [1, 2] {
            let answer = cache.asked(&web, 1, Want::New, now, waiter);
            assert_eq!(
                answer,
                Answer::Waits {
                    starts: waiter == 1
                }
            );
        }
        let told = cache.finish("web.example", Ok((addresses(2), MINUTE)), now);
        assert_eq!(told, [1, 2].map(|waiter| (waiter, Ok(addresses(2)))));
        // It is told of a failure, too.
        cache.asked(&web, 1, Want::New, now, 3);
        let told = cache.finish("web.example", Err(silence()), now);
        assert_eq!(told, [(3, Err(silence()))]);
    }

    #[test]
    fn a_party_with_many_look_ups_leaves_the_others_theirs_and_known_names_to_all() {
        let now = Instant::now();
        let (mut cache, web) = knows_web(now);
        let mut ask = |party: u32, number: usize| {
            let dead = name(&format!("{party}-{number}.dead.example"));
            cache.asked(&dead, party, Want::Known, now, 0)
        };
        for number in 0..MAX_OF_PARTY {
            assert_eq!(ask(1, number), Answer::Waits { starts: true });
        }
        assert_eq!(ask(1, MAX_OF_PARTY), Answer::Refused(Refused::Party));
        assert_eq!(ask(2, 0), Answer::Waits { starts: true });
        let answer = cache.asked(&web, 1, Want::Known, now, 0);
        assert!(
            matches!(answer, Answer::Known { result: Ok(_), .. }),
            "{answer:?}"
        );
    }

    #[test]
    fn the_name_that_nobody_has_asked_for_the_longest_is_forgotten() {
        let (mut cache, now) = (Cache::default(), Instant::now());
        let learn = |cache: &mut Cache, text: &str| {
            cache.asked(&name(text), 1, Want::Known, now, 0);
            let _ = cache.finish(text, Ok((addresses(1), MINUTE)), now);
        };
        for number in 0..MAX_NAMES {
            learn(&mut cache, &number.to_string());
        }
        cache.asked(&name("0"), 1, Want::Known, now, 0);
        learn(&mut cache, "another");
        assert_eq!(cache.names.len(), MAX_NAMES);
        assert!(cache.names.contains_key("0") && !cache.names.contains_key("1"));
    }

    proptest! {
        /// Whatever is asked and ends: nobody waits for a look-up that does not run, the counts are right,
        /// and each waiter gets one result.
        #[test]
        fn every_waiter_gets_one_result(
            steps in proptest::collection::vec((0u8..6, 0u32..3, 0u8..4, 0u64..40), 1..200),
        ) {
            let (mut cache, mut now) = (Cache::default(), Instant::now());
            let mut waiting = std::collections::HashSet::new();
            for (number, (of, party, kind, seconds)) in steps.into_iter().enumerate() {
                now += Duration::from_secs(seconds);
                let (text, waiter) = (of.to_string(), u32::try_from(number).unwrap());
                let result = match kind {
                    0 | 1 => {
                        let want = if kind == 0 { Want::Known } else { Want::New };
                        if let Answer::Waits { .. } =
                            cache.asked(&name(&text), party, want, now, waiter)
                        {
                            waiting.insert(waiter);
                        }
                        continue;
                    }
                    2 => Ok((addresses(of), MINUTE)),
                    _ => Err(silence()),
                };
                if cache.names.get(&*text).is_some_and(|known| known.look_up.is_some()) {
                    for (told, _) in cache.finish(&text, result, now) {
                        prop_assert!(waiting.remove(&told));
                    }
                }
                let running = cache.names.values().filter(|known| known.look_up.is_some());
                prop_assert_eq!(running.count(), cache.running.values().sum::<usize>());
            }
            let left = cache.names.values().filter_map(|known| known.look_up.as_ref());
            let left: usize = left.map(|look_up| look_up.waiting.len()).sum();
            prop_assert_eq!(left, waiting.len());
        }
    }
}
