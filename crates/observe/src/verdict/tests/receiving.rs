//! Tests of verdicts at the receiving end.

use super::*;

/// Samples of a receiver over five seconds, at 1 MB/s.
fn receiver(set: impl Fn(u64, &mut Sample)) -> Vec<Sample> {
    let looks = (0..LOOKS).map(|scan| {
        let mut sample = sample(scan * 500, |info| {
            info.bytes_acked = Some(1);
            info.bytes_received = Some(scan * 500_000);
            info.busy_time = Some(Duration::ZERO);
            info.window_scales = Some((7, 7));
        });
        sample.connection.memory = Some(taut_sys::sock_diag::Memory {
            rmem_alloc: 0,
            rcvbuf: 131_072,
            wmem_alloc: 0,
            sndbuf: 0,
            fwd_alloc: 0,
            wmem_queued: 0,
            drops: 0,
        });
        set(scan, &mut sample);
        sample
    });
    looks.collect()
}

#[test]
fn a_receiver_knows_its_own_application_and_buffer() {
    let slow = found(&receiver(|_, sample| {
        sample.connection.recv_queue = 60_000;
        if let Some(memory) = &mut sample.connection.memory {
            memory.rmem_alloc = 120_000;
        }
    }));
    assert_eq!(
        (slow.factor, slow.confidence),
        (Factor::ReceiverApplication, Confidence::Sure)
    );
    let narrow = |rmem_max| {
        let samples = receiver(|_, sample| {
            if let Some(info) = &mut sample.connection.info {
                info.rcv_rtt = Some(Duration::from_millis(100));
                info.rcv_wnd = Some(100_000);
            }
        });
        let context = Context {
            settings: TcpSettings {
                rmem_max,
                ..TcpSettings::default()
            },
            ..Context::default()
        };
        verdict(&Window::of(&samples).unwrap(), &context)
    };
    let locked = narrow(Some(6 << 20));
    assert_eq!(
        (locked.factor, locked.confidence),
        (Factor::ReceiveBuffer, Confidence::Sure)
    );
    assert!(locked.remedy().unwrap().contains("SO_RCVBUF"));
    assert!(narrow(Some(131_072)).remedy().unwrap().contains("tcp_rmem"));
    let known = |rcvbuf_locked| {
        let samples = receiver(|_, sample| {
            if let Some(info) = &mut sample.connection.info {
                info.rcv_rtt = Some(Duration::from_millis(100));
                info.rcv_wnd = Some(100_000);
            }
            sample.connection.internals = Some(taut_sys::sock_diag::Internals {
                rcvbuf_locked,
                ..Default::default()
            });
        });
        found(&samples).remedy().unwrap()
    };
    assert!(known(true).contains("the application should not set SO_RCVBUF"));
    assert!(known(false).starts_with("the kernel sizes it"));
}

#[test]
fn a_remedy_for_the_window_knows_the_settings_of_the_namespace() {
    let remedy = |is_locked, has_scaling: bool, settings| {
        let samples = receiver(|_, sample| {
            if let Some(info) = &mut sample.connection.info {
                info.rcv_rtt = Some(Duration::from_millis(100));
                info.rcv_wnd = Some(100_000);
                info.window_scales = has_scaling.then_some((7, 7));
            }
            sample.connection.internals = Some(taut_sys::sock_diag::Internals {
                rcvbuf_locked: is_locked,
                ..Default::default()
            });
        });
        let context = Context {
            settings,
            ..Context::default()
        };
        let found = verdict(&Window::of(&samples).unwrap(), &context);
        found.remedy().unwrap().into_owned()
    };
    let off = TcpSettings {
        rmem_max: Some(32 << 20),
        tunes_receive_buffers: Some(false),
        ..TcpSettings::default()
    };
    let starts = "set net.ipv4.tcp_moderate_rcvbuf=1";
    assert!(remedy(false, true, off).starts_with(starts));
    let fixed = remedy(true, true, off);
    assert!(fixed.contains("tcp_moderate_rcvbuf is 0"), "{fixed}");
    let at_most = TcpSettings {
        rmem_max: Some(131_072),
        ..off
    };
    let both = remedy(false, true, at_most);
    assert!(
        both.starts_with(starts) && both.contains("third value of net.ipv4.tcp_rmem"),
        "{both}"
    );

    let scaling = |scales_windows| TcpSettings {
        scales_windows,
        ..TcpSettings::default()
    };
    let here = remedy(false, false, scaling(Some(false)));
    assert!(
        here.starts_with("set net.ipv4.tcp_window_scaling=1"),
        "{here}"
    );
    let there = remedy(false, false, scaling(Some(true)));
    assert!(there.starts_with("the peer, or a firewall"), "{there}");
    assert!(remedy(false, false, scaling(None)).starts_with("enable window scaling"));
}

