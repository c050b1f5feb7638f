//! Probes of BPF features. Programs are loaded, some are attached to the loopback device of a
//! private network namespace, and all are released again.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;

use libbpf_rs::btf::types::Struct;
use libbpf_rs::btf::{Btf, HasSize};
use libbpf_rs::libbpf_sys as sys;

use super::{Answer, network};
use crate::bpf::tc::{AttachPoint, attach_tcx};

/// The loopback device's index in a new network namespace.
const LOOPBACK: u32 = 1;

/// Probes whether this process may use bpf(2).
pub fn permitted() -> Answer {
    Answer::of(map(
        sys::BPF_MAP_TYPE_ARRAY,
        4,
        &sys::bpf_map_create_opts::default(),
    ))
}

/// Probes for the kernel's type information, which lets one program run on many kernels (CO-RE).
pub fn btf() -> Answer {
    match Path::new("/sys/kernel/btf/vmlinux").exists() {
        true => Answer::Yes,
        false => Answer::No("no /sys/kernel/btf/vmlinux (CONFIG_DEBUG_INFO_BTF)".to_owned()),
    }
}

/// Probes for programs at a device's ingress or egress.
pub fn sched_cls() -> Answer {
    loaded(sys::BPF_PROG_TYPE_SCHED_CLS, 0, 0)
}

/// Probes for programs that run on socket events and set socket options.
pub fn sock_ops() -> Answer {
    loaded(sys::BPF_PROG_TYPE_SOCK_OPS, sys::BPF_CGROUP_SOCK_OPS, 0)
}

/// Probes for programs that select the listener of a connection independently of its address.
pub fn sk_lookup() -> Answer {
    loaded(sys::BPF_PROG_TYPE_SK_LOOKUP, sys::BPF_SK_LOOKUP, 0)
}

/// Probes for programs that select among listeners that share a port.
pub fn sk_reuseport() -> Answer {
    loaded(sys::BPF_PROG_TYPE_SK_REUSEPORT, 0, 0)
}

/// Probes for congestion controls written in BPF, with a map for a `tcp_congestion_ops`. The map
/// stays empty, so no congestion control is registered.
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

/// Probes for programs that iterate over all TCP sockets.
pub fn tcp_iterator() -> Answer {
    iterator(c"tcp")
}

/// Probes for programs that iterate over the sockets with an entry in a map. Some kernels refuse iterators over maps.
pub fn socket_storage_iterator() -> Answer {
    iterator(c"bpf_sk_storage_map")
}

fn iterator(over: &CStr) -> Answer {
    when_permitted(|| {
        // SAFETY: the name is a C string.
        let id = unsafe { sys::libbpf_find_vmlinux_btf_id(over.as_ptr(), sys::BPF_TRACE_ITER) };
        match u32::try_from(id) {
            Ok(id) => loaded(sys::BPF_PROG_TYPE_TRACING, sys::BPF_TRACE_ITER, id),
            Err(_) => Answer::No(format!(
                "the kernel's BTF has no bpf_iter_{}",
                over.to_string_lossy()
            )),
        }
    })
}

/// Probes for attaching to a device without a qdisc, by a link that ends with its process (tcx).
pub fn tcx() -> Answer {
    attached_links(&[AttachPoint::Ingress])
}

/// Probes for tcx at both hooks of a device, and in front of programs that are already attached.
pub fn tcx_at_both_hooks() -> Answer {
    attached_links(&[AttachPoint::IngressFirst, AttachPoint::Egress])
}

/// Probes for `bpf_clone_redirect`, which delivers a copy of a packet and returns the result.
pub fn clone_redirect() -> Answer {
    helper(sys::BPF_FUNC_clone_redirect, "bpf_clone_redirect")
}

/// Probes for `bpf_loop`, whose body the verifier checks once (Linux 5.17).
pub fn loops() -> Answer {
    helper(sys::BPF_FUNC_loop, "bpf_loop")
}

/// Probes for ring buffers, which report events to user space in order (`BPF_MAP_TYPE_RINGBUF`,
/// Linux 5.8).
pub fn ring_buffer() -> Answer {
    when_permitted(|| {
        // SAFETY: libbpf accepts a null pointer for the options.
        let result =
            unsafe { sys::libbpf_probe_bpf_map_type(sys::BPF_MAP_TYPE_RINGBUF, std::ptr::null()) };
        probed(result, "maps of type ringbuf")
    })
}

