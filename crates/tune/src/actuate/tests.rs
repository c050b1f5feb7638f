//! Sockets of the test process.

use std::mem::MaybeUninit;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg, sockopt,
};
use taut_sys::pidfd_socket::{BufferLocks, Buffers, Pidfd};

use super::*;
use crate::sysctl::maxima;
use crate::testing::{TestNetns, actuators};

fn connection() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (far, _) = listener.accept().unwrap();
    (near, far)
}

fn socket(stream: &TcpStream) -> Socket {
    let inode = rustix::fs::fstat(stream).unwrap().st_ino;
    Socket {
        cookie: sockopt::socket_cookie(stream).unwrap(),
        inode: u32::try_from(inode).unwrap(),
        pid: std::process::id(),
    }
}

fn buffers(stream: &TcpStream) -> Buffers {
    let own = Pidfd::open(std::process::id()).unwrap();
    let cookie = sockopt::socket_cookie(stream.as_fd()).unwrap();
    let lent = own.socket(stream.as_raw_fd(), cookie).unwrap().unwrap();
    lent.buffers().unwrap()
}

#[test]
fn a_fixed_buffer_is_unlocked_and_fixed_again() {
    let (near, _far) = connection();
    sockopt::set_socket_recv_buffer_size(&near, 50_000).unwrap();
    sockopt::set_socket_send_buffer_size(&near, 60_000).unwrap();
    let fixed = buffers(&near);
    let (mut actuators, _dir) = actuators();
    let made = actuators
        .unlock(&socket(&near), Direction::Receive, 400_000)
        .unwrap();
    assert_eq!(
        made,
        BufferOutcome::Set {
            from: 100_000,
            to: 400_000
        }
    );
    let unlocked = buffers(&near);
    assert!(
        !unlocked.locks.receive && unlocked.locks.send,
        "{unlocked:?}"
    );
    assert_eq!((unlocked.receive, unlocked.send), (400_000, fixed.send));
    let restored = UndoSummary {
        restored: 1,
        ..UndoSummary::default()
    };
    assert_eq!(actuators.undo(), restored);
    assert_eq!(buffers(&near), fixed);
    assert_eq!(actuators.journal().entries().count(), 0);
}

#[test]
fn an_unlocked_buffer_does_not_shrink() {
    let (near, _far) = connection();
    sockopt::set_socket_send_buffer_size(&near, 60_000).unwrap();
    let (mut actuators, _dir) = actuators();
    actuators
        .unlock(&socket(&near), Direction::Send, 10_000)
        .unwrap();
    let unlocked = buffers(&near);
    assert_eq!(
        (unlocked.send, unlocked.locks),
        (120_000, BufferLocks::default())
    );
}

#[test]
fn the_changes_of_a_killed_process_are_undone_by_the_next() {
    let (near, _far) = connection();
    sockopt::set_socket_send_buffer_size(&near, 60_000).unwrap();
    let fixed = buffers(&near);
    let (mut first, dir) = actuators();
    first
        .unlock(&socket(&near), Direction::Send, 200_000)
        .unwrap();
    first
        .unlock(&socket(&near), Direction::Send, 300_000)
        .unwrap();
    drop(first);
    let journal = Journal::free(&dir.path().join("journal")).unwrap();
    let mut next = Actuators::new(journal, false);
    assert_eq!(next.undo().restored, 1);
    assert_eq!(buffers(&near), fixed);
    next.close();
    assert!(!dir.path().join("journal").exists());
}

#[test]
fn a_buffer_that_its_application_has_fixed_since_is_left_as_it_is() {
    let (near, _far) = connection();
    sockopt::set_socket_send_buffer_size(&near, 60_000).unwrap();
    let (mut actuators, _dir) = actuators();
    actuators
        .unlock(&socket(&near), Direction::Send, 200_000)
        .unwrap();
    sockopt::set_socket_send_buffer_size(&near, 70_000).unwrap();
    let fixed_again = buffers(&near);
    assert_eq!(actuators.undo().foreign, 1);
    assert_eq!(buffers(&near), fixed_again);
}

