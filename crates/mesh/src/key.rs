//! The shared secrets of a mesh, and their file.
//!
//! Every relay of a mesh holds the same one or two keys. It makes messages with the first and accepts
//! both, so a key can be replaced without relays refusing each other: add the new key as the second
//! everywhere, then make it the first everywhere, then remove the old one.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::OFlags;
use zeroize::Zeroizing;

/// Length of a key in bytes: the output length of HMAC-SHA-256 (a shorter key weakens it, RFC 2104
/// section 3).
const KEY_LEN: usize = 32;

/// The largest number of keys: the current one and its predecessor or successor.
const MAX_KEYS: usize = 2;

/// The largest size of a key file in bytes: two keys and ample comments.
const MAX_FILE: u64 = 16 * 1024;

/// A secret shared by the relays of a mesh: 32 bytes. Clones share the same memory, which is wiped when
/// the last one is dropped. `Debug` does not print it.
#[derive(Clone, PartialEq, Eq)]
pub struct Key(Arc<Zeroizing<[u8; KEY_LEN]>>);

/// The keys of a relay: one, or two while a key is being replaced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keys {
    first: Key,
    second: Option<Key>,
}

/// An error in a key file.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// An error, with the path of the file.
    #[error("{path}: {cause}", path = path.display())]
    File {
        /// Path of the file.
        path: PathBuf,
        /// The error.
        cause: Box<Self>,
    },
    /// The file cannot be read.
    #[error("cannot read the mesh keys: {0}")]
    Read(io::Error),
    /// The path is a directory, pipe or device.
    #[error("not a regular file: mesh keys are read from regular files only")]
    NotAFile,
    /// Other users than the owner can read or write the file.
    #[error(
        "other users can read or write the mesh keys (mode {mode:04o}): run `chmod 600 {path}`, and make new keys if others may have read these",
        path = path.display()
    )]
    Exposed {
        /// Path of the file.
        path: PathBuf,
        /// Permission bits of the file.
        mode: u32,
    },
    /// The file belongs to another user.
    #[error(
        "the mesh keys belong to user {owner}, who can change them: run `chown {user} {path}` (root is also accepted)",
        path = path.display()
    )]
    Owner {
        /// Path of the file.
        path: PathBuf,
        /// User ID of the owner.
        owner: u32,
        /// User ID of this process.
        user: u32,
    },
    /// The file is far longer than two keys.
    #[error("longer than {MAX_FILE} bytes: this is not a file of mesh keys")]
    Long,
    /// The file is not text.
    #[error("not text: write each key as 64 hex digits on a line of its own")]
    NotText,
    /// The file contains no key.
    #[error("contains no key: make one with `openssl rand -hex 32`, the same on every relay")]
    Empty,
    /// A line is not a key. The message does not repeat the line, which may be most of a key.
    #[error("line {line} is not a key of 64 hex digits: make one with `openssl rand -hex 32`")]
    Line {
        /// The line's number, from 1.
        line: usize,
    },
    /// The file contains a third key.
    #[error(
        "line {line} is a third key: at most two are allowed, the one in use first, while a key is being replaced"
    )]
    TooMany {
        /// The line's number, from 1.
        line: usize,
    },
    /// The file contains the same key twice.
    #[error("line {line} repeats the first key: the second key must be another one")]
    Repeated {
        /// The line's number, from 1.
        line: usize,
    },
}

// === impl Key ===

impl Key {
    /// Creates a key from its bytes, which must be random.
    pub fn new(bytes: [u8; KEY_LEN]) -> Self {
        Self(Arc::new(Zeroizing::new(bytes)))
    }

    pub(crate) fn bytes(&self) -> &[u8; KEY_LEN] {
        &self.0
    }

