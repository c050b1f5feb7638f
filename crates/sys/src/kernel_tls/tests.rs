//! With a kernel without TLS they print that and check nothing, unless TAUT_REQUIRE_KERNEL_TLS is set.

use std::net::Shutdown;

use super::*;
use crate::pipe::Pipe;
use crate::socket::{Keepalive, LegOptions, Stream};

const KEY: Key<'_> = Key {
    key: &[7; 32],
    iv: &[8; 12],
    sequence: 0,
};

/// Returns two ends of a connection, the first non-blocking.
fn pair() -> (Stream, TcpStream) {
    let keepalive = Keepalive {
        idle: Duration::from_secs(60),
        interval: Duration::from_secs(15),
        probes: 4,
    };
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let near = Stream::connect(addr, &LegOptions::new(keepalive)).unwrap();
    let (far, _) = listener.accept().unwrap();
    far.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    (near, far)
}

fn protected_pair() -> Option<(Stream, TcpStream)> {
    if let Err(error) = probe() {
        assert!(
            std::env::var_os("TAUT_REQUIRE_KERNEL_TLS").is_none(),
            "no TLS in this kernel: {error}"
        );
        taut_sys_testing::skip::skip(&format!("no TLS in this kernel: {error}"));
        return None;
    }
    let (near, far) = pair();
    for end in [near.as_fd(), far.as_fd()] {
        attach(end).unwrap();
        set_sending_key(end, &KEY).unwrap();
        set_receiving_key(end, &KEY).unwrap();
    }
    Some((near, far))
}

/// Waits until a blocking read would find something.
fn wait(stream: &Stream) {
    let mut fds = [rustix::event::PollFd::new(
        stream,
        rustix::event::PollFlags::IN,
    )];
    assert_eq!(rustix::event::poll(&mut fds, None).unwrap(), 1);
}

#[test]
fn a_kernel_without_tls_says_enoent() {
    let error = probe().err().map(|e| e.raw_os_error());
    let missing = Some(libc::ENOENT);
    assert!(error.is_none() || error == Some(missing), "{error:?}");
}

#[test]
fn bytes_alerts_and_the_fin_are_told_apart() {
    let Some((near, mut far)) = protected_pair() else {
        return;
    };
    let mut buf = [0; 64];
    assert_eq!(recv(&near, &mut buf), Err(Errno::AGAIN));
    far.write_all(b"one").unwrap();
    far.write_all(b"two").unwrap();
    send_alert(&far, [1, 0]).unwrap();
    far.shutdown(Shutdown::Write).unwrap();
    let mut got = Vec::new();
    let end = loop {
        wait(&near);
        match recv(&near, &mut buf).unwrap() {
            Received::Data(n) => got.extend_from_slice(&buf[..n]),
            other => break other,
        }
    };
    assert_eq!((got.as_slice(), end), (&b"onetwo"[..], Received::Alert(2)));
    assert_eq!(buf[..2], [1, 0]);
    assert_eq!(recv(&near, &mut buf), Ok(Received::Fin));
}

#[test]
fn splice_moves_plaintext_and_stops_at_an_alert() {
    let Some((near, mut far)) = protected_pair() else {
        return;
    };
    let pipe = Pipe::new(1 << 20).unwrap();
    far.write_all(b"spliced").unwrap();
    wait(&near);
    assert_eq!(pipe.fill(&near, 1 << 20), Ok(7));
    assert_eq!(pipe.drain(&near, 7), Ok(7));
    let mut back = [0; 7];
    far.read_exact(&mut back).unwrap();
    assert_eq!(&back, b"spliced");
    send_alert(&far, [1, 0]).unwrap();
    wait(&near);
    assert_eq!(pipe.fill(&near, 1 << 20), Err(Errno::INVAL));
    let mut buf = [0; 64];
    assert_eq!(recv(&near, &mut buf), Ok(Received::Alert(2)));
}

#[test]
fn what_tcp_has_been_given_is_the_records_with_their_overhead() {
    let Some((near, mut far)) = protected_pair() else {
        return;
    };
    let (before, first) = (written(&near).unwrap(), records_made(&near).unwrap());
    near.send(&[1; 40_000]).unwrap();
    send_alert(&near, [1, 0]).unwrap();
    let records = records_made(&near).unwrap() - first;
    assert_eq!(records, 4);
    far.read_exact(&mut [0; 40_000]).unwrap();
    // An acknowledgement may be on its way.
    let expected = 40_002 + records * RECORD_OVERHEAD;
    while written(&near).unwrap() - before < expected {
        std::thread::yield_now();
    }
    assert_eq!(written(&near).unwrap() - before, expected);
}

#[test]
fn bytes_that_are_no_record_are_an_error() {
    if protected_pair().is_none() {
        return;
    }
    let (near, mut far) = pair();
    attach(&near).unwrap();
    set_receiving_key(&near, &KEY).unwrap();
    far.write_all(&[23, 3, 3, 0, 40]).unwrap();
    far.write_all(&[0; 40]).unwrap();
    wait(&near);
    let error = recv(&near, &mut [0; 64]).unwrap_err();
    assert_eq!(error, Errno::BADMSG);
}
