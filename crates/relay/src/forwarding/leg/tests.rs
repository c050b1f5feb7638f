use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::PollFlags;
use rustix::net::sockopt;
use taut_mesh::channel::MAX_RECORD;
use taut_mesh::identity::PrivateKey;
use taut_mesh::members::{Member, Members};
use taut_mesh::tls::{AcceptTls, DialTls};
use taut_sys::socket::{Keepalive, LegOptions};

use super::*;
use peer::Peer;
use poll::wait_for;

#[path = "../../../tests/shared/peer.rs"]
mod peer;
#[path = "../../../tests/shared/poll.rs"]
mod poll;

/// A test that waits longer than this has failed.
const PATIENCE: Duration = Duration::from_secs(30);

/// A protected leg, and the relay at its other end.
struct Bench {
    leg: TcpLeg,
    peer: Peer,
    plain: Vec<u8>,
    cipher: Vec<u8>,
    /// The most that the leg has held.
    most_held: usize,
}

/// Completes a handshake in memory.
fn channels() -> (Channel, Channel) {
    let [near, far] = [1, 2].map(|n| PrivateKey::from_seed(&[n; 32]));
    let member = |name: &str, key: &PrivateKey| Member {
        name: name.parse().unwrap(),
        keys: vec![key.public()],
        addresses: Vec::new(),
        site: None,
        cloud: None,
    };
    let members = Members::new(vec![member("near", &near), member("far", &far)]).unwrap();
    let mut to_far = Vec::new();
    let mut dialler = Channel::dial(&DialTls::new(&near, &[far.public()]), &mut to_far).unwrap();
    let mut acceptor = Channel::accept(&AcceptTls::new(&far, Arc::new(members))).unwrap();
    let mut to_near = Vec::new();
    while !to_far.is_empty() || !to_near.is_empty() {
        open(&mut acceptor, &mut to_far, &mut to_near);
        open(&mut dialler, &mut to_near, &mut to_far);
    }
    (dialler, acceptor)
}

/// Hands a channel what has been sent to it.
fn open(channel: &mut Channel, incoming: &mut Vec<u8>, outgoing: &mut Vec<u8>) {
    let mut plain = vec![0; incoming.len()];
    channel.open(incoming, &mut plain, outgoing).unwrap();
    assert!(channel.partial().is_empty());
    incoming.clear();
}

/// Returns bytes without repetition.
fn stream(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let next = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..len).map(next).collect()
}

impl Bench {
    fn new() -> Self {
        Self::with_buffers(None)
    }

    /// With send and receive buffers of this size at both ends.
    fn with_buffers(size: Option<usize>) -> Self {
        let keepalive = Keepalive {
            idle: Duration::from_secs(60),
            interval: Duration::from_secs(15),
            probes: 4,
        };
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        if let Some(size) = size {
            sockopt::set_socket_recv_buffer_size(&listener, size).unwrap();
        }
        let addr = listener.local_addr().unwrap();
        let near = Stream::connect(addr, &LegOptions::new(keepalive)).unwrap();
        let (far, _) = listener.accept().unwrap();
        far.set_read_timeout(Some(PATIENCE)).unwrap();
        far.set_write_timeout(Some(PATIENCE)).unwrap();
        if let Some(size) = size {
            for end in [near.as_fd(), far.as_fd()] {
                sockopt::set_socket_send_buffer_size(end, size).unwrap();
            }
        }
        let (dialler, acceptor) = channels();
        Self {
            leg: TcpLeg::new(near, Some(dialler)),
            peer: Peer::new(far, acceptor),
            plain: vec![0; 64 << 10],
            cipher: vec![0; CIPHER],
            most_held: 0,
        }
    }

    fn recv(&mut self) -> Result<(Vec<u8>, bool), Errno> {
        let mut scratch = Scratch {
            plain: &mut self.plain,
            cipher: &mut self.cipher,
        };
        let Received { len, more } = self.leg.recv(&mut scratch)?;
        Ok((self.plain[..len].to_vec(), more))
    }

    /// Reads until there is an end or an error.
    fn recv_to_the_end(&mut self) -> (Vec<u8>, Result<(), Errno>) {
        let mut bytes = Vec::new();
        loop {
            match self.recv() {
                Ok((part, _)) if part.is_empty() => return (bytes, Ok(())),
                Ok((part, _)) => bytes.extend(part),
                Err(Errno::AGAIN) => wait_for(self.leg.stream(), PollFlags::IN),
                Err(e) => return (bytes, Err(e)),
            }
        }
    }

