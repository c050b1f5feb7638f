//! What of connections only the kernel's own structures tell, by programs in BPF: an iterator (Linux 5.11), and two at
//! tracepoints, which count what happens between looks (Linux 5.19).
//!
//! sock_diag does not say whether an application has set its buffers, which is what keeps the kernel from sizing
//! them, nor what else bounds a window, nor how long round trips were that no look fell upon.

use std::io::{self, Read as _};
use std::num::NonZeroU64;
use std::time::Duration;

use libbpf_rs::{Iter, Link, MapCore as _, MapFlags, MapHandle, Object, ObjectBuilder};
use taut_sys::sock_diag::{Events, Inside, SocketId};

const PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/connection.bpf.o"));

/// Bytes of `struct connection` of connection.h.
const RECORD: usize = 168;
/// Read at a time; the kernel fills no more than a few pages.
const ROOM: usize = 64 << 10;

const SNDBUF_LOCKED: u8 = 1;
const RCVBUF_LOCKED: u8 = 2;

const ITERATOR: &str = "taut_connections";
/// Connections that may be counted in a look, each with some 400 bytes of the kernel's memory. Who has a place keeps it.
const COUNTED: u64 = 100_000;

/// The programs; the iterator is ready to be run in any network namespace.
pub(crate) struct Iterator {
    link: Link,
    events: Option<Counting>,
    _object: Object,
}

/// The programs at tracepoints, for as long as this is there.
struct Counting {
    /// The number of this look, and how many connections may be counted in it.
    look: MapHandle,
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

/// A connection, as the iterator finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    /// By this sock_diag finds it.
    pub(crate) id: SocketId,
    /// The look that first found it as it is now: whoever has read it in that one or later has nothing new to read. Nothing where
    /// that is not watched.
    pub(crate) since: Option<NonZeroU64>,
    /// Nothing of one that is being made.
    pub(crate) inside: Option<Inside>,
}

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

    /// The look of this number begins, at all namespaces.
    pub(crate) fn begin(&self, look: u64) {
        let counted = self.events.as_ref().map(|events| events.begin_look(look));
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
        let look = object
            .maps()
            .find(|map| map.name().to_string_lossy().ends_with(".bss"))
            .ok_or(InsideError::Part)?;
        Ok(Self {
            _links: links.collect::<Result<_, _>>()?,
            look: MapHandle::try_from(&look)?,
        })
    }

    fn begin_look(&self, look: u64) -> Result<(), libbpf_rs::Error> {
        let mut value = [0; 16];
        value[..8].copy_from_slice(&look.to_ne_bytes());
        value[8..].copy_from_slice(&COUNTED.to_ne_bytes());
        self.look.update(&0u32.to_ne_bytes(), &value, MapFlags::ANY)
    }
}

// === impl List ===

impl List {
    /// Hands over each connection.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn read(mut self, mut each: impl FnMut(Found)) -> io::Result<()> {
        let mut room = vec![0; ROOM];
        // A record may be cut at the end of a read.
        let mut rest = 0;
        loop {
            let filled = match self.0.read(&mut room[rest..]) {
                Ok(0) => return Ok(()),
                Ok(filled) => rest + filled,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(e),
            };
            let (records, cut) = room[..filled].as_chunks::<RECORD>();
            for record in records {
                each(parse(record));
            }
            rest = cut.len();
            room.copy_within(filled - rest..filled, 0);
        }
    }
}

fn parse(record: &[u8; RECORD]) -> Found {
    let big = |at| u64::from_ne_bytes(bytes(record, at));
    let word = |at| u32::from_ne_bytes(bytes(record, at));
    let port = |at| u16::from_be_bytes(bytes(record, at));
    let id = SocketId {
        // One byte of the kernel's two, which it never fills.
        family: u16::from_ne_bytes(bytes(record, 64))
            .try_into()
            .unwrap_or_default(),
        local_port: port(60),
        remote_port: port(62),
        local: bytes(record, 28),
        remote: bytes(record, 44),
        interface: word(24),
        cookie: big(0),
    };
    let locks = record[12];
    let inside = Inside {
        window_clamp: word(8),
        sndbuf_locked: locks & SNDBUF_LOCKED != 0,
        rcvbuf_locked: locks & RCVBUF_LOCKED != 0,
        mtu_probing: record[13] != 0,
        events: (record[14] != 0).then(|| Events {
            rtt_sum: Duration::from_micros(big(72)),
            signal_rtt_sum: Duration::from_micros(big(80)),
            signal_cwnd_sum: big(88),
            signal_cwnd_squares: big(96),
            between_sum: big(104),
            between_squares: big(112),
            between_times: big(120),
            between_time_squares: big(128),
            between_products: big(136),
            rtts: word(144),
            rtt_most: Duration::from_micros(word(148).into()),
            signals: word(152),
            fast_retransmits: word(156),
            between: word(160),
        }),
    };
    Found {
        id,
        since: NonZeroU64::new(big(16)),
        inside: (record[15] != 0).then_some(inside),
    }
}

