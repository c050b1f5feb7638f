//! The thread's answers to an operator: the state of the mesh, and all round-trip times.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::time::Duration;

use taut_mesh::members::MemberName;
use taut_mesh::rows::{Figure, MemberId, Row};

use super::thread::Work;
use crate::control::protocol::{
    Answer, MemberState, MemberStatus, MeshStatus, PathStatus, RowsStatus, RttRows,
};
use crate::rows_mailbox::Question;

/// The largest number of paths between members in a state of the mesh: those of 200 relays.
const MAX_PATHS: usize = 40_000;

/// The largest number of round-trip times in an answer.
const MAX_RTTS: usize = 300_000;

/// The paths that are wanted.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Which {
    /// Between members.
    Members,
    /// To prefixes outside the mesh.
    Prefixes,
    All,
}

impl Work {
    pub(super) fn answer(&self, question: &Question) -> Answer {
        match question {
            Question::Mesh => Answer::Mesh(Box::new(self.status())),
            Question::Rtt {
                limit,
                prefixes_only,
                known,
            } => {
                let which = match prefixes_only {
                    true => Which::Prefixes,
                    false => Which::All,
                };
                Answer::Rtt(self.rtts(*limit, which, known.as_deref()))
            }
        }
    }

    fn status(&self) -> MeshStatus {
        let own_name = &self.mesh.local.name;
        let own = self.table.row(MemberId::of(own_name));
        let members = self.mesh.local.members.iter();
        let members = members.map(|member| {
            let id = MemberId::of(&member.name);
            let figure = own.and_then(|row| row.member(id)).map(|entry| entry.figure);
            let peer = self.mesh.peer(&member.name);
            let stats = peer.map(|peer| &peer.stats);
            let sum = |of: fn(
                &crate::counters::peer::PeerCounters,
            ) -> &crate::counters::counter::Counter| {
                stats.map_or(0, |stats| stats.sum(of))
            };
            MemberStatus {
                name: member.name.to_string(),
                site: member.site.clone(),
                cloud: member.cloud.clone(),
                state: match () {
                    () if member.name == *own_name => MemberState::This,
                    () if self.own.is_down(id) => MemberState::Down,
                    () if figure.is_some() => MemberState::Up,
                    () => MemberState::Unknown,
                },
                rtt_ms: figure.map(|figure| ms(figure.rtt())),
                smoothed_ms: figure.map(|figure| ms(figure.smoothed())),
                loss: figure.map(Figure::loss),
                row_age_s: self.table.age(id, self.now).map(|age| age.as_secs_f64()),
                row_version: self.table.row(id).map(|row| row.version),
                link: self
                    .links
                    .to(&member.name)
                    .is_some_and(|i| self.links.all[i].link().is_some()),
                pool_ready: sum(|c| &c.ready),
                sessions: sum(|c| &c.sessions),
                sent: sum(|c| &c.sent_bytes),
                received: sum(|c| &c.received_bytes),
            }
        });
        let members: Vec<_> = members.collect();
        let (paths, paths_left_out) = self.paths(MAX_PATHS, Which::Members);
        let traffic = self.exchange.traffic();
        MeshStatus {
            name: own_name.to_string(),
            members,
            paths,
            paths_left_out,
            routes: self.routes(),
            rows: RowsStatus {
                known: self.table.rows().count() as u64,
                bytes: self.table.bytes() as u64,
                sent_bytes: traffic.sent,
                received_bytes: traffic.received,
                refused: traffic.refused,
            },
        }
    }

    fn rtts(&self, limit: usize, which: Which, known: Option<&str>) -> RttRows {
        let revision = self.revision();
        let unchanged = known == Some(revision.as_str());
        let (paths, left_out) = match unchanged {
            true => (Vec::new(), 0),
            false => self.paths(limit.min(MAX_RTTS), which),
        };
        RttRows {
            revision,
            unchanged,
            paths,
            left_out,
        }
    }

    /// Returns a text that changes when a row does.
    fn revision(&self) -> String {
        let rows = self.table.rows();
        let mut rows: Vec<_> = rows.map(|(name, row)| (name, row.version)).collect();
        rows.sort_unstable();
        let mut hash = DefaultHasher::new();
        rows.hash(&mut hash);
        format!("{:016x}", hash.finish())
    }

    /// Returns up to `limit` paths, and the number of the others.
    fn paths(&self, limit: usize, which: Which) -> (Vec<PathStatus>, u64) {
        let mut rows: Vec<(&MemberName, &Row)> = self.table.rows().collect();
        rows.sort_by_key(|(name, _)| *name);
        let ages: HashMap<_, _> = rows
            .iter()
            .filter_map(|(name, _)| Some((*name, self.table.age(MemberId::of(name), self.now)?)))
            .collect();
        let (mut paths, mut left_out) = (Vec::new(), 0);
        let mut push = |from: &MemberName, to: String, figure: Figure| {
            if paths.len() >= limit {
                left_out += 1;
                return;
            }
            paths.push(PathStatus {
                from: from.to_string(),
                to,
                rtt_ms: ms(figure.rtt()),
                smoothed_ms: ms(figure.smoothed()),
                loss: figure.loss(),
                age_s: ages.get(from).map_or(0.0, Duration::as_secs_f64),
            });
        };
        for (name, row) in rows {
            let named = row.members.iter().filter(|_| which != Which::Prefixes);
            let named = named.filter_map(|entry| Some((self.table.name(entry.id)?, entry.figure)));
            let mut named: Vec<_> = named.collect();
            named.sort_by_key(|(name, _)| *name);
            for (to, figure) in named {
                push(name, to.to_string(), figure);
            }
            for entry in row.outside.iter().filter(|_| which != Which::Members) {
                if let Some(network) = entry.key.network() {
                    push(name, network.to_string(), entry.figure);
                }
            }
        }
        (paths, left_out)
    }
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
