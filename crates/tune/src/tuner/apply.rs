//! Makes planned changes and reports them.

use super::planned::Planned;
use super::{MAX_ATTEMPTS, Tuner};
use crate::actuate::{BufferOutcome, Socket};
use crate::plan::Change;
use crate::report::{ChangeReport, Outcome};
use crate::undo::UndoOutcome;

impl Tuner {
    /// Makes a change. Without actuators, or where another process tunes, only reports it.
    pub(super) fn apply(&mut self, planned: Planned) -> ChangeReport {
        let Planned {
            change,
            connection,
            netns,
            inode,
        } = planned;
        let actuators = self.actuators.as_mut();
        let actuators = actuators.filter(|of| !of.is_foreign(&netns));
        let outcome = match (actuators, &change, &connection.process) {
            (_, Change::Reconnect { .. }, _) => Outcome::OutOfReach,
            (None, change, _) => {
                self.note_shrunk(change);
                Outcome::Advised
            }
            (Some(actuators), Change::Restore { cookie, direction }, _) => {
                match actuators.restore(*cookie, *direction) {
                    Ok(UndoOutcome::Restored) => Outcome::Applied,
                    Ok(UndoOutcome::Gone) => Outcome::Gone,
                    Ok(UndoOutcome::Foreign) => Outcome::Failed(
                        "the application has set it since, and it is left as it is".to_owned(),
                    ),
                    Err(error) => Outcome::Failed(error.to_string()),
                }
            }
            (Some(_), _, None)
            | (
                Some(_),
                Change::Maximum { .. }
                | Change::StartMaximum { .. }
                | Change::Enlarge { .. }
                | Change::Setting { .. }
                | Change::Route { .. },
                _,
            ) => Outcome::NoOwner,
            (
                Some(actuators),
                Change::Unlock { direction, to, .. }
                | Change::Resize { direction, to, .. }
                | Change::Shrink { direction, to, .. },
                Some((_, pid)),
            ) => {
                let socket = Socket {
                    cookie: connection.cookie,
                    inode,
                    pid: *pid,
                };
                let to = u32::try_from(*to).unwrap_or(u32::MAX);
                let outcome = match &change {
                    Change::Unlock { .. } => actuators.unlock(&socket, *direction, to),
                    _ => actuators.resize(&socket, *direction, to),
                };
                match outcome {
                    Ok(BufferOutcome::Set { .. }) => {
                        self.changed.insert(connection.cookie, 0);
                        self.note_shrunk(&change);
                        Outcome::Applied
                    }
                    Ok(BufferOutcome::Gone) => Outcome::Gone,
                    Err(error) => Outcome::Failed(error.to_string()),
                }
            }
        };
        if let (
            Change::Resize { direction, .. } | Change::Shrink { direction, .. },
            Outcome::NoOwner | Outcome::Failed(_),
        ) = (&change, &outcome)
            && self.attempts.len() < MAX_ATTEMPTS
        {
            self.attempts
                .insert((connection.cookie, *direction), self.scans);
        }
        ChangeReport::new(&change, Some(connection), netns, outcome)
    }

    /// Makes the changes that are possible without a process that has the socket. Makes them all at
    /// once, because each run of the BPF program visits all connections. Returns the other changes.
    pub(super) fn apply_ownerless(
        &mut self,
        planned: Vec<Planned>,
        reports: &mut Vec<ChangeReport>,
    ) -> Vec<Planned> {
        let Some(actuators) = &mut self.actuators else {
            return planned;
        };
        let (mut ownerless, mut others, mut buffers) = (Vec::new(), Vec::new(), Vec::new());
        for planned in planned {
            match planned.ownerless() {
                Some(buffer) if !actuators.is_foreign(&planned.netns) => {
                    buffers.push(buffer);
                    ownerless.push(planned);
                }
                _ => others.push(planned),
            }
        }
        if ownerless.is_empty() {
            return others;
        }
        let outcomes = actuators.resize_ownerless(self.observer.namespaces(), &buffers);
        for ((planned, buffer), outcome) in ownerless.into_iter().zip(buffers).zip(outcomes) {
            let outcome = match outcome {
                Ok(Some(BufferOutcome::Set { .. })) => {
                    self.changed.insert(buffer.cookie, 0);
                    Outcome::Applied
                }
                Ok(Some(BufferOutcome::Gone)) => Outcome::Gone,
                Ok(None) => Outcome::NoOwner,
                Err(error) => Outcome::Failed(error.to_string()),
            };
            if outcome != Outcome::Applied && self.attempts.len() < MAX_ATTEMPTS {
                self.attempts
                    .insert((buffer.cookie, buffer.direction), self.scans);
            }
            let Planned {
                change,
                connection,
                netns,
                ..
            } = planned;
            reports.push(ChangeReport::new(&change, Some(connection), netns, outcome));
        }
        others
    }
}
