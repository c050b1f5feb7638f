use std::net::Ipv4Addr;
use std::os::fd::AsFd;

use rustix::event::{PollFd, PollFlags};

use super::*;
use crate::socket::{Listener, Stream};

fn plain() -> LegOptions {
    LegOptions::new(Keepalive {
        idle: Duration::from_secs(60),
        interval: Duration::from_secs(15),
        probes: 4,
    })
}

fn pair(options: &LegOptions) -> (Stream, Stream) {
    let listener = Listener::bind((Ipv4Addr::LOCALHOST, 0).into(), 1, options).unwrap();
    let near = Stream::connect(listener.local_addr().unwrap(), options).unwrap();
    let mut ready = [PollFd::new(&listener, PollFlags::IN)];
    rustix::event::poll(&mut ready, None).unwrap();
    let (far, _) = listener.accept().unwrap();
    (near, far)
}

#[test]
fn both_ends_have_the_buffers_they_were_given() {
    // Small enough that every machine grants the sizes, with or without privilege.
    let options = LegOptions {
        send_buffer: Some(50_000),
        receive_buffer: Some(60_000),
        ..plain()
    };
    let (near, far) = pair(&options);
    for stream in [&near, &far] {
        // The kernel doubles the value for its overhead.
        assert_eq!(sockopt::socket_send_buffer_size(stream).unwrap(), 100_000);
        assert_eq!(sockopt::socket_recv_buffer_size(stream).unwrap(), 120_000);
    }
}

#[test]
fn both_ends_have_the_pacing_ceiling() {
    let options = LegOptions {
        pacing_ceiling: Some(1_234_567),
        ..plain()
    };
    let (near, far) = pair(&options);
    for stream in [&near, &far] {
        assert!(stream.info().unwrap().pacing_rate <= Some(1_234_567));
    }
    let (near, _far) = pair(&plain());
    assert!(near.info().unwrap().pacing_rate > Some(1_234_567));
}

#[test]
fn only_a_missing_permission_makes_a_buffer_unforced() {
    let refuse = || -> Result<(), Errno> { Err(Errno::NOBUFS) };
    assert_eq!(or_unforced(Ok(()), refuse), Ok(()));
    assert_eq!(or_unforced(Err(Errno::PERM), refuse), Err(Errno::NOBUFS));
    assert_eq!(or_unforced(Err(Errno::BADF), refuse), Err(Errno::BADF));
}

#[test]
fn a_window_probe_leaves_the_stream_unchanged() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("not tested: a window probe needs CAP_NET_ADMIN");
        return;
    }
    let (near, far) = pair(&plain());
    for (stream, other) in [(&near, &far), (&far, &near)] {
        sockopt::set_socket_reuseaddr(stream, true).unwrap();
        stream.probe_peer_window().unwrap();
        assert!(sockopt::socket_reuseaddr(stream).unwrap());
        stream.send(b"word").unwrap();
        let fd = other.as_fd();
        rustix::event::poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], None).unwrap();
        let mut word = [0; 4];
        assert_eq!(other.recv(&mut word), Ok(4));
        assert_eq!(&word, b"word");
    }
}
