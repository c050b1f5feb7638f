//! This relay's identity and the list of members: their files, and what connections need of them.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;

use taut_mesh::acceptor::Local;
use taut_mesh::dials::Keys;
use taut_mesh::identity::{KeyError, PrivateKey, PublicKey};
use taut_mesh::members::{
    ListRefusal, MAX_FILE, Member, MemberName, Members, MembersError, SignedError,
};
use taut_mesh::tls::{AcceptTls, DialTls};

use crate::config::{Config, MeshConfig};

use super::kernel_tls::TlsPlace;
use super::look_ups::dialled_relays;

/// The reason why a node cannot be part of the mesh.
#[derive(Debug, thiserror::Error)]
pub enum MeshError {
    /// The private key cannot be read.
    #[error("relay.mesh.private_key_file: {0}")]
    Key(#[from] KeyError),
    /// The list of members cannot be read.
    #[error("relay.mesh.members_file: {path}: {source}", path = path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// The list of members has a mistake.
    #[error("relay.mesh.members_file: {path}: {source}", path = path.display())]
    Members {
        /// The file.
        path: PathBuf,
        /// The mistake.
        source: MembersError,
    },
    /// The list of members has no valid signature, although it needs one.
    #[error("relay.mesh.members_file: {path}: {source}", path = path.display())]
    Signed {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: SignedError,
    },
    /// The list is older than the one in use.
    #[error("relay.mesh.members_file: {path}: {source}; keeping the list in use", path = path.display())]
    Older {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: ListRefusal,
    },
    /// Others than root and this process can change the list of members.
    #[error(
        "relay.mesh.members_file: {path}: other users can change it (mode {mode:04o}, owner {owner}), \
         and with it who may use this relay: run `chmod go-w {path}` and `chown root {path}`",
        path = path.display()
    )]
    Writable {
        /// The file.
        path: PathBuf,
        /// Permission bits of the file.
        mode: u32,
        /// User ID of the owner.
        owner: u32,
    },
    /// No member has the key of this relay.
    #[error(
        "relay.mesh.members_file: {path}: no member has the public key of this relay, {key}; add it \
         here and on the other relays",
        path = path.display()
    )]
    NotAMember {
        /// The file.
        path: PathBuf,
        /// The public key.
        key: PublicKey,
    },
    /// A name in the configuration is not that of a member.
    #[error(
        "relay.mesh: {0} is not a member in members_file; add it there, or remove it from `via`, `peers` \
         and [[relay.mesh.peer]]"
    )]
    Unknown(MemberName),
    /// A relay that this one has to dial has no address.
    #[error(
        "relay.mesh: member {0} has no address in members_file, so this relay cannot dial it; add one"
    )]
    NoAddress(MemberName),
    /// A route leads through this relay itself.
    #[error(
        "relay.mesh: {0} is this relay itself; a route begins with the next relay, and does not come back"
    )]
    Itself(MemberName),
}

/// This relay's key and the members.
pub(super) struct Identity {
    pub(super) key: PrivateKey,
    pub(super) local: Local,
    /// The keys of legs may go to the kernel.
    in_kernel: bool,
}

impl Identity {
    /// Reads the private key and the list of members.
    pub(super) fn load(config: &MeshConfig, place: &TlsPlace) -> Result<Self, MeshError> {
        let members = load_members(config)?;
        Self::with_members(config, place, Arc::new(members))
    }

    /// Reads the private key; the members are these.
    pub(super) fn with_members(
        config: &MeshConfig,
        place: &TlsPlace,
        members: Arc<Members>,
    ) -> Result<Self, MeshError> {
        let key = PrivateKey::load(&config.private_key_file)?;
        let path = &config.members_file;
        let own = members.by_key(&key.public());
        let name = own.map(|member| member.name.clone());
        let name = name.ok_or_else(|| MeshError::NotAMember {
            path: path.clone(),
            key: key.public(),
        })?;
        let in_kernel = matches!(place, TlsPlace::Kernel);
        let tls = match in_kernel {
            true => AcceptTls::for_kernel(&key, members.clone()),
            false => AcceptTls::new(&key, members.clone()),
        };
        let local = Local { name, tls, members };
        Ok(Self {
            key,
            local,
            in_kernel,
        })
    }

    /// Checks that the list of members may take the place of the one in use. An operator may shrink it. An older
    /// list is refused, because relays that were removed would be members again.
    ///
    /// # Errors
    /// [`MeshError::Older`]; `config` names the file.
    pub(super) fn replaces(&self, running: &Members, config: &MeshConfig) -> Result<(), MeshError> {
        match self.local.members.may_replace(running) {
            Ok(()) | Err(ListRefusal::Smaller { .. }) => Ok(()),
            Err(source) => Err(MeshError::Older {
                path: config.members_file.clone(),
                source,
            }),
        }
    }

    /// Returns what a relay and this one prove their identities with.
    pub(super) fn keys_with(&self, member: &Member) -> Arc<Keys> {
        Arc::new(Keys {
            peer: member.keys.clone(),
            own: self.key.public(),
        })
    }

    /// Returns what is needed to dial a relay.
    pub(super) fn dial_tls(&self, member: &Member) -> DialTls {
        match self.in_kernel {
            true => DialTls::for_kernel(&self.key, &member.keys),
            false => DialTls::new(&self.key, &member.keys),
        }
    }

