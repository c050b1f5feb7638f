//! Sockets that nobody is known to have.

use std::fs;

use taut_observe::namespaces::Namespace;

use super::bpf_iter::{Granted, Inside, WISHES, Wish};
use super::undo::{Spaces, Undo};
use super::{ActuateError, Actuators, Made, Socket, buffer};
use crate::demand::Direction;
use crate::journal::{Entry, Thing, Value};

/// How often namespaces are looked through, while some vanish meanwhile.
const TRIES: usize = 3;
/// What is taken where the kernel does not tell its bound: what it has had for long.
const MEM_MAX: u32 = 212_992;

/// A buffer of such a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unowned {
    /// The kernel's name of the socket.
    pub cookie: u64,
    /// Its inode.
    pub inode: u32,
    /// Which buffer.
    pub direction: Direction,
    /// Bytes with overhead as they were seen; with others it is left alone.
    pub has: u32,
    /// What it is to have.
    pub to: u32,
}

/// The most that can be set without its owner, in bytes with overhead.
pub(crate) fn most(direction: Direction) -> u32 {
    let name = match direction {
        Direction::Send => "wmem_max",
        Direction::Receive => "rmem_max",
    };
    let text = fs::read_to_string(format!("/proc/sys/net/core/{name}")).ok();
    let most = text.and_then(|text| text.trim().parse::<u32>().ok());
    // The kernel doubles what it is told, in 31 bits.
    most.unwrap_or(MEM_MAX).min(u32::MAX / 4) * 2
}

/// Whether its buffer was set without an owner.
pub(super) fn is_unowned(entry: &Entry) -> bool {
    matches!(entry.after, Value::Buffer { owner: (0, _), .. })
}

/// What undoes it; one that was the kernel's own to size is only looked for.
fn undoing(entry: &Entry) -> Option<Wish> {
    let (cookie, direction) = match entry.thing {
        Thing::SendBuffer(cookie) => (cookie, Direction::Send),
        Thing::ReceiveBuffer(cookie) => (cookie, Direction::Receive),
        _ => return None,
    };
    let Value::Buffer {
        bytes, is_fixed, ..
    } = entry.before
    else {
        return None;
    };
    let after = entry.after.bytes();
    Some(Wish {
        cookie,
        direction,
        to: if is_fixed { bytes } else { 0 },
        expect: Some([after, entry.earlier.as_ref().map_or(after, Value::bytes)]),
    })
}

impl Actuators {
    /// Sets buffers that are fixed, and stay so. `None`: it was left alone, because it is not as it was seen, or is none that could be set back.
    ///
    /// # Errors
    /// [`ActuateError`], of each.
    pub fn size_unowned(
        &mut self,
        namespaces: &[Namespace],
        buffers: &[Unowned],
    ) -> Vec<Result<Option<Made>, ActuateError>> {
        let mut results = Vec::with_capacity(buffers.len());
        for some in buffers.chunks(WISHES) {
            match self.size_some(namespaces, some) {
                Ok(made) => results.extend(made.into_iter().map(Ok)),
                Err(error) => {
                    let text = error.to_string();
                    results.extend(some.iter().map(|_| Err(ActuateError::Inside(text.clone()))));
                }
            }
        }
        results
    }

    fn size_some(
        &mut self,
        namespaces: &[Namespace],
        buffers: &[Unowned],
    ) -> Result<Vec<Option<Made>>, ActuateError> {
        self.load()?;
        let bound = |direction| (direction, most(direction));
        let bounds = [bound(Direction::Send), bound(Direction::Receive)];
        let mut wishes = Vec::new();
        // Which of the buffers each is, and whether it was not in the journal before.
        let mut places = Vec::new();
        for (index, of) in buffers.iter().enumerate() {
            let most = bounds.iter().find(|bound| bound.0 == of.direction);
            let most = most.map_or(0, |bound| bound.1);
            let to = of.to.min(most) & !1;
            // It has to go back to what it is.
            if of.has > most || to == of.has {
                continue;
            }
            let thing = buffer(of.cookie, of.direction);
            places.push((index, self.journal.entry(&thing).is_none()));
            let socket = Socket {
                cookie: of.cookie,
                inode: of.inode,
                pid: 0,
            };
            self.note_buffer(&socket, of.direction, (of.has, true), (to, true))?;
            wishes.push(Wish {
                cookie: of.cookie,
                direction: of.direction,
                to,
                expect: Some([of.has; 2]),
            });
        }
        let (granted, is_whole) = self.grant(namespaces.iter(), &wishes)?;
        let mut made = vec![None; buffers.len()];
        for ((wish, granted), (index, is_new)) in wishes.iter().zip(granted).zip(places) {
            made[index] = match granted {
                Granted::Set { from, now } => Some(Made::Set { from, to: now }),
                Granted::NotSeen if is_whole => Some(Made::Gone),
                Granted::NotSeen | Granted::Others { .. } | Granted::NotFixed | Granted::Seen => {
                    None
                }
                Granted::Failed(error) => {
                    tracing::debug!(error, "a buffer was not set from inside the kernel");
                    None
                }
            };
            if is_new && !matches!(granted, Granted::Set { .. }) {
                let thing = buffer(wish.cookie, wish.direction);
                self.journal.undone(&thing).map_err(ActuateError::Journal)?;
            }
        }
        Ok(made)
    }