    /// Reads until nothing is there.
    fn recv_what_is_there(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        loop {
            match self.recv() {
                Ok((part, _)) if part.is_empty() => panic!("the stream has ended"),
                Ok((part, _)) => bytes.extend(part),
                Err(Errno::AGAIN) => return bytes,
                Err(e) => panic!("{e}"),
            }
        }
    }

    fn send(&mut self, bytes: &[u8]) -> Result<usize, Errno> {
        let result = self.leg.send(bytes, &mut self.cipher);
        self.most_held = self.most_held.max(self.leg.held());
        result
    }

    /// Sends as much as the leg takes without the peer reading.
    fn send_what_fits(&mut self, bytes: &[u8]) -> usize {
        let mut sent = 0;
        while sent < bytes.len() {
            match self.send(&bytes[sent..]) {
                Ok(n) => sent += n,
                Err(Errno::AGAIN) => return sent,
                Err(e) => panic!("{e}"),
            }
        }
        sent
    }
}

/// The size of buffers that fill with less than one call seals.
const TINY: usize = 4 << 10;

#[test]
fn bytes_that_the_socket_does_not_take_are_held_and_sent_first_when_it_does() {
    let mut bench = Bench::with_buffers(Some(TINY));
    let bytes = stream(1 << 20, 1);
    let mut sent = bench.send_what_fits(&bytes);
    assert!(sent < bytes.len(), "there was no short write");
    assert!(bench.leg.held() > 0);
    assert!(bench.leg.unsent() >= bench.leg.held());
    assert!(bench.leg.unacknowledged() >= bench.leg.held());
    // Nothing is sealed while bytes are held.
    let held = bench.leg.held();
    assert_eq!(bench.send(b"more"), Err(Errno::AGAIN));
    assert_eq!(bench.leg.flush(), Err(Errno::AGAIN));
    assert_eq!(bench.leg.held(), held);

    let mut got = Vec::new();
    while sent < bytes.len() || bench.leg.flush() == Err(Errno::AGAIN) {
        got.extend(bench.peer.read_some().unwrap());
        sent += bench.send_what_fits(&bytes[sent..]);
    }
    got.extend(bench.peer.read_exact(bytes.len() - got.len()).unwrap());
    assert!(got == bytes, "the stream has changed");
    assert_eq!(bench.leg.held(), 0);
    assert!(bench.most_held <= CIPHER, "{} were held", bench.most_held);
}

#[test]
fn the_memory_of_a_leg_is_released_when_it_holds_nothing() {
    let mut bench = Bench::with_buffers(Some(TINY));
    let bytes = stream(256 << 10, 2);
    let sent = bench.send_what_fits(&bytes);
    let TcpLeg::Protected(leg) = &bench.leg else {
        panic!("a plain leg");
    };
    assert!(leg.pending.capacity() > 0);
    while bench.leg.flush() == Err(Errno::AGAIN) {
        bench.peer.read_some().unwrap();
    }
    bench.peer.read_some().unwrap();
    let TcpLeg::Protected(leg) = &bench.leg else {
        panic!("a plain leg");
    };
    assert_eq!(leg.pending.capacity(), 0);
    assert!(sent > 0);
}

#[test]
fn an_end_follows_the_bytes_that_are_held() {
    let mut bench = Bench::with_buffers(Some(TINY));
    let bytes = stream(1 << 20, 3);
    let sent = bench.send_what_fits(&bytes);
    assert!(sent < bytes.len() && bench.leg.held() > 0);
    let held = bench.leg.held();
    assert_eq!(bench.leg.shutdown_write(), Err(Errno::AGAIN));
    // Asked again, it does not end a second time.
    assert_eq!(bench.leg.shutdown_write(), Err(Errno::AGAIN));
    assert!(bench.leg.held() > held && bench.leg.held() < held + 100);
    let mut got = Vec::new();
    loop {
        match bench.leg.shutdown_write() {
            Ok(()) => break,
            Err(Errno::AGAIN) => got.extend(bench.peer.read_some().unwrap()),
            Err(e) => panic!("{e}"),
        }
    }
    got.extend(bench.peer.read_to_end().unwrap());
    assert!(got == bytes[..sent], "the stream has changed");
    assert_eq!(bench.leg.held(), 0);
}

#[test]
fn bytes_and_the_end_in_one_read_are_both_seen() {
    let mut bench = Bench::new();
    let wire = [bench.peer.seal(b"last words"), bench.peer.close()].concat();
    // No FIN follows: no event would report the end.
    bench.peer.stream.write_all(&wire).unwrap();
    wait_for(bench.leg.stream(), PollFlags::IN);
    assert_eq!(bench.recv(), Ok((b"last words".to_vec(), true)));
    assert_eq!(bench.recv(), Ok((Vec::new(), false)));
    assert_eq!(bench.recv(), Ok((Vec::new(), false)));
    // The other direction is open.
    bench.send(b"answer").unwrap();
    bench.leg.shutdown_write().unwrap();
    assert_eq!(bench.peer.read_to_end().unwrap(), b"answer");
}

