//! Half-close: which end finishes first, with data in flight or not, with a slow reader or not;
//! which end resets, and when; and failed connects. Over real sockets, for every way of moving
//! bytes.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::Duration;

use crate::mesh_rig::*;
use crate::rig::*;
use taut_relay::outcome::session_end::End;

const MIB: usize = 1 << 20;

#[test]
fn a_fin_from_the_client_still_lets_the_reply_through() {
    for path in paths() {
        let rig = Rig::new(path);
        let (mut client, mut server) = rig.pair();
        client.write_all(b"request").unwrap();
        end_writing(&client);
        assert_eq!(read_to_fin(&mut server), b"request");
        let reply = stream(3 * MIB, 1);
        thread::scope(|s| {
            s.spawn(|| {
                server.write_all(&reply).unwrap();
                end_writing(&server);
            });
            assert_same(&read_to_fin(&mut client), &reply);
        });
        rig.expect_end(End::Complete);
    }
}

#[test]
fn a_fin_from_the_server_still_lets_the_upload_through() {
    for path in paths() {
        let rig = Rig::new(path);
        let (mut client, mut server) = rig.pair();
        server.write_all(b"go ahead").unwrap();
        end_writing(&server);
        assert_eq!(read_to_fin(&mut client), b"go ahead");
        let upload = stream(3 * MIB, 2);
        thread::scope(|s| {
            s.spawn(|| {
                client.write_all(&upload).unwrap();
                end_writing(&client);
            });
            assert_same(&read_to_fin(&mut server), &upload);
        });
        rig.expect_end(End::Complete);
    }
}

#[test]
fn ends_without_a_byte_are_forwarded() {
    for path in paths() {
        for client_first in [true, false] {
            let rig = Rig::new(path);
            let (mut client, mut server) = rig.pair();
            let (first, second) = if client_first {
                (&mut client, &mut server)
            } else {
                (&mut server, &mut client)
            };
            end_writing(first);
            assert_eq!(read_to_fin(second), b"");
            end_writing(second);
            assert_eq!(read_to_fin(first), b"");
            rig.expect_end(End::Complete);
        }
    }
}

#[test]
fn both_may_end_with_data_on_the_way_in_both_directions() {
    for path in paths() {
        let rig = Rig::new(path);
        let (client, server) = rig.pair();
        let (up, down) = (stream(4 * MIB, 3), stream(4 * MIB, 4));
        thread::scope(|s| {
            s.spawn(|| {
                (&client).write_all(&up).unwrap();
                end_writing(&client);
            });
            s.spawn(|| {
                (&server).write_all(&down).unwrap();
                end_writing(&server);
            });
            s.spawn(|| assert_same(&read_to_fin(&mut client.try_clone().unwrap()), &down));
            assert_same(&read_to_fin(&mut server.try_clone().unwrap()), &up);
        });
        rig.expect_end(End::Complete);
    }
}

#[test]
fn a_fin_never_overtakes_bytes_that_a_slow_reader_has_not_taken() {
    for path in paths() {
        for from_client in [true, false] {
            let rig = Rig::new(path);
            let (client, server) = rig.tight_pair();
            let (mut writer, mut reader) = if from_client {
                (client, server)
            } else {
                (server, client)
            };
            // The reader takes nothing until every buffer on the path is full.
            let bytes = stream(FLOOD, 5);
            let sent = fill(&mut writer, &bytes);
            assert!(sent < bytes.len(), "the writer was never held back");
            thread::scope(|s| {
                s.spawn(|| {
                    writer.write_all(&bytes[sent..]).unwrap();
                    end_writing(&writer);
                });
                assert_same(&read_to_fin(&mut reader), &bytes);
            });
            end_writing(&reader);
            assert_eq!(read_to_fin(&mut writer), b"");
            rig.expect_end(End::Complete);
        }
    }
}