#[test]
fn a_closed_socket_is_neither_changed_nor_undone() {
    let (near, _far) = connection();
    let of = socket(&near);
    let (mut actuators, _dir) = actuators();
    actuators.unlock(&of, Direction::Send, 20_000).unwrap();
    drop(near);
    // A borrowed socket stays open in this process until it is returned.
    let is_there = || SocketOwners::default().borrow(&of).unwrap().is_some();
    while is_there() {
        std::thread::yield_now();
    }
    assert_eq!(
        actuators.unlock(&of, Direction::Send, 30_000).unwrap(),
        BufferOutcome::Gone
    );
    assert_eq!(actuators.undo().gone, 1);
    // A process that does not exist.
    let missing = Socket {
        pid: 4_194_305,
        ..of
    };
    assert_eq!(
        actuators.unlock(&missing, Direction::Send, 1).unwrap(),
        BufferOutcome::Gone
    );
}

/// Its process has closed it, and TCP still sends what is queued (FIN-WAIT).
#[test]
fn a_closed_socket_that_still_sends_is_gone() {
    let (near, far) = connection();
    let of = socket(&near);
    let (mut actuators, _dir) = actuators();
    near.set_nonblocking(true).unwrap();
    while std::io::Write::write(&mut &near, &[7; 1 << 16]).is_ok() {}
    for direction in [Direction::Send, Direction::Receive] {
        actuators.resize(&of, direction, 1 << 20).unwrap();
    }
    drop(near);
    let is_there = || SocketOwners::default().borrow(&of).unwrap().is_some();
    while is_there() {
        std::thread::yield_now();
    }
    let gone = UndoSummary {
        gone: 2,
        ..UndoSummary::default()
    };
    assert_eq!(actuators.undo(), gone);
    assert_eq!(actuators.journal().entries().count(), 0);
    drop(far);
}

#[test]
fn a_socket_that_was_passed_on_is_found_in_the_other_process() {
    let (near, _far) = connection();
    sockopt::set_socket_send_buffer_size(&near, 60_000).unwrap();
    let fixed = buffers(&near);
    let (mut actuators, _dir) = actuators();
    actuators
        .unlock(&socket(&near), Direction::Send, 200_000)
        .unwrap();
    let mut entry = actuators.journal().entries().next().unwrap().clone();
    if let Value::Buffer { owner, .. } = &mut entry.before {
        owner.0 = 4_194_305;
    }
    let undone = undo_buffer(
        &mut SocketOwners::default(),
        socket(&near).cookie,
        Direction::Send,
        &entry,
    )
    .unwrap();
    assert_eq!((undone, buffers(&near)), (UndoOutcome::Restored, fixed));
}

#[test]
fn the_descriptors_of_a_process_are_read_again_where_they_are_wrong() {
    let mut owners = SocketOwners::default();
    owners.begin_round();
    let (near, _far) = connection();
    assert!(owners.borrow(&socket(&near)).unwrap().is_some());
    // A socket that was opened since is found in the next round.
    let (later, _far) = connection();
    assert!(owners.borrow(&socket(&later)).unwrap().is_none());
    owners.begin_round();
    assert!(owners.borrow(&socket(&later)).unwrap().is_some());
    assert!(owners.borrow(&socket(&near)).unwrap().is_some());
    // The socket has another descriptor.
    let of = socket(&near);
    let moved = near.try_clone().unwrap();
    drop(near);
    owners.begin_round();
    assert!(owners.borrow(&of).unwrap().is_some());
    drop(moved);
}

#[test]
fn a_resized_buffer_stays_until_it_is_undone() {
    let (near, _far) = connection();
    let before = buffers(&near);
    let (mut actuators, _dir) = actuators();
    for to in [300_000, 40_000] {
        for direction in [Direction::Send, Direction::Receive] {
            actuators.resize(&socket(&near), direction, to).unwrap();
        }
        let sized = buffers(&near);
        assert_eq!((sized.send, sized.receive), (to, to));
        assert!(sized.locks.send && sized.locks.receive);
    }
    assert_eq!(actuators.undo().restored, 2);
    let after = buffers(&near);
    assert_eq!((after.send, after.locks), (before.send, before.locks));
    // More may have been read at once than ever will be again.
    assert_eq!(after.receive, before.receive.max(300_000));
}

