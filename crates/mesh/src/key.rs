//! The secrets that make relays a mesh, and the file they are kept in.
//!
//! Every relay of a mesh holds the same one or two keys. The first makes messages, both are
//! accepted; so a key is replaced without a moment at which relays refuse each other: the new one
//! second everywhere, then first everywhere, then alone.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::OFlags;
use zeroize::Zeroizing;

/// Bytes of a key: as many as HMAC-SHA-256 gives out (RFC 2104 section 3: fewer weaken it).
const KEY_LEN: usize = 32;

/// Keys valid at a time: the present one, and the one before or after it.
const MAX_KEYS: usize = 2;

/// Bytes of a key file: two keys and more comment than anybody writes.
const MAX_FILE: u64 = 16 * 1024;

/// A secret shared by the relays of a mesh: 32 bytes. Copies share the same memory, which is
/// wiped with the last of them; `Debug` does not show it.
#[derive(Clone, PartialEq, Eq)]
pub struct Key(Arc<Zeroizing<[u8; KEY_LEN]>>);

/// The keys a relay holds: one, or two while a key is being replaced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keys {
    first: Key,
    second: Option<Key>,
}

/// Why there are no keys.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// A key file, and what is wrong with it.
    #[error("{path}: {cause}", path = path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        cause: Box<Self>,
    },
    /// It cannot be read.
    #[error("cannot read the mesh keys: {0}")]
    Read(io::Error),
    /// A directory, pipe or device.
    #[error("not a regular file: mesh keys are read from a file only")]
    NotAFile,
    /// Others than its owner can read or write it.
    #[error(
        "others can read or write the mesh keys (mode {mode:04o}): run `chmod 600 {path}`, and make new keys if others may have seen these",
        path = path.display()
    )]
    Exposed {
        /// The file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// It belongs to another user.
    #[error(
        "the mesh keys belong to user {owner}, who can change them: run `chown {user} {path}` (root is fine too)",
        path = path.display()
    )]
    Owner {
        /// The file.
        path: PathBuf,
        /// Whose it is.
        owner: u32,
        /// Who reads it.
        user: u32,
    },
    /// Far more than two keys.
    #[error("longer than {MAX_FILE} bytes: this is no file of mesh keys")]
    Long,
    /// Not text.
    #[error("not text: write each key as 64 hex digits on a line of its own")]
    NotText,
    /// No key in it.
    #[error("no key in it: make one with `openssl rand -hex 32`, the same on every relay")]
    Empty,
    /// A line that is no key. What it says is not repeated: it may be most of a key.
    #[error(
        "line {line} is not a key, which is 64 hex digits: make one with `openssl rand -hex 32`"
    )]
    Line {
        /// Its number, from 1.
        line: usize,
    },
    /// A third key.
    #[error(
        "line {line} is a third key: there can be two, the one in use first, while a key is being replaced"
    )]
    TooMany {
        /// Its number, from 1.
        line: usize,
    },
    /// The same key twice.
    #[error("line {line} repeats the first key: a key is replaced by another one")]
    Repeated {
        /// Its number, from 1.
        line: usize,
    },
}

// === impl Key ===

impl Key {
    /// From its bytes, which are to be random.
    pub fn new(bytes: [u8; KEY_LEN]) -> Self {
        Self(Arc::new(Zeroizing::new(bytes)))
    }

    pub(crate) fn bytes(&self) -> &[u8; KEY_LEN] {
        &self.0
    }

    /// 64 hex digits of either case.
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
    /// The key that makes messages, and one more that is accepted.
    pub fn new(first: Key, second: Option<Key>) -> Self {
        Self { first, second }
    }

    /// Reads the file at `path`, as [`Keys::parse`] does its text. A symbolic link is followed: what
    /// it leads to is judged.
    ///
    /// # Errors
    /// [`KeyError::File`], one sentence: among others when somebody else than its owner could have
    /// read or written the file, or its owner is neither root nor the user of this process.
    pub fn load(path: &Path) -> Result<Self, KeyError> {
        Self::read(path).map_err(|cause| KeyError::File {
            path: path.to_owned(),
            cause: Box::new(cause),
        })
    }

    fn read(path: &Path) -> Result<Self, KeyError> {
        let file = File::options()
            .read(true)
            // Opening a pipe must not wait for somebody to write to it.
            .custom_flags(OFlags::NONBLOCK.bits().cast_signed())
            .open(path)
            .map_err(KeyError::Read)?;
        // Of what was opened, not of what the path leads to by now.
        let meta = file.metadata().map_err(KeyError::Read)?;
        if !meta.is_file() {
            return Err(KeyError::NotAFile);
        }
        let user = rustix::process::geteuid().as_raw();
        judge(path, meta.mode(), meta.uid(), user)?;
        // Sized once: a buffer that grows leaves copies behind.
        let mut text = Zeroizing::new(Vec::with_capacity(MAX_FILE as usize + 1));
        file.take(MAX_FILE + 1)
            .read_to_end(&mut text)
            .map_err(KeyError::Read)?;
        if text.len() as u64 > MAX_FILE {
            return Err(KeyError::Long);
        }
        Self::parse(str::from_utf8(&text).map_err(|_| KeyError::NotText)?)
    }

    /// One key a line, 64 hex digits; blank lines and lines that start with `#` are passed over.
    ///
    /// # Errors
    /// [`KeyError`], which never repeats what a line says.
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

    /// The key that messages are made with.
    pub fn first(&self) -> &Key {
        &self.first
    }

    /// Every key that is accepted, the first one first.
    pub fn iter(&self) -> impl Iterator<Item = &Key> {
        std::iter::once(&self.first).chain(&self.second)
    }

    /// Whether `key` is one of them.
    pub fn contains(&self, key: &Key) -> bool {
        self.iter().any(|k| k == key)
    }
}

/// Whether a file of this mode and owner is fit to hold keys for `user`.
fn judge(path: &Path, mode: u32, owner: u32, user: u32) -> Result<(), KeyError> {
    if owner != 0 && owner != user {
        return Err(KeyError::Owner {
            path: path.to_owned(),
            owner,
            user,
        });
    }
    // With an access list the group's bits are its mask, so that this sees those too (acl(5)).
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