#[test]
fn a_tail_is_delivered_to_a_slow_reader_after_both_have_ended() {
    for path in paths() {
        let rig = Rig::new(path);
        let (mut client, mut server) = rig.tight_pair();
        end_writing(&client);
        assert_eq!(read_to_fin(&mut server), b"");
        // More than the client's window, so that the relay keeps unsent bytes.
        let reply = stream(MIB, 6);
        thread::scope(|s| {
            s.spawn(|| {
                server.write_all(&reply).unwrap();
                drop(server);
            });
            assert_same(&read_to_fin(&mut client), &reply);
        });
        rig.expect_end(End::Complete);
    }
}

#[test]
fn a_reset_from_either_end_reaches_the_other_as_a_reset() {
    for path in paths() {
        for from_client in [true, false] {
            let rig = Rig::new(path);
            let (mut client, mut server) = rig.pair();
            client.write_all(b"ping").unwrap();
            server.read_exact(&mut [0; 4]).unwrap();
            let (breaker, mut other, end) = if from_client {
                (client, server, End::ClientReset)
            } else {
                (server, client, End::UpstreamReset)
            };
            reset(breaker);
            assert_eq!(read_to_rst(&mut other), b"");
            rig.expect_end(end);
        }
    }
}

#[test]
fn bytes_ahead_of_a_reset_are_delivered_and_then_the_reset() {
    for path in paths() {
        for from_client in [true, false] {
            let rig = Rig::new(path);
            let (client, server) = rig.pair();
            let (mut breaker, mut other, end) = if from_client {
                (client, server, End::ClientReset)
            } else {
                (server, client, End::UpstreamReset)
            };
            let bytes = stream(200 << 10, 7);
            breaker.write_all(&bytes).unwrap();
            // The breaker's own reset would discard the bytes that its kernel still has.
            wait_for_acks(&breaker);
            reset(breaker);
            assert_same(&read_to_rst(&mut other), &bytes);
            rig.expect_end(end);
        }
    }
}

#[test]
fn a_reset_with_a_slow_reader_never_looks_like_an_end() {
    for path in paths() {
        for from_client in [true, false] {
            let rig = Rig::new(path);
            let (client, server) = rig.tight_pair();
            let (mut breaker, mut other, end) = if from_client {
                (client, server, End::ClientReset)
            } else {
                (server, client, End::UpstreamReset)
            };
            let bytes = stream(FLOOD, 8);
            let sent = fill(&mut breaker, &bytes);
            reset(breaker);
            let got = read_to_rst(&mut other);
            assert!(got.len() <= sent);
            assert_same(&got, &bytes[..got.len()]);
            rig.expect_end(end);
        }
    }
}

#[test]
fn a_reset_after_a_complete_stream_loses_nothing_of_it() {
    for path in paths() {
        let rig = Rig::new(path);
        let (mut client, mut server) = rig.tight_pair();
        let reply = stream(300 << 10, 9);
        server.write_all(&reply).unwrap();
        end_writing(&server);
        wait_for_acks(&server);
        reset(server);
        // FIN and RST have been sent in succession; the client has read nothing yet.
        let mut got = vec![0; reply.len()];
        client.read_exact(&mut got).unwrap();
        assert_same(&got, &reply);
        rig.expect_end(End::UpstreamReset);
    }
}

#[test]
fn a_client_that_stops_reading_for_good_stops_the_server() {
    for path in paths() {
        let rig = Rig::new(path);
        let (client, mut server) = rig.pair();
        drop(client);
        // The client's kernel answers further bytes with RST.
        let bytes = stream(MIB, 10);
        wait_until("the reset", || server.write_all(&bytes).is_err());
        rig.expect_end(End::ClientReset);
    }
}

