//! Looks, plans, and says what is planned or makes it.

mod maxima;
mod relief;
mod unowned;

use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use taut_observe::filter::{Filter, Subject};
use taut_observe::observer::{Observer, Seen};
use taut_observe::scan::{ScanError, ScanSummary};
use taut_observe::window::Window;
use taut_sys::netns::NetnsId;
use taut_sys::sock_diag::State;

use crate::actuate::{Actuators, Made, Socket, Undo, Undone};
use crate::budget::{Budget, Claim};
use crate::demand::{Because, Cap, Demand, Direction, demand, promised, segment};
use crate::namespaces::ended::Ended;
use crate::plan::{Change, free, without_owner};
use crate::pressure::Memory;
use crate::profile::settings::Profile;
use crate::profile::watch::Watch;
use crate::render;
use crate::routes::scan::Routes;

/// Looks after which what would still be changed is said, or tried, again.
pub(crate) const AGAIN: u64 = 60;
/// The most that is remembered of that; beyond it nothing is said or tried.
pub(crate) const REMEMBERED: usize = 100_000;
/// What maxima were made lately, of which so many are remembered.
const MADE: usize = 64;
/// Whole looks in which a connection was not there before it is taken to have ended: a list may miss one.
const ENDED: u32 = 5;

/// Looks that are kept of each connection: what it has shown is the most of them.
pub const SAMPLES: usize = 4;

/// Which connections are tuned.
#[derive(Debug)]
pub struct Lists {
    /// These,
    pub only: Filter,
    /// and of them none of these.
    pub skip: Vec<Filter>,
}

/// Tunes, or says what it would do.
#[derive(Debug)]
pub struct Tuner {
    observer: Observer,
    lists: Lists,
    cap: Cap,
    /// Nothing: it only says.
    actuators: Option<Actuators>,
    /// Nothing: none.
    budget: Option<Budget>,
    /// Nothing: none is to be changed.
    routes: Option<Routes>,
    /// With one: what send buffers of a namespace may have before they are looked at, as it was set; nothing: somebody else sets it.
    starts: HashMap<NetnsId, Option<u64>>,
    /// Namespaces whose maxima were looked at, and their cookies. Once: what somebody sets after that is his. The kernel gives one that is made
    /// later the inode of one that is gone, but never its cookie.
    known: HashMap<NetnsId, u64>,
    /// Settings of a profile; nothing: none was asked for.
    profile: Option<Watch>,
    /// Of which namespaces the journal says nothing any more.
    ended: Ended,
    /// What was said or tried of a connection, and in which look.
    tried: HashMap<(u64, Direction), u64>,
    /// What TCP has of the machine's memory.
    memory: fn() -> io::Result<Memory>,
    /// Buffers that were made smaller because that was short, and by how much.
    relieved: HashMap<(u64, Direction), u64>,
    /// Connections whose buffers were changed, and in how many looks they were missing.
    changed: HashMap<u64, u32>,
    /// What the maxima of namespaces were.
    originals: HashMap<(NetnsId, Direction), u64>,
    /// What they were made lately, with what they had been: a new namespace begins with the first one's.
    made: VecDeque<(Direction, u64, u64)>,
    /// The last look found established connections only.
    is_plain: bool,
    look: u64,
}

/// What was said or done.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Told {
    /// Of which connection; nothing of a namespace's settings.
    pub connection: Option<Connection>,
    /// Of which namespace.
    pub netns: String,
    /// What.
    pub change: String,
    /// Why.
    pub because: String,
    /// What is expected of it.
    pub expected: String,
    /// What came of it.
    pub outcome: Outcome,
}

/// A connection, as it is told.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Connection {
    /// The kernel's name of the socket.
    pub cookie: u64,
    /// This end.
    pub local: SocketAddr,
    /// The other.
    pub remote: SocketAddr,
    /// Process, and its number.
    pub process: Option<(String, u32)>,
}