/// Probes for a helper function of programs of type SCHED_CLS.
fn helper(id: sys::bpf_func_id, name: &str) -> Answer {
    when_permitted(|| {
        // SAFETY: libbpf accepts a null pointer for the options.
        let result = unsafe {
            sys::libbpf_probe_bpf_helper(sys::BPF_PROG_TYPE_SCHED_CLS, id, std::ptr::null())
        };
        probed(result, name)
    })
}

/// Converts the result of one of libbpf's own probes.
fn probed(result: libc::c_int, name: &str) -> Answer {
    match result {
        0 => Answer::No(format!("no {name} in this kernel")),
        1.. => Answer::Yes,
        error => Answer::of_error(&io::Error::from_raw_os_error(-error)),
    }
}

fn attached_links(points: &[AttachPoint]) -> Answer {
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

/// Runs `probe` if this process may use bpf(2). Otherwise a missing permission would look like a
/// missing feature.
fn when_permitted(probe: impl FnOnce() -> Answer) -> Answer {
    match permitted() {
        Answer::Yes => {
            // libbpf prints failures to standard error, in the middle of the caller's output.
            libbpf_rs::set_print(None);
            probe()
        }
        other => other,
    }
}

fn loaded(kind: sys::bpf_prog_type, attach: sys::bpf_attach_type, btf_id: u32) -> Answer {
    when_permitted(|| Answer::of(load(kind, attach, btf_id)))
}

/// Loads a program that returns 0.
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
    // SAFETY: the instructions, whose number is passed, the licence and the options outlive the
    // call; libbpf accepts a null name.
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

/// Creates a map with room for one element.
fn map(
    kind: sys::bpf_map_type,
    value_size: u32,
    options: &sys::bpf_map_create_opts,
) -> io::Result<OwnedFd> {
    let options = sys::bpf_map_create_opts {
        sz: size_of::<sys::bpf_map_create_opts>() as sys::size_t,
        ..*options
    };
    // SAFETY: the options outlive the call; libbpf accepts a null name.
    owned(unsafe {
        sys::bpf_map_create(kind, std::ptr::null(), 4, value_size, 1, &raw const options)
    })
}

/// Loads BTF with one type, `int`. The kernel requires a BTF descriptor for a struct_ops map but
/// does not read it if the map's value is a type of the kernel.
fn own_types() -> io::Result<OwnedFd> {
    const MAGIC_AND_VERSION: u32 = u32::from_ne_bytes(if cfg!(target_endian = "little") {
        [0x9F, 0xEB, 1, 0]
    } else {
        [0xEB, 0x9F, 1, 0]
    });
    const KIND_INT: u32 = 1 << 24;
    // struct btf_header: its length, offset and length of the types, offset and length of the
    // strings. Then the type: name offset, kind, size in bytes, size in bits. Then the strings.
    let words = [MAGIC_AND_VERSION, 24, 0, 16, 16, 5, 1, KIND_INT, 4, 32];
    let mut btf = words.map(u32::to_ne_bytes).concat();
    btf.extend_from_slice(b"\0int\0");
    // SAFETY: the BTF, whose length is passed, outlives the call; libbpf accepts null options.
    owned(unsafe {
        sys::bpf_btf_load(
            btf.as_ptr().cast(),
            btf.len() as sys::size_t,
            std::ptr::null_mut(),
        )
    })
}

/// Takes ownership of a descriptor returned by libbpf, or converts its negative error number.
fn owned(fd: libc::c_int) -> io::Result<OwnedFd> {
    if fd < 0 {
        return Err(io::Error::from_raw_os_error(-fd));
    }
    // SAFETY: the call that returned this descriptor has just created it, and it has no other
    // owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Returns the BTF type ID and the size in bytes of a kernel struct.
fn vmlinux_struct(name: &str) -> Option<(u32, u32)> {
    let btf = Btf::from_vmlinux().ok()?;
    let found = btf.type_by_name::<Struct<'_>>(name)?;
    Some((found.type_id().into(), u32::try_from(found.size()).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_helper_that_does_not_exist_is_not_found() {
        assert_ne!(helper(0x7fff_ffff, "bpf_nonsense"), Answer::Yes);
    }

    #[test]
    fn a_result_of_libbpf_is_yes_no_or_unknown() {
        assert_eq!(probed(1, "x"), Answer::Yes);
        assert_eq!(probed(0, "x"), Answer::No("no x in this kernel".into()));
        assert!(matches!(probed(-libc::ENOMEM, "x"), Answer::Unknown(_)));
    }
}
