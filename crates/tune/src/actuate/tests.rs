//! On sockets of this process.

use std::mem::MaybeUninit;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg, sockopt,
};
use taut_sys::pidfd_socket::{BufferLocks, Buffers, Pidfd};

use super::socket::Holders;
use super::*;
use crate::sysctl::same;

fn actuators() -> (Actuators, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::free(&dir.path().join("journal")).unwrap();
    (Actuators::new(journal), dir)
}

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
fn a_fixed_buffer_is_freed_and_fixed_again() {
    let (near, _far) = connection();
    sockopt::set_socket_recv_buffer_size(&near, 50_000).unwrap();
    sockopt::set_socket_send_buffer_size(&near, 60_000).unwrap();
    let fixed = buffers(&near);
    let (mut actuators, _dir) = actuators();
    let made = actuators
        .free(&socket(&near), Direction::Receive, 400_000)
        .unwrap();
    assert_eq!(
        made,
        Made::Set {
            from: 100_000,
            to: 400_000
        }
    );
    let free = buffers(&near);
    assert!(!free.locks.receive && free.locks.send, "{free:?}");
    assert_eq!((free.receive, free.send), (400_000, fixed.send));
    let restored = Undone {
        restored: 1,
        ..Undone::default()
    };
    assert_eq!(actuators.undo(), restored);
    assert_eq!(buffers(&near), fixed);
    assert_eq!(actuators.journal().entries().count(), 0);
}

#[test]
fn a_buffer_is_never_freed_to_less_than_it_has() {
    let (near, _far) = connection();
    sockopt::set_socket_send_buffer_size(&near, 60_000).unwrap();
    let (mut actuators, _dir) = actuators();
    actuators
        .free(&socket(&near), Direction::Send, 10_000)
        .unwrap();
    let free = buffers(&near);
    assert_eq!((free.send, free.locks), (120_000, BufferLocks::default()));
}

#[test]
fn what_a_killed_process_changed_is_undone_by_the_next() {
    let (near, _far) = connection();
    sockopt::set_socket_send_buffer_size(&near, 60_000).unwrap();
    let fixed = buffers(&near);
    let (mut first, dir) = actuators();
    first
        .free(&socket(&near), Direction::Send, 200_000)
        .unwrap();
    first
        .free(&socket(&near), Direction::Send, 300_000)
        .unwrap();
    drop(first);
    let journal = Journal::free(&dir.path().join("journal")).unwrap();
    let mut next = Actuators::new(journal);
    assert_eq!(next.undo().restored, 1);
    assert_eq!(buffers(&near), fixed);
    next.close();
    assert!(!dir.path().join("journal").exists());
}

#[test]
fn what_its_application_has_fixed_since_is_left_as_it_is() {
    let (near, _far) = connection();
    sockopt::set_socket_send_buffer_size(&near, 60_000).unwrap();
    let (mut actuators, _dir) = actuators();
    actuators
        .free(&socket(&near), Direction::Send, 200_000)
        .unwrap();
    sockopt::set_socket_send_buffer_size(&near, 70_000).unwrap();
    let anew = buffers(&near);
    assert_eq!(actuators.undo().others, 1);
    assert_eq!(buffers(&near), anew);
}

#[test]
fn what_is_gone_is_neither_changed_nor_undone() {
    let (near, _far) = connection();
    let of = socket(&near);
    let (mut actuators, _dir) = actuators();
    actuators.free(&of, Direction::Send, 20_000).unwrap();
    drop(near);
    // What was borrowed is this process's, too, until it is given back.
    let is_there = || Holders::default().borrow(&of).unwrap().is_some();
    while is_there() {
        std::thread::yield_now();
    }
    assert_eq!(
        actuators.free(&of, Direction::Send, 30_000).unwrap(),
        Made::Gone
    );
    assert_eq!(actuators.undo().gone, 1);
    // A process that is not there.
    let nobody = Socket {
        pid: 4_194_305,
        ..of
    };
    assert_eq!(
        actuators.free(&nobody, Direction::Send, 1).unwrap(),
        Made::Gone
    );
}

#[test]
fn a_socket_that_was_passed_on_is_found_at_who_has_it() {
    let (near, _far) = connection();
    sockopt::set_socket_send_buffer_size(&near, 60_000).unwrap();
    let fixed = buffers(&near);
    let (mut actuators, _dir) = actuators();
    actuators
        .free(&socket(&near), Direction::Send, 200_000)
        .unwrap();
    let mut entry = actuators.journal().entries().next().unwrap().clone();
    if let Value::Buffer { owner, .. } = &mut entry.before {
        owner.0 = 4_194_305;
    }
    let undone = undo_buffer(
        &mut Holders::default(),
        socket(&near).cookie,
        Direction::Send,
        &entry,
    )
    .unwrap();
    assert_eq!((undone, buffers(&near)), (Undo::Restored, fixed));
}