#[test]
fn urgent_data_stays_in_its_place_in_the_stream() {
    for path in paths() {
        let rig = Rig::new(path);
        let (mut client, mut server) = rig.pair();
        let (before, after) = (stream(300 << 10, 11), stream(300 << 10, 12));
        let expected = [&before[..], b"!", &after[..]].concat();
        thread::scope(|s| {
            s.spawn(|| {
                client.write_all(&before).unwrap();
                let oob = rustix::net::SendFlags::OOB;
                assert_eq!(rustix::net::send(&client, b"!", oob).unwrap(), 1);
                client.write_all(&after).unwrap();
                end_writing(&client);
            });
            assert_same(&read_to_fin(&mut server), &expected);
        });
        drop(server);
        rig.expect_end(End::Complete);
    }
}

#[test]
fn urgent_data_in_an_open_stream_delays_nothing() {
    for path in paths() {
        let rig = Rig::new(path);
        let (mut client, mut server) = rig.pair();
        let (before, after) = (stream(300 << 10, 14), stream(100_000, 15));
        let expected = [&before[..], b"!", &after[..]].concat();
        thread::scope(|s| {
            s.spawn(|| {
                client.write_all(&before).unwrap();
                let oob = rustix::net::SendFlags::OOB;
                assert_eq!(rustix::net::send(&client, b"!", oob).unwrap(), 1);
                client.write_all(&after).unwrap();
            });
            // No FIN follows that could wake the relay.
            let mut got = vec![0; expected.len()];
            server.read_exact(&mut got).unwrap();
            assert_same(&got, &expected);
        });
    }
}

#[test]
fn a_refused_connect_reaches_the_client_as_a_reset() {
    let node = start(refusing(), Path::Both, |_| {});
    expect_reset(node.listen_addrs()[0].0);
    wait_until("its end", || {
        node.metrics().ended(End::ConnectRefused) == 1 && node.metrics().sessions() == 0
    });
}

#[test]
fn a_connect_that_times_out_reaches_the_client_as_a_reset() {
    let dead_end = listen();
    let _queued = fill_queue(&dead_end);
    let rig = Rig::to(dead_end, Path::Both, |config| {
        config.timeouts.connect = Duration::from_millis(100);
    });
    let mut client = TcpStream::connect(rig.relay_addr()).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    assert_eq!(read_to_rst(&mut client), b"");
    rig.expect_end(End::ConnectTimedOut);
}

#[test]
fn a_client_that_resets_while_the_connect_is_on_its_way_ends_the_session() {
    let dead_end = listen();
    let _queued = fill_queue(&dead_end);
    let rig = Rig::to(dead_end, Path::Both, |_| {});
    let client = TcpStream::connect(rig.relay_addr()).unwrap();
    wait_until("the session", || rig.node.metrics().sessions() == 1);
    reset(client);
    rig.expect_end(End::ClientReset);
}

#[test]
fn a_stream_that_a_client_sends_and_ends_during_the_connect_arrives() {
    let dead_end = listen();
    let _queued = fill_queue(&dead_end);
    let rig = Rig::to(dead_end, Path::Both, |_| {});
    let mut client = TcpStream::connect(rig.relay_addr()).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    client.write_all(b"early").unwrap();
    end_writing(&client);
    wait_until("the session", || rig.node.metrics().sessions() == 1);
    // Room in the queue: the SYN's retransmission gets through.
    let _accepted = rig.server.accept().unwrap();
    let (mut server, _) = rig.server.accept().unwrap();
    assert_eq!(read_to_fin(&mut server), b"early");
    server.write_all(b"answer").unwrap();
    drop(server);
    assert_eq!(read_to_fin(&mut client), b"answer");
    rig.expect_end(End::Complete);
}

#[test]
fn a_half_closed_session_in_which_nothing_moves_is_reset() {
    let rig = Rig::with(Path::Both, |config| {
        config.timeouts.half_closed = Duration::from_millis(50);
    });
    let (mut client, _server) = rig.pair();
    end_writing(&client);
    assert_eq!(read_to_rst(&mut client), b"");
    rig.expect_end(End::HalfClosedTimeout);
}

