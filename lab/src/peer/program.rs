//! Finds the programs that an experiment needs, and their versions.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use super::PeerError;

/// A program that an experiment needs.
#[derive(Clone, Copy, Debug)]
pub struct Program {
    /// The program's name or path.
    pub name: &'static str,
    /// The option that prints the version.
    pub version: &'static str,
    /// The Debian package of the program.
    pub package: &'static str,
}

/// nginx, the HTTP server and a relay.
pub const NGINX: Program = Program {
    name: "nginx",
    version: "-v",
    package: "nginx",
};
/// curl, the HTTP client.
pub const CURL: Program = Program {
    name: "curl",
    version: "--version",
    package: "curl",
};
/// HAProxy, a relay.
pub const HAPROXY: Program = Program {
    name: "haproxy",
    version: "-v",
    package: "haproxy",
};
/// socat, a relay.
pub const SOCAT: Program = Program {
    name: "socat",
    version: "-V",
    package: "socat",
};
/// stunnel, which wraps connections in TLS.
pub const STUNNEL: Program = Program {
    name: "stunnel",
    version: "-version",
    package: "stunnel4",
};
/// openssl, which makes certificates.
pub const OPENSSL: Program = Program {
    name: "openssl",
    version: "version",
    package: "openssl",
};
/// iperf3, which can pace its sending.
pub const IPERF3: Program = Program {
    name: "iperf3",
    version: "--version",
    package: "iperf3",
};
/// nft, which sets packet filter rules.
pub const NFT: Program = Program {
    name: "nft",
    version: "--version",
    package: "nftables",
};
/// ss, which shows connections.
pub const SS: Program = Program {
    name: "ss",
    version: "-V",
    package: "iproute2",
};
/// ip, which sets a guest's routes.
pub const IP: Program = Program {
    name: "ip",
    version: "-V",
    package: "iproute2",
};
/// The OpenSSH client.
pub const SSH: Program = Program {
    name: "ssh",
    version: "-V",
    package: "openssh-client",
};
/// The OpenSSH server. Its path must be absolute, because it executes itself for each connection.
pub const SSHD: Program = Program {
    name: "sshd",
    version: "-V",
    package: "openssh-server",
};

impl Program {
    /// Returns a command that runs the program.
    pub fn command(&self) -> Command {
        Command::new(self.path())
    }

    /// Returns the path of the program with all links resolved, for copying the file into a guest.
    ///
    /// # Errors
    /// If the program is not installed.
    pub fn file(&self) -> io::Result<PathBuf> {
        std::fs::canonicalize(self.path()).map_err(|e| {
            let Self { name, package, .. } = self;
            io::Error::new(e.kind(), format!("{name}: {e} (Debian package {package})"))
        })
    }

    /// Finds the program. Servers are in sbin, which is not in every user's PATH.
    fn path(&self) -> PathBuf {
        let path = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&path)
            .chain(["/usr/sbin", "/sbin"].map(PathBuf::from))
            .map(|dir| dir.join(self.name))
            .find(|file| file.is_file())
            .unwrap_or_else(|| self.name.into())
    }
}

/// Returns the first line of each program's version output.
///
/// # Errors
/// [`PeerError::Missing`], naming the package to install.
pub fn versions(programs: &[Program]) -> Result<BTreeMap<String, String>, PeerError> {
    programs
        .iter()
        .map(|program| {
            let output = program
                .command()
                .arg(program.version)
                .stdin(Stdio::null())
                .output()
                .map_err(|source| PeerError::Missing {
                    program: program.name,
                    package: program.package,
                    source,
                })?;
            // Some programs print the version on standard error; some (sshd of Debian 12) print an
            // error first.
            let said = [output.stdout, output.stderr].concat();
            let said = String::from_utf8_lossy(&said);
            let line = said
                .lines()
                .find(|line| line.contains(|c: char| c.is_ascii_digit()))
                .unwrap_or("version unknown");
            Ok((program.name.to_owned(), line.trim().to_owned()))
        })
        .collect()
}
