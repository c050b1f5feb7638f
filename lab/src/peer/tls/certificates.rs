//! Certificates for a pair of relays.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use crate::peer::{PeerError, program};

/// The name of the near relay in its certificate.
pub const NEAR: &str = "near";
/// The name of the far relay in its certificate.
pub const FAR: &str = "far";

/// An authority, and a certificate of it for each of the two relays, in files.
#[derive(Clone, Debug)]
pub struct Certificates {
    dir: PathBuf,
}

// === impl Certificates ===

impl Certificates {
    /// Creates all keys and certificates in `dir`, by openssl.
    ///
    /// # Errors
    /// [`PeerError::Prepare`].
    pub fn generate(dir: &Path) -> Result<Self, PeerError> {
        let this = Self {
            dir: dir.to_owned(),
        };
        let generate = || {
            let authority = this.path("ca.key");
            this.new_certificate("ca", None)?;
            for name in [NEAR, FAR] {
                this.new_certificate(name, Some(&authority))?;
                // HAProxy reads the certificate and its key from one file.
                let both = [
                    std::fs::read(this.certificate(name))?,
                    std::fs::read(this.key(name))?,
                ];
                std::fs::write(this.both(name), both.concat())?;
            }
            Ok(())
        };
        match generate() {
            Ok(()) => Ok(this),
            Err(source) => Err(PeerError::Prepare {
                what: "certificates".into(),
                source,
            }),
        }
    }

    /// Returns the file with the authority's certificate.
    pub fn authority(&self) -> PathBuf {
        self.certificate("ca")
    }

    /// Returns the file with the certificate of a relay.
    pub fn certificate(&self, name: &str) -> PathBuf {
        self.path(&format!("{name}.crt"))
    }

    /// Returns the file with the private key of a relay.
    pub fn key(&self, name: &str) -> PathBuf {
        self.path(&format!("{name}.key"))
    }

    /// Returns the file with the certificate of a relay and its private key.
    pub fn both(&self, name: &str) -> PathBuf {
        self.path(&format!("{name}.pem"))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Creates a key for `name` and its certificate, signed by `authority` or else by itself.
    fn new_certificate(&self, name: &str, authority: Option<&Path>) -> io::Result<()> {
        let mut openssl = program::OPENSSL.command();
        openssl
            .args(["req", "-x509", "-nodes", "-days", "30"])
            .args(["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"])
            .args(["-subj", &format!("/CN={name}")])
            .arg("-keyout")
            .arg(self.key(name))
            .arg("-out")
            .arg(self.certificate(name));
        if let Some(authority) = authority {
            openssl
                .args(["-addext", &format!("subjectAltName=DNS:{name}")])
                .args(["-addext", "basicConstraints=critical,CA:FALSE"])
                .arg("-CA")
                .arg(self.authority())
                .arg("-CAkey")
                .arg(authority);
        }
        let output = openssl.stdin(Stdio::null()).output()?;
        match output.status.success() {
            true => Ok(()),
            false => {
                let said = String::from_utf8_lossy(&output.stderr);
                Err(io::Error::other(format!("openssl: {}", said.trim())))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn the_authority_vouches_for_both_relays_by_their_names() {
        let dir = tempfile::tempdir().unwrap();
        let certificates = Certificates::generate(dir.path()).unwrap();
        for (relay, name, vouches) in [(NEAR, NEAR, true), (FAR, FAR, true), (FAR, NEAR, false)] {
            let verified = Command::new("openssl")
                .args(["verify", "-verify_hostname", name, "-CAfile"])
                .arg(certificates.authority())
                .arg(certificates.certificate(relay))
                .output()
                .unwrap();
            assert_eq!(verified.status.success(), vouches, "{verified:?}");
        }
    }
}
