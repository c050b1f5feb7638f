//! The key pair that a relay proves its identity with (Ed25519, RFC 8032), and the file of the private
//! key.

use std::fmt;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use base64ct::{Base64, Encoding};
use rustix::fs::OFlags;
use rustls::SignatureScheme;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::sign::{CertifiedKey, SigningKey};
use zeroize::Zeroizing;

use crate::crypto::provider;

/// Length of a public key, and of the seed of a private key, in bytes.
const KEY_LEN: usize = 32;

/// Length of a signature (RFC 8032 section 5.1.6), in bytes.
pub const SIGNATURE_LEN: usize = 64;

/// The largest accepted size of a private key file in bytes: a key and ample comments.
const MAX_FILE: u64 = 16 * 1024;

/// The DER encoding of an Ed25519 private key before its seed (RFC 8410 section 7).
const PKCS8_PREFIX: [u8; 16] = [
    0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20,
];

/// The DER encoding of an Ed25519 public key before its bytes (RFC 8410 section 4).
const SPKI_PREFIX: [u8; 12] = [
    0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00,
];

/// A relay's public key: what other relays know it by. As text it is base64, 44 characters.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PublicKey([u8; KEY_LEN]);

/// A relay's private key, ready to sign. `Debug` prints only the public key.
#[derive(Clone)]
pub struct PrivateKey {
    signing: Arc<dyn SigningKey>,
    public: PublicKey,
}

/// A text that is not a public key. It may be a private key by mistake, so only its start is repeated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PublicKeyError {
    /// The text is not 32 bytes in base64.
    #[error(
        "`{0}` is not a public key of 44 base64 characters: take it from `taut mesh pubkey` or the output of `taut mesh keygen` on the relay that it belongs to"
    )]
    Text(String),
    /// The key is one for which anybody can sign.
    #[error(
        "`{0}` is a public key that no private key belongs to: take it from `taut mesh pubkey` or the output of `taut mesh keygen` on the relay that it belongs to"
    )]
    SmallOrder(String),
}

/// The number of characters that [`PublicKeyError`] repeats. The first 21 of a private key in base64 are
/// the same for all keys.
const REPEATED: usize = 8;

/// The encodings of points of small order, without the sign bit: 0 and 1, the two y coordinates of order 8,
/// -1, and 0 and 1 in their encoding above the prime (RFC 8032 section 5.1). About every eighth signature
/// of any bytes is valid for such a key, among them that of zeros, a likely placeholder.
const SMALL_ORDER: [[u8; KEY_LEN]; 7] = {
    const fn below_2_255(last: u8) -> [u8; KEY_LEN] {
        let mut bytes = [0xff; KEY_LEN];
        bytes[0] = last;
        bytes[KEY_LEN - 1] = 0x7f;
        bytes
    }
    const fn small(first: u8) -> [u8; KEY_LEN] {
        let mut bytes = [0; KEY_LEN];
        bytes[0] = first;
        bytes
    }
    [
        small(0),
        small(1),
        [
            0x26, 0xe8, 0x95, 0x8f, 0xc2, 0xb2, 0x27, 0xb0, 0x45, 0xc3, 0xf4, 0x89, 0xf2, 0xef,
            0x98, 0xf0, 0xd5, 0xdf, 0xac, 0x05, 0xd3, 0xc6, 0x33, 0x39, 0xb1, 0x38, 0x02, 0x88,
            0x6d, 0x53, 0xfc, 0x05,
        ],
        [
            0xc7, 0x17, 0x6a, 0x70, 0x3d, 0x4d, 0xd8, 0x4f, 0xba, 0x3c, 0x0b, 0x76, 0x0d, 0x10,
            0x67, 0x0f, 0x2a, 0x20, 0x53, 0xfa, 0x2c, 0x39, 0xcc, 0xc6, 0x4e, 0xc7, 0xfd, 0x77,
            0x92, 0xac, 0x03, 0x7a,
        ],
        below_2_255(0xec),
        below_2_255(0xed),
        below_2_255(0xee),
    ]
};

