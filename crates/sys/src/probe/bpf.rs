//! BPF: programs are loaded, at most attached to a private network's loopback device, and gone again.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;

use libbpf_rs::btf::types::Struct;
use libbpf_rs::btf::{Btf, HasSize};
use libbpf_rs::libbpf_sys as sys;

use super::{Answer, network};
use crate::bpf::tc::{AttachPoint, attach_tcx};

/// The loopback device of a private network.
const LOOPBACK: u32 = 1;

/// bpf(2) can be used at all by who asks.
pub fn permitted() -> Answer {
    Answer::of(map(
        sys::BPF_MAP_TYPE_ARRAY,
        4,
        &sys::bpf_map_create_opts::default(),
    ))
}

/// The kernel describes its own types, so that one program fits many kernels (CO-RE).
pub fn btf() -> Answer {
    match Path::new("/sys/kernel/btf/vmlinux").exists() {
        true => Answer::Yes,
        false => Answer::No("no /sys/kernel/btf/vmlinux (CONFIG_DEBUG_INFO_BTF)".to_owned()),
    }
}

/// Programs at a device's ingress or egress.
pub fn sched_cls() -> Answer {
    loaded(sys::BPF_PROG_TYPE_SCHED_CLS, 0, 0)
}

/// Programs that hear of a socket's life and set its options.
pub fn sock_ops() -> Answer {
    loaded(sys::BPF_PROG_TYPE_SOCK_OPS, sys::BPF_CGROUP_SOCK_OPS, 0)
}

/// Programs that choose the listening socket of a connection, whatever its address.
pub fn sk_lookup() -> Answer {
    loaded(sys::BPF_PROG_TYPE_SK_LOOKUP, sys::BPF_SK_LOOKUP, 0)
}

/// Programs that choose among the listeners that share a port.
pub fn sk_reuseport() -> Answer {
    loaded(sys::BPF_PROG_TYPE_SK_REUSEPORT, 0, 0)
}

/// Congestion controls written in BPF: a map that holds a `tcp_congestion_ops`. It is not filled in,
/// so no congestion control is registered.
pub fn tcp_congestion_ops() -> Answer {
    when_permitted(|| {
        let Some((id, size)) = vmlinux_struct("bpf_struct_ops_tcp_congestion_ops") else {
            return Answer::No("the kernel's BTF has no bpf_struct_ops_tcp_congestion_ops".into());
        };
        Answer::of(own_types().and_then(|types| {
            let options = sys::bpf_map_create_opts {
                btf_fd: types.as_raw_fd().cast_unsigned(),
                btf_vmlinux_value_type_id: id,
                ..sys::bpf_map_create_opts::default()
            };
            map(sys::BPF_MAP_TYPE_STRUCT_OPS, size, &options)
        }))
    })
}

/// Programs that walk over every TCP socket.
pub fn tcp_iterator() -> Answer {
    when_permitted(|| {
        // SAFETY: the name is a C string that outlives the call.
        let id = unsafe { sys::libbpf_find_vmlinux_btf_id(c"tcp".as_ptr(), sys::BPF_TRACE_ITER) };
        match u32::try_from(id) {
            Ok(id) => loaded(sys::BPF_PROG_TYPE_TRACING, sys::BPF_TRACE_ITER, id),
            Err(_) => Answer::No("the kernel's BTF has no bpf_iter_tcp".to_owned()),
        }
    })
}

/// Attaching to a device without a qdisc, by a link that goes away with its owner.
pub fn tcx() -> Answer {
    linked(&[AttachPoint::Ingress])
}

/// The same at both of a device's hooks, and before the programs that are there already.
pub fn tcx_at_both_hooks() -> Answer {
    linked(&[AttachPoint::IngressFirst, AttachPoint::Egress])
}

/// Delivering a copy of a packet, whose result says what became of it (`bpf_clone_redirect`).
pub fn clone_redirect() -> Answer {
    helper(sys::BPF_FUNC_clone_redirect, "bpf_clone_redirect")
}

/// Loops whose body the verifier looks at once (`bpf_loop`, Linux 5.17).
pub fn loops() -> Answer {
    helper(sys::BPF_FUNC_loop, "bpf_loop")
}

/// Telling user space of events, in order (`BPF_MAP_TYPE_RINGBUF`, Linux 5.8).
pub fn ring_buffer() -> Answer {
    when_permitted(|| {
        // SAFETY: there are no options, and there need not be any.
        let there =
            unsafe { sys::libbpf_probe_bpf_map_type(sys::BPF_MAP_TYPE_RINGBUF, std::ptr::null()) };
        probed(there, "maps of type ringbuf")
    })
}

/// A helper function that programs at a device call.
fn helper(id: sys::bpf_func_id, name: &str) -> Answer {
    when_permitted(|| {
        // SAFETY: there are no options, and there need not be any.
        let there = unsafe {
            sys::libbpf_probe_bpf_helper(sys::BPF_PROG_TYPE_SCHED_CLS, id, std::ptr::null())
        };
        probed(there, name)
    })
}

/// Reads what one of libbpf's own probes says.
fn probed(there: libc::c_int, name: &str) -> Answer {
    match there {
        0 => Answer::No(format!("no {name} in this kernel")),
        1.. => Answer::Yes,
        error => Answer::of_error(&io::Error::from_raw_os_error(-error)),
    }
}