    /// Parses 64 hex digits of either case.
    fn from_hex(digits: &str) -> Option<Self> {
        let mut bytes = Zeroizing::new([0; KEY_LEN]);
        let decoded = base16ct::mixed::decode(digits, bytes.as_mut()).ok()?;
        (decoded.len() == KEY_LEN).then(|| Self(Arc::new(bytes)))
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

// === impl Keys ===

impl Keys {
    /// Combines the key that makes messages with an optional second one that is also accepted.
    pub fn new(first: Key, second: Option<Key>) -> Self {
        Self { first, second }
    }

    /// Reads and parses the file at `path` ([`Keys::parse`]). Follows a symbolic link and checks the file
    /// that it leads to.
    ///
    /// # Errors
    /// [`KeyError::File`], among others if users other than the owner can read or write the file, or if
    /// the owner is neither root nor the user of this process.
    pub fn load(path: &Path) -> Result<Self, KeyError> {
        Self::read(path).map_err(|cause| KeyError::File {
            path: path.to_owned(),
            cause: Box::new(cause),
        })
    }

    fn read(path: &Path) -> Result<Self, KeyError> {
        let file = File::options()
            .read(true)
            // Opening a pipe must not block until a writer opens it.
            .custom_flags(OFlags::NONBLOCK.bits().cast_signed())
            .open(path)
            .map_err(KeyError::Read)?;
        // Check the open file: the path may lead to another file by now.
        let meta = file.metadata().map_err(KeyError::Read)?;
        if !meta.is_file() {
            return Err(KeyError::NotAFile);
        }
        let user = rustix::process::geteuid().as_raw();
        check_access(path, meta.mode(), meta.uid(), user)?;
        // Full capacity at once: a growing buffer leaves copies of the keys in memory.
        let mut text = Zeroizing::new(Vec::with_capacity(MAX_FILE as usize + 1));
        file.take(MAX_FILE + 1)
            .read_to_end(&mut text)
            .map_err(KeyError::Read)?;
        if text.len() as u64 > MAX_FILE {
            return Err(KeyError::Long);
        }
        Self::parse(str::from_utf8(&text).map_err(|_| KeyError::NotText)?)
    }

    /// Parses a text with one key per line, 64 hex digits. Skips blank lines and lines that start with
    /// `#`.
    ///
    /// # Errors
    /// [`KeyError`], which never repeats the content of a line.
    pub fn parse(text: &str) -> Result<Self, KeyError> {
        let mut keys = Vec::with_capacity(MAX_KEYS);
        for (i, line) in text.lines().enumerate() {
            let (line, number) = (line.trim(), i + 1);
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let key = Key::from_hex(line).ok_or(KeyError::Line { line: number })?;
            if keys.len() == MAX_KEYS {
                return Err(KeyError::TooMany { line: number });
            }
            if keys.contains(&key) {
                return Err(KeyError::Repeated { line: number });
            }
            keys.push(key);
        }
        let mut keys = keys.into_iter();
        let first = keys.next().ok_or(KeyError::Empty)?;
        Ok(Self::new(first, keys.next()))
    }

    /// Returns the key that makes messages.
    pub fn first(&self) -> &Key {
        &self.first
    }

    /// Returns all accepted keys, beginning with the first.
    pub fn iter(&self) -> impl Iterator<Item = &Key> {
        std::iter::once(&self.first).chain(&self.second)
    }

    /// Returns whether `key` is one of the accepted keys.
    pub fn contains(&self, key: &Key) -> bool {
        self.iter().any(|k| k == key)
    }
}

/// Checks that a file of this mode and owner may contain keys for `user`.
fn check_access(path: &Path, mode: u32, owner: u32, user: u32) -> Result<(), KeyError> {
    if owner != 0 && owner != user {
        return Err(KeyError::Owner {
            path: path.to_owned(),
            owner,
            user,
        });
    }
    // With an ACL the group bits are its mask, so this check covers ACL entries, too (acl(5)).
    if mode & 0o066 != 0 {
        return Err(KeyError::Exposed {
            path: path.to_owned(),
            mode: mode & 0o7777,
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests;
