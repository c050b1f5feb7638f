//! Resizes and restores buffers of sockets that no process is known to have.

use std::fs;

use taut_observe::namespaces::Namespace;

use super::bpf_iter::{BufferIter, BufferRequest, MAX_REQUESTS, RequestOutcome};
use super::{ActuateError, Actuators, BufferOutcome, Socket};
use crate::demand::Direction;
use crate::journal::{Entry, Target, Value};
use crate::namespaces::index::NamespaceIndex;
use crate::undo::UndoOutcome;

/// The maximum number of searches through all namespaces if some end meanwhile.
const TRIES: usize = 3;
/// The assumed limit if the kernel's limit cannot be read: the kernel's long-time default.
const DEFAULT_LIMIT: u32 = 212_992;

/// A buffer of a socket that no process is known to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnerlessBuffer {
    /// The socket's cookie.
    pub cookie: u64,
    /// The socket's inode.
    pub inode: u32,
    /// Which of its buffers.
    pub direction: Direction,
    /// The size at the last scan, in bytes with overhead. If it has changed since, the buffer is
    /// left alone.
    pub size: u32,
    /// The new size.
    pub to: u32,
}

/// Returns the largest size that can be set without a process that has the socket, in bytes with
/// overhead.
pub(crate) fn max_size(direction: Direction) -> u32 {
    let name = match direction {
        Direction::Send => "wmem_max",
        Direction::Receive => "rmem_max",
    };
    let text = fs::read_to_string(format!("/proc/sys/net/core/{name}")).ok();
    let limit = text.and_then(|text| text.trim().parse::<u32>().ok());
    // The kernel doubles the socket option, in 31 bits.
    limit.unwrap_or(DEFAULT_LIMIT).min(u32::MAX / 4) * 2
}

/// Whether the buffer was changed without a process that has the socket.
fn is_ownerless(entry: &Entry) -> bool {
    matches!(entry.after, Value::Buffer { owner: (0, _), .. })
}

/// Returns the request that undoes a change. For a buffer that was not fixed, only searches for it:
/// the BPF program cannot unlock a buffer.
fn undo_request(entry: &Entry) -> Option<BufferRequest> {
    let (cookie, direction) = entry.target.as_buffer()?;
    let Value::Buffer {
        bytes, is_fixed, ..
    } = entry.before
    else {
        return None;
    };
    let after = entry.after.bytes();
    Some(BufferRequest {
        cookie,
        direction,
        to: if is_fixed { bytes } else { 0 },
        expect: Some([after, entry.earlier.as_ref().map_or(after, Value::bytes)]),
    })
}

impl Actuators {
    /// Resizes fixed buffers, which stay fixed. The result is `None` if the buffer was left alone,
    /// because its size has changed or could not be restored later.
    ///
    /// # Errors
    /// [`ActuateError`], for each buffer.
    pub fn resize_ownerless(
        &mut self,
        namespaces: &[Namespace],
        buffers: &[OwnerlessBuffer],
    ) -> Vec<Result<Option<BufferOutcome>, ActuateError>> {
        let mut results = Vec::with_capacity(buffers.len());
        for chunk in buffers.chunks(MAX_REQUESTS) {
            match self.resize_chunk(namespaces, chunk) {
                Ok(outcomes) => results.extend(outcomes.into_iter().map(Ok)),
                Err(error) => {
                    let text = error.to_string();
                    let failed = || Err(ActuateError::Ownerless(text.clone()));
                    results.extend(chunk.iter().map(|_| failed()));
                }
            }
        }
        results
    }

    fn resize_chunk(
        &mut self,
        namespaces: &[Namespace],
        buffers: &[OwnerlessBuffer],
    ) -> Result<Vec<Option<BufferOutcome>>, ActuateError> {
        self.load()?;
        let limit = |direction| (direction, max_size(direction));
        let limits = [limit(Direction::Send), limit(Direction::Receive)];
        let mut requests = Vec::new();
        // For each request, the index of its buffer, and whether this is the buffer's first entry
        // in the journal.
        let mut places = Vec::new();
        for (index, of) in buffers.iter().enumerate() {
            let limit = limits.iter().find(|limit| limit.0 == of.direction);
            let limit = limit.map_or(0, |limit| limit.1);
            let to = of.to.min(limit) & !1;
            // A size above the limit could not be restored.
            if of.size > limit || to == of.size {
                continue;
            }
            let target = Target::buffer(of.cookie, of.direction);
            places.push((index, self.journal.entry(&target).is_none()));
            let socket = Socket {
                cookie: of.cookie,
                inode: of.inode,
                pid: 0,
            };
            self.note_buffer(&socket, of.direction, (of.size, true), (to, true))?;
            requests.push(BufferRequest {
                cookie: of.cookie,
                direction: of.direction,
                to,
                expect: Some([of.size; 2]),
            });
        }
        let (found, is_whole) = self.run(namespaces.iter(), &requests)?;
        let mut outcomes = vec![None; buffers.len()];
        for ((request, found), (index, is_new)) in requests.iter().zip(found).zip(places) {
            outcomes[index] = match found {
                RequestOutcome::Set { from, now } => Some(BufferOutcome::Set { from, to: now }),
                RequestOutcome::Orphan => Some(BufferOutcome::Gone),
                RequestOutcome::NotFound if is_whole => Some(BufferOutcome::Gone),
                RequestOutcome::NotFound
                | RequestOutcome::OtherSize { .. }
                | RequestOutcome::NotFixed
                | RequestOutcome::Found => None,
                RequestOutcome::Failed(error) => {
                    tracing::debug!(error, "a buffer was not changed from inside the kernel");
                    None
                }
            };
            if is_new && !matches!(found, RequestOutcome::Set { .. }) {
                let target = Target::buffer(request.cookie, request.direction);
                self.journal.undone(&target)?;
            }
        }
        Ok(outcomes)
    }

