use std::io::{Read, Write};
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
use crate::outcome::kernel_tls::ControlRecord;
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
    metrics: Arc<WorkerMetrics>,
    peer: Peer,
    plain: Vec<u8>,
    cipher: Vec<u8>,
    /// The most that the leg has held.
    most_held: usize,
}

/// Where the TLS of the leg under test runs. Its peer's runs in the test.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Engine {
    Process,
    Kernel,
}

/// Returns the places that this kernel has.
fn engines() -> &'static [Engine] {
    match kernel_tls::probe() {
        Ok(()) => &[Engine::Process, Engine::Kernel],
        Err(error) => {
            assert!(
                std::env::var_os("TAUT_REQUIRE_KERNEL_TLS").is_none(),
                "no TLS in this kernel: {error}"
            );
            eprintln!("tested without TLS in the kernel: {error}");
            &[Engine::Process]
        }
    }
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
        price: None,
    };
    let members = Members::new(vec![member("near", &near), member("far", &far)]).unwrap();
    let mut to_far = Vec::new();
    let mut dialler =
        Channel::dial(&DialTls::for_kernel(&near, &[far.public()]), &mut to_far).unwrap();
    let mut acceptor = Channel::accept(&AcceptTls::for_kernel(&far, Arc::new(members))).unwrap();
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

    /// With the leg's TLS there.
    fn at(engine: Engine) -> Self {
        Self::new().move_to(engine)
    }

    /// Reads the first byte from the peer, so that the keys may go to the kernel.
    fn begun(mut self) -> Self {
        self.peer.send(b"!");
        wait_for(self.leg.stream(), PollFlags::IN);
        assert_eq!(self.recv_what_is_there(), b"!");
        self
    }

    fn move_to(mut self, engine: Engine) -> Self {
        if engine == Engine::Kernel {
            self = self.begun();
            assert!(
                self.leg.prepare_splice().unwrap(),
                "the keys stay in this process"
            );
            assert_eq!(self.metrics.kernel_tls_legs.get(), 1);
        }
        self
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
        let metrics = Arc::default();
        Self {
            leg: TcpLeg::new(near, Some(dialler), &metrics),
            metrics,
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
    let Tls::Process(leg) = &bench.leg.tls else {
        panic!("not in this process");
    };
    assert!(leg.pending.capacity() > 0);
    while bench.leg.flush() == Err(Errno::AGAIN) {
        bench.peer.read_some().unwrap();
    }
    bench.peer.read_some().unwrap();
    let Tls::Process(leg) = &bench.leg.tls else {
        panic!("not in this process");
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
    for &engine in engines() {
        let mut bench = Bench::at(engine);
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
}

#[test]
fn an_end_without_bytes_is_seen() {
    for &engine in engines() {
        let mut bench = Bench::at(engine);
        bench.peer.end();
        assert_eq!(bench.recv_to_the_end(), (Vec::new(), Ok(())));
    }
}

#[test]
fn records_may_be_split_anywhere() {
    for &engine in engines() {
        let mut bench = Bench::at(engine);
        let text = stream(40, 4);
        // Two records and a third one, cut at every place.
        let len = bench.peer.seal(&text).len();
        let mut bench = Bench::at(engine);
        for at in 1..2 * len {
            let (a, b) = (bench.peer.seal(&text), bench.peer.seal(&text));
            let wire = [a, b].concat();
            assert_eq!(wire.len(), 2 * len);
            let mut got = Vec::new();
            for part in [&wire[..at], &wire[at..]] {
                bench.peer.stream.write_all(part).unwrap();
                // The kernel reports whole records only.
                if engine == Engine::Process {
                    wait_for(bench.leg.stream(), PollFlags::IN);
                }
                got.extend(bench.recv_what_is_there());
            }
            while got.len() < 2 * text.len() {
                wait_for(bench.leg.stream(), PollFlags::IN);
                got.extend(bench.recv_what_is_there());
            }
            assert_eq!(got, [&text[..], &text[..]].concat(), "split at {at}");
        }
    }
}

#[test]
fn a_stream_arrives_byte_by_byte() {
    for &engine in engines() {
        let mut bench = Bench::at(engine);
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
}

#[test]
fn a_mebibyte_each_way_at_once_arrives_whole() {
    for &engine in engines() {
        for buffers in [None, Some(TINY)] {
            let mut bench = Bench::with_buffers(buffers).move_to(engine);
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
            // What the kernel holds is estimated, and too high while acknowledgements arrive.
            assert!(engine == Engine::Kernel || bench.most_held <= CIPHER);
        }
    }
}

#[test]
fn an_altered_record_is_an_error_and_nothing_follows_it() {
    for &engine in engines() {
        for at in [0, 1, 3, 5, 20, usize::MAX] {
            // The kernel does not look at the first byte: the type of the content is inside.
            if (engine, at) == (Engine::Kernel, 0) {
                continue;
            }
            let mut bench = Bench::at(engine);
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
}

#[test]
fn a_record_that_is_missing_repeated_or_early_is_an_error() {
    for &engine in engines() {
        for order in [&[1][..], &[0, 0], &[0, 2], &[1, 0, 2]] {
            let mut bench = Bench::at(engine);
            let records = [b"first ", b"second", b"third "].map(|text| bench.peer.seal(text));
            for &n in order {
                bench.peer.stream.write_all(&records[n]).unwrap();
            }
            let (got, end) = bench.recv_to_the_end();
            assert!(got.is_empty() || got == b"first ", "{order:?}");
            assert_eq!(end, Err(Errno::PROTO), "{order:?}");
        }
    }
}

#[test]
fn a_fin_alone_is_no_end_in_order() {
    for &engine in engines() {
        for part in [false, true] {
            let mut bench = Bench::at(engine);
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
}

#[test]
fn what_follows_the_end_of_the_stream_is_not_part_of_it() {
    for &engine in engines() {
        let mut bench = Bench::at(engine);
        let end = bench.peer.close();
        bench.peer.stream.write_all(&end).unwrap();
        bench.peer.stream.write_all(&stream(100, 8)).unwrap();
        bench.peer.cut();
        assert_eq!(bench.recv_to_the_end(), (Vec::new(), Ok(())));
    }
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
    while partial(&bench) < MAX_RECORD - 1 {
        wait_for(bench.leg.stream(), PollFlags::IN);
        assert_eq!(bench.recv_what_is_there(), b"");
    }
    assert_eq!(partial(&bench), MAX_RECORD - 1);
}

fn partial(bench: &Bench) -> usize {
    match &bench.leg.tls {
        Tls::Process(tls) => tls.channel.partial().len(),
        _ => 0,
    }
}

#[test]
fn a_reset_is_reported_as_one() {
    for &engine in engines() {
        let mut bench = Bench::at(engine);
        sockopt::set_socket_linger(&bench.peer.stream, Some(Duration::ZERO)).unwrap();
        drop(std::mem::replace(&mut bench.peer, Bench::at(engine).peer));
        wait_for(bench.leg.stream(), PollFlags::IN);
        assert_eq!(bench.recv(), Err(Errno::CONNRESET));
    }
}

#[test]
fn a_leg_whose_keys_may_not_leave_this_process_is_not_spliced() {
    let mut bench = Bench::new();
    let [near, far] = [1, 2].map(|n| PrivateKey::from_seed(&[n; 32]));
    let mut out = Vec::new();
    let dialler = Channel::dial(&DialTls::new(&near, &[far.public()]), &mut out).unwrap();
    let Tls::Process(tls) = &mut bench.leg.tls else {
        panic!("not in this process");
    };
    tls.channel = dialler;
    assert!(!bench.leg.prepare_splice().unwrap());
    assert!(matches!(bench.leg.tls, Tls::Process(_)));
}

#[test]
fn a_kernel_without_tls_leaves_the_keys_in_this_process() {
    if engines().contains(&Engine::Kernel) {
        return;
    }
    let mut bench = Bench::new().begun();
    for _ in 0..3 {
        assert!(!bench.leg.prepare_splice().unwrap());
    }
    let missing = FallBack::Missing.index();
    assert_eq!(bench.metrics.kernel_tls_fall_backs[missing].get(), 1);
    bench.send(b"still protected").unwrap();
    assert_eq!(bench.peer.read_exact(15).unwrap(), b"still protected");
}

#[test]
fn a_leg_reads_to_the_end_of_a_record_before_the_kernel_gets_its_keys() {
    let text = stream(1000, 9);
    let len = Bench::new().peer.seal(&text).len();
    for at in [1, 4, 5, 6, len - 1, len, len + 1, len + 5, 2 * len - 1] {
        let mut bench = Bench::new().begun();
        let wire: Vec<u8> = (0..3).flat_map(|_| bench.peer.seal(&text)).collect();
        bench.peer.stream.write_all(&wire[..at]).unwrap();
        let mut got = Vec::new();
        let is_partial = at % len != 0;
        while is_partial && partial(&bench) != at % len {
            wait_for(bench.leg.stream(), PollFlags::IN);
            got.extend(bench.recv_what_is_there());
        }
        bench.leg.prepare_splice().unwrap();
        if is_partial {
            assert!(matches!(bench.leg.tls, Tls::Process(_)), "at {at}");
            bench.peer.stream.write_all(&wire[at..]).unwrap();
            wait_for(bench.leg.stream(), PollFlags::IN);
            // More has arrived, but the read ends with the record.
            while partial(&bench) > 0 {
                match bench.recv() {
                    Ok((part, more)) => {
                        assert!(more, "at {at}: an end that no event reports");
                        got.extend(part);
                    }
                    Err(Errno::AGAIN) => wait_for(bench.leg.stream(), PollFlags::IN),
                    Err(e) => panic!("{e}"),
                }
            }
            assert_eq!(got.len(), (at / len + 1) * 1000, "at {at}");
        } else {
            bench.peer.stream.write_all(&wire[at..]).unwrap();
        }
        if engines().contains(&Engine::Kernel) {
            assert!(bench.leg.prepare_splice().unwrap(), "at {at}");
        }
        while got.len() < 3000 {
            wait_for(bench.leg.stream(), PollFlags::IN);
            got.extend(bench.recv_what_is_there());
        }
        assert!(got == [&text[..], &text[..], &text[..]].concat(), "at {at}");
    }
}

#[test]
fn a_leg_with_sealed_bytes_that_wait_keeps_its_keys_until_they_are_sent() {
    let mut bench = Bench::with_buffers(Some(TINY)).begun();
    let bytes = stream(1 << 20, 10);
    let sent = bench.send_what_fits(&bytes);
    assert!(bench.leg.held() > 0);
    bench.leg.prepare_splice().unwrap();
    assert!(matches!(bench.leg.tls, Tls::Process(_)));
    let mut got = Vec::new();
    while bench.leg.flush() == Err(Errno::AGAIN) {
        got.extend(bench.peer.read_some().unwrap());
    }
    if engines().contains(&Engine::Kernel) {
        // Also while TCP has not sent them all.
        assert!(bench.leg.prepare_splice().unwrap());
        assert_eq!(bench.leg.held(), 0);
    }
    let tail = bench.send_what_fits(b"the tail");
    got.extend(bench.peer.read_exact(sent + tail - got.len()).unwrap());
    assert!(got == [&bytes[..sent], &b"the tail"[..tail]].concat());
}

/// Returns a bench whose leg's TLS is in the kernel; `None` if this one has none.
fn in_kernel(buffers: Option<usize>) -> Option<Bench> {
    let has_kernel_tls = engines().contains(&Engine::Kernel);
    has_kernel_tls.then(|| Bench::with_buffers(buffers).move_to(Engine::Kernel))
}

#[test]
fn what_the_kernel_holds_of_records_is_counted_until_tcp_has_it() {
    let Some(mut bench) = in_kernel(Some(TINY)) else {
        return;
    };
    let pipe = Pipe::new(1 << 20).unwrap();
    let (near, mut far) = pair_of_pipe_ends();
    let bytes = stream(256 << 10, 11);
    // By send and by splice in turn, until nothing fits.
    let (mut sent, mut in_pipe) = (0, 0);
    loop {
        let result = match sent / (8 << 10) % 2 {
            0 if in_pipe == 0 => bench.send(&bytes[sent..sent + (8 << 10)]),
            _ => {
                if in_pipe == 0 {
                    far.write_all(&bytes[sent..sent + (8 << 10)]).unwrap();
                    wait_for(&near, PollFlags::IN);
                    in_pipe = pipe.fill(&near, 8 << 10).unwrap();
                }
                bench.leg.drain(&pipe, in_pipe)
            }
        };
        match result {
            Ok(n) => {
                sent += n;
                in_pipe = in_pipe.saturating_sub(n);
            }
            Err(Errno::AGAIN) => break,
            Err(e) => panic!("{e}"),
        }
    }
    let all = |bench: &Bench| bench.leg.unacknowledged();
    assert!(all(&bench) > 0 && bench.leg.unsent() > 0);
    // What the peer has read and what is unacknowledged is all of it: nothing is missing from the account.
    let mut got = Vec::new();
    while got.len() < sent {
        got.extend(bench.peer.read_some().unwrap());
        assert!(
            got.len() + all(&bench) + TINY * 4 >= sent,
            "{} of {sent}",
            got.len()
        );
    }
    assert!(got == bytes[..sent], "the stream has changed");
    while all(&bench) > 0 {
        std::thread::yield_now();
    }
    assert_eq!(bench.leg.held(), 0);
    bench.leg.shutdown_write().unwrap();
    bench.leg.end_gracefully();
    while bench.leg.unsent() > 0 {
        std::thread::yield_now();
    }
    drop(bench.leg);
    assert_eq!(bench.peer.read_to_end().unwrap(), b"");
}

/// Returns a connection to fill pipes from.
fn pair_of_pipe_ends() -> (Stream, TcpStream) {
    let keepalive = Keepalive {
        idle: Duration::from_secs(60),
        interval: Duration::from_secs(15),
        probes: 4,
    };
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let near = Stream::connect(addr, &LegOptions::new(keepalive)).unwrap();
    (near, listener.accept().unwrap().0)
}

#[test]
fn an_end_in_the_kernel_is_a_close_notify_without_a_fin() {
    let Some(mut bench) = in_kernel(None) else {
        return;
    };
    bench.send(b"last").unwrap();
    bench.leg.shutdown_write().unwrap();
    bench.leg.shutdown_write().unwrap();
    assert_eq!(bench.peer.read_to_end().unwrap(), b"last");
    // The other direction goes on.
    bench.peer.send(b"reply");
    bench.peer.end();
    assert_eq!(bench.recv_to_the_end(), (b"reply".to_vec(), Ok(())));
    let kind = ControlRecord::CloseNotify.index();
    assert_eq!(bench.metrics.kernel_tls_records[kind].get(), 1);
    bench.leg.end_gracefully();
    drop(bench.leg);
    assert_eq!(bench.peer.stream.read(&mut [0]).unwrap(), 0);
}

#[test]
fn splice_from_the_kernel_stops_at_the_end_of_the_stream_and_of_the_connection() {
    for in_order in [true, false] {
        let Some(mut bench) = in_kernel(None) else {
            return;
        };
        let pipe = Pipe::new(1 << 20).unwrap();
        bench.peer.send(b"spliced");
        match in_order {
            true => bench.peer.end(),
            false => bench.peer.cut(),
        }
        wait_for(bench.leg.stream(), PollFlags::IN);
        assert_eq!(bench.leg.fill(&pipe, 1 << 20), Ok(7));
        let end = loop {
            match bench.leg.fill(&pipe, 1 << 20) {
                Err(Errno::AGAIN) => wait_for(bench.leg.stream(), PollFlags::IN | PollFlags::RDHUP),
                other => break other,
            }
        };
        assert_eq!(end, Ok(0), "in order: {in_order}");
        assert_eq!(bench.leg.peek(), Ok(Some(true)));
        let expected = match in_order {
            true => Ok((Vec::new(), false)),
            false => Err(Errno::CONNRESET),
        };
        assert_eq!(bench.recv(), expected);
        assert_eq!(bench.metrics.kernel_tls_received.get(), 7);
    }
}

#[test]
fn records_that_the_kernel_cannot_follow_end_the_leg_and_are_counted() {
    // The two kinds of a KeyUpdate, an alert, a handshake message that TLS 1.3 has only elsewhere.
    let cases = [
        (22, &[24, 0, 0, 1, 0][..], ControlRecord::KeyUpdate),
        (22, &[24, 0, 0, 1, 1], ControlRecord::KeyUpdate),
        (22, &[11, 0, 0, 0], ControlRecord::Other),
        (21, &[2, 20], ControlRecord::Alert),
        (21, &[1], ControlRecord::Alert),
        (20, &[1], ControlRecord::Other),
    ];
    for (kind, content, expected) in cases {
        let Some(mut bench) = in_kernel(None) else {
            return;
        };
        bench.peer.send(b"before");
        // The kernel sends what the TLS library would not.
        let far = bench.peer.stream.try_clone().unwrap();
        let peer = std::mem::replace(&mut bench.peer, Bench::new().peer);
        let keys = peer.into_channel().into_keys().unwrap();
        kernel_tls::attach(&far).unwrap();
        let key = kernel_tls::Key {
            key: &keys.sending.key,
            iv: &keys.sending.iv,
            sequence: keys.sending.sequence,
        };
        kernel_tls::set_sending_key(&far, &key).unwrap();
        kernel_tls::send_record(&far, kind, content).unwrap();
        let (got, end) = bench.recv_to_the_end();
        assert_eq!((&got[..], end), (&b"before"[..], Err(Errno::PROTO)));
        assert_eq!(bench.metrics.kernel_tls_records[expected.index()].get(), 1);
        // Nothing is sent any more that could look like an end.
        assert_eq!(bench.leg.shutdown_write(), Err(Errno::PROTO));
        assert_eq!(bench.recv(), Err(Errno::PROTO));
    }
}

#[test]
fn a_leg_whose_hello_crosses_a_drain_keeps_its_keys_in_this_process() {
    let mut bench = Bench::new();
    bench.send(b"the hello and more").unwrap();
    let update = bench.peer.update_key();
    bench.peer.stream.write_all(&update).unwrap();
    wait_for(bench.leg.stream(), PollFlags::IN);
    // It has arrived, and has not been read.
    bench.leg.prepare_splice().unwrap();
    assert!(matches!(bench.leg.tls, Tls::Process(_)));
    let mut bench = bench.begun();
    // The next bytes that it sends say that it has changed its own key, too; the kernel could not.
    assert!(!bench.leg.prepare_splice().unwrap());
    bench.send(b"more").unwrap();
    assert_eq!(
        bench.peer.read_exact(22).unwrap(),
        b"the hello and moremore"
    );
    bench.peer.send(b"reply");
    bench.peer.end();
    assert_eq!(bench.recv_to_the_end(), (b"reply".to_vec(), Ok(())));
}
