//! The TLS of connections to etcd, and how long its certificates are valid.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use x509_cert::Certificate;
use x509_cert::der::Decode;

use super::failure::Failure;
use super::secret::read_secret;
use crate::config::{Endpoint, EtcdConfig};

/// The TLS settings of connections to etcd, read from the files of the configuration.
pub(super) struct Tls {
    pub(super) config: Arc<ClientConfig>,
    /// The times at which the certificates expire, by what they are for.
    pub(super) expiries: Vec<(&'static str, SystemTime)>,
}

/// Notices that certificates or keys have been replaced by renewed ones.
pub(super) struct Renewal {
    used: Vec<Stamp>,
    seen: Vec<Stamp>,
}

/// The version of a file; `None` if it cannot be read.
type Stamp = Option<Version>;

#[derive(Clone, Debug, PartialEq, Eq)]
struct Version {
    device: u64,
    inode: u64,
    len: u64,
    /// The time at which the kernel saw the last change (ctime), in seconds and nanoseconds. A program can
    /// set the time of the last modification (`cp -p`), and this one not.
    changed: (i64, i64),
}

// === impl Renewal ===

impl Renewal {
    /// Begins with the files as they are. Call it before they are read.
    pub(super) fn new(etcd: &EtcdConfig) -> Self {
        let stamps = stamps(etcd);
        Self {
            used: stamps.clone(),
            seen: stamps,
        }
    }

    /// Returns whether the files differ from those in use, and have not changed since the last call: a
    /// certificate and its key are replaced one after the other.
    pub(super) fn is_complete(&mut self, etcd: &EtcdConfig) -> bool {
        let now = stamps(etcd);
        let is_stable = now == std::mem::replace(&mut self.seen, now.clone());
        let is_renewed = is_stable && now != self.used;
        if is_renewed {
            self.used = now;
        }
        is_renewed
    }
}

fn stamps(etcd: &EtcdConfig) -> Vec<Stamp> {
    let client = etcd.client.as_ref();
    let files = [
        etcd.ca_file.as_deref(),
        client.map(|client| &*client.cert_file),
        client.map(|client| &*client.key_file),
    ];
    let stamp = |path: &Path| {
        let metadata = std::fs::metadata(path).ok()?;
        Some(Version {
            device: metadata.dev(),
            inode: metadata.ino(),
            len: metadata.len(),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        })
    };
    files.into_iter().flatten().map(stamp).collect()
}

// === impl Tls ===

impl Tls {
    /// Reads the files. Returns `None` if no endpoint uses TLS.
    pub(super) fn load(etcd: &EtcdConfig) -> Result<Option<Self>, Failure> {
        let Some(ca_file) = &etcd.ca_file else {
            return Ok(None);
        };
        let mut expiries = Vec::new();
        let mut roots = RootCertStore::empty();
        let authorities = certificates(ca_file)?;
        expiries.extend(first_to_expire(&authorities).map(|at| ("authority", at)));
        for certificate in authorities {
            roots
                .add(certificate)
                .map_err(|e| Failure::file(ca_file, e))?;
        }
        let provider = Arc::new(aws_lc_rs::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|e| Failure::Tls(e.to_string()))?
            .with_root_certificates(roots);
        let config = match &etcd.client {
            None => config.with_no_client_auth(),
            Some(client) => {
                let chain = certificates(&client.cert_file)?;
                expiries.extend(first_to_expire(&chain).map(|at| ("client", at)));
                let key = read_secret(&client.key_file)?;
                let key = PrivateKeyDer::from_pem_slice(&key).map_err(|_| {
                    Failure::file(&client.key_file, "contains no private key in PEM")
                })?;
                config
                    .with_client_auth_cert(chain, key)
                    .map_err(|e| Failure::file(&client.key_file, e))?
            }
        };
        Ok(Some(Self {
            config: Arc::new(config),
            expiries,
        }))
    }
}

/// Returns the name that a server's certificate must have.
pub(super) fn server_name(endpoint: &Endpoint) -> Result<ServerName<'static>, Failure> {
    let name = ServerName::try_from(endpoint.host.clone());
    name.map_err(|e| Failure::Tls(format!("{}: {e}", endpoint.host)))
}

/// Returns the time at which a certificate (DER) expires. `None` if it cannot be read.
pub(super) fn expiry(certificate: &[u8]) -> Option<SystemTime> {
    let certificate = Certificate::from_der(certificate).ok()?;
    let validity = certificate.tbs_certificate().validity();
    Some(validity.not_after.to_system_time())
}

fn first_to_expire(certificates: &[CertificateDer<'_>]) -> Option<SystemTime> {
    certificates.iter().filter_map(|c| expiry(c)).min()
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, Failure> {
    let all = CertificateDer::pem_file_iter(path).map_err(|e| Failure::file(path, e))?;
    let all: Vec<_> = all
        .collect::<Result<_, _>>()
        .map_err(|e| Failure::file(path, e))?;
    match all.is_empty() {
        true => Err(Failure::file(path, "contains no certificate in PEM")),
        false => Ok(all),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::time::Duration;

    use super::*;

    /// Writes the file until the kernel's clock for timestamps has advanced past `before`.
    fn replace_with_same_mtime(path: &Path, text: &str, before: &fs::Metadata) {
        let deadline = std::time::Instant::now() + Duration::from_secs(60);
        loop {
            fs::write(path, text).unwrap();
            let file = File::options().write(true).open(path).unwrap();
            file.set_modified(before.modified().unwrap()).unwrap();
            let now = fs::metadata(path).unwrap();
            if (now.ctime(), now.ctime_nsec()) != (before.ctime(), before.ctime_nsec()) {
                return;
            }
            assert!(
                std::time::Instant::now() < deadline,
                "the clock stands still"
            );
        }
    }

    #[test]
    fn a_renewed_file_with_the_mtime_length_and_inode_of_the_former_is_noticed_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ca.pem");
        fs::write(&path, "former").unwrap();
        let etcd = EtcdConfig {
            endpoints: Vec::new(),
            prefix: "/taut".to_owned(),
            ca_file: Some(path.clone()),
            client: None,
            login: None,
            timeout: Duration::from_secs(5),
            interval: Duration::from_secs(60),
            lease: None,
        };
        let mut renewal = Renewal::new(&etcd);
        assert!(!renewal.is_complete(&etcd));
        let before = fs::metadata(&path).unwrap();
        replace_with_same_mtime(&path, "latter", &before);
        let after = fs::metadata(&path).unwrap();
        assert_eq!(
            (before.modified().unwrap(), before.len(), before.ino()),
            (after.modified().unwrap(), after.len(), after.ino())
        );
        // The first call sees a change that may go on, the second that it is complete.
        let seen = [(); 3].map(|()| renewal.is_complete(&etcd));
        assert_eq!(seen, [false, true, false]);
    }
}