/// What came of a change.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// It was only said.
    Advised,
    /// It was made.
    Made,
    /// What was to be changed has ended.
    Gone,
    /// Nobody is known to have the socket.
    NoOwner,
    /// It could not be made.
    Failed(String),
}

/// A look, and what came of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Round {
    /// What was said or done.
    pub told: Vec<Told>,
    /// Connections that were looked at.
    pub connections: usize,
    /// Of them, those on a list of connections that are left alone.
    pub left_alone: usize,
    /// With a budget: what all buffers may come to hold.
    pub granted: u64,
    /// And by how much what cannot be taken away is more than may be granted.
    pub over: u64,
    /// With a profile: where there are more interfaces, or changes, than there is room for, and some are left as they are.
    pub short: Vec<Arc<str>>,
    /// What was asked for of routes, and is in no namespace: said once.
    pub unmatched: Vec<String>,
    /// What keeps routes of a namespace from being looked at: each said once.
    pub troubles: Vec<String>,
    /// What the look came to.
    pub looked: ScanSummary,
}

/// A change of a connection, and who has it.
struct Planned {
    change: Change,
    connection: Connection,
    netns: String,
    inode: u32,
}

// === impl Lists ===

impl Lists {
    fn leaves_alone(&self, seen: &Seen<'_>) -> bool {
        let connection = &seen.tracked.last().connection;
        let subject = Subject {
            local: connection.local,
            remote: connection.remote,
            state: connection.state,
            congestion_control: connection.congestion_control.as_ref().map(|cc| cc.as_str()),
            netns: &seen.tracked.netns,
            process: seen.process,
        };
        !self.only.takes(&subject) || self.skip.iter().any(|skip| skip.takes(&subject))
    }
}

// === impl Planned ===

impl Planned {
    fn of(change: Change, seen: &Seen<'_>) -> Self {
        let connection = &seen.tracked.last().connection;
        let change = match seen.process {
            Some(_) => change,
            None => without_owner(change),
        };
        Self {
            change,
            connection: Connection {
                cookie: seen.cookie,
                local: connection.local,
                remote: connection.remote,
                process: seen
                    .process
                    .map(|process| (process.name.to_string(), process.pid)),
            },
            netns: seen.tracked.netns.to_string(),
            inode: connection.inode,
        }
    }
}

// === impl Tuner ===

impl Tuner {
    /// One that only says what it would do, without `actuators`.
    pub fn new(observer: Observer, lists: Lists, actuators: Option<Actuators>) -> Self {
        Self {
            observer,
            lists,
            cap: Cap::default(),
            actuators,
            budget: None,
            routes: None,
            starts: HashMap::new(),
            known: HashMap::new(),
            profile: None,
            ended: Ended::default(),
            tried: HashMap::new(),
            memory: Memory::read,
            relieved: HashMap::new(),
            changed: HashMap::new(),
            originals: HashMap::new(),
            made: VecDeque::new(),
            is_plain: false,
            look: 0,
        }
    }

    /// One whose connections have no more on their way than this.
    #[must_use]
    pub fn with_cap(self, cap: Cap) -> Self {
        Self { cap, ..self }
    }

    /// One whose connections are to hold no more than this.
    #[must_use]
    pub fn with_budget(self, budget: Budget) -> Self {
        Self {
            budget: Some(budget),
            ..self
        }
    }

    /// One that sees to the settings of this profile, too.
    #[must_use]
    pub fn with_profile(self, profile: Profile) -> Self {
        Self {
            profile: Some(Watch::new(profile)),
            ..self
        }
    }

    /// One that also sets with how much connections over these routes begin.
    #[must_use]
    pub fn with_routes(self, routes: Routes) -> Self {
        Self {
            routes: Some(routes),
            ..self
        }
    }