/// So many bytes of the record from there on.
fn bytes<const COUNT: usize>(record: &[u8; RECORD], at: usize) -> [u8; COUNT] {
    let found = record.get(at..).and_then(|rest| rest.first_chunk());
    *found.unwrap_or(&[0; COUNT])
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};

    use rustix::net::sockopt;
    use taut_sys::sock_diag::{Connection, SockDiag};

    use super::*;

    /// A connection's two ends: the client's, and the server's.
    fn pair(any: &str) -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind(any).unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (client, listener.accept().unwrap().0)
    }

    fn all(iterator: &Iterator) -> Vec<Found> {
        let mut all = Vec::new();
        iterator
            .list()
            .unwrap()
            .read(|found| all.push(found))
            .unwrap();
        all
    }

    fn is_of(id: &SocketId, end: &TcpStream) -> bool {
        let ports = [end.local_addr(), end.peer_addr()].map(|address| address.unwrap().port());
        [id.local_port, id.remote_port] == ports
    }

    fn of(iterator: &Iterator, end: &TcpStream) -> Found {
        let all = all(iterator);
        *all.iter().find(|found| is_of(&found.id, end)).unwrap()
    }

    #[test]
    fn buffers_that_were_set_are_told_from_those_that_were_not() {
        let (client, server) = pair("127.0.0.1:0");
        sockopt::set_socket_recv_buffer_size(&client, 50_000).unwrap();
        sockopt::set_socket_send_buffer_size(&server, 50_000).unwrap();
        let iterator = Iterator::load(false).unwrap();
        let locks = [&client, &server].map(|end| {
            let inside = of(&iterator, end).inside.unwrap();
            (inside.rcvbuf_locked, inside.sndbuf_locked)
        });
        assert_eq!(locks, [(true, false), (false, true)]);
    }

    #[test]
    fn each_is_found_again_by_its_name() {
        for any in ["127.0.0.1:0", "[::1]:0", "[::]:0"] {
            let listener = TcpListener::bind(any).unwrap();
            let port = listener.local_addr().unwrap().port();
            // Of the last, an IPv6 socket, the peer is an IPv4 one.
            let to: SocketAddr = match any {
                "[::1]:0" => format!("[::1]:{port}").parse().unwrap(),
                _ => format!("127.0.0.1:{port}").parse().unwrap(),
            };
            let client = TcpStream::connect(to).unwrap();
            let (server, _) = listener.accept().unwrap();
            let iterator = Iterator::load(true).unwrap();
            let mut ids = [&client, &server].map(|end| of(&iterator, end).id);
            let read = |ids: &[SocketId]| {
                let mut read: Vec<Connection> = Vec::new();
                let mut diag = SockDiag::open().unwrap();
                let listed = diag
                    .each_of(ids, |connection| read.push(connection))
                    .unwrap();
                assert_eq!((listed.connections, listed.unknown), (read.len(), 0));
                read.into_iter()
                    .map(|connection| (connection.cookie, connection.local))
                    .collect::<Vec<_>>()
            };
            let canonical = |end: &TcpStream| {
                let address = end.local_addr().unwrap();
                SocketAddr::new(address.ip().to_canonical(), address.port())
            };
            assert_eq!(
                read(&ids),
                [
                    (ids[0].cookie, canonical(&client)),
                    (ids[1].cookie, canonical(&server))
                ]
            );
            // Another that has its addresses is not it.
            ids[0].cookie += 1 << 40;
            assert_eq!(read(&ids).len(), 1);
            ids[0].local_port = 1;
            assert_eq!(read(&ids).len(), 1);
        }
    }

    #[test]
    fn one_that_rests_is_told_from_one_that_has_changed() {
        let (client, server) = pair("127.0.0.1:0");
        client.set_nodelay(true).unwrap();
        let iterator = Iterator::load(true).unwrap();
        let mut look = 0;
        let mut since = || {
            look += 1;
            iterator.begin(look);
            let since = of(&iterator, &client).since.unwrap().get();
            (look, since)
        };
        // Acknowledgements may be late; once it rests it goes on to.
        let mut settle = || loop {
            let (look, since) = since();
            if since < look {
                return since;
            }
        };
        let first = settle();
        assert_eq!(settle(), first);
        (&client).write_all(&[7]).unwrap();
        let sent = settle();
        assert!(sent > first);
        assert_eq!(settle(), sent);
        (&server).write_all(&[7]).unwrap();
        let came = settle();
        assert!(came > sent);
        (&client).read_exact(&mut [0]).unwrap();
        let read = settle();
        assert!(read > came);
        sockopt::set_socket_recv_buffer_size(&client, 50_000).unwrap();
        let set = settle();
        assert!(set > read);
        server.shutdown(Shutdown::Write).unwrap();
        assert!(settle() > set);
    }

    #[test]
    fn round_trips_are_counted_from_the_first_look_on_where_there_is_room() {
        let (mut client, mut server) = pair("127.0.0.1:0");
        let watched = client.try_clone().unwrap();
        let mut talk = || {
            for _ in 0..50 {
                client.write_all(&[7]).unwrap();
                server.read_exact(&mut [0]).unwrap();
                server.write_all(&[7]).unwrap();
                client.read_exact(&mut [0]).unwrap();
            }
        };
        let seen = |iterator: &Iterator| of(iterator, &watched).inside.unwrap().events;
        let iterator = Iterator::load(true).unwrap();
        assert!(iterator.counts_events());
        talk();
        assert_eq!(seen(&iterator), None, "no look has begun");
        iterator.begin(1);
        assert_eq!(seen(&iterator), Some(Events::default()));
        talk();
        let events = seen(&iterator).unwrap();
        // The last is counted when the next segment comes; on a machine that stands still some are not measured.
        assert!((10..=51).contains(&events.rtts), "{events:?}");
        assert!(events.rtt_sum >= events.rtt_most && !events.rtt_most.is_zero());
        let without = Iterator::load(false).unwrap();
        assert_eq!(seen(&without), None);
        assert_eq!(of(&without, &watched).since, None);
    }

    #[test]
    fn each_figure_is_read_where_it_stands() {
        let mut record = [0; RECORD];
        let big = [
            (0, 1),
            (16, 17),
            (72, 2),
            (80, 3),
            (88, 4),
            (96, 5),
            (104, 6),
            (112, 7),
            (120, 8),
            (128, 9),
            (136, 10),
        ];
        let words = [
            (8, 16),
            (24, 18),
            (28, 19),
            (44, 20),
            (144, 11),
            (148, 12),
            (152, 13),
            (156, 14),
            (160, 15),
        ];
        for (at, figure) in big {
            record[at..at + 8].copy_from_slice(&u64::to_ne_bytes(figure));
        }
        for (at, figure) in words {
            record[at..at + 4].copy_from_slice(&u32::to_ne_bytes(figure));
        }
        (record[12], record[13]) = (RCVBUF_LOCKED, 1);
        (record[14], record[15]) = (1, 1);
        (record[61], record[63]) = (21, 22);
        record[64..66].copy_from_slice(&10u16.to_ne_bytes());
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
        let address = |first: u32| {
            let mut address = [0; 16];
            address[..4].copy_from_slice(&first.to_ne_bytes());
            address
        };
        let found = Found {
            id: SocketId {
                family: 10,
                local_port: 21,
                remote_port: 22,
                local: address(19),
                remote: address(20),
                interface: 18,
                cookie: 1,
            },
            since: NonZeroU64::new(17),
            inside: Some(inside),
        };
        assert_eq!(parse(&record), found);
        record[14] = 0;
        assert_eq!(parse(&record).inside.unwrap().events, None);
        (record[15], record[16]) = (0, 0);
        assert_eq!((parse(&record).inside, parse(&record).since), (None, None));
    }

    #[test]
    fn records_that_are_cut_by_a_read_are_whole() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let to = listener.local_addr().unwrap();
        // More than one read has room for.
        let ends: Vec<_> = (0..3000)
            .map(|_| {
                let client = TcpStream::connect(to).unwrap();
                (client, listener.accept().unwrap().0)
            })
            .collect();
        let all = all(&Iterator::load(false).unwrap());
        assert!(all.len() >= 2 * ends.len(), "{}", all.len());
    }
}
