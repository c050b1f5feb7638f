//! Undoing one change, whatever has happened since.

use std::collections::HashMap;
use std::io;

use taut_observe::namespaces::{self, Namespace};
use taut_sys::Errno;
use taut_sys::netns;

use super::socket::{Holders, bytes, is_fixed, set};
use super::{ActuateError, Socket};
use crate::demand::Direction;
use crate::journal::{Entry, Value};
use crate::sysctl::{read, same, write};

/// How often namespaces are looked through, while some vanish meanwhile.
const TRIES: usize = 3;

/// What came of undoing one thing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Undo {
    /// It is as before.
    Restored,
    /// It has ended.
    Gone,
    /// Somebody else has changed it since, and it is left as it is.
    Others,
}

/// The namespaces that there are, by cookie.
pub(crate) struct Spaces {
    by_cookie: HashMap<u64, Namespace>,
    /// Not all of them could be looked into.
    is_partial: bool,
}

// === impl Spaces ===

impl Spaces {
    pub(crate) fn all(&self) -> impl Iterator<Item = &Namespace> {
        self.by_cookie.values()
    }

    /// Which are undone first: the own, then those with a name, then others. A container cannot make the host wait.
    pub(crate) fn turn(&self, cookie: u64) -> u8 {
        match self.by_cookie.get(&cookie) {
            Some(namespace) if namespace.is_own() => 0,
            Some(namespace) if namespace.is_named() => 1,
            Some(_) => 2,
            None => 3,
        }
    }

    /// Not all of them could be looked into.
    pub(crate) fn is_partial(&self) -> bool {
        self.is_partial
    }

    pub(crate) fn now() -> Self {
        let mut spaces = Self {
            by_cookie: HashMap::new(),
            is_partial: true,
        };
        // One is known by a process that may have ended, while another is still in it: then it is found by that.
        for _ in 0..TRIES {
            let Ok(found) = namespaces::all() else {
                return spaces;
            };
            // Where a process may not be looked into, nothing was changed either, or it has a name.
            spaces.is_partial = found.left_out > 0;
            let mut vanished = false;
            for namespace in found.namespaces {
                match namespace.run(netns::cookie) {
                    Ok(Some(Ok(cookie))) => {
                        spaces.by_cookie.insert(cookie, namespace);
                    }
                    Ok(None) => vanished = true,
                    Ok(Some(Err(error))) => {
                        tracing::warn!(%error, "a namespace's cookie is not known");
                        spaces.is_partial = true;
                    }
                    Err(error) => {
                        tracing::warn!(%error, "a namespace cannot be entered");
                        spaces.is_partial = true;
                    }
                }
            }
            if !vanished {
                break;
            }
        }
        spaces
    }

    /// These, as they were found a while ago.
    #[cfg(test)]
    pub(crate) fn of(spaces: impl IntoIterator<Item = (u64, Namespace)>) -> Self {
        Self {
            by_cookie: spaces.into_iter().collect(),
            is_partial: false,
        }
    }

    /// The one with this cookie; `None`: it is gone.
    ///
    /// # Errors
    /// It may be one that could not be looked into.
    pub(crate) fn get(&self, cookie: u64) -> Result<Option<&Namespace>, &'static str> {
        match self.by_cookie.get(&cookie) {
            None if self.is_partial => Err("not all namespaces could be looked into"),
            found => Ok(found),
        }
    }
}

pub(crate) fn undo_setting(
    spaces: &Spaces,
    cookie: u64,
    name: &str,
    entry: &Entry,
) -> Result<Undo, ActuateError> {
    let failed = |error: &str| ActuateError::Setting {
        name: name.to_owned(),
        netns: format!("with cookie {cookie}"),
        error: io::Error::other(error),
    };
    let Some(namespace) = spaces.get(cookie).map_err(failed)? else {
        return Ok(Undo::Gone);
    };
    let Value::Text(before) = &entry.before else {
        return Err(failed("the journal does not say what it was"));
    };
    let Some((of, now)) = read(namespace, name)? else {
        return Err(failed("it cannot be entered any more"));
    };
    // Another has its inode, so that it is no more.
    if of != cookie {
        return Ok(Undo::Gone);
    }
    let is = |value: &Value| matches!(value, Value::Text(text) if same(text, &now));
    if same(before, &now) {
        // It was written down, and its writer ended before it was made.
        return Ok(Undo::Restored);
    }
    if !is(&entry.after) && !entry.earlier.as_ref().is_some_and(is) {
        return Ok(Undo::Others);
    }
    match write(namespace, cookie, name, before)? {
        true => Ok(Undo::Restored),
        false => Err(failed("it cannot be entered any more")),
    }
}

/// Whether a buffer is as it was made, the last time or the one before it, or on the way there or back: it is set first, which fixes it, and then given back. One
/// that the kernel sizes may have any size.
pub(super) fn is_as_made(entry: &Entry, now: u32, is_fixed_now: bool) -> bool {
    let is = |value: &Value| match value {
        Value::Buffer {
            bytes, is_fixed, ..
        } => *bytes == now || !is_fixed && !is_fixed_now,
        Value::Text(_) | Value::Beside { .. } | Value::Route(_) => false,
    };
    is(&entry.after) || is(&entry.before) || entry.earlier.as_ref().is_some_and(is)
}

pub(super) fn undo_buffer(
    holders: &mut Holders,
    cookie: u64,
    direction: Direction,
    entry: &Entry,
) -> Result<Undo, ActuateError> {
    let (
        &Value::Buffer {
            bytes: size,
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
    let borrowed = match holders.borrow(&socket).map_err(failed)? {
        Some(borrowed) => borrowed,
        // It may have been passed on.
        None => match holders.anybody(&socket).map_err(failed)? {
            Some(borrowed) => borrowed,
            None => return Ok(Undo::Gone),
        },
    };
    let buffers = borrowed.buffers().map_err(failed)?;
    let now = bytes(&buffers, direction);
    // Its application has fixed it anew.
    if !is_as_made(entry, now, is_fixed(&buffers, direction)) {
        return Ok(Undo::Others);
    }
    // The kernel makes a send buffer as large as it was again, but a receive buffer only when more comes than ever before: which may have come when it was
    // largest.
    let size = match (was_fixed, direction) {
        (false, Direction::Receive) => size.max(now).max(entry.largest),
        _ => size,
    };
    // What is in it stays; what comes beyond it the peer sends again.
    set(&borrowed, &buffers, direction, size, was_fixed).map_err(failed)?;
    Ok(Undo::Restored)
}