#[test]
fn an_end_without_bytes_is_seen() {
    let mut bench = Bench::new();
    bench.peer.end();
    assert_eq!(bench.recv_to_the_end(), (Vec::new(), Ok(())));
}

#[test]
fn records_may_be_split_anywhere() {
    let mut bench = Bench::new();
    let text = stream(40, 4);
    // Two records and a third one, cut at every place.
    let len = bench.peer.seal(&text).len();
    let mut bench = Bench::new();
    for at in 1..2 * len {
        let (a, b) = (bench.peer.seal(&text), bench.peer.seal(&text));
        let wire = [a, b].concat();
        assert_eq!(wire.len(), 2 * len);
        let mut got = Vec::new();
        for part in [&wire[..at], &wire[at..]] {
            bench.peer.stream.write_all(part).unwrap();
            wait_for(bench.leg.stream(), PollFlags::IN);
            got.extend(bench.recv_what_is_there());
        }
        while got.len() < 2 * text.len() {
            wait_for(bench.leg.stream(), PollFlags::IN);
            got.extend(bench.recv_what_is_there());
        }
        assert_eq!(got, [&text[..], &text[..]].concat(), "split at {at}");
    }
}

#[test]
fn a_stream_arrives_byte_by_byte() {
    let mut bench = Bench::new();
    bench.peer.stream.set_nodelay(true).unwrap();
    let text = stream(100, 5);
    let wire = [bench.peer.seal(&text), bench.peer.close()].concat();
    for byte in &wire[..wire.len() - 1] {
        bench.peer.stream.write_all(&[*byte]).unwrap();
    }
    let mut got = Vec::new();
    while got.len() < text.len() {
        wait_for(bench.leg.stream(), PollFlags::IN);
        got.extend(bench.recv_what_is_there());
    }
    bench
        .peer
        .stream
        .write_all(&wire[wire.len() - 1..])
        .unwrap();
    assert_eq!(bench.recv_to_the_end(), (Vec::new(), Ok(())));
    assert_eq!(got, text);
}

#[test]
fn a_mebibyte_each_way_at_once_arrives_whole() {
    for buffers in [None, Some(TINY)] {
        let mut bench = Bench::with_buffers(buffers);
        let (up, down) = (stream(1 << 20, 6), stream(1 << 20, 7));
        let (mut sent, mut got, mut ended) = (0, Vec::new(), (false, false));
        let mut out = bench.peer.seal(&down);
        out.extend(bench.peer.close());
        let mut out_socket = bench.peer.stream.try_clone().unwrap();
        let writer = std::thread::spawn(move || out_socket.write_all(&out).unwrap());
        let mut peer = std::mem::replace(&mut bench.peer, {
            // The bench reads no more from its peer; the thread does.
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let unused = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            Peer::new(unused, channels().1)
        });
        let reader = std::thread::spawn(move || peer.read_to_end().unwrap());
        while ended != (true, true) {
            let mut flags = PollFlags::empty();
            if !ended.1 {
                match bench.recv() {
                    Ok((part, _)) if part.is_empty() => ended.1 = true,
                    Ok((part, _)) => got.extend(part),
                    Err(Errno::AGAIN) => flags |= PollFlags::IN,
                    Err(e) => panic!("{e}"),
                }
            }
            if !ended.0 {
                let result = match sent < up.len() {
                    true => bench.send(&up[sent..]).map(|n| sent += n),
                    false => bench.leg.shutdown_write().map(|()| ended.0 = true),
                };
                match result {
                    Ok(()) => {}
                    Err(Errno::AGAIN) => flags |= PollFlags::OUT,
                    Err(e) => panic!("{e}"),
                }
            }
            let waits_for_all =
                flags.bits().count_ones() == u32::from(!ended.0) + u32::from(!ended.1);
            if !flags.is_empty() && waits_for_all {
                wait_for(bench.leg.stream(), flags);
            }
        }
        assert!(got == down, "the stream to the leg has changed");
        assert!(
            reader.join().unwrap() == up,
            "the stream from the leg has changed"
        );
        writer.join().unwrap();
        assert!(bench.most_held <= CIPHER);
    }
}