#[test]
fn a_buffer_goes_back_to_what_its_application_has_set_meanwhile() {
    let (near, _far) = connection();
    let (mut actuators, _dir) = actuators();
    let resize = |actuators: &mut Actuators, to| {
        let made = actuators.resize(&socket(&near), Direction::Send, to);
        made.unwrap()
    };
    resize(&mut actuators, 300_000);
    sockopt::set_socket_send_buffer_size(&near, 70_000).unwrap();
    let fixed_again = buffers(&near);
    resize(&mut actuators, 400_000);
    resize(&mut actuators, 500_000);
    assert_eq!(actuators.undo().restored, 1);
    assert_eq!(buffers(&near), fixed_again);
    // A buffer that was set after the last change is left as it is.
    resize(&mut actuators, 300_000);
    sockopt::set_socket_send_buffer_size(&near, 80_000).unwrap();
    let last = buffers(&near);
    assert_eq!(actuators.undo().foreign, 1);
    assert_eq!(buffers(&near), last);
}

/// Sends the socket over a Unix socket. No process has it in transit.
fn in_transit(stream: TcpStream) -> UnixStream {
    let (near, far) = UnixStream::pair().unwrap();
    let mut space = [const { MaybeUninit::uninit() }; rustix::cmsg_space!(ScmRights(1))];
    let mut message = SendAncillaryBuffer::new(&mut space);
    let sockets = [stream.as_fd()];
    assert!(message.push(SendAncillaryMessage::ScmRights(&sockets)));
    let byte = [std::io::IoSlice::new(b"x")];
    sendmsg(&near, &byte, &mut message, SendFlags::empty()).unwrap();
    far
}

fn received(at: &UnixStream) -> TcpStream {
    let mut space = [const { MaybeUninit::uninit() }; rustix::cmsg_space!(ScmRights(1))];
    let mut message = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let mut room = [std::io::IoSliceMut::new(&mut byte)];
    recvmsg(at, &mut room, &mut message, RecvFlags::empty()).unwrap();
    let sockets: Vec<OwnedFd> = message
        .drain()
        .filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(sockets) => Some(sockets),
            _ => None,
        })
        .flatten()
        .collect();
    let [socket] = <[OwnedFd; 1]>::try_from(sockets).unwrap();
    socket.into()
}

/// Describes a buffer of the socket as it is.
fn ownerless(stream: &TcpStream, direction: Direction, to: u32) -> OwnerlessBuffer {
    let Socket { cookie, inode, .. } = socket(stream);
    OwnerlessBuffer {
        cookie,
        inode,
        direction,
        size: size(&buffers(stream), direction),
        to,
    }
}

fn here() -> [Namespace; 1] {
    [taut_observe::namespaces::own().unwrap()]
}

#[test]
fn buffers_without_an_owner_are_resized_and_restored_from_inside_the_kernel() {
    let (near, _far) = connection();
    sockopt::set_socket_recv_buffer_size(&near, 50_000).unwrap();
    sockopt::set_socket_send_buffer_size(&near, 60_000).unwrap();
    let before = buffers(&near);
    let wishes = [
        ownerless(&near, Direction::Receive, 300_000),
        ownerless(&near, Direction::Send, 200_000),
    ];
    let (mut actuators, dir) = actuators();
    let waits = in_transit(near);
    let made = actuators.resize_ownerless(&here(), &wishes);
    let made: Vec<_> = made.into_iter().map(Result::unwrap).collect();
    let set = |from, to| Some(BufferOutcome::Set { from, to });
    assert_eq!(made, [set(100_000, 300_000), set(120_000, 200_000)]);
    let near = received(&waits);
    let large = buffers(&near);
    assert_eq!((large.receive, large.send), (300_000, 200_000));
    assert_eq!(large.locks, before.locks);
    // As after kill -9, while no process has the socket.
    drop(actuators);
    let waits = in_transit(near);
    let journal = Journal::free(&dir.path().join("journal")).unwrap();
    let undone = Actuators::new(journal, false).undo();
    assert_eq!((undone.restored, undone.failed), (2, 0), "{undone:?}");
    assert_eq!(buffers(&received(&waits)), before);
}