    /// Looks, and says or does what is to be done now. `ends`: whether it is to stop before it is through.
    ///
    /// # Errors
    /// [`ScanError`]: there is nothing to see.
    pub fn round(&mut self, ends: impl Fn() -> bool) -> Result<Round, ScanError> {
        let everything = Filter::all();
        let looked = self.observer.scan(&everything)?;
        self.look += 1;
        let states = self.observer.seen(&everything);
        let states = states.map(|seen| seen.tracked.last().connection.state);
        self.is_plain = { states }.all(|state| state == State::Established);
        if let Some(actuators) = &mut self.actuators {
            let is_whole = looked.left_out == 0 && looked.hidden == 0;
            let namespaces = self.observer.namespaces();
            self.ended.look(namespaces, is_whole, actuators);
        }
        let mut round = Round {
            told: self.maxima(),
            looked,
            ..Round::default()
        };
        self.settings(&mut round, &ends);
        if let Some(routes) = &mut self.routes {
            let namespaces = self.observer.namespaces();
            let actuators = self.actuators.as_mut();
            let seen = routes.look(self.look, namespaces, &self.known, actuators, &ends);
            round.told.extend(seen.told);
            round.troubles = seen.troubles;
            round.unmatched = routes.unmatched();
        }
        let limit = self.look.saturating_sub(AGAIN);
        self.tried.retain(|_, look| *look > limit);
        let planned = match self.budget.take() {
            None => {
                let mut planned = self.plan(&everything, &mut round);
                planned.extend(self.relief(&everything));
                planned
            }
            Some(mut budget) => {
                let planned = self.share(&mut budget, &everything, &mut round);
                self.budget = Some(budget);
                planned
            }
        };
        if let Some(actuators) = &mut self.actuators {
            actuators.begin();
        }
        // What is made smaller makes room, whoever has it.
        let (wider, smaller): (Vec<_>, Vec<_>) = planned
            .into_iter()
            .partition(|planned| planned.change.widens());
        for some in [smaller, wider] {
            for planned in self.make_unowned(some, &mut round.told) {
                if ends() {
                    break;
                }
                round.told.push(self.make(planned));
            }
        }
        self.forget_ended(&looked);
        Ok(round)
    }

    /// Nothing has happened since the last round that another would do something about, as far as that can be told without looking.
    pub fn is_quiet(&self) -> bool {
        // Interfaces and routes come and go without a segment; and what comes for a connection that is not established is not heard of.
        let is_watched = self.profile.is_some() || self.routes.is_some();
        let has_room = || self.relieved.is_empty() && !self.is_short();
        !is_watched
            && self.is_plain
            && !self.observer.may_have_changed()
            && (self.budget.is_some() || has_room())
    }

    /// Of a profile.
    fn settings(&mut self, round: &mut Round, ends: impl Fn() -> bool) {
        let Some(profile) = &mut self.profile else {
            return;
        };
        let seen = profile.look(self.observer.namespaces(), self.actuators.as_mut(), ends);
        round.short = seen.short;
        let told = seen.found.into_iter().map(|(netns, found)| {
            let outcome = match found.made {
                None => Outcome::Advised,
                Some(Ok(())) => Outcome::Made,
                Some(Err(error)) => Outcome::Failed(error.to_string()),
            };
            tell(&found.change, None, netns, outcome)
        });
        round.told.extend(told);
    }

