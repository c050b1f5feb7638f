//! Parses the records that the programs write (bpf/connection.h).

use std::io;
use std::mem::offset_of;
use std::num::NonZeroU64;
use std::time::Duration;

use taut_bpf::{CEnum as _, read_prefix};
use taut_sys::sock_diag::{Events, Internals, SocketId};

use super::raw::{self, ConnectionLocks};

const HEAD: usize = size_of::<raw::ConnectionHead>();
const RECORD: usize = size_of::<raw::Connection>();
/// The size of the record of a connection without congestion signals; the rest would be zero.
const WITHOUT_SIGNALS: usize = offset_of!(raw::Connection, events.fast_retransmits);

/// A connection that an iterator lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    /// The socket's cookie.
    pub(crate) cookie: u64,
    /// Inode of its network namespace.
    pub(crate) netns: u32,
    /// The scan that first found its current state: a sample of that scan or a later one is up to
    /// date. `None` if changes are not tracked.
    pub(crate) since: Option<NonZeroU64>,
}

/// Data that a program provides about a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Details {
    /// The identity that sock_diag takes.
    pub(crate) id: SocketId,
    /// `None` during a handshake.
    pub(crate) internals: Option<Internals>,
}

/// The first of several records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) found: Found,
    /// Its size in bytes.
    pub(super) size: usize,
    /// The place of its figures, from 1 on; 0 without any.
    pub(super) place: usize,
}