/// An error of a private key file.
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
    #[error("cannot read the private key: {0}; {todo}", todo = what_to_do(.0))]
    Read(io::Error),
    /// The file cannot be written.
    #[error("cannot write the private key: {0}")]
    Write(io::Error),
    /// A file has that name already. A private key is never overwritten.
    #[error(
        "it exists, and private keys are never overwritten: choose another name, or print its public key with `taut mesh pubkey`"
    )]
    Exists,
    /// The path is a directory, pipe or device.
    #[error("not a regular file: private keys are read from regular files only")]
    NotAFile,
    /// Other users than the owner can read or write the file.
    #[error(
        "other users can read or write the private key (mode {mode:04o}): run `chmod 600 {path}`, and make a new key if others may have read this one",
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
        "the private key belongs to user {owner}, who can change it: run `chown {user} {path}` (root is also accepted)",
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
    /// The file is far longer than a key.
    #[error("longer than {MAX_FILE} bytes: this is not a private key")]
    Long,
    /// The file contains no Ed25519 private key in PEM. The message does not repeat the content.
    #[error("contains no Ed25519 private key (PEM, PKCS #8): make one with `taut mesh keygen`")]
    NoKey,
}

/// Returns what to do about a private key that cannot be read.
fn what_to_do(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::NotFound => "make one with `taut mesh keygen`",
        io::ErrorKind::PermissionDenied => {
            "give the file to the user of this process (`chown`), and let that user enter its directory"
        }
        _ => "check the file and its disk",
    }
}

// === impl PublicKey ===

impl PublicKey {
    /// Creates a public key from its bytes (RFC 8032 section 5.1.5).
    pub fn new(bytes: [u8; KEY_LEN]) -> Self {
        Self(bytes)
    }

    /// Returns whether the owner of this key has signed `message` in this context, see [`PrivateKey::sign`].
    pub fn verifies(&self, context: &str, message: &[u8], signature: &[u8; SIGNATURE_LEN]) -> bool {
        let algorithms = provider().signature_verification_algorithms.mapping;
        let ed25519 = algorithms
            .iter()
            .find(|(scheme, _)| *scheme == SignatureScheme::ED25519)
            .and_then(|(_, algorithms)| algorithms.first());
        ed25519.is_some_and(|algorithm| {
            let message = in_context(context, message);
            algorithm
                .verify_signature(&self.0, &message, signature)
                .is_ok()
        })
    }

    /// Returns the key in a SubjectPublicKeyInfo, or `None` if that has another algorithm.
    pub(crate) fn from_spki(der: &[u8]) -> Option<Self> {
        let bytes = der.strip_prefix(&SPKI_PREFIX)?;
        bytes.try_into().ok().map(Self)
    }
}

impl FromStr for PublicKey {
    type Err = PublicKeyError;

    fn from_str(s: &str) -> Result<Self, PublicKeyError> {
        let start = || match s.char_indices().nth(REPEATED) {
            Some((end, _)) => format!("{}…", &s[..end]),
            None => s.to_owned(),
        };
        let mut bytes = [0; KEY_LEN];
        match Base64::decode(s, &mut bytes) {
            Ok(decoded) if decoded.len() == KEY_LEN => {}
            _ => return Err(PublicKeyError::Text(start())),
        }
        let mut y = bytes;
        y[KEY_LEN - 1] &= 0x7f;
        if SMALL_ORDER.contains(&y) {
            return Err(PublicKeyError::SmallOrder(start()));
        }
        Ok(Self(bytes))
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&Base64::encode_string(&self.0))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PublicKey({self})")
    }
}

// === impl PrivateKey ===

