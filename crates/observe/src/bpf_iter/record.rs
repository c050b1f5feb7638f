//! Records, as the programs write them (bpf/connection.h).

use std::io;
use std::num::NonZeroU64;
use std::time::Duration;

use taut_sys::sock_diag::{Events, Internals, SocketId};

/// Bytes of `struct connection_head` and `struct connection` of connection.h.
const HEAD: usize = 24;
const RECORD: usize = 176;
const SNDBUF_LOCKED: u8 = 1;
const RCVBUF_LOCKED: u8 = 2;

/// A connection, as an iterator finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    /// The kernel's name of it.
    pub(crate) cookie: u64,
    /// Inode of its network namespace.
    pub(crate) netns: u32,
    /// The look that first found it as it is now: whoever has read it in that one or later has nothing new to read. Nothing where
    /// that is not watched.
    pub(crate) since: Option<NonZeroU64>,
    /// Nothing of one that rests, if it was found by its place.
    pub(crate) told: Option<Told>,
}

/// What is told of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Told {
    /// By this sock_diag finds it.
    pub(crate) id: SocketId,
    /// Nothing of one that is being made.
    pub(crate) internals: Option<Internals>,
}

/// The first record, and what comes after it; nothing where it is cut.
///
/// # Errors
/// `InvalidData`: what is there is none.
pub(super) fn parse(records: &[u8]) -> io::Result<Option<(Found, &[u8])>> {
    let Some(head) = records.first_chunk::<HEAD>() else {
        return Ok(None);
    };
    let size = u32::from_ne_bytes(bytes(head, 20)) as usize;
    if size != HEAD && size != RECORD {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let Some((record, after)) = records.split_at_checked(size) else {
        return Ok(None);
    };
    let found = Found {
        cookie: u64::from_ne_bytes(bytes(head, 0)),
        since: NonZeroU64::new(u64::from_ne_bytes(bytes(head, 8))),
        netns: u32::from_ne_bytes(bytes(head, 16)),
        told: record.first_chunk().map(told),
    };
    Ok(Some((found, after)))
}

fn told(record: &[u8; RECORD]) -> Told {
    let big = |at| u64::from_ne_bytes(bytes(record, at));
    let word = |at| u32::from_ne_bytes(bytes(record, at));
    let port = |at| u16::from_be_bytes(bytes(record, at));
    let id = SocketId {
        // One byte of the kernel's two, which it never fills.
        family: u16::from_ne_bytes(bytes(record, 72))
            .try_into()
            .unwrap_or_default(),
        local_port: port(68),
        remote_port: port(70),
        local: bytes(record, 36),
        remote: bytes(record, 52),
        interface: word(32),
        cookie: big(0),
    };
    let locks = record[28];
    let internals = Internals {
        window_clamp: word(24),
        sndbuf_locked: locks & SNDBUF_LOCKED != 0,
        rcvbuf_locked: locks & RCVBUF_LOCKED != 0,
        mtu_probing: record[29] != 0,
        events: (record[30] != 0).then(|| Events {
            rtt_sum: Duration::from_micros(big(80)),
            signal_rtt_sum: Duration::from_micros(big(88)),
            signal_cwnd_sum: big(96),
            signal_cwnd_squares: big(104),
            between_sum: big(112),
            between_squares: big(120),
            between_times: big(128),
            between_time_squares: big(136),
            between_products: big(144),
            rtts: word(152),
            rtt_most: Duration::from_micros(word(156).into()),
            signals: word(160),
            fast_retransmits: word(164),
            between: word(168),
        }),
    };
    Told {
        id,
        internals: (record[31] != 0).then_some(internals),
    }
}

/// So many bytes of the record from there on.
fn bytes<const COUNT: usize>(record: &[u8], at: usize) -> [u8; COUNT] {
    let found = record.get(at..).and_then(|rest| rest.first_chunk());
    *found.unwrap_or(&[0; COUNT])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_figure_is_read_where_it_stands() {
        let mut record = [0; RECORD];
        let big = [
            (0, 1),
            (8, 17),
            (80, 2),
            (88, 3),
            (96, 4),
            (104, 5),
            (112, 6),
            (120, 7),
            (128, 8),
            (136, 9),
            (144, 10),
        ];
        let words = [
            (16, 23),
            (20, RECORD as u32),
            (24, 16),
            (32, 18),
            (36, 19),
            (52, 20),
            (152, 11),
            (156, 12),
            (160, 13),
            (164, 14),
            (168, 15),
        ];
        for (at, figure) in big {
            record[at..at + 8].copy_from_slice(&u64::to_ne_bytes(figure));
        }
        for (at, figure) in words {
            record[at..at + 4].copy_from_slice(&u32::to_ne_bytes(figure));
        }
        (record[28], record[29]) = (RCVBUF_LOCKED, 1);
        (record[30], record[31]) = (1, 1);
        (record[69], record[71]) = (21, 22);
        record[72..74].copy_from_slice(&10u16.to_ne_bytes());
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
        let internals = Internals {
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
        let id = SocketId {
            family: 10,
            local_port: 21,
            remote_port: 22,
            local: address(19),
            remote: address(20),
            interface: 18,
            cookie: 1,
        };
        let mut found = Found {
            cookie: 1,
            netns: 23,
            since: NonZeroU64::new(17),
            told: Some(Told {
                id,
                internals: Some(internals),
            }),
        };
        let parsed = |record: &[u8]| {
            parse(record)
                .unwrap()
                .map(|(found, after)| (found, after.len()))
        };
        assert_eq!(parsed(&record), Some((found, 0)));
        (record[31], record[8]) = (0, 0);
        found.since = None;
        found.told = Some(Told {
            id,
            internals: None,
        });
        assert_eq!(parsed(&record), Some((found, 0)));
        // One that rests has a head only, and the next begins after it.
        record[20..24].copy_from_slice(&(HEAD as u32).to_ne_bytes());
        found.told = None;
        assert_eq!(parsed(&record), Some((found, RECORD - HEAD)));
    }

    #[test]
    fn what_is_cut_is_awaited_and_what_is_no_record_is_refused() {
        let mut record = [0; RECORD];
        record[20..24].copy_from_slice(&(RECORD as u32).to_ne_bytes());
        for length in 0..RECORD {
            assert_eq!(parse(&record[..length]).unwrap(), None);
        }
        for size in [0, 1, HEAD - 1, HEAD + 1, RECORD + 1, usize::MAX] {
            record[20..24].copy_from_slice(&(size as u32).to_ne_bytes());
            assert!(parse(&record).is_err());
        }
    }
}