    /// Returns the relays that this node dials, without those that are no longer members: a configuration
    /// that still names a relay must not keep it from being revoked.
    pub(super) fn still_dialled(&self, config: &Config) -> Vec<Arc<Member>> {
        let member = |name: MemberName| {
            let member = self.local.members.by_name(name.as_str());
            let member = member.filter(|m| m.name != self.local.name && !m.addresses.is_empty());
            if member.is_none() {
                tracing::warn!(
                    "{name} is no longer a member with an address; routes that begin with it are not used"
                );
            }
            member.cloned()
        };
        dialled_relays(config, self.local.members.iter(), Some(&self.local.name))
            .into_iter()
            .filter_map(member)
            .collect()
    }

    /// Returns the relays that this node dials.
    ///
    /// # Errors
    /// [`MeshError`] if the configuration names a relay that is not a member.
    pub(super) fn dialled(&self, config: &Config) -> Result<Vec<Arc<Member>>, MeshError> {
        let members = &self.local.members;
        let routes = config.forwards.iter().flat_map(|f| &f.via).flatten();
        if routes.clone().any(|name| *name == self.local.name) {
            return Err(MeshError::Itself(self.local.name.clone()));
        }
        let rules = config.mesh.iter().flat_map(|mesh| &mesh.rules);
        for name in routes.chain(rules.map(|rule| &rule.name)) {
            if members.by_name(name.as_str()).is_none() {
                return Err(MeshError::Unknown(name.clone()));
            }
        }
        let member = |name: MemberName| match members.by_name(name.as_str()) {
            None => Err(MeshError::Unknown(name)),
            Some(_) if name == self.local.name => Err(MeshError::Itself(name)),
            Some(member) if member.addresses.is_empty() => Err(MeshError::NoAddress(name)),
            Some(member) => Ok(member.clone()),
        };
        dialled_relays(config, members.iter(), Some(&self.local.name))
            .into_iter()
            .map(member)
            .collect()
    }
}

/// Reads the list of members, and checks its signature if the configuration has the key of the mesh.
pub(super) fn load_members(config: &MeshConfig) -> Result<Members, MeshError> {
    let path = &config.members_file;
    let failed = |source| MeshError::Read {
        path: path.to_owned(),
        source,
    };
    let file = File::open(path).map_err(failed)?;
    let meta = file.metadata().map_err(failed)?;
    let user = nix::unistd::geteuid().as_raw();
    if meta.mode() & 0o022 != 0 || (meta.uid() != 0 && meta.uid() != user) {
        return Err(MeshError::Writable {
            path: path.to_owned(),
            mode: meta.mode() & 0o7777,
            owner: meta.uid(),
        });
    }
    let mut text = String::new();
    let mut file = file.take(MAX_FILE + 1);
    file.read_to_string(&mut text).map_err(failed)?;
    if text.len() as u64 > MAX_FILE {
        let message = format!("longer than {MAX_FILE} bytes");
        return Err(failed(io::Error::new(io::ErrorKind::FileTooLarge, message)));
    }
    if !config.members_key.is_empty() {
        let members = Members::parse_signed(&text, &config.members_key);
        return members.map_err(|source| MeshError::Signed {
            path: path.to_owned(),
            source,
        });
    }
    Members::parse(&text).map_err(|source| MeshError::Members {
        path: path.to_owned(),
        source,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Forward;
    use std::time::SystemTime;
    use taut_mesh::members::{Statement, sign};

    fn signed(names: &[&str], serial: u64) -> Arc<Members> {
        let member = |name: &&str| {
            let key = PrivateKey::from_seed(&[u8::try_from(name.len()).unwrap(); 32]).public();
            format!("[[member]]\nname = \"{name}\"\nkeys = [\"{key}\"]\n")
        };
        let list: String = names.iter().map(member).collect();
        let key = PrivateKey::from_seed(&[99; 32]);
        let statement = Statement {
            serial,
            expires: None::<SystemTime>,
            smaller_since: None,
        };
        let text = sign(&list, &statement, &key).unwrap();
        Arc::new(Members::parse_signed(&text, &[key.public()]).unwrap())
    }

    #[test]
    fn a_route_through_this_relay_is_refused_wherever_it_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let mesh = MeshConfig::new(dir.path().join("own.key"), dir.path().join("members.toml"));
        PrivateKey::create(&mesh.private_key_file, &[1; 32]).unwrap();
        let members = signed(&["a", "bb", "ccc"], 1);
        let identity = Identity::with_members(&mesh, &TlsPlace::Process, members).unwrap();
        for route in [&["a"][..], &["bb", "a"], &["bb", "a", "ccc"]] {
            let mut forward = Forward::new(vec![":1".parse().unwrap()], "b:1".parse().unwrap());
            forward.via = vec![route.iter().map(|name| name.parse().unwrap()).collect()];
            let dialled = identity.dialled(&Config::new(vec![forward]));
            assert!(matches!(dialled, Err(MeshError::Itself(_))), "{route:?}");
        }
    }

    #[test]
    fn an_operator_may_shrink_the_list_and_nobody_may_bring_an_older_one_back() {
        let dir = tempfile::tempdir().unwrap();
        let config = MeshConfig::new(dir.path().join("own.key"), dir.path().join("members.toml"));
        PrivateKey::create(&config.private_key_file, &[1; 32]).unwrap();
        let running = signed(&["a", "bb", "ccc"], 5);
        let offered = |names: &[&str], serial| {
            let members = signed(names, serial);
            let identity = Identity::with_members(&config, &TlsPlace::Process, members).unwrap();
            identity.replaces(&running, &config)
        };
        assert!(offered(&["a", "bb", "ccc"], 5).is_ok(), "it is the same");
        assert!(offered(&["a"], 6).is_ok());
        for refused in [offered(&["a", "bb"], 4), offered(&["a", "bb"], 5)] {
            assert!(matches!(refused, Err(MeshError::Older { .. })));
        }
    }
}