impl PrivateKey {
    /// Creates a key from its seed (RFC 8032 section 5.1.5), which must be random.
    pub fn from_seed(seed: &[u8; KEY_LEN]) -> Self {
        let der =
            PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from([&PKCS8_PREFIX[..], seed].concat()));
        // Every seed is a key.
        Self::from_der(der).expect("a seed in its DER encoding")
    }

    fn from_der(der: PrivateKeyDer<'static>) -> Option<Self> {
        let signing = provider().key_provider.load_private_key(der).ok()?;
        let spki = signing.public_key()?;
        let public = PublicKey::from_spki(&spki)?;
        Some(Self { signing, public })
    }

    /// Parses a text with a private key in PEM (PKCS #8, RFC 5958), as `taut mesh keygen` and `openssl
    /// genpkey -algorithm ed25519` write it.
    ///
    /// # Errors
    /// [`KeyError::NoKey`].
    pub fn parse(pem: &[u8]) -> Result<Self, KeyError> {
        let der = PrivatePkcs8KeyDer::from_pem_slice(pem).map_err(|_| KeyError::NoKey)?;
        Self::from_der(PrivateKeyDer::Pkcs8(der)).ok_or(KeyError::NoKey)
    }

    /// Reads and parses the file at `path`. Follows a symbolic link and checks the file that it leads to.
    ///
    /// # Errors
    /// [`KeyError::File`], among others if users other than the owner can read or write the file, or if
    /// the owner is neither root nor the user of this process.
    pub fn load(path: &Path) -> Result<Self, KeyError> {
        read(path)
            .and_then(|text| Self::parse(&text))
            .map_err(|cause| at(path, cause))
    }

    /// Writes a new key with this seed to a new file with mode 0600, and returns it.
    ///
    /// # Errors
    /// [`KeyError::File`]; a file that exists is never overwritten.
    pub fn create(path: &Path, seed: &[u8; KEY_LEN]) -> Result<Self, KeyError> {
        let mut der = Zeroizing::new([0; PKCS8_PREFIX.len() + KEY_LEN]);
        der[..PKCS8_PREFIX.len()].copy_from_slice(&PKCS8_PREFIX);
        der[PKCS8_PREFIX.len()..].copy_from_slice(seed);
        let body = Zeroizing::new(Base64::encode_string(&*der));
        let pem = Zeroizing::new(format!(
            "-----BEGIN PRIVATE KEY-----\n{}\n-----END PRIVATE KEY-----\n",
            &*body
        ));
        let written = File::options()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path)
            .and_then(|mut file| {
                file.write_all(pem.as_bytes())?;
                file.sync_all()
            });
        written.map_err(|e| {
            at(
                path,
                match e.kind() {
                    io::ErrorKind::AlreadyExists => KeyError::Exists,
                    _ => KeyError::Write(e),
                },
            )
        })?;
        Ok(Self::from_seed(seed))
    }

    /// Returns the public key.
    pub fn public(&self) -> PublicKey {
        self.public
    }

    /// Signs `message` in a context, which says what the signature is made for: a signature in one context
    /// is none in another, and none of a handshake (RFC 8446 section 4.4.3 begins with 64 spaces).
    pub fn sign(&self, context: &str, message: &[u8]) -> [u8; SIGNATURE_LEN] {
        let signer = self.signing.choose_scheme(&[SignatureScheme::ED25519]);
        let signed = signer.and_then(|signer| signer.sign(&in_context(context, message)).ok());
        let signature = signed.and_then(|bytes| bytes.try_into().ok());
        // `from_der` accepts only keys of Ed25519, whose signatures need no randomness and cannot fail.
        signature.expect("a signature of Ed25519")
    }

    /// Returns the key and its certificate, a raw public key (RFC 7250).
    pub(crate) fn certified(&self) -> Arc<CertifiedKey> {
        let spki = [&SPKI_PREFIX[..], &self.public.0].concat();
        Arc::new(CertifiedKey::new(vec![spki.into()], self.signing.clone()))
    }
}

/// Returns what is signed: the length of the context, the context, the message.
fn in_context(context: &str, message: &[u8]) -> Vec<u8> {
    let context = context.as_bytes();
    let len = u8::try_from(context.len()).expect("a context is a short constant");
    [&[len], context, message].concat()
}

impl fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PrivateKey(of {})", self.public)
    }
}

fn at(path: &Path, cause: KeyError) -> KeyError {
    KeyError::File {
        path: path.to_owned(),
        cause: Box::new(cause),
    }
}

fn read(path: &Path) -> Result<Zeroizing<Vec<u8>>, KeyError> {
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
    // Full capacity at once: a growing buffer leaves copies of the key in memory.
    let mut text = Zeroizing::new(Vec::with_capacity(MAX_FILE as usize + 1));
    file.take(MAX_FILE + 1)
        .read_to_end(&mut text)
        .map_err(KeyError::Read)?;
    if text.len() as u64 > MAX_FILE {
        return Err(KeyError::Long);
    }
    Ok(text)
}

/// Checks that a file of this mode and owner may contain a private key for `user`.
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