#[test]
fn a_buffer_is_restored_in_its_new_owner_unless_that_has_set_it() {
    let (one, _far) = connection();
    let (other, _far) = connection();
    for near in [&one, &other] {
        sockopt::set_socket_send_buffer_size(near, 60_000).unwrap();
    }
    let before = buffers(&one);
    let wishes = [
        ownerless(&one, Direction::Send, 200_000),
        ownerless(&other, Direction::Send, 200_000),
    ];
    let (mut actuators, _dir) = actuators();
    for made in actuators.resize_ownerless(&here(), &wishes) {
        assert!(
            matches!(made, Ok(Some(BufferOutcome::Set { .. }))),
            "{made:?}"
        );
    }
    sockopt::set_socket_send_buffer_size(&other, 70_000).unwrap();
    let undone = actuators.undo();
    assert_eq!((undone.restored, undone.foreign), (1, 1), "{undone:?}");
    assert_eq!(buffers(&one), before);
    assert_eq!(buffers(&other).send, 140_000);
    // The same without an owner.
    let wish = ownerless(&one, Direction::Send, 200_000);
    for made in actuators.resize_ownerless(&here(), &[wish]) {
        assert!(
            matches!(made, Ok(Some(BufferOutcome::Set { .. }))),
            "{made:?}"
        );
    }
    sockopt::set_socket_send_buffer_size(&one, 80_000).unwrap();
    let waits = in_transit(one);
    assert_eq!(actuators.undo().foreign, 1);
    assert_eq!(buffers(&received(&waits)).send, 160_000);
}

#[test]
fn a_buffer_that_could_not_be_restored_is_left_alone() {
    let (near, _far) = connection();
    let before = buffers(&near);
    let (mut actuators, _dir) = actuators();
    let mut made = |buffer: OwnerlessBuffer| -> Option<BufferOutcome> {
        let [made] = <[_; 1]>::try_from(actuators.resize_ownerless(&here(), &[buffer])).unwrap();
        made.unwrap()
    };
    // The kernel tunes the buffer.
    assert_eq!(made(ownerless(&near, Direction::Send, 200_000)), None);
    assert_eq!(buffers(&near), before);
    // Its size has changed.
    sockopt::set_socket_send_buffer_size(&near, 60_000).unwrap();
    let wish = OwnerlessBuffer {
        size: 64_000,
        ..ownerless(&near, Direction::Send, 200_000)
    };
    assert_eq!(made(wish), None);
    assert_eq!(buffers(&near).send, 120_000);
    // It was set with privileges, above the limit for others.
    let beyond = max_size(Direction::Send) + 4096;
    sockopt::set_socket_send_buffer_size_force(&near, beyond as usize / 2).unwrap();
    assert_eq!(made(ownerless(&near, Direction::Send, 200_000)), None);
    assert_eq!(buffers(&near).send, beyond);
    // No socket has the cookie.
    let wish = OwnerlessBuffer {
        cookie: u64::MAX,
        size: 1,
        ..ownerless(&near, Direction::Receive, 200_000)
    };
    assert_eq!(made(wish), Some(BufferOutcome::Gone));
    assert_eq!(actuators.journal().entries().count(), 0);
}

#[test]
fn a_socket_in_transit_at_the_end_is_restored_or_stays_in_the_journal() {
    let (fixed, _far) = connection();
    sockopt::set_socket_send_buffer_size(&fixed, 60_000).unwrap();
    let (free, _far) = connection();
    let before = [buffers(&fixed), buffers(&free)];
    let (mut actuators, _dir) = actuators();
    for near in [&fixed, &free] {
        let made = actuators.resize(&socket(near), Direction::Send, 200_000);
        assert!(matches!(made, Ok(BufferOutcome::Set { .. })), "{made:?}");
    }
    let waiting = [in_transit(fixed), in_transit(free)];
    let undone = actuators.undo();
    // Only its owner can unlock a buffer. (A program that another test has just started has all
    // sockets of this process for a moment.)
    let is_done = undone.restored == 2;
    assert!(
        undone.restored + undone.failed == 2 && undone.restored > 0,
        "{undone:?}"
    );
    let near = waiting.map(|waits| received(&waits));
    assert_eq!(buffers(&near[0]), before[0]);
    let undone = actuators.undo();
    let expected = usize::from(!is_done);
    assert_eq!(
        (undone.restored, undone.failed),
        (expected, 0),
        "{undone:?}"
    );
    assert_eq!(buffers(&near[1]), before[1]);
}