    /// Undoes what was done to buffers that nobody is known to have any more, wherever they are. What came of each.
    pub(super) fn undo_unowned(&mut self, entries: &[Entry]) -> Vec<Result<Undo, ActuateError>> {
        let mut results = Vec::with_capacity(entries.len());
        for some in entries.chunks(WISHES) {
            match self.undo_some(some) {
                Ok(undone) => results.extend(undone),
                Err(error) => {
                    let text = error.to_string();
                    // Most of those that had an owner have ended with it.
                    results.extend(some.iter().map(|entry| match is_unowned(entry) {
                        true => Err(ActuateError::Inside(text.clone())),
                        false => Ok(Undo::Gone),
                    }));
                }
            }
        }
        results
    }

    fn undo_some(
        &mut self,
        entries: &[Entry],
    ) -> Result<Vec<Result<Undo, ActuateError>>, ActuateError> {
        self.load()?;
        let wishes: Vec<Wish> = entries.iter().filter_map(undoing).collect();
        let mut granted = vec![Granted::NotSeen; wishes.len()];
        let mut is_whole = false;
        // One namespace may be known by a process that ends, while another is still in it.
        for _ in 0..TRIES {
            let spaces = Spaces::now();
            let waiting: Vec<usize> = (0..wishes.len())
                .filter(|index| granted[*index] == Granted::NotSeen)
                .collect();
            let some: Vec<Wish> = waiting.iter().map(|index| wishes[*index]).collect();
            let (found, was_whole) = self.grant(spaces.all(), &some)?;
            for (index, found) in waiting.into_iter().zip(found) {
                granted[index] = found;
            }
            is_whole = was_whole && !spaces.is_partial();
            if is_whole {
                break;
            }
        }
        let undone = granted.into_iter().zip(&wishes).zip(entries);
        let undone = undone.map(|((granted, wish), entry)| {
            let failed = |text: &str| Err(ActuateError::Inside(text.to_owned()));
            match granted {
                Granted::Set { .. } => Ok(Undo::Restored),
                // It was written down, and its writer ended before it was made.
                Granted::Others { has } if has == wish.to => Ok(Undo::Restored),
                // Or its application has given it back to the kernel.
                Granted::Others { .. } | Granted::NotFixed => Ok(Undo::Others),
                Granted::NotSeen if !is_whole && is_unowned(entry) => {
                    failed("not all namespaces could be looked into")
                }
                Granted::NotSeen => Ok(Undo::Gone),
                Granted::Seen => failed(
                    "it is to be given back to the kernel, which only whoever has it can do: try again later (taut tune --undo)",
                ),
                Granted::Failed(error) => failed(&format!("the kernel refuses it: {error}")),
            }
        });
        Ok(undone.collect())
    }

    fn load(&mut self) -> Result<(), ActuateError> {
        if self.inside.is_none() {
            let inside = Inside::load().map_err(|e| ActuateError::Inside(e.to_string()))?;
            self.inside = Some(inside);
        }
        Ok(())
    }

    fn grant<'a>(
        &self,
        namespaces: impl IntoIterator<Item = &'a Namespace>,
        wishes: &[Wish],
    ) -> Result<(Vec<Granted>, bool), ActuateError> {
        match &self.inside {
            Some(inside) if !wishes.is_empty() => inside
                .set(namespaces, wishes)
                .map_err(|e| ActuateError::Inside(e.to_string())),
            _ => Ok((Vec::new(), true)),
        }
    }
}
