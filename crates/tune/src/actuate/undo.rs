//! Restores one buffer or one maximum, unless it has been changed since.

use std::io;

use taut_sys::Errno;

use super::socket::{SocketOwners, is_fixed, resize, size};
use super::{ActuateError, Socket};
use crate::demand::Direction;
use crate::journal::{Entry, Value};
use crate::namespaces::index::NamespaceIndex;
use crate::sysctl::{self, SysctlError, is_same};
use crate::undo::UndoOutcome;

/// Restores the maximum of the namespace with this cookie.
pub(crate) fn undo_maximum(
    index: &NamespaceIndex,
    cookie: u64,
    direction: Direction,
    entry: &Entry,
) -> Result<UndoOutcome, SysctlError> {
    let name = sysctl::buffer_limits(direction);
    let failed = |error: &str| SysctlError::File {
        name: name.to_owned(),
        netns: format!("with cookie {cookie}"),
        error: io::Error::other(error),
    };
    let Some(namespace) = index.get(cookie).map_err(failed)? else {
        return Ok(UndoOutcome::Gone);
    };
    let Value::Text(before) = &entry.before else {
        return Err(failed("the journal has no value from before"));
    };
    let Some((of, now)) = sysctl::read(namespace, name)? else {
        return Err(failed("the namespace cannot be entered any more"));
    };
    // Another namespace has this inode, so the wanted namespace has ended.
    if of != cookie {
        return Ok(UndoOutcome::Gone);
    }
    let is = |value: &Value| matches!(value, Value::Text(text) if is_same(text, &now));
    if is_same(before, &now) {
        // The writer ended between the line in the journal and the change.
        return Ok(UndoOutcome::Restored);
    }
    if !is(&entry.after) && !entry.earlier.as_ref().is_some_and(is) {
        return Ok(UndoOutcome::Foreign);
    }
    match sysctl::write(namespace, cookie, name, before)? {
        true => Ok(UndoOutcome::Restored),
        false => Err(failed("the namespace cannot be entered any more")),
    }
}

/// Whether a buffer is in a state that this program produced: by its last change, by the change
/// before, or halfway through a change or its undo. A change first resizes the buffer, which locks
/// it, and then unlocks it. An unlocked buffer may have any size.
pub(super) fn is_as_made(entry: &Entry, now: u32, is_fixed_now: bool) -> bool {
    let is = |value: &Value| match value {
        Value::Buffer {
            bytes, is_fixed, ..
        } => *bytes == now || !is_fixed && !is_fixed_now,
        Value::Text(_) | Value::WithCompanion { .. } | Value::Route(_) => false,
    };
    is(&entry.after) || is(&entry.before) || entry.earlier.as_ref().is_some_and(is)
}

/// Restores a buffer of the socket with this cookie.
pub(super) fn undo_buffer(
    owners: &mut SocketOwners,
    cookie: u64,
    direction: Direction,
    entry: &Entry,
) -> Result<UndoOutcome, ActuateError> {
    let (
        &Value::Buffer {
            bytes: before,
            is_fixed: was_fixed,
            owner: (pid, inode),
        },
        Value::Buffer { .. },
    ) = (&entry.before, &entry.after)
    else {
        return Err(ActuateError::Socket {
            pid: 0,
            error: Errno::INVAL,
        });
    };
    let failed = |error| ActuateError::Socket { pid, error };
    let socket = Socket { cookie, inode, pid };
    let borrowed = match owners.borrow(&socket).map_err(failed)? {
        Some(borrowed) => borrowed,
        // The socket may have been passed on.
        None => match owners.borrow_from_any(&socket).map_err(failed)? {
            Some(borrowed) => borrowed,
            None => return Ok(UndoOutcome::Gone),
        },
    };
    let buffers = borrowed.buffers().map_err(failed)?;
    let now = size(&buffers, direction);
    // The application has fixed it again.
    if !is_as_made(entry, now, is_fixed(&buffers, direction)) {
        return Ok(UndoOutcome::Foreign);
    }
    // The kernel enlarges a send buffer as needed, but a receive buffer only when more is read in a
    // round trip than ever before, which may have been when the buffer was largest.
    let to = match (was_fixed, direction) {
        (false, Direction::Receive) => before.max(now).max(entry.largest),
        _ => before,
    };
    // The contents stay; the peer retransmits data that does not fit.
    resize(&borrowed, &buffers, direction, to, was_fixed).map_err(failed)?;
    Ok(UndoOutcome::Restored)
}