fn linked(points: &[AttachPoint]) -> Answer {
    when_permitted(|| {
        network::in_private(|| {
            let attach = || -> io::Result<Vec<OwnedFd>> {
                let program = load(sys::BPF_PROG_TYPE_SCHED_CLS, 0, 0)?;
                let attach = |point| attach_tcx(program.as_fd(), LOOPBACK, point);
                let links = points.iter().map(|point| attach(*point));
                Ok(links.collect::<Result<_, _>>()?)
            };
            Answer::of(attach())
        })
    })
}

/// Runs a probe that would otherwise blame the kernel for what this user may not do.
fn when_permitted(probe: impl FnOnce() -> Answer) -> Answer {
    match permitted() {
        Answer::Yes => {
            // Its own account of a failed try would stand in the middle of the answer.
            libbpf_rs::set_print(None);
            probe()
        }
        other => other,
    }
}

fn loaded(kind: sys::bpf_prog_type, attach: sys::bpf_attach_type, btf_id: u32) -> Answer {
    when_permitted(|| Answer::of(load(kind, attach, btf_id)))
}

/// Loads `return 0`.
fn load(
    kind: sys::bpf_prog_type,
    attach: sys::bpf_attach_type,
    btf_id: u32,
) -> io::Result<OwnedFd> {
    const LICENCE: &CStr = c"GPL";
    let instruction = |code: u32, imm| {
        let mut instruction = sys::bpf_insn {
            code: code as u8,
            imm,
            ..Default::default()
        };
        instruction.set_dst_reg(0);
        instruction
    };
    let program = [
        instruction(sys::BPF_ALU64 | sys::BPF_MOV | sys::BPF_K, 0),
        instruction(sys::BPF_JMP | sys::BPF_EXIT, 0),
    ];
    let mut options = sys::bpf_prog_load_opts {
        sz: size_of::<sys::bpf_prog_load_opts>() as sys::size_t,
        expected_attach_type: attach,
        attach_btf_id: btf_id,
        ..Default::default()
    };
    // SAFETY: the instructions, of the number given, the licence and the options outlive the call;
    // a program may be without a name.
    owned(unsafe {
        sys::bpf_prog_load(
            kind,
            std::ptr::null(),
            LICENCE.as_ptr(),
            program.as_ptr(),
            program.len() as sys::size_t,
            &raw mut options,
        )
    })
}

/// Makes a map of one value.
fn map(
    kind: sys::bpf_map_type,
    value_size: u32,
    options: &sys::bpf_map_create_opts,
) -> io::Result<OwnedFd> {
    let options = sys::bpf_map_create_opts {
        sz: size_of::<sys::bpf_map_create_opts>() as sys::size_t,
        ..*options
    };
    // SAFETY: the options outlive the call; a map may be without a name.
    owned(unsafe {
        sys::bpf_map_create(kind, std::ptr::null(), 4, value_size, 1, &raw const options)
    })
}

/// Gives the kernel a description of one type, `int`. It wants some from whoever makes a struct_ops
/// map, and does not look at it when the map's value is a type of its own.
fn own_types() -> io::Result<OwnedFd> {
    const MAGIC_AND_VERSION: u32 = u32::from_ne_bytes(if cfg!(target_endian = "little") {
        [0x9F, 0xEB, 1, 0]
    } else {
        [0xEB, 0x9F, 1, 0]
    });
    const KIND_INT: u32 = 1 << 24;
    // struct btf_header: lengths of itself, offset and length of the types, the same of the names.
    // Then the type: its name's offset, kind, size in bytes, size in bits. Then the names.
    let words = [MAGIC_AND_VERSION, 24, 0, 16, 16, 5, 1, KIND_INT, 4, 32];
    let mut btf = words.map(u32::to_ne_bytes).concat();
    btf.extend_from_slice(b"\0int\0");
    // SAFETY: the description, of the length given, outlives the call; no options are passed.
    owned(unsafe {
        sys::bpf_btf_load(
            btf.as_ptr().cast(),
            btf.len() as sys::size_t,
            std::ptr::null_mut(),
        )
    })
}

/// Takes a descriptor that libbpf has just made, or the error that it gives as a negative number.
fn owned(fd: libc::c_int) -> io::Result<OwnedFd> {
    if fd < 0 {
        return Err(io::Error::from_raw_os_error(-fd));
    }
    // SAFETY: the call that returned it has made this descriptor and nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The BTF number and the size in bytes of a struct of the kernel.
fn vmlinux_struct(name: &str) -> Option<(u32, u32)> {
    let btf = Btf::from_vmlinux().ok()?;
    let found = btf.type_by_name::<Struct<'_>>(name)?;
    Some((found.type_id().into(), u32::try_from(found.size()).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_helper_that_no_kernel_has_is_not_found() {
        assert_ne!(helper(0x7fff_ffff, "bpf_nonsense"), Answer::Yes);
    }

    #[test]
    fn what_was_probed_is_there_or_is_not_or_cannot_be_told() {
        assert_eq!(probed(1, "x"), Answer::Yes);
        assert_eq!(probed(0, "x"), Answer::No("no x in this kernel".into()));
        assert!(matches!(probed(-libc::ENOMEM, "x"), Answer::Unknown(_)));
    }
}