#[test]
fn what_is_remembered_of_a_process_is_read_again_where_it_is_wrong() {
    let mut holders = Holders::default();
    holders.begin();
    let (near, _far) = connection();
    assert!(holders.borrow(&socket(&near)).unwrap().is_some());
    // One that was opened since, in this round and in the next.
    let (later, _far) = connection();
    assert!(holders.borrow(&socket(&later)).unwrap().is_none());
    holders.begin();
    assert!(holders.borrow(&socket(&later)).unwrap().is_some());
    assert!(holders.borrow(&socket(&near)).unwrap().is_some());
    // Under another number.
    let of = socket(&near);
    let moved = near.try_clone().unwrap();
    drop(near);
    holders.begin();
    assert!(holders.borrow(&of).unwrap().is_some());
    drop(moved);
}

#[test]
fn settings_are_compared_by_what_they_say() {
    assert!(same("4096\t16384\t4194304\n", "4096 16384 4194304"));
    assert!(!same("4096 16384", "4096 16384 1"));
}

#[test]
fn a_buffer_that_is_sized_stays_so_until_it_is_undone() {
    let (near, _far) = connection();
    let before = buffers(&near);
    let (mut actuators, _dir) = actuators();
    for to in [300_000, 40_000] {
        for direction in [Direction::Send, Direction::Receive] {
            actuators.size(&socket(&near), direction, to).unwrap();
        }
        let sized = buffers(&near);
        assert_eq!((sized.send, sized.receive), (to, to));
        assert!(sized.locks.send && sized.locks.receive);
    }
    assert_eq!(actuators.undo().restored, 2);
    let after = buffers(&near);
    assert_eq!((after.send, after.locks), (before.send, before.locks));
    // It may have seen more come at once then than it will see again.
    assert_eq!(after.receive, before.receive.max(300_000));
}

#[test]
fn what_its_application_has_fixed_while_it_was_sized_is_what_it_goes_back_to() {
    let (near, _far) = connection();
    let (mut actuators, _dir) = actuators();
    let size = |actuators: &mut Actuators, to| {
        let made = actuators.size(&socket(&near), Direction::Send, to);
        made.unwrap()
    };
    size(&mut actuators, 300_000);
    sockopt::set_socket_send_buffer_size(&near, 70_000).unwrap();
    let anew = buffers(&near);
    size(&mut actuators, 400_000);
    size(&mut actuators, 500_000);
    assert_eq!(actuators.undo().restored, 1);
    assert_eq!(buffers(&near), anew);
    // After the last size it is left as it is.
    size(&mut actuators, 300_000);
    sockopt::set_socket_send_buffer_size(&near, 80_000).unwrap();
    let last = buffers(&near);
    assert_eq!(actuators.undo().others, 1);
    assert_eq!(buffers(&near), last);
}

/// Nobody has the socket while it is on its way from one process to another.
fn on_its_way(stream: TcpStream) -> UnixStream {
    let (near, far) = UnixStream::pair().unwrap();
    let mut space = [const { MaybeUninit::uninit() }; rustix::cmsg_space!(ScmRights(1))];
    let mut message = SendAncillaryBuffer::new(&mut space);
    let sockets = [stream.as_fd()];
    assert!(message.push(SendAncillaryMessage::ScmRights(&sockets)));
    let byte = [std::io::IoSlice::new(b"x")];
    sendmsg(&near, &byte, &mut message, SendFlags::empty()).unwrap();
    far
}