    /// What is to be changed so that everyone has his share of the budget.
    fn share(
        &mut self,
        budget: &mut Budget,
        everything: &Filter,
        round: &mut Round,
    ) -> Vec<Planned> {
        let mut claims = Vec::new();
        // Where somebody is left alone.
        let mut alone: HashSet<Arc<str>> = HashSet::new();
        let mut begun = 0;
        for seen in self.observer.seen(everything) {
            round.connections += 1;
            let is_listed = self.lists.leaves_alone(&seen);
            round.left_alone += usize::from(is_listed);
            let window = seen.tracked.window();
            begun += usize::from(window.is_none());
            let connection = &seen.tracked.last().connection;
            for direction in [Direction::Send, Direction::Receive] {
                let key = (seen.cookie, direction);
                let Some(demand) = asked(&seen, window.as_ref(), direction, self.cap) else {
                    continue;
                };
                // What could not be set is tried again after a while.
                let is_tried = self.actuators.is_some() && self.tried.contains_key(&key);
                let is_alone = is_listed || is_tried;
                if is_alone && direction == Direction::Send && demand.is_fixed != Some(true) {
                    alone.insert(Arc::clone(&seen.tracked.netns));
                }
                claims.push(Claim {
                    cookie: seen.cookie,
                    direction,
                    demand,
                    // Nor is one whose demand nobody knows yet.
                    is_left_alone: is_alone || window.is_none(),
                    cgroup: connection.cgroup,
                    destination: connection.remote.ip().to_canonical(),
                });
            }
        }
        let shared = budget.share(&claims);
        (round.granted, round.over) = (shared.granted, shared.over);
        round
            .told
            .extend(self.start(budget.start(shared.granted, begun), &alone));
        let mut planned = Vec::new();
        for change in shared.changes {
            let Change::Size {
                cookie, direction, ..
            } = change
            else {
                continue;
            };
            // What is only said is not said again in each look.
            if self.actuators.is_none() {
                let key = (cookie, direction);
                if self.tried.contains_key(&key) || self.tried.len() >= REMEMBERED {
                    continue;
                }
                self.tried.insert(key, self.look);
            }
            if let Some(seen) = self.observer.get(cookie) {
                planned.push(Planned::of(change, &seen));
            }
        }
        planned
    }

    /// What is to be changed of connections, and was not tried just now.
    fn plan(&mut self, everything: &Filter, round: &mut Round) -> Vec<Planned> {
        let mut planned = Vec::new();
        for seen in self.observer.seen(everything) {
            round.connections += 1;
            if self.lists.leaves_alone(&seen) {
                round.left_alone += 1;
                continue;
            }
            // Who has done nothing in all looks that are kept wants nothing new.
            if seen.tracked.rests() {
                continue;
            }
            let Some(window) = seen.tracked.window() else {
                continue;
            };
            for direction in [Direction::Send, Direction::Receive] {
                let change = demand(&window, direction, self.cap)
                    .and_then(|demand| free(seen.cookie, direction, &demand));
                let Some(change) = change else { continue };
                let key = (seen.cookie, direction);
                if self.tried.contains_key(&key) || self.tried.len() >= REMEMBERED {
                    continue;
                }
                self.tried.insert(key, self.look);
                let change = Planned::of(change, &seen);
                // Without an owner it may have all that it can have.
                if change.change.widens() {
                    planned.push(change);
                }
            }
        }
        planned
    }

    fn make(&mut self, planned: Planned) -> Told {
        let Planned {
            change,
            connection,
            netns,
            inode,
        } = planned;
        let outcome = match (&mut self.actuators, &change, &connection.process) {
            (None, change, _) => {
                self.relieve(change);
                Outcome::Advised
            }
            (Some(actuators), Change::Restore { cookie, direction }, _) => {
                match actuators.restore(*cookie, *direction) {
                    Ok(Undo::Restored) => Outcome::Made,
                    Ok(Undo::Gone) => Outcome::Gone,
                    Ok(Undo::Others) => Outcome::Failed(
                        "somebody else has set it since, and it is left to him".to_owned(),
                    ),
                    Err(error) => Outcome::Failed(error.to_string()),
                }
            }
            (Some(_), _, None)
            | (
                Some(_),
                Change::Maximum { .. }
                | Change::Start { .. }
                | Change::Widen { .. }
                | Change::Setting { .. }
                | Change::Route { .. },
                _,
            ) => Outcome::NoOwner,
            (
                Some(actuators),
                Change::Free { direction, to, .. }
                | Change::Size { direction, to, .. }
                | Change::Shrink { direction, to, .. },
                Some((_, pid)),
            ) => {
                let socket = Socket {
                    cookie: connection.cookie,
                    inode,
                    pid: *pid,
                };
                let to = u32::try_from(*to).unwrap_or(u32::MAX);
                let made = match &change {
                    Change::Free { .. } => actuators.free(&socket, *direction, to),
                    _ => actuators.size(&socket, *direction, to),
                };
                match made {
                    Ok(Made::Set { .. }) => {
                        self.changed.insert(connection.cookie, 0);
                        self.relieve(&change);
                        Outcome::Made
                    }
                    Ok(Made::Gone) => Outcome::Gone,
                    Err(error) => Outcome::Failed(error.to_string()),
                }
            }
        };
        if let (
            Change::Size { direction, .. } | Change::Shrink { direction, .. },
            Outcome::NoOwner | Outcome::Failed(_),
        ) = (&change, &outcome)
            && self.tried.len() < REMEMBERED
        {
            self.tried
                .insert((connection.cookie, *direction), self.look);
        }
        tell(&change, Some(connection), netns, outcome)
    }

