//! What is changed of connections whose sockets nobody is known to have.

use super::{Outcome, Planned, REMEMBERED, Told, Tuner, tell};
use crate::actuate::{Made, Unowned};
use crate::plan::Change;

impl Planned {
    /// How it can be made without an owner; `None`: it has one, or it cannot.
    fn unowned(&self) -> Option<Unowned> {
        let (Change::Widen {
            cookie,
            direction,
            demand,
            to,
        }
        | Change::Size {
            cookie,
            direction,
            demand,
            to,
        }) = self.change
        else {
            return None;
        };
        // What the kernel sizes could not be given back to it.
        let is_possible = self.connection.process.is_none()
            && demand.is_fixed == Some(true)
            && (self.change.widens() || matches!(self.change, Change::Size { .. }));
        is_possible.then(|| Unowned {
            cookie,
            inode: self.inode,
            direction,
            has: u32::try_from(demand.has).unwrap_or(u32::MAX),
            to: u32::try_from(to).unwrap_or(u32::MAX),
        })
    }
}

impl Tuner {
    /// Makes those that can be made without an owner, all at once, because each walk goes over all connections. The others are
    /// returned.
    pub(super) fn make_unowned(
        &mut self,
        planned: Vec<Planned>,
        told: &mut Vec<Told>,
    ) -> Vec<Planned> {
        let Some(actuators) = &mut self.actuators else {
            return planned;
        };
        let (mut unowned, mut others, mut buffers) = (Vec::new(), Vec::new(), Vec::new());
        for planned in planned {
            match planned.unowned() {
                Some(buffer) => {
                    buffers.push(buffer);
                    unowned.push(planned);
                }
                None => others.push(planned),
            }
        }
        if unowned.is_empty() {
            return others;
        }
        let made = actuators.size_unowned(self.observer.namespaces(), &buffers);
        for ((planned, buffer), made) in unowned.into_iter().zip(buffers).zip(made) {
            let outcome = match made {
                Ok(Some(Made::Set { .. })) => {
                    self.changed.insert(buffer.cookie, 0);
                    Outcome::Made
                }
                Ok(Some(Made::Gone)) => Outcome::Gone,
                Ok(None) => Outcome::NoOwner,
                Err(error) => Outcome::Failed(error.to_string()),
            };
            if outcome != Outcome::Made && self.tried.len() < REMEMBERED {
                self.tried
                    .insert((buffer.cookie, buffer.direction), self.look);
            }
            let Planned {
                change,
                connection,
                netns,
                ..
            } = planned;
            told.push(tell(&change, Some(connection), netns, outcome));
        }
        others
    }
}
