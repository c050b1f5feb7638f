use std::net::Ipv4Addr;
use std::os::fd::AsFd;

use super::*;

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
        taut_sys_testing::skip::skip("a window probe needs CAP_NET_ADMIN");
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

#[test]
fn an_accepted_stream_has_the_options_of_its_listener() {
    let options = LegOptions {
        user_timeout: Some(Duration::from_secs(7)),
        ..plain()
    };
    let (near, far) = pair(&options);
    for stream in [&near, &far] {
        assert!(sockopt::tcp_nodelay(stream).unwrap());
        assert!(sockopt::socket_oobinline(stream).unwrap());
        assert!(sockopt::socket_keepalive(stream).unwrap());
        assert_eq!(
            sockopt::tcp_keepidle(stream).unwrap(),
            options.keepalive.idle
        );
        assert_eq!(
            sockopt::tcp_keepintvl(stream).unwrap(),
            options.keepalive.interval
        );
        assert_eq!(
            sockopt::tcp_keepcnt(stream).unwrap(),
            options.keepalive.probes
        );
        assert_eq!(sockopt::tcp_user_timeout(stream).unwrap(), 7000);
        assert_eq!(
            sockopt::socket_linger(stream).unwrap(),
            Some(Duration::ZERO)
        );
    }
}

#[test]
fn a_sparing_connection_gets_the_other_options_when_they_matter() {
    let listener = Listener::bind((Ipv4Addr::LOCALHOST, 0).into(), 1, &plain()).unwrap();
    let stream = Stream::connect_sparingly(listener.local_addr().unwrap(), &plain()).unwrap();
    assert!(sockopt::socket_oobinline(&stream).unwrap());
    assert_eq!(
        sockopt::socket_linger(&stream).unwrap(),
        Some(Duration::ZERO)
    );
    assert!(!sockopt::socket_keepalive(&stream).unwrap());
    rustix::event::poll(&mut [PollFd::new(&stream, PollFlags::OUT)], None).unwrap();
    // The first write is never held back.
    stream.send(b"first").unwrap();
    assert!(!sockopt::tcp_nodelay(&stream).unwrap());
    stream.send(b"second").unwrap();
    assert!(sockopt::tcp_nodelay(&stream).unwrap());
    stream.keep_alive(&plain().keepalive);
    assert!(sockopt::socket_keepalive(&stream).unwrap());
    assert_eq!(
        sockopt::tcp_keepidle(&stream).unwrap(),
        plain().keepalive.idle
    );
}

#[test]
fn splice_sets_nodelay_at_the_second_write_too() {
    let listener = Listener::bind((Ipv4Addr::LOCALHOST, 0).into(), 1, &plain()).unwrap();
    let stream = Stream::connect_sparingly(listener.local_addr().unwrap(), &plain()).unwrap();
    rustix::event::poll(&mut [PollFd::new(&stream, PollFlags::OUT)], None).unwrap();
    let (far, _) = listener.accept().unwrap();
    far.send(b"bytes").unwrap();
    rustix::event::poll(&mut [PollFd::new(&stream, PollFlags::IN)], None).unwrap();
    stream.send(b"first").unwrap();
    let pipe = crate::pipe::Pipe::new(4096).unwrap();
    assert_eq!(pipe.fill(&stream, 4096), Ok(5));
    assert!(!sockopt::tcp_nodelay(&stream).unwrap());
    assert_eq!(pipe.drain(&stream, 5), Ok(5));
    assert!(sockopt::tcp_nodelay(&stream).unwrap());
}

#[test]
fn a_connection_to_itself_is_recognised() {
    let port = (32_768..=60_999).find_map(|port| {
        let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        // Without a listener, the kernel refuses the connection unless it meets itself.
        let fd = tcp_socket(addr).ok()?;
        rustix::net::bind(&fd, &addr).ok()?;
        Stream::start(fd, addr, Set::Necessary).ok()
    });
    let stream = port.unwrap();
    rustix::event::poll(&mut [PollFd::new(&stream, PollFlags::OUT)], None).unwrap();
    assert_eq!(stream.take_error(), Ok(()));
    assert!(stream.is_its_own_peer());
    let (near, far) = pair(&plain());
    assert!(!near.is_its_own_peer() && !far.is_its_own_peer());
}

#[test]
fn a_kernel_that_begins_with_half_of_a_window_gets_twice_the_buffer() {
    assert_eq!(halves(200_000, 100_000), 2);
    // As on loopback: whole segments, and one of them reserved.
    assert_eq!(halves(200_000, 65_483), 2);
    assert_eq!(halves(200_000, 196_449), 1);
    assert_eq!(halves(200_000, 134_517), 1);
    assert_eq!(halves(200_000, 0), 2);
}

#[test]
fn a_connection_begins_with_the_window_that_was_asked_for() {
    // Large beside a segment of loopback, of which the kernel reserves one.
    let window = 4_000_000;
    let options = LegOptions {
        receive_buffer: Some(receive_buffer_for(window)),
        ..plain()
    };
    let (near, _far) = pair(&options);
    if sockopt::socket_recv_buffer_size(&near).unwrap() / 2 < window {
        taut_sys_testing::skip::skip("without CAP_NET_ADMIN net.core.rmem_max limits the buffer");
        return;
    }
    let first = usize::try_from(near.info().unwrap().rcv_ssthresh).unwrap();
    assert!(first >= window / 8 * 7, "{first}");
    assert!(first <= window / 8 * 9, "{first}");
}

#[test]
fn whether_a_closed_window_opens_again_is_found_out() {
    assert!(opens_again().is_ok());
    assert_eq!(can_limit_windows(), opens_again().unwrap());
}