#[test]
fn a_broken_session_whose_reader_never_reads_is_reset_in_the_end() {
    let rig = Rig::with(Path::Both, |config| {
        config.timeouts.flush = Duration::from_millis(50)
    });
    let (mut client, server) = rig.tight_pair();
    fill(&mut client, &stream(FLOOD, 13));
    reset(client);
    rig.expect_end(End::ClientReset);
    drop(server);
}

/// Returns the session of a relay that the test plays, and a server.
fn played_session(mesh: &Mesh) -> (Peer, TcpStream) {
    let mut peer = mesh.played();
    peer.ask(&hello(mesh.server.local_addr().unwrap()));
    let mut server = accept_at(&mesh.server);
    peer.send(b"ping");
    server.read_exact(&mut [0; 4]).unwrap();
    (peer, server)
}

#[test]
fn a_fin_without_close_notify_from_the_relay_before_reaches_the_server_as_a_reset() {
    let mesh = Mesh::without_pool();
    let (mut peer, mut server) = played_session(&mesh);
    let bytes = stream(200 << 10, 17);
    peer.send(&bytes);
    peer.cut();
    assert_same(&read_to_rst(&mut server), &bytes);
    wait_until("the end", || {
        mesh.far.metrics().ended(End::ClientReset) == 1
    });
}

#[test]
fn a_record_that_was_changed_reaches_the_server_as_a_reset_and_nothing_after_it() {
    let mesh = Mesh::without_pool();
    let (mut peer, mut server) = played_session(&mesh);
    let bytes = stream(16 << 10, 18);
    peer.send(&bytes);
    let mut record = peer.seal(b"changed");
    *record.last_mut().unwrap() ^= 1;
    // Behind it one that is sealed well, with the counter that follows; and an end in order. In one write,
    // because the relay resets the connection at the first of them.
    let rest = [record, peer.seal(b"more"), peer.close()].concat();
    peer.stream.write_all(&rest).unwrap();
    let got = read_to_rst(&mut server);
    assert_same(&got, &bytes[..got.len()]);
}

#[test]
fn an_end_in_order_needs_no_fin() {
    let mesh = Mesh::without_pool();
    let (mut peer, mut server) = played_session(&mesh);
    // In one segment with the last bytes, and the connection stays open.
    let last = [peer.seal(b"last"), peer.close()].concat();
    peer.stream.write_all(&last).unwrap();
    assert_eq!(read_to_fin(&mut server), b"last");
    server.write_all(b"answer").unwrap();
    end_writing(&server);
    assert_eq!(peer.read_to_end().unwrap(), b"answer");
}

#[test]
fn a_fin_without_close_notify_from_the_relay_behind_reaches_the_client_as_a_reset() {
    let ids = Identities::new();
    let port = listen();
    let far = || member("far", &[FAR]).at(port.local_addr().unwrap());
    let mesh = ids.mesh("near", NEAR, &[member("near", &[NEAR]), far()]);
    let config = near_config(mesh, &[&["far"]], "127.0.0.1:9".parse().unwrap(), no_pool);
    let near = taut_relay::node::Node::start(&config).unwrap();
    let members = format!("{}{}", member("near", &[NEAR]), far());
    let members = std::sync::Arc::new(taut_mesh::members::Members::parse(&members).unwrap());
    let mut client = connect(&near);
    client.write_all(b"ping").unwrap();
    let mut peer = accept(accept_at(&port), &private_key(FAR), members).unwrap();
    let mut hello = Vec::new();
    while !hello.ends_with(b"ping") {
        hello.extend(peer.read_exact(1).unwrap());
    }
    let bytes = stream(200 << 10, 19);
    peer.send(&bytes);
    peer.cut();
    assert_same(&read_to_rst(&mut client), &bytes);
    wait_until("the end", || near.metrics().ended(End::UpstreamReset) == 1);
}
