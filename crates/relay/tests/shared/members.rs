//! Private keys and lists of members for the relays of a test.

use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use taut_mesh::identity::{PrivateKey, PublicKey};
use taut_relay::config::MeshConfig;

/// A directory with the keys and lists of members of relays. A key is known by a number, its seed.
pub(crate) struct Identities(tempfile::TempDir);

/// An entry of a list of members.
pub(crate) struct Entry {
    name: String,
    keys: Vec<PublicKey>,
    addresses: Vec<String>,
}

/// Returns private key `number`.
pub(crate) fn private_key(number: u8) -> PrivateKey {
    PrivateKey::from_seed(&[number; 32])
}

/// Returns a member that has the keys of these numbers and no address.
pub(crate) fn member(name: &str, keys: &[u8]) -> Entry {
    Entry {
        name: name.to_owned(),
        keys: keys.iter().map(|&n| private_key(n).public()).collect(),
        addresses: Vec::new(),
    }
}

// === impl Entry ===

impl Entry {
    /// Adds an address.
    pub(crate) fn at(mut self, address: impl ToString) -> Self {
        self.addresses.push(address.to_string());
        self
    }
}

impl std::fmt::Display for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let keys: Vec<_> = self.keys.iter().map(ToString::to_string).collect();
        let Self {
            name, addresses, ..
        } = self;
        writeln!(f, "[[member]]\nname = {name:?}\nkeys = {keys:?}")?;
        writeln!(f, "addresses = {addresses:?}")
    }
}

// === impl Identities ===

#[allow(dead_code, reason = "no test binary needs all of it")]
impl Identities {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    /// Returns the path of a file in the directory.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Writes private key `number` to a file, in place of the key there.
    pub(crate) fn write_key(&self, file: &str, number: u8) -> PathBuf {
        let path = self.path(file);
        let _ = std::fs::remove_file(&path);
        PrivateKey::create(&path, &[number; 32]).unwrap();
        path
    }

    /// Writes a list of members to a file, in place of the list there.
    pub(crate) fn write_members(&self, file: &str, members: &[Entry]) -> PathBuf {
        let text: String = members.iter().map(ToString::to_string).collect();
        write(&self.path(file), &text);
        self.path(file)
    }

    /// Writes the key and the list of members of the relay `name`, and returns its configuration.
    pub(crate) fn mesh(&self, name: &str, key: u8, members: &[Entry]) -> MeshConfig {
        let key = self.write_key(&format!("{name}.key"), key);
        let members = self.write_members(&format!("{name}.toml"), members);
        let mut mesh = MeshConfig::new(key, members);
        // Row links would be among the connections that tests count.
        mesh.measure = false;
        mesh
    }
}

fn write(path: &Path, text: &str) {
    let mut file = std::fs::File::options();
    let file = file.create(true).truncate(true).write(true).mode(0o644);
    file.open(path).unwrap().write_all(text.as_bytes()).unwrap();
}