fn arrived(at: &UnixStream) -> TcpStream {
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

/// This buffer of it, as it is seen.
fn unowned(stream: &TcpStream, direction: Direction, to: u32) -> Unowned {
    let Socket { cookie, inode, .. } = socket(stream);
    Unowned {
        cookie,
        inode,
        direction,
        has: bytes(&buffers(stream), direction),
        to,
    }
}

fn here() -> [Namespace; 1] {
    [taut_observe::namespaces::own().unwrap()]
}

fn bytes(buffers: &Buffers, direction: Direction) -> u32 {
    super::bytes(buffers, direction)
}

#[test]
fn buffers_that_nobody_has_are_set_and_set_back_from_inside_the_kernel() {
    let (near, _far) = connection();
    sockopt::set_socket_recv_buffer_size(&near, 50_000).unwrap();
    sockopt::set_socket_send_buffer_size(&near, 60_000).unwrap();
    let before = buffers(&near);
    let wishes = [
        unowned(&near, Direction::Receive, 300_000),
        unowned(&near, Direction::Send, 200_000),
    ];
    let (mut actuators, dir) = actuators();
    let waits = on_its_way(near);
    let made = actuators.size_unowned(&here(), &wishes);
    let made: Vec<_> = made.into_iter().map(Result::unwrap).collect();
    let set = |from, to| Some(Made::Set { from, to });
    assert_eq!(made, [set(100_000, 300_000), set(120_000, 200_000)]);
    let near = arrived(&waits);
    let large = buffers(&near);
    assert_eq!((large.receive, large.send), (300_000, 200_000));
    assert_eq!(large.locks, before.locks);
    // As by kill -9, while still nobody has it.
    drop(actuators);
    let waits = on_its_way(near);
    let journal = Journal::free(&dir.path().join("journal")).unwrap();
    let undone = Actuators::new(journal).undo();
    assert_eq!((undone.restored, undone.failed), (2, 0), "{undone:?}");
    assert_eq!(buffers(&arrived(&waits)), before);
}

#[test]
fn who_has_come_to_have_it_has_it_set_back_and_keeps_what_he_sets() {
    let (one, _far) = connection();
    let (other, _far) = connection();
    for near in [&one, &other] {
        sockopt::set_socket_send_buffer_size(near, 60_000).unwrap();
    }
    let before = buffers(&one);
    let wishes = [
        unowned(&one, Direction::Send, 200_000),
        unowned(&other, Direction::Send, 200_000),
    ];
    let (mut actuators, _dir) = actuators();
    for made in actuators.size_unowned(&here(), &wishes) {
        assert!(matches!(made, Ok(Some(Made::Set { .. }))), "{made:?}");
    }
    sockopt::set_socket_send_buffer_size(&other, 70_000).unwrap();
    let undone = actuators.undo();
    assert_eq!((undone.restored, undone.others), (1, 1), "{undone:?}");
    assert_eq!(buffers(&one), before);
    assert_eq!(buffers(&other).send, 140_000);
    // The same where nobody has it.
    let wish = unowned(&one, Direction::Send, 200_000);
    for made in actuators.size_unowned(&here(), &[wish]) {
        assert!(matches!(made, Ok(Some(Made::Set { .. }))), "{made:?}");
    }
    sockopt::set_socket_send_buffer_size(&one, 80_000).unwrap();
    let waits = on_its_way(one);
    assert_eq!(actuators.undo().others, 1);
    assert_eq!(buffers(&arrived(&waits)).send, 160_000);
}

#[test]
fn what_could_not_be_set_back_is_left_alone() {
    let (near, _far) = connection();
    let before = buffers(&near);
    let (mut actuators, _dir) = actuators();
    let mut made = |wish: Unowned| -> Option<Made> {
        let [made] = <[_; 1]>::try_from(actuators.size_unowned(&here(), &[wish])).unwrap();
        made.unwrap()
    };
    // The kernel sizes it.
    assert_eq!(made(unowned(&near, Direction::Send, 200_000)), None);
    assert_eq!(buffers(&near), before);
    // It is not as it was seen.
    sockopt::set_socket_send_buffer_size(&near, 60_000).unwrap();
    let wish = Unowned {
        has: 64_000,
        ..unowned(&near, Direction::Send, 200_000)
    };
    assert_eq!(made(wish), None);
    assert_eq!(buffers(&near).send, 120_000);
    // It was set with privileges, to more than can be set without.
    let beyond = most(Direction::Send) + 4096;
    sockopt::set_socket_send_buffer_size_force(&near, beyond as usize / 2).unwrap();
    assert_eq!(made(unowned(&near, Direction::Send, 200_000)), None);
    assert_eq!(buffers(&near).send, beyond);
    // There is none of that cookie.
    let wish = Unowned {
        cookie: u64::MAX,
        has: 1,
        ..unowned(&near, Direction::Receive, 200_000)
    };
    assert_eq!(made(wish), Some(Made::Gone));
    assert_eq!(actuators.journal().entries().count(), 0);
}

#[test]
fn what_is_on_its_way_at_the_end_is_set_back_or_stays_in_the_journal() {
    let (fixed, _far) = connection();
    sockopt::set_socket_send_buffer_size(&fixed, 60_000).unwrap();
    let (free, _far) = connection();
    let before = [buffers(&fixed), buffers(&free)];
    let (mut actuators, _dir) = actuators();
    for near in [&fixed, &free] {
        let made = actuators.size(&socket(near), Direction::Send, 200_000);
        assert!(matches!(made, Ok(Made::Set { .. })), "{made:?}");
    }
    let waiting = [on_its_way(fixed), on_its_way(free)];
    let undone = actuators.undo();
    // Nobody but its owner gives one back to the kernel. (A program that another test just starts has all sockets of this process for a moment.)
    let is_done = undone.restored == 2;
    assert!(
        undone.restored + undone.failed == 2 && undone.restored > 0,
        "{undone:?}"
    );
    let near = waiting.map(|waits| arrived(&waits));
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
fn what_its_application_sets_between_two_changes_is_what_it_goes_back_to() {
    let (near, _far) = connection();
    sockopt::set_socket_send_buffer_size(&near, 40_000).unwrap();
    let (mut actuators, _dir) = actuators();
    let of = socket(&near);
    actuators.free(&of, Direction::Send, 400_000).unwrap();
    sockopt::set_socket_send_buffer_size(&near, 60_000).unwrap();
    actuators.free(&of, Direction::Send, 500_000).unwrap();
    assert_eq!(actuators.undo().restored, 1);
    let now = buffers(&near);
    assert_eq!((now.send, now.locks.send), (120_000, true));
}

#[test]
fn who_is_killed_between_two_steps_leaves_what_can_be_undone() {
    let fixes = |near: &TcpStream, bytes: usize| {
        sockopt::set_socket_send_buffer_size_force(near, bytes / 2).unwrap();
    };
    // It is set, and not yet given back; or it was set back, and not yet given back.
    for was_fixed in [true, false] {
        let (near, _far) = connection();
        if was_fixed {
            fixes(&near, 80_000);
        }
        let before = buffers(&near);
        let (mut actuators, _dir) = actuators();
        let of = socket(&near);
        match was_fixed {
            true => actuators.free(&of, Direction::Send, 400_000).unwrap(),
            false => actuators.size(&of, Direction::Send, 400_000).unwrap(),
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
        assert_eq!((undone.restored, undone.others), (1, 0), "{undone:?}");
        assert_eq!(buffers(&near), before);
    }
}

#[test]
fn a_window_is_never_made_narrower() {
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
        let made = actuators.size(&socket(&near), Direction::Receive, to);
        assert!(matches!(made, Ok(Made::Set { .. })), "{made:?}");
        assert_eq!(clamp(&near), wide);
    }
    let made = actuators.size(&socket(&near), Direction::Receive, wide * 2);
    assert!(matches!(made, Ok(Made::Set { .. })), "{made:?}");
    assert_eq!(clamp(&near), wide * 2);
}

#[test]
fn a_receive_buffer_that_was_large_is_so_again_when_the_kernel_has_it() {
    let (near, _far) = connection();
    let (mut actuators, _dir) = actuators();
    let large = 2 * buffers(&near).receive;
    for to in [large, 4096] {
        let made = actuators.size(&socket(&near), Direction::Receive, to);
        assert!(matches!(made, Ok(Made::Set { .. })), "{made:?}");
    }
    assert_eq!(actuators.undo().restored, 1);
    let now = buffers(&near);
    assert_eq!((now.receive, now.locks.receive), (large, false));
}

/// A namespace that goes with this.
struct Space(taut_sys::netns::Netns);

impl Drop for Space {
    fn drop(&mut self) {
        let _ = taut_sys::netns::Netns::delete(self.0.name());
    }
}

#[test]
fn a_namespace_that_began_with_anothers_maximum_has_what_that_had() {
    let name = format!("taut-adopt-{}", std::process::id());
    let _space = Space(taut_sys::netns::Netns::create(&name).unwrap());
    let namespace = taut_observe::namespaces::named(&name).unwrap();
    let third = || maxima(&namespace).unwrap().unwrap()[0].1;
    let (mut actuators, _dir) = actuators();
    let began = third();
    assert!(
        actuators
            .adopt(&namespace, Direction::Send, 7_000_000)
            .unwrap()
    );
    assert_eq!(third(), began);
    // What it is made then is undone with it.
    assert!(
        actuators
            .maximum(&namespace, Direction::Send, 50_000)
            .unwrap()
    );
    assert_eq!(third(), 50_000);
    assert_eq!(actuators.undo().restored, 1);
    assert_eq!(third(), 7_000_000);
}
