//! OpenSSH as a TCP splitter. On each relay, ssh connects to the relay's own sshd and forwards a
//! port to the next machine on the way (pied-piper 2.2, "Splitting the connection").

use std::fs;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::process::{Command, Stdio};

use super::{PeerError, Service, program};
use taut_netlab::world::Host;

/// The port that ssh forwards on each relay.
pub const PORT: u16 = 2280;
/// The address of each relay's sshd, on its loopback.
const SSHD: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 22);
/// A directory that sshd's privilege separation needs. On Debian, starting the service creates it.
const RUN_DIR: &str = "/run/sshd";

/// The keys of one world's relays.
#[derive(Debug)]
pub struct Keys;

impl Keys {
    /// Creates a host key and a user key in `dir`.
    ///
    /// # Errors
    /// [`PeerError`].
    pub fn generate(dir: &Path) -> Result<Self, PeerError> {
        for name in ["host_key", "user_key"] {
            let status = Command::new("ssh-keygen")
                .args(["-q", "-t", "ed25519", "-N", "", "-C", "taut-lab", "-f"])
                .arg(dir.join(name))
                .stdin(Stdio::null())
                .status()
                .and_then(|status| match status.success() {
                    true => Ok(()),
                    false => Err(io::Error::other(format!("ssh-keygen: {status}"))),
                });
            status.map_err(|source| PeerError::Prepare {
                what: "ssh's keys".into(),
                source,
            })?;
        }
        let prepare = |source| PeerError::Prepare {
            what: "sshd's files".into(),
            source,
        };
        fs::copy(dir.join("user_key.pub"), dir.join("authorized_keys")).map_err(prepare)?;
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o755)
            .create(RUN_DIR)
            .map_err(prepare)?;
        Ok(Self)
    }
}

/// One relay of the baseline: an sshd, and the ssh client that forwards through it.
#[derive(Debug)]
pub struct Splitter {
    sshd: Service,
    forward: Service,
}

impl Splitter {
    /// Forwards connections that arrive on `host` at [`PORT`] to `to`.
    ///
    /// # Errors
    /// [`PeerError`].
    pub fn start(host: &Host, _keys: &Keys, to: SocketAddr, dir: &Path) -> Result<Self, PeerError> {
        let here = dir.display();
        let config = dir.join(format!("sshd-{}.conf", host.name()));
        let text = format!(
            "ListenAddress {SSHD}\n\
             HostKey \"{here}/host_key\"\n\
             AuthorizedKeysFile \"{here}/authorized_keys\"\n\
             PidFile none\n\
             StrictModes no\n\
             PermitRootLogin prohibit-password\n\
             PasswordAuthentication no\n\
             KbdInteractiveAuthentication no\n\
             UsePAM yes\n\
             UseDNS no\n\
             AllowTcpForwarding yes\n"
        );
        fs::write(&config, text).map_err(|source| PeerError::Prepare {
            what: "sshd's configuration".into(),
            source,
        })?;
        let mut sshd = program::SSHD.command();
        sshd.args(["-D", "-e", "-f"]).arg(&config);
        let sshd = Service::start(host, "sshd", sshd, SSHD, dir)?;

        let addr = SocketAddr::from((host.addr(), PORT));
        let mut ssh = program::SSH.command();
        ssh.args(["-F", "none", "-N", "-T"])
            .args([
                "-o",
                "StrictHostKeyChecking=no",
                "-o",
                "UserKnownHostsFile=/dev/null",
            ])
            .args([
                "-o",
                "IdentitiesOnly=yes",
                "-o",
                "BatchMode=yes",
                "-o",
                "Compression=no",
            ])
            .args(["-o", "ExitOnForwardFailure=yes", "-o", "LogLevel=ERROR"])
            .arg("-i")
            .arg(dir.join("user_key"))
            .args(["-L", &format!("{addr}:{to}"), "root@127.0.0.1"]);
        let forward = Service::start(host, "ssh", ssh, addr, dir)?;
        Ok(Self { sshd, forward })
    }

    /// Returns the address at which the relay accepts connections.
    pub fn addr(&self) -> SocketAddr {
        self.forward.addr
    }

    /// Returns the process ids of the forwarding ssh client and of the sshd. The sshd's children do
    /// the other half of the work.
    pub fn ids(&self) -> [u32; 2] {
        [self.forward.id(), self.sshd.id()]
    }
}
