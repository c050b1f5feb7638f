//! The state of the list of members and of etcd, for metrics, `taut relay status` and the log.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use taut_mesh::members::{ListRefusal, MemberName, Members};

use super::decide::{NotAdopted, Outcome, refusal_index};
use super::failure::Failure;
use crate::config::Endpoint;

/// A certificate or list that expires sooner than this is reported.
const EXPIRES_SOON: Duration = Duration::from_secs(7 * 86_400);

/// The state of the list of members and of its source. Shared by the follower, the watcher of the file, and
/// those who report it; locked for moments.
#[derive(Debug, Default)]
pub(crate) struct ListStatus(Mutex<ListState>);

/// The state that [`ListStatus`] guards. Counters count since the start of the relay.
#[derive(Clone, Debug, Default)]
pub(crate) struct ListState {
    /// The number of members; `None` without a mesh.
    pub(crate) members: Option<u64>,
    /// The serial of a signed list.
    pub(crate) serial: Option<u64>,
    /// The time at which the list expires.
    pub(crate) expires: Option<SystemTime>,
    /// Lists that were refused, by [`Self::REFUSALS`].
    pub(crate) refused: [u64; 8],
    /// Lists that were accepted, or were the present one.
    pub(crate) accepted: u64,
    /// Whether the list is followed in etcd.
    pub(crate) follows: bool,
    /// The state of etcd.
    pub(crate) etcd: EtcdState,
    /// Rounds of reporting in which something was about to expire, or had expired.
    near_expiry: Vec<NearExpiry>,
}

/// The state of etcd.
#[derive(Clone, Debug, Default)]
pub(crate) struct EtcdState {
    /// The server in use, or tried last.
    pub(crate) endpoint: String,
    /// Whether the last attempt to use a server succeeded.
    pub(crate) is_connected: bool,
    /// Times that the list was read.
    pub(crate) reads: u64,
    /// Failures, by [`ListState::FAILURES`].
    pub(crate) failures: [u64; 8],
    /// Changes that a watch reported.
    pub(crate) changes: u64,
    /// Watches that etcd ended: because of compaction, and otherwise.
    pub(crate) watches_ended: [u64; 2],
    /// Times that the announcement of this relay was made or kept.
    pub(crate) announced: u64,
    /// Times that another process had the name of this relay for longer than a lease lasts.
    pub(crate) duplicates: u64,
    /// Times that announcing this relay, or reading which relays have announced themselves, failed.
    pub(crate) announcements_failed: u64,
    /// Why that failed the last time, in words; `None` if it did not.
    pub(crate) announcement: Option<String>,
    /// The relays that have announced themselves.
    pub(crate) present: Vec<MemberName>,
    /// The time of the last read.
    pub(crate) last_read: Option<Instant>,
    /// The last failure, in words.
    pub(crate) last_failure: Option<String>,
    /// Why the list in etcd is refused, in words; `None` if it is not.
    pub(crate) refusal: Option<String>,
    /// The times at which certificates expire, by what they are for.
    pub(crate) certificates: Vec<(&'static str, SystemTime)>,
}

/// Something that expires soon, or has expired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NearExpiry {
    /// What it is.
    pub(crate) what: &'static str,
    /// Rounds of reporting in which it was about to expire.
    pub(crate) soon: u64,
    /// Rounds in which it had expired.
    pub(crate) expired: u64,
}

