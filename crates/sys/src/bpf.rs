//! BPF programs at the kernel's hooks, where libbpf-rs has no call for it.

use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use libbpf_rs::libbpf_sys as sys;

use crate::Errno;

/// Something of BPF's that lives in the kernel for as long as somebody refers to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Object {
    /// A program, by its number.
    Program(u32),
    /// A map, by its number; registered operations (struct_ops) are one.
    Map(u32),
}

impl Object {
    /// Whether it is still there. Numbers are not given a second time until 2^31 have been given.
    ///
    /// # Errors
    /// `EPERM` without CAP_SYS_ADMIN.
    pub fn exists(self) -> Result<bool, Errno> {
        // SAFETY: these calls take a number and touch no memory of this process.
        let fd = unsafe {
            match self {
                Self::Program(id) => sys::bpf_prog_get_fd_by_id(id),
                Self::Map(id) => sys::bpf_map_get_fd_by_id(id),
            }
        };
        if fd >= 0 {
            // SAFETY: the call has made this descriptor and nobody else owns it.
            drop(unsafe { OwnedFd::from_raw_fd(fd) });
            return Ok(true);
        }
        match Errno::from_raw_os_error(-fd) {
            Errno::NOENT => Ok(false),
            other => Err(other),
        }
    }

    /// The object that a descriptor is of, by what `/proc/PID/fdinfo` says of it; `None` of other
    /// descriptors.
    pub fn of_fdinfo(text: &str) -> Option<Self> {
        text.lines().find_map(|line| {
            let (key, value) = line.split_once(':')?;
            let id = value.trim().parse();
            match key {
                "prog_id" => id.ok().map(Self::Program),
                "map_id" => id.ok().map(Self::Map),
                _ => None,
            }
        })
    }
}

/// Attaches `program`, of type SCHED_CLS, to what device `ifindex` of the calling thread's network
/// namespace receives, after the programs that are there already (tcx, Linux 6.6).
///
/// The link is the descriptor: the program is detached when the last copy of it is closed, however
/// the process ends.
///
/// # Errors
/// `EINVAL` where the kernel has no tcx; `ENODEV` when there is no such device; `EPERM` without
/// CAP_NET_ADMIN and CAP_BPF.
pub fn attach_tcx_ingress(program: BorrowedFd<'_>, ifindex: u32) -> Result<OwnedFd, Errno> {
    let ifindex = i32::try_from(ifindex).map_err(|_| Errno::NODEV)?;
    // SAFETY: the program's descriptor is open for the length of the call; no options are passed.
    let link = unsafe {
        sys::bpf_link_create(
            program.as_raw_fd(),
            ifindex,
            sys::BPF_TCX_INGRESS,
            std::ptr::null(),
        )
    };
    if link < 0 {
        // libbpf gives the error as a negative number.
        return Err(Errno::from_raw_os_error(-link));
    }
    // SAFETY: the call has made this descriptor and nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(link) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_is_found_in_what_is_said_of_its_descriptor() {
        let program = "pos:\t0\nflags:\t02\nprog_type:\t27\nprog_id:\t712\n";
        assert_eq!(Object::of_fdinfo(program), Some(Object::Program(712)));
        let map = "pos:\t0\nmap_type:\t1\nmap_id:\t9\n";
        assert_eq!(Object::of_fdinfo(map), Some(Object::Map(9)));
        assert_eq!(Object::of_fdinfo("pos:\t0\nflags:\t02\n"), None);
    }

    #[test]
    fn a_number_that_was_never_given_is_nobodys() {
        if !rustix::process::geteuid().is_root() {
            println!("not root: the kernel does not tell");
            return;
        }
        let never = i32::MAX.unsigned_abs();
        assert_eq!(Object::Program(never).exists(), Ok(false));
        assert_eq!(Object::Map(never).exists(), Ok(false));
    }
}