    /// Undoes changes of buffers whose sockets no process is known to have any more, in all
    /// namespaces. Returns the result for each entry.
    pub(super) fn undo_ownerless(
        &mut self,
        entries: &[Entry],
    ) -> Vec<Result<UndoOutcome, ActuateError>> {
        let mut results = Vec::with_capacity(entries.len());
        for chunk in entries.chunks(MAX_REQUESTS) {
            match self.undo_chunk(chunk) {
                Ok(outcomes) => results.extend(outcomes),
                Err(error) => {
                    let text = error.to_string();
                    // Most sockets that had an owner have ended with their owner.
                    results.extend(chunk.iter().map(|entry| match is_ownerless(entry) {
                        true => Err(ActuateError::Ownerless(text.clone())),
                        false => Ok(UndoOutcome::Gone),
                    }));
                }
            }
        }
        results
    }

    fn undo_chunk(
        &mut self,
        entries: &[Entry],
    ) -> Result<Vec<Result<UndoOutcome, ActuateError>>, ActuateError> {
        self.load()?;
        let requests: Vec<BufferRequest> = entries.iter().filter_map(undo_request).collect();
        let mut outcomes = vec![RequestOutcome::NotFound; requests.len()];
        let mut is_whole = false;
        // A namespace may be known by a process that ends while other processes stay in it.
        for _ in 0..TRIES {
            let index = NamespaceIndex::read();
            let waiting: Vec<usize> = (0..requests.len())
                .filter(|at| outcomes[*at] == RequestOutcome::NotFound)
                .collect();
            let some: Vec<BufferRequest> = waiting.iter().map(|at| requests[*at]).collect();
            let (found, was_whole) = self.run(index.all(), &some)?;
            for (at, found) in waiting.into_iter().zip(found) {
                outcomes[at] = found;
            }
            is_whole = was_whole && !index.is_partial();
            if is_whole {
                break;
            }
        }
        let outcomes = outcomes.into_iter().zip(&requests).zip(entries);
        let outcomes = outcomes.map(|((outcome, request), entry)| {
            let failed = |text: &str| Err(ActuateError::Ownerless(text.to_owned()));
            match outcome {
                RequestOutcome::Set { .. } => Ok(UndoOutcome::Restored),
                // The writer ended between the line in the journal and the change.
                RequestOutcome::OtherSize { size } if size == request.to => Ok(UndoOutcome::Restored),
                // The application has changed it, or has unlocked it.
                RequestOutcome::OtherSize { .. } | RequestOutcome::NotFixed => Ok(UndoOutcome::Foreign),
                RequestOutcome::NotFound if !is_whole && is_ownerless(entry) => {
                    failed("not all namespaces could be entered")
                }
                RequestOutcome::NotFound | RequestOutcome::Orphan => Ok(UndoOutcome::Gone),
                RequestOutcome::Found => failed(
                    "only a process that has the socket can unlock the buffer; try again later: taut tune --undo",
                ),
                RequestOutcome::Failed(error) => failed(&format!("the kernel refused: {error}")),
            }
        });
        Ok(outcomes.collect())
    }

    fn load(&mut self) -> Result<(), ActuateError> {
        if self.iter.is_none() {
            let iter = BufferIter::load().map_err(|e| ActuateError::Ownerless(e.to_string()))?;
            self.iter = Some(iter);
        }
        Ok(())
    }

    fn run<'a>(
        &self,
        namespaces: impl IntoIterator<Item = &'a Namespace>,
        requests: &[BufferRequest],
    ) -> Result<(Vec<RequestOutcome>, bool), ActuateError> {
        match &self.iter {
            Some(iter) if !requests.is_empty() => iter
                .run(namespaces, requests)
                .map_err(|e| ActuateError::Ownerless(e.to_string())),
            _ => Ok((Vec::new(), true)),
        }
    }
}