impl ListState {
    /// The causes of refusals.
    pub(crate) const REFUSALS: [&'static str; 8] = NotAdopted::LABELS;
    /// The causes of failures.
    pub(crate) const FAILURES: [&'static str; 8] = Failure::LABELS;

    /// Returns everything with a time of expiry.
    pub(crate) fn expiries(&self) -> Vec<(&'static str, SystemTime)> {
        let list = self.expires.map(|at| ("list of members", at));
        let of_etcd = self.follows.then_some(&self.etcd.certificates);
        let of_etcd = of_etcd.into_iter().flatten().map(|&(what, at)| {
            let what = match what {
                "client" => "client certificate for etcd",
                "server" => "server certificate of etcd",
                _ => "certificate of etcd's authority",
            };
            (what, at)
        });
        list.into_iter().chain(of_etcd).collect()
    }

    /// Returns what has been about to expire, or expired, since the start.
    pub(crate) fn near_expiry(&self) -> &[NearExpiry] {
        &self.near_expiry
    }
}

impl ListStatus {
    /// Returns a copy of the state.
    pub(crate) fn state(&self) -> ListState {
        self.lock().clone()
    }

    /// Records the list in use, and what expires soon at `now`. Called once a round of reporting.
    pub(crate) fn observe(&self, members: Option<&Members>, now: SystemTime) {
        let mut state = self.lock();
        let statement = members.and_then(Members::statement);
        state.members = members.map(|members| members.iter().len() as u64);
        state.serial = statement.map(|s| s.serial);
        state.expires = statement.and_then(|s| s.expires);
        for (what, at) in state.expiries() {
            if now + EXPIRES_SOON < at {
                continue;
            }
            let (soon, expired) = (u64::from(at > now), u64::from(at <= now));
            match state.near_expiry.iter_mut().find(|near| near.what == what) {
                Some(near) => {
                    near.soon += soon;
                    near.expired += expired;
                }
                None => state.near_expiry.push(NearExpiry {
                    what,
                    soon,
                    expired,
                }),
            }
        }
    }

    /// Counts a list in the file that must not take the place of the present one.
    pub(crate) fn refused_in_file(&self, refusal: &ListRefusal) {
        self.lock().refused[refusal_index(refusal)] += 1;
    }

    /// The list is not followed in etcd.
    pub(super) fn stop_following(&self) {
        let mut state = self.lock();
        state.follows = false;
        state.etcd.present.clear();
        state.etcd.is_connected = false;
    }

    pub(super) fn connected(
        &self,
        endpoint: &Endpoint,
        certificates: Vec<(&'static str, SystemTime)>,
    ) {
        let mut state = self.lock();
        state.follows = true;
        state.etcd.endpoint = endpoint.to_string();
        state.etcd.certificates = certificates;
    }

    pub(super) fn failed(&self, endpoint: &Endpoint, failure: &Failure) {
        let mut state = self.lock();
        state.follows = true;
        let etcd = &mut state.etcd;
        etcd.endpoint = endpoint.to_string();
        etcd.is_connected = false;
        etcd.failures[failure.index()] += 1;
        etcd.last_failure = Some(failure.to_string());
    }

    pub(super) fn read(&self, endpoint: &Endpoint) {
        let etcd = &mut self.lock().etcd;
        etcd.endpoint = endpoint.to_string();
        etcd.is_connected = true;
        etcd.reads += 1;
        etcd.last_read = Some(Instant::now());
    }

    pub(super) fn decided(&self, outcome: &Outcome) {
        let mut state = self.lock();
        match outcome {
            Outcome::Adopted(_) | Outcome::Unchanged => {
                state.accepted += 1;
                state.etcd.refusal = None;
            }
            Outcome::Refused(refusal) => {
                state.refused[refusal.index()] += 1;
                state.etcd.refusal = Some(refusal.to_string());
            }
        }
    }

    pub(super) fn change_reported(&self) {
        self.lock().etcd.changes += 1;
    }

    pub(super) fn watch_ended(&self, compacted: bool) {
        self.lock().etcd.watches_ended[usize::from(!compacted)] += 1;
    }

    pub(super) fn announced(&self, is_announced: bool, is_duplicate: bool) {
        let etcd = &mut self.lock().etcd;
        etcd.announced += u64::from(is_announced);
        etcd.duplicates += u64::from(is_duplicate);
    }

    /// Records why announcing has failed, if it has. Returns whether that is another reason than the last time.
    pub(super) fn set_announcement(&self, failure: Option<String>) -> bool {
        let etcd = &mut self.lock().etcd;
        etcd.announcements_failed += u64::from(failure.is_some());
        let is_new = etcd.announcement != failure;
        etcd.announcement = failure;
        is_new
    }

    pub(super) fn set_present(&self, names: Vec<MemberName>) {
        self.lock().etcd.present = names;
    }

    fn lock(&self) -> MutexGuard<'_, ListState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