#[test]
fn an_altered_record_is_an_error_and_nothing_follows_it() {
    for at in [0, 1, 3, 5, 20, usize::MAX] {
        let mut bench = Bench::new();
        let whole = bench.peer.seal(b"whole");
        let mut altered = bench.peer.seal(b"altered, and long enough for each place");
        let at = at.min(altered.len() - 1);
        altered[at] ^= 0x40;
        let rest = [bench.peer.seal(b"more"), bench.peer.close()].concat();
        bench.peer.stream.write_all(&whole).unwrap();
        wait_for(bench.leg.stream(), PollFlags::IN);
        assert_eq!(bench.recv_what_is_there(), b"whole");
        bench.peer.stream.write_all(&altered).unwrap();
        bench.peer.stream.write_all(&rest).unwrap();
        bench.peer.cut();
        let (got, end) = bench.recv_to_the_end();
        assert_eq!(got, b"", "altered at {at}");
        // A length that promises more than arrives ends like a stream that was cut.
        assert!(
            matches!(end, Err(Errno::PROTO | Errno::CONNRESET)),
            "altered at {at}: {end:?}"
        );
        let (got, end) = bench.recv_to_the_end();
        assert_eq!(got, b"", "altered at {at}, read again");
        assert!(end.is_err(), "altered at {at}, read again");
    }
}

#[test]
fn a_record_that_is_missing_repeated_or_early_is_an_error() {
    for order in [&[1][..], &[0, 0], &[0, 2], &[1, 0, 2]] {
        let mut bench = Bench::new();
        let records = [b"first ", b"second", b"third "].map(|text| bench.peer.seal(text));
        for &n in order {
            bench.peer.stream.write_all(&records[n]).unwrap();
        }
        let (got, end) = bench.recv_to_the_end();
        assert!(got.is_empty() || got == b"first ", "{order:?}");
        assert_eq!(end, Err(Errno::PROTO), "{order:?}");
    }
}

#[test]
fn a_fin_alone_is_no_end_in_order() {
    for part in [false, true] {
        let mut bench = Bench::new();
        let whole = bench.peer.seal(b"whole");
        let next = bench.peer.seal(b"next");
        bench.peer.stream.write_all(&whole).unwrap();
        if part {
            bench.peer.stream.write_all(&next[..10]).unwrap();
        }
        bench.peer.cut();
        let (got, end) = bench.recv_to_the_end();
        assert_eq!(
            (got.as_slice(), end),
            (&b"whole"[..], Err(Errno::CONNRESET))
        );
        assert_eq!(bench.recv(), Err(Errno::CONNRESET));
    }
}

#[test]
fn what_follows_the_end_of_the_stream_is_not_part_of_it() {
    let mut bench = Bench::new();
    let end = bench.peer.close();
    bench.peer.stream.write_all(&end).unwrap();
    bench.peer.stream.write_all(&stream(100, 8)).unwrap();
    bench.peer.cut();
    assert_eq!(bench.recv_to_the_end(), (Vec::new(), Ok(())));
}

#[test]
fn a_record_that_never_ends_is_bounded() {
    let mut bench = Bench::new();
    // The header of a record of application data that is longer than any may be, and zeroes.
    let mut wire = vec![23, 3, 3, 0xff, 0xff];
    wire.resize(5 + 0xffff, 0);
    bench.peer.stream.write_all(&wire).unwrap();
    assert_eq!(bench.recv_to_the_end(), (Vec::new(), Err(Errno::PROTO)));

    // The longest that is allowed, without its last byte.
    let mut bench = Bench::new();
    let len = u16::try_from(MAX_RECORD - 5).unwrap().to_be_bytes();
    let mut wire = vec![23, 3, 3, len[0], len[1]];
    wire.resize(MAX_RECORD - 1, 0);
    bench.peer.stream.write_all(&wire).unwrap();
    let TcpLeg::Protected(_) = &bench.leg else {
        panic!("a plain leg");
    };
    while partial(&bench) < MAX_RECORD - 1 {
        wait_for(bench.leg.stream(), PollFlags::IN);
        assert_eq!(bench.recv_what_is_there(), b"");
    }
    assert_eq!(partial(&bench), MAX_RECORD - 1);
}

fn partial(bench: &Bench) -> usize {
    match &bench.leg {
        TcpLeg::Plain(_) => 0,
        TcpLeg::Protected(leg) => leg.channel.partial().len(),
    }
}

#[test]
fn a_reset_is_reported_as_one() {
    let mut bench = Bench::new();
    sockopt::set_socket_linger(&bench.peer.stream, Some(Duration::ZERO)).unwrap();
    drop(std::mem::replace(&mut bench.peer, Bench::new().peer));
    wait_for(bench.leg.stream(), PollFlags::IN);
    assert_eq!(bench.recv(), Err(Errno::CONNRESET));
}

#[test]
fn a_protected_leg_is_not_spliced() {
    assert!(!Bench::new().leg.can_splice());
}