/// Parses the head of the first record. Returns `None` if the record is cut off.
///
/// # Errors
/// `InvalidData`: the data is not a record.
pub(super) fn parse(records: &[u8]) -> io::Result<Option<Record>> {
    let Some((head, _)) = read_prefix::<raw::ConnectionHead>(records) else {
        return Ok(None);
    };
    let size = head.size.into();
    if ![HEAD, WITHOUT_SIGNALS, RECORD].contains(&size) {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let record = Record {
        found: Found {
            cookie: head.cookie,
            netns: head.netns,
            since: NonZeroU64::new(head.changed),
        },
        size,
        place: head.place.into(),
    };
    Ok((size <= records.len()).then_some(record))
}

/// Returns the details in a record; `None` if it is only a head.
pub(super) fn details_in(record: &[u8]) -> Option<Details> {
    (record.len() > HEAD).then(|| details(&whole(record)))
}

/// Returns a record with zeros for the part that was not written.
fn whole(written: &[u8]) -> raw::Connection {
    let mut record = [0; RECORD];
    record[..written.len()].copy_from_slice(written);
    read_prefix(&record)
        .map(|(record, _)| record)
        .unwrap_or_default()
}

pub(super) fn details(record: &raw::Connection) -> Details {
    let id = SocketId {
        // The kernel has two bytes for the family, but no family exceeds one.
        family: record.name.family.try_into().unwrap_or_default(),
        local_port: record.name.local_port.get(),
        remote_port: record.name.remote_port.get(),
        local: taut_bpf::bytes(&record.name.local),
        remote: taut_bpf::bytes(&record.name.remote),
        interface: record.interface,
        cookie: record.head.cookie,
    };
    let is_locked = |lock: ConnectionLocks| u32::from(record.locks) & lock.raw() != 0;
    let events = &record.events;
    let internals = Internals {
        window_clamp: record.window_clamp,
        sndbuf_locked: is_locked(ConnectionLocks::SndbufLocked),
        rcvbuf_locked: is_locked(ConnectionLocks::RcvbufLocked),
        mtu_probing: record.mtu_probing != 0,
        max_window: record.max_window,
        sent_base: record.sent_base,
        received_base: record.received_base,
        events: (record.has_events != 0).then(|| Events {
            rtt_sum: Duration::from_micros(events.rtt_sum),
            signal_rtt_sum: Duration::from_micros(events.signal_rtt_sum),
            signal_cwnd_sum: events.signal_cwnd_sum,
            signal_cwnd_squares: events.signal_cwnd_squares,
            between_sum: events.between_sum,
            between_squares: events.between_squares,
            between_times: events.between_times,
            between_time_squares: events.between_time_squares,
            between_products: events.between_products,
            rtts: events.rtts,
            rtt_most: Duration::from_micros(events.rtt_most.into()),
            rtt_most_recent: Duration::from_micros(events.rtt_most_recent.into()),
            trains: events.trains,
            train_most_recent: events.train_most_recent,
            signals: events.signals,
            fast_retransmits: events.fast_retransmits,
            between: events.between,
        }),
    };
    Details {
        id,
        internals: (record.is_whole != 0).then_some(internals),
    }
}

#[cfg(test)]
mod tests {
    use taut_bpf::zerocopy::IntoBytes as _;

    use super::*;

    #[test]
    fn each_field_is_read_from_its_place() {
        let mut record = raw::Connection {
            head: raw::ConnectionHead {
                cookie: 1,
                changed: 17,
                netns: 23,
                size: RECORD as u16,
                place: 30,
            },
            window_clamp: 16,
            locks: ConnectionLocks::RcvbufLocked.raw() as u8,
            mtu_probing: 1,
            has_events: 1,
            is_whole: 1,
            interface: 18,
            name: raw::ConnectionName {
                local: [19, 0, 0, 0],
                remote: [20, 0, 0, 0],
                local_port: 21.into(),
                remote_port: 22.into(),
                family: 10,
                pad: 0,
            },
            max_window: 24,
            events: raw::ConnectionEvents {
                rtt_sum: 2,
                signal_rtt_sum: 3,
                signal_cwnd_sum: 4,
                signal_cwnd_squares: 5,
                between_sum: 6,
                between_squares: 7,
                between_times: 8,
                between_time_squares: 9,
                between_products: 10,
                rtts: 11,
                rtt_most: 12,
                signals: 13,
                fast_retransmits: 14,
                between: 15,
                rtt_most_recent: 25,
                train_most_recent: 28,
                trains: 29,
            },
            sent_base: 26,
            received_base: 27,
        };
        let micros = Duration::from_micros;
        let events = Events {
            rtts: 11,
            rtt_sum: micros(2),
            rtt_most: micros(12),
            rtt_most_recent: micros(25),
            trains: 29,
            train_most_recent: 28,
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
            max_window: 24,
            sent_base: 26,
            received_base: 27,
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
        let expected = Record {
            found: Found {
                cookie: 1,
                netns: 23,
                since: NonZeroU64::new(17),
            },
            size: RECORD,
            place: 30,
        };
        assert_eq!(parse(record.as_bytes()).unwrap(), Some(expected));
        let mut details = Details {
            id,
            internals: Some(internals),
        };
        assert_eq!(details_in(record.as_bytes()), Some(details));
        (record.is_whole, record.head.changed) = (0, 0);
        details.internals = None;
        assert_eq!(details_in(record.as_bytes()), Some(details));
        let parsed = parse(record.as_bytes()).unwrap().unwrap();
        assert_eq!(parsed.found.since, None);
        // The record of an unchanged connection is only a head.
        record.head.size = HEAD as u16;
        let parsed = parse(record.as_bytes()).unwrap().unwrap();
        assert_eq!(details_in(&record.as_bytes()[..parsed.size]), None);
    }

    #[test]
    fn what_a_record_without_signals_leaves_out_is_zero() {
        let record = raw::Connection {
            head: raw::ConnectionHead {
                size: WITHOUT_SIGNALS as u16,
                ..raw::ConnectionHead::default()
            },
            has_events: 1,
            is_whole: 1,
            events: raw::ConnectionEvents {
                rtts: 3,
                // These belong to the next record.
                fast_retransmits: 9,
                between_products: 9,
                ..raw::ConnectionEvents::default()
            },
            ..raw::Connection::default()
        };
        let size = parse(record.as_bytes()).unwrap().unwrap().size;
        let details = details_in(&record.as_bytes()[..size]).unwrap();
        let events = details.internals.unwrap().events.unwrap();
        let expected = Events {
            rtts: 3,
            ..Events::default()
        };
        assert_eq!((events, size), (expected, WITHOUT_SIGNALS));
    }

    #[test]
    fn a_cut_record_is_incomplete_and_an_invalid_one_an_error() {
        let mut record = [0; RECORD];
        record[20..22].copy_from_slice(&(RECORD as u16).to_ne_bytes());
        for length in 0..RECORD {
            assert_eq!(parse(&record[..length]).unwrap(), None);
        }
        for size in [0, 1, HEAD - 1, HEAD + 1, RECORD - 1, RECORD + 1, usize::MAX] {
            record[20..22].copy_from_slice(&(size as u16).to_ne_bytes());
            assert!(parse(&record).is_err());
        }
    }
}