#[test]
fn a_buffer_goes_back_to_what_its_application_sets_between_two_changes() {
    let (near, _far) = connection();
    sockopt::set_socket_send_buffer_size(&near, 40_000).unwrap();
    let (mut actuators, _dir) = actuators();
    let of = socket(&near);
    actuators.unlock(&of, Direction::Send, 400_000).unwrap();
    sockopt::set_socket_send_buffer_size(&near, 60_000).unwrap();
    actuators.unlock(&of, Direction::Send, 500_000).unwrap();
    assert_eq!(actuators.undo().restored, 1);
    let now = buffers(&near);
    assert_eq!((now.send, now.locks.send), (120_000, true));
}

#[test]
fn a_process_killed_between_two_steps_leaves_what_can_be_undone() {
    let fixes = |near: &TcpStream, bytes: usize| {
        sockopt::set_socket_send_buffer_size_force(near, bytes / 2).unwrap();
    };
    // The buffer is resized and not yet unlocked; or it is restored and not yet unlocked.
    for was_fixed in [true, false] {
        let (near, _far) = connection();
        if was_fixed {
            fixes(&near, 80_000);
        }
        let before = buffers(&near);
        let (mut actuators, _dir) = actuators();
        let of = socket(&near);
        match was_fixed {
            true => actuators.unlock(&of, Direction::Send, 400_000).unwrap(),
            false => actuators.resize(&of, Direction::Send, 400_000).unwrap(),
        };
        fixes(
            &near,
            if was_fixed {
                400_000
            } else {
                before.send as usize
            },
        );
        let undone = actuators.undo();
        assert_eq!((undone.restored, undone.foreign), (1, 0), "{undone:?}");
        assert_eq!(buffers(&near), before);
    }
}

#[test]
fn a_window_clamp_is_never_lowered() {
    let (near, _far) = connection();
    let clamp = |near: &TcpStream| {
        let own = Pidfd::open(std::process::id()).unwrap();
        let cookie = sockopt::socket_cookie(near).unwrap();
        let lent = own.socket(near.as_raw_fd(), cookie).unwrap().unwrap();
        lent.window_clamp().unwrap()
    };
    let (mut actuators, _dir) = actuators();
    let wide = clamp(&near);
    for to in [3000, wide / 2] {
        let made = actuators.resize(&socket(&near), Direction::Receive, to);
        assert!(matches!(made, Ok(BufferOutcome::Set { .. })), "{made:?}");
        assert_eq!(clamp(&near), wide);
    }
    let made = actuators.resize(&socket(&near), Direction::Receive, wide * 2);
    assert!(matches!(made, Ok(BufferOutcome::Set { .. })), "{made:?}");
    assert_eq!(clamp(&near), wide * 2);
}

#[test]
fn a_receive_buffer_that_was_large_is_so_again_when_the_kernel_tunes_it() {
    let (near, _far) = connection();
    let (mut actuators, _dir) = actuators();
    let large = 2 * buffers(&near).receive;
    for to in [large, 4096] {
        let made = actuators.resize(&socket(&near), Direction::Receive, to);
        assert!(matches!(made, Ok(BufferOutcome::Set { .. })), "{made:?}");
    }
    assert_eq!(actuators.undo().restored, 1);
    let now = buffers(&near);
    assert_eq!((now.receive, now.locks.receive), (large, false));
}

#[test]
fn a_namespace_that_inherited_a_maximum_gets_the_original() {
    let host = TestNetns::new("adopt");
    let namespace = host.namespace();
    let third = || maxima(&namespace).unwrap().unwrap()[0].1;
    let (mut actuators, _dir) = actuators();
    let began = third();
    assert!(
        actuators
            .adopt_maximum(&namespace, Direction::Send, 7_000_000)
            .unwrap()
    );
    assert_eq!(third(), began);
    // A later change is undone with it.
    assert!(
        actuators
            .set_maximum(&namespace, Direction::Send, 50_000)
            .unwrap()
    );
    assert_eq!(third(), 50_000);
    assert_eq!(actuators.undo().restored, 1);
    assert_eq!(third(), 7_000_000);
}
