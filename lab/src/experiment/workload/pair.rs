//! Both ends of one relayed connection, in one process.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::Entrance;

/// How long a relay may take to connect upstream and to forward a byte.
const PATIENCE: Duration = Duration::from_secs(10);

/// A connection to a relay, and the upstream connection that the relay made for it.
pub(in crate::experiment) struct Pair {
    pub(in crate::experiment) client: TcpStream,
    pub(in crate::experiment) server: TcpStream,
}

// === impl Pair ===

impl Pair {
    /// Connects, accepts the other end, and carries bytes both ways.
    pub(in crate::experiment) fn open(entrance: &Entrance) -> io::Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let token = NEXT.fetch_add(1, Ordering::Relaxed).to_ne_bytes();
        let mut client = TcpStream::connect(entrance.addr)?;
        client.set_nodelay(true)?;
        client.set_read_timeout(Some(PATIENCE))?;
        client.write_all(&token)?;
        let mut server = loop {
            let (mut server, _) = entrance.server.accept()?;
            server.set_read_timeout(Some(PATIENCE))?;
            let mut said = [0; 8];
            // Connections that tested whether the relay accepts may still be queued here.
            if server.read_exact(&mut said).is_ok() && said == token {
                break server;
            }
        };
        server.set_nodelay(true)?;
        server.write_all(&token)?;
        let mut answer = [0; 8];
        client.read_exact(&mut answer)?;
        if answer != token {
            return Err(io::Error::other(
                "the returned byte differs from the one sent",
            ));
        }
        Ok(Self { client, server })
    }
}
