//! Runs a scan and updates the table: repeats the last sample of an unchanged connection, and adds
//! a new sample of any other.

use std::sync::Arc;
use std::time::Instant;

use rustc_hash::{FxHashMap, FxHashSet};
use taut_sys::sock_diag::{Connection, SockDiag, SocketId};

use crate::bpf_iter::{Details, Figures, Found};
use crate::filter::{Filter, Subject};
use crate::path_rtt::PathRtts;
use crate::scan::{Changed, ScanError, ScanSummary, Scanner, Walk};
use crate::table::Table;

/// Collects the results of a scan in a table.
pub(crate) struct Collector<'a, M: Copy> {
    pub(crate) table: &'a mut Table<M>,
    /// Notes the round trips of all connections, also of those that are not kept.
    pub(crate) paths: &'a mut PathRtts,
    /// The origin of the times in the table.
    pub(crate) began: Instant,
    /// Selects the connections to keep, as far as that is possible without their owner.
    pub(crate) filter: Option<&'a Filter>,
}

// === impl Collector ===

impl<M: Copy> Collector<'_, M> {
    /// Scans all connections.
    ///
    /// # Errors
    /// [`ScanError`]: the caller's own namespace, or the named one, cannot be scanned. Failures of
    /// other namespaces are only counted.
    pub(crate) fn scan(&mut self, scanner: &mut Scanner) -> Result<ScanSummary, ScanError> {
        scanner.find()?;
        let mut without_slot = scanner.begin(self.table.begin(false));
        let mut quickly = 0;
        let walks_used = !scanner.lists_slots();
        let walked = match scanner.walk(without_slot, || self.table.namespaces(walks_used)) {
            Walk::All => None,
            walk => {
                let none = FxHashSet::default();
                let walked = match &walk {
                    Walk::Some(walked) => &walked.inodes,
                    _ => &none,
                };
                let quick = match walks_used {
                    true => Some(0),
                    false => self.quick_scan(scanner, walked),
                };
                match (quick, walk) {
                    (Some(connections), Walk::None(last)) => {
                        self.find_missing(scanner, false);
                        return Ok(ScanSummary {
                            connections,
                            ..last
                        });
                    }
                    (Some(connections), Walk::Some(walked)) => {
                        quickly = connections;
                        Some(walked)
                    }
                    _ => {
                        scanner.quick_failed();
                        without_slot = scanner.begin(self.table.begin(true));
                        None
                    }
                }
            }
        };
        let mut scan = scanner.begin_walk(walked, without_slot);
        while let Some(mut batch) = scan.next()? {
            let (netns, at) = (batch.netns.clone(), batch.at);
            let changed = batch.list.take().map(|mut list| {
                let mut changed = Changed::default();
                while let Some(found) = list.next() {
                    let found = found?;
                    if !scan.reads_all && self.is_known(&found, &netns, at) {
                        changed.known += 1;
                    } else if let Some((details, _)) = list.details()? {
                        changed.want(&details);
                    }
                }
                Ok::<_, std::io::Error>(changed)
            });
            scan.summary.incomplete += usize::from(matches!(changed, Some(Err(_))));
            let changed = changed.and_then(Result::ok);
            scan.read(batch, changed, |connection| {
                self.add(&netns, at, connection);
            })?;
        }
        let mut summary = scan.finish();
        summary.connections += quickly;
        self.find_missing(scanner, true);
        Ok(summary)
    }

    /// Scans the connections that have a slot, in all namespaces at once but for those that are `walked`. Returns their
    /// number, or `None` if a full scan is required.
    fn quick_scan(&mut self, scanner: &Scanner, walked: &FxHashSet<u64>) -> Option<usize> {
        let at = Instant::now();
        let mut list = scanner.quick()?;
        let namespaces: FxHashMap<u64, _> = scanner.entered().collect();
        let mut changed: FxHashMap<u64, Changed> = FxHashMap::default();
        while let Some(found) = list.next() {
            let found = found.ok()?;
            let inode = u64::from(found.netns);
            let Some(namespace) = namespaces.get(&inode).filter(|_| !walked.contains(&inode))
            else {
                continue;
            };
            let changed = changed.entry(inode).or_default();
            if self.is_known(&found, &namespace.name, at) {
                changed.known += 1;
                continue;
            }
            match list.details().ok()?? {
                (details, Some(figures))
                    if self.update(&details, &figures, &namespace.name, at) =>
                {
                    changed.known += 1;
                }
                (details, _) => changed.want(&details),
            }
        }
        let mut connections = 0;
        for (inode, changed) in changed {
            if changed.is_empty() {
                connections += changed.known;
                continue;
            }
            let namespace = namespaces.get(&inode)?;
            let socket = namespace.run(SockDiag::open).ok()??.ok()?;
            // Takes the time only now, because rates use the time between readings, and entering
            // the namespace took a part of it.
            let at = Instant::now();
            let each = |connection| self.add(&namespace.name, at, connection);
            let listed = changed.read(socket, &namespace.name, each).ok()?;
            if listed.unknown > 0 || listed.interrupted {
                return None;
            }
            connections += listed.connections;
        }
        Some(connections)
    }

    /// Queries the connections that this scan has not found. `has_walked`: it would also have found
    /// handshakes, because it has walked all namespaces that had one.
    fn find_missing(&mut self, scanner: &mut Scanner, has_walked: bool) {
        if !has_walked {
            self.table.keep_handshakes();
        }
        let mut missing: FxHashMap<Arc<str>, Vec<SocketId>> = FxHashMap::default();
        for tracked in self.table.missing() {
            let ids = missing.entry(tracked.netns.clone()).or_default();
            ids.push(tracked.id());
        }
        for (netns, ids) in missing {
            let at = Instant::now();
            let is_known = scanner.find_again(&netns, &ids, |connection| {
                self.add(&netns, at, connection);
            });
            if !is_known {
                ids.iter().for_each(|id| self.table.keep(id.cookie));
            }
        }
    }

    /// Reuses the last sample of a connection that has not changed. Returns `false` if the
    /// connection must be read.
    fn is_known(&mut self, found: &Found, netns: &Arc<str>, at: Instant) -> bool {
        let at = at.duration_since(self.began);
        let since = found.since;
        since.is_some_and(|since| self.table.reuse(netns, at, found.cookie, since))
    }

    /// Adds a sample of a connection of which only figures have changed since its last one. Returns
    /// `false` if the connection must be read.
    fn update(
        &mut self,
        details: &Details,
        figures: &Figures,
        netns: &Arc<str>,
        at: Instant,
    ) -> bool {
        let known = self.table.get(details.id.cookie);
        let Some(known) = known.filter(|known| known.id() == details.id) else {
            return false;
        };
        let mut connection = known.last().connection.clone();
        connection.internals = details.internals;
        let is_updated = figures.update(&mut connection);
        if is_updated {
            self.add(netns, at, connection);
        }
        is_updated
    }

    fn add(&mut self, netns: &Arc<str>, at: Instant, connection: Connection) {
        let at = at.duration_since(self.began);
        self.paths.note(netns, at, &connection);
        let matches = |filter: &Filter| filter.matches(&Subject::of(netns, &connection, None));
        if self.filter.is_none_or(matches) {
            self.table.add(netns, at, connection);
        } else {
            self.table.skip(netns, connection.cookie);
        }
    }
}
