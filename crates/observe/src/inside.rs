//! What of connections only the kernel's own structures tell, by programs in BPF: an iterator (Linux 5.11), and two at
//! tracepoints, which count what happens between looks (Linux 5.19).
//!
//! sock_diag does not say whether an application has set its buffers, which is what keeps the kernel from sizing
//! them, nor what else bounds a window, nor how long round trips were that no look fell upon.

use std::collections::HashMap;
use std::io::{self, Read as _};
use std::time::Duration;

use libbpf_rs::{Iter, Link, MapCore as _, MapFlags, MapHandle, Object, ObjectBuilder};
use taut_sys::sock_diag::{Events, Inside};

const PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/connection.bpf.o"));

/// Bytes of `struct connection` of connection.h.
const RECORD: usize = 112;
/// Read at a time; the kernel fills no more than a few pages.
const ROOM: usize = 64 << 10;

const SNDBUF_LOCKED: u8 = 1;
const RCVBUF_LOCKED: u8 = 2;

const ITERATOR: &str = "taut_connections";
/// Connections that may be counted in a look, each with some 400 bytes of the kernel's memory. Who has a place keeps it.
const COUNTED: u32 = 100_000;

/// The programs; the iterator is ready to be run in any network namespace.
pub(crate) struct Iterator {
    link: Link,
    events: Option<Counting>,
    _object: Object,
}

/// The programs at tracepoints, for as long as this is there.
struct Counting {
    /// How many connections may be counted in this look.
    room: MapHandle,
    _links: Vec<Link>,
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
    /// Loads the iterator, and what counts events if that is wanted and the kernel can do it.
    ///
    /// # Errors
    /// [`InsideError`]: without CAP_BPF and CAP_PERFMON, or a kernel without BTF.
    pub(crate) fn load(events: bool) -> Result<Self, InsideError> {
        // What libbpf has to say beside the error would be said on the terminal.
        libbpf_rs::set_print(None);
        if !events {
            return Self::load_with(false);
        }
        Self::load_with(true).or_else(|error| {
            tracing::debug!(%error, "events between looks are not counted");
            Self::load_with(false)
        })
    }

    fn load_with(events: bool) -> Result<Self, InsideError> {
        let mut object = ObjectBuilder::default()
            .name("taut_observe")
            .and_then(|builder| builder.open_memory(PROGRAM))?;
        for mut program in object.progs_mut() {
            let is_iterator = program.name() == ITERATOR;
            program.set_autoload(is_iterator || events);
        }
        let object = object.load()?;
        let link = object
            .progs_mut()
            .find(|program| program.name() == ITERATOR)
            .ok_or(InsideError::Part)?
            .attach()?;
        let events = events.then(|| Counting::begin(&object)).transpose()?;
        Ok(Self {
            link,
            events,
            _object: object,
        })
    }

    /// Whether events are counted.
    pub(crate) fn counts_events(&self) -> bool {
        self.events.is_some()
    }

