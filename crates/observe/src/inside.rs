//! What of connections only the kernel's own structures tell, by an iterator in BPF (Linux 5.9).
//!
//! sock_diag does not say whether an application has set its buffers, which is what keeps the kernel from sizing
//! them, nor what else bounds a window.

use std::collections::HashMap;
use std::io::{self, Read as _};

use libbpf_rs::{Iter, Link, Object, ObjectBuilder};
use taut_sys::sock_diag::Inside;

const PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/connection.bpf.o"));

/// Bytes of `struct connection` of connection.h.
const RECORD: usize = 16;
/// Read at a time; the kernel fills no more than a few pages.
const ROOM: usize = 64 << 10;

const SNDBUF_LOCKED: u8 = 1;
const RCVBUF_LOCKED: u8 = 2;

/// The program, ready to be run in any network namespace.
pub(crate) struct Iterator {
    link: Link,
    _object: Object,
}

/// Why there is none.
#[derive(Debug, thiserror::Error)]
pub(crate) enum InsideError {
    /// The kernel does not take it, or not from this caller.
    #[error("{0}")]
    Load(#[from] libbpf_rs::Error),
    /// What was built is not what was meant.
    #[error("the BPF program has no part of the name it should have")]
    Part,
}

/// Lists the connections of a namespace.
pub(crate) struct List(Iter);

// === impl Iterator ===

impl Iterator {
    /// Loads it.
    ///
    /// # Errors
    /// [`InsideError`]: without CAP_BPF and CAP_PERFMON, or a kernel without BTF.
    pub(crate) fn load() -> Result<Self, InsideError> {
        // What libbpf has to say beside the error would be said on the terminal.
        libbpf_rs::set_print(None);
        let object = ObjectBuilder::default()
            .name("taut_observe")
            .and_then(|builder| builder.open_memory(PROGRAM))?
            .load()?;
        let link = object
            .progs_mut()
            .find(|program| program.name() == "taut_connections")
            .ok_or(InsideError::Part)?
            .attach()?;
        Ok(Self {
            link,
            _object: object,
        })
    }

    /// For the network namespace that the calling thread is in.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn list(&self) -> Result<List, InsideError> {
        Ok(List(Iter::new(&self.link)?))
    }
}

impl std::fmt::Debug for Iterator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Iterator").finish_non_exhaustive()
    }
}

// === impl List ===

impl List {
    /// What is known of each connection, by cookie.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn read(mut self) -> io::Result<HashMap<u64, Inside>> {
        let mut all = HashMap::new();
        let mut room = vec![0; ROOM];
        // A record may be cut at the end of a read.
        let mut rest = 0;
        loop {
            let filled = match self.0.read(&mut room[rest..]) {
                Ok(0) => return Ok(all),
                Ok(filled) => rest + filled,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(e),
            };
            let (records, cut) = room[..filled].as_chunks::<RECORD>();
            for record in records {
                let (cookie, inside) = parse(record);
                all.insert(cookie, inside);
            }
            rest = cut.len();
            room.copy_within(filled - rest..filled, 0);
        }
    }
}

fn parse(record: &[u8; RECORD]) -> (u64, Inside) {
    let cookie = u64::from_ne_bytes(*record.first_chunk().unwrap_or(&[0; 8]));
    let locks = record[12];
    let inside = Inside {
        window_clamp: u32::from_ne_bytes([record[8], record[9], record[10], record[11]]),
        sndbuf_locked: locks & SNDBUF_LOCKED != 0,
        rcvbuf_locked: locks & RCVBUF_LOCKED != 0,
        mtu_probing: record[13] != 0,
    };
    (cookie, inside)
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use rustix::net::sockopt;
    use taut_sys::sock_diag::SockDiag;

    use super::*;

    #[test]
    fn buffers_that_were_set_are_told_from_those_that_were_not() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (server, _) = listener.accept().unwrap();
        sockopt::set_socket_recv_buffer_size(&client, 50_000).unwrap();
        sockopt::set_socket_send_buffer_size(&server, 50_000).unwrap();

        let all = Iterator::load().unwrap().list().unwrap().read().unwrap();
        let mut found = Vec::new();
        let mut diag = SockDiag::open().unwrap();
        let ends = [&client, &server].map(|end| end.local_addr().unwrap());
        diag.connections(|c| {
            if ends.contains(&c.local) && ends.contains(&c.remote) {
                let inside = all[&c.cookie];
                found.push((c.local, inside.rcvbuf_locked, inside.sndbuf_locked));
            }
        })
        .unwrap();
        found.sort_unstable();
        let mut expected = vec![(ends[0], true, false), (ends[1], false, true)];
        expected.sort_unstable();
        assert_eq!(found, expected);
    }

    #[test]
    fn records_that_are_cut_by_a_read_are_whole() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let to = listener.local_addr().unwrap();
        // More than one read has room for.
        let ends: Vec<_> = (0..3000)
            .map(|_| {
                (
                    TcpStream::connect(to).unwrap(),
                    listener.accept().unwrap().0,
                )
            })
            .collect();
        let all = Iterator::load().unwrap().list().unwrap().read().unwrap();
        assert!(all.len() >= 2 * ends.len(), "{}", all.len());
    }
}