#[test]
fn the_window_scale_limits_what_the_kernel_would_like_to_offer() {
    let found = found(&receiver(|_, sample| {
        if let Some(info) = &mut sample.connection.info {
            info.rcv_rtt = Some(Duration::from_millis(100));
            (info.rcv_wnd, info.window_scales) = (Some(480_000), Some((7, 1)));
        }
    }));
    assert_eq!(found.factor, Factor::ReceiveBuffer);
    let remedy = found.remedy().unwrap();
    assert!(remedy.starts_with("only a new connection"), "{remedy}");
}

#[test]
fn unread_data_is_not_idle() {
    let found = found(&receiver(|_, sample| {
        sample.connection.recv_queue = 60_000;
        if let (Some(info), Some(memory)) =
            (&mut sample.connection.info, &mut sample.connection.memory)
        {
            info.bytes_received = Some(60_000);
            memory.rmem_alloc = 120_000;
        }
    }));
    assert_eq!(found.factor, Factor::ReceiverApplication);
}

#[test]
fn the_peers_fin_is_not_unread_data() {
    let found = found(&receiver(|_, sample| {
        sample.connection.state = State::CloseWait;
        sample.connection.recv_queue = 1;
        if let Some(info) = &mut sample.connection.info {
            info.bytes_received = Some(60_000);
        }
    }));
    assert_eq!(found.factor, Factor::Idle);
}

#[test]
fn a_little_unread_data_is_the_applications() {
    let found = found(&receiver(|_, sample| {
        sample.connection.recv_queue = 500;
        if let Some(info) = &mut sample.connection.info {
            info.bytes_received = Some(60_000);
        }
    }));
    assert_eq!(
        (found.factor, found.confidence),
        (Factor::ReceiverApplication, Confidence::Sure)
    );
}

#[test]
fn out_of_order_data_is_not_unread() {
    let found = found(&receiver(|_, sample| {
        if let (Some(info), Some(memory)) =
            (&mut sample.connection.info, &mut sample.connection.memory)
        {
            info.rcv_wnd = Some(60_000);
            memory.rmem_alloc = 120_000;
        }
    }));
    assert_eq!(found.factor, Factor::Peer);
}

#[test]
fn a_late_reader_is_recognised_before_its_buffer_is_full() {
    let late = |queue: u32| {
        found(&receiver(|_, sample| {
            sample.connection.recv_queue = queue;
        }))
    };
    let slow = late(30_000);
    assert_eq!(
        (slow.factor, slow.confidence),
        (Factor::ReceiverApplication, Confidence::Likely)
    );
    assert!(slow.evidence()[0].text.contains("30.0 ms"), "{slow:?}");
    assert_eq!(late(5000).factor, Factor::Peer);
}

#[test]
fn a_receiver_refers_to_its_peer_when_it_finds_no_cause() {
    let found = found(&receiver(|_, _| {}));
    assert_eq!(found.factor, Factor::Peer);
}

#[test]
fn a_buffer_that_fills_again_and_again_belongs_to_a_slow_reader() {
    let full_in = |is_full: fn(u64) -> bool| {
        let found = found(&receiver(|scan, sample| {
            if is_full(scan)
                && let Some(memory) = &mut sample.connection.memory
            {
                memory.rmem_alloc = 120_000;
                sample.connection.recv_queue = 60_000;
            }
        }));
        (found.factor, found.confidence)
    };
    let again = full_in(|scan| scan % 3 == 1);
    assert_eq!(again, (Factor::ReceiverApplication, Confidence::Likely));
    // A single pause of the reader.
    assert_eq!(full_in(|scan| (3..7).contains(&scan)).0, Factor::Peer);
}