    /// A look begins, at all namespaces.
    pub(crate) fn begin(&self) {
        let counted = self.events.as_ref().map(Counting::make_room);
        if let Some(Err(error)) = counted {
            tracing::debug!(%error, "no room for the events of more connections");
        }
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

// === impl Counting ===

impl Counting {
    fn begin(object: &Object) -> Result<Self, InsideError> {
        let programs = object.progs_mut();
        let links = programs
            .filter(|program| program.name() != ITERATOR)
            .map(|program| program.attach());
        let room = object
            .maps()
            .find(|map| map.name().to_string_lossy().ends_with(".bss"))
            .ok_or(InsideError::Part)?;
        Ok(Self {
            _links: links.collect::<Result<_, _>>()?,
            room: MapHandle::try_from(&room)?,
        })
    }

    fn make_room(&self) -> Result<(), libbpf_rs::Error> {
        let (key, room) = (0u32.to_ne_bytes(), COUNTED.to_ne_bytes());
        self.room.update(&key, &room, MapFlags::ANY)
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
    let big = |at| u64::from_ne_bytes(bytes(record, at));
    let word = |at| u32::from_ne_bytes(bytes(record, at));
    let locks = record[12];
    let inside = Inside {
        window_clamp: word(8),
        sndbuf_locked: locks & SNDBUF_LOCKED != 0,
        rcvbuf_locked: locks & RCVBUF_LOCKED != 0,
        mtu_probing: record[13] != 0,
        events: (record[14] != 0).then(|| Events {
            rtt_sum: Duration::from_micros(big(16)),
            signal_rtt_sum: Duration::from_micros(big(24)),
            signal_cwnd_sum: big(32),
            signal_cwnd_squares: big(40),
            between_sum: big(48),
            between_squares: big(56),
            between_times: big(64),
            between_time_squares: big(72),
            between_products: big(80),
            rtts: word(88),
            rtt_most: Duration::from_micros(word(92).into()),
            signals: word(96),
            fast_retransmits: word(100),
            between: word(104),
        }),
    };
    (big(0), inside)
}

/// So many bytes of the record from there on.
fn bytes<const COUNT: usize>(record: &[u8; RECORD], at: usize) -> [u8; COUNT] {
    let found = record.get(at..).and_then(|rest| rest.first_chunk());
    *found.unwrap_or(&[0; COUNT])
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

        let all = Iterator::load(false)
            .unwrap()
            .list()
            .unwrap()
            .read()
            .unwrap();
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
    fn round_trips_are_counted_from_the_first_look_on_where_there_is_room() {
        use std::io::{Read as _, Write as _};

        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        let mut cookie = 0;
        SockDiag::open()
            .unwrap()
            .connections(|c| {
                if c.local == client.local_addr().unwrap() {
                    cookie = c.cookie;
                }
            })
            .unwrap();
        let mut talk = || {
            for _ in 0..50 {
                client.write_all(&[7]).unwrap();
                server.read_exact(&mut [0]).unwrap();
                server.write_all(&[7]).unwrap();
                client.read_exact(&mut [0]).unwrap();
            }
        };
        let seen = |iterator: &Iterator| iterator.list().unwrap().read().unwrap()[&cookie].events;
        let iterator = Iterator::load(true).unwrap();
        assert!(iterator.counts_events());
        talk();
        assert_eq!(seen(&iterator), None, "no look has begun");
        iterator.begin();
        assert_eq!(seen(&iterator), Some(Events::default()));
        talk();
        let events = seen(&iterator).unwrap();
        // The last is counted when the next segment comes; on a machine that stands still some are not measured.
        assert!((10..=51).contains(&events.rtts), "{events:?}");
        assert!(events.rtt_sum >= events.rtt_most && !events.rtt_most.is_zero());
        assert_eq!(seen(&Iterator::load(false).unwrap()), None);
    }

    #[test]
    fn each_figure_is_read_where_it_stands() {
        let mut record = [0; RECORD];
        for (at, figure) in [(0, 1), (16, 2), (24, 3), (32, 4), (40, 5), (48, 6), (56, 7)] {
            record[at] = figure;
        }
        for (at, figure) in [(64, 8), (72, 9), (80, 10), (88, 11), (92, 12), (96, 13)] {
            record[at] = figure;
        }
        for (at, figure) in [
            (8, 16),
            (12, RCVBUF_LOCKED),
            (13, 1),
            (14, 1),
            (100, 14),
            (104, 15),
        ] {
            record[at] = figure;
        }
        let micros = Duration::from_micros;
        let events = Events {
            rtts: 11,
            rtt_sum: micros(2),
            rtt_most: micros(12),
            signals: 13,
            fast_retransmits: 14,
            signal_rtt_sum: micros(3),
            signal_cwnd_sum: 4,
            signal_cwnd_squares: 5,
            between: 15,
            between_sum: 6,
            between_squares: 7,
            between_times: 8,
            between_time_squares: 9,
            between_products: 10,
        };
        let inside = Inside {
            window_clamp: 16,
            sndbuf_locked: false,
            rcvbuf_locked: true,
            mtu_probing: true,
            events: Some(events),
        };
        assert_eq!(parse(&record), (1, inside));
        record[14] = 0;
        assert_eq!(parse(&record).1.events, None);
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
        let all = Iterator::load(false)
            .unwrap()
            .list()
            .unwrap()
            .read()
            .unwrap();
        assert!(all.len() >= 2 * ends.len(), "{}", all.len());
    }
}