    /// Those that are not there any more, also in the next looks: nothing of them is to be undone.
    fn forget_ended(&mut self, looked: &ScanSummary) {
        let is_whole = looked.incomplete == 0 && looked.denied == 0 && looked.left_out == 0;
        if !is_whole || self.observer.left_out() > 0 {
            return;
        }
        let observer = &self.observer;
        let ended = self.changed.extract_if(|cookie, missing| {
            match observer.get(*cookie) {
                Some(_) => *missing = 0,
                None => *missing += 1,
            }
            *missing >= ENDED
        });
        for (cookie, _) in ended {
            for direction in [Direction::Send, Direction::Receive] {
                self.relieved.remove(&(cookie, direction));
            }
            if let Some(actuators) = &mut self.actuators {
                actuators.forget(cookie);
            }
        }
    }

    /// Whoever is asked what cannot be seen.
    pub fn observer(&self) -> &Observer {
        &self.observer
    }

    /// Undoes all that was changed, and ends.
    pub fn end(self) -> Undone {
        let Some(mut actuators) = self.actuators else {
            return Undone::default();
        };
        let undone = actuators.undo();
        actuators.close();
        undone
    }
}

/// What a connection wants of a buffer, as far as that is known yet; `None`: the kernel does not tell.
fn asked(
    seen: &Seen<'_>,
    window: Option<&Window<'_>>,
    direction: Direction,
    cap: Cap,
) -> Option<Demand> {
    match window {
        // Who has done nothing in all looks that are kept wants nothing.
        Some(window) if !seen.tracked.rests() => demand(window, direction, cap),
        _ => resting(&seen.tracked.last().connection, direction),
    }
}

/// What a connection through which nothing goes has in a buffer; `None`: the kernel does not tell.
fn resting(connection: &taut_sys::sock_diag::Connection, direction: Direction) -> Option<Demand> {
    let memory = connection.memory?;
    let (inside, info) = (connection.internals, connection.info.as_ref());
    let (has, queued, is_fixed) = match direction {
        Direction::Send => (
            memory.sndbuf,
            memory.wmem_queued,
            inside.map(|inside| inside.sndbuf_locked),
        ),
        Direction::Receive => (
            memory.rcvbuf,
            memory.rmem_alloc,
            inside.map(|inside| inside.rcvbuf_locked),
        ),
    };
    Some(Demand {
        has: has.into(),
        queued: queued.into(),
        promised: info.map_or(queued.into(), |info| promised(direction, &memory, info)),
        segment: info.map_or(0, segment),
        wants: 0,
        most: 0,
        is_fixed,
        is_held: false,
        because: Because::Idle,
    })
}

pub(crate) fn tell(
    change: &Change,
    connection: Option<Connection>,
    netns: String,
    outcome: Outcome,
) -> Told {
    Told {
        connection,
        netns,
        change: render::change(change),
        because: render::because(change),
        expected: render::expected(change),
        outcome,
    }
}

#[cfg(test)]
mod tests;
