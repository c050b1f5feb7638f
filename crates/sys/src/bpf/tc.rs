//! Programs of type SCHED_CLS at a device: attached by a tcx link where the kernel has tcx,
//! otherwise as a filter of the clsact queueing discipline.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use libbpf_rs::libbpf_sys as sys;
use libbpf_rs::{TC_EGRESS, TC_INGRESS, TcHook};

use crate::Errno;
use crate::netns::Netns;

/// A program attached to a device. Dropping it detaches the program, whatever network namespace the
/// thread is in.
#[derive(Debug)]
pub enum Attached {
    /// A link (tcx, Linux 6.6). The kernel also detaches it when the process is killed.
    Link(OwnedFd),
    /// A filter of clsact.
    Filter(Filter),
}

/// A filter of clsact. If the process is killed, the filter keeps running until the next one with
/// the same priority replaces it.
#[derive(Debug)]
pub struct Filter {
    program: OwnedFd,
    /// The kernel's number of the program.
    id: u32,
    /// The namespace that `ifindex` belongs to.
    netns: Netns,
    ifindex: i32,
    point: AttachPoint,
    priority: u32,
}

/// The handle of every filter. With one filter per priority, the next process replaces the filter
/// that a killed process left behind.
const HANDLE: u32 = 1;

/// The hook of a device at which a program runs, and its place among others there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttachPoint {
    /// Received packets; after the programs already attached.
    Ingress,
    /// Received packets; before the programs already attached.
    IngressFirst,
    /// Packets to be sent; after the programs already attached.
    Egress,
}

/// Returns the number of programs attached by tcx links to this hook of device `ifindex` in the
/// calling thread's network namespace; 0 if the kernel has no tcx. Filters of clsact are not
/// counted.
///
/// # Errors
/// `ENODEV` if there is no such device; `EPERM` without CAP_NET_ADMIN.
pub fn link_count(ifindex: u32, point: AttachPoint) -> Result<u32, Errno> {
    let ifindex = i32::try_from(ifindex).map_err(|_| Errno::NODEV)?;
    let kind = match point {
        AttachPoint::Ingress | AttachPoint::IngressFirst => sys::BPF_TCX_INGRESS,
        AttachPoint::Egress => sys::BPF_TCX_EGRESS,
    };
    let mut options = sys::bpf_prog_query_opts {
        sz: size_of::<sys::bpf_prog_query_opts>() as sys::size_t,
        ..Default::default()
    };
    // SAFETY: the options outlive the call, contain their own size, and have no arrays for the
    // kernel to fill.
    let done = unsafe { sys::bpf_prog_query_opts(ifindex, kind, &raw mut options) };
    if done >= 0 {
        // SAFETY: both fields of the union are integers of the same size.
        return Ok(unsafe { options.__bindgen_anon_1.count });
    }
    match Errno::from_raw_os_error(-done) {
        // The kernel has no tcx.
        Errno::INVAL | Errno::OPNOTSUPP | Errno::NOENT => Ok(0),
        other => Err(other),
    }
}

// === impl Attached ===

impl Attached {
    /// Attaches `program` to device `ifindex` of the calling thread's network namespace, by a link
    /// where the kernel has tcx. Otherwise it becomes a filter with this `priority`, which replaces
    /// a filter of that priority left by a killed process. (The kernel assigns priorities from
    /// 49152 downwards to filters without one.)
    ///
    /// # Errors
    /// `ENODEV` if there is no such device; `EPERM` without CAP_NET_ADMIN and CAP_BPF.
    pub fn attach(
        program: BorrowedFd<'_>,
        ifindex: u32,
        point: AttachPoint,
        priority: u32,
    ) -> io::Result<Self> {
        match attach_tcx(program, ifindex, point) {
            Ok(link) => Ok(Self::Link(link)),
            Err(Errno::INVAL | Errno::OPNOTSUPP) => {
                let filter = Filter::attach(program, ifindex, point, priority)?;
                Ok(Self::Filter(filter))
            }
            Err(e) => Err(e.into()),
        }
    }
}

// === impl Filter ===

impl Filter {
    /// Attaches `program` to device `ifindex` with clsact, which is created if necessary.
    ///
    /// # Errors
    /// Those of [`Attached::attach`].
    pub fn attach(
        program: BorrowedFd<'_>,
        ifindex: u32,
        point: AttachPoint,
        priority: u32,
    ) -> io::Result<Self> {
        let system = |e: libbpf_rs::Error| io::Error::other(e.to_string());
        let mut filter = Self {
            id: 0,
            program: program.try_clone_to_owned()?,
            netns: Netns::current().map_err(io::Error::other)?,
            ifindex: i32::try_from(ifindex).map_err(|_| Errno::NODEV)?,
            point,
            priority,
        };
        let mut hook = filter.hook();
        hook.create().map_err(system)?;
        hook.replace(true).attach().map_err(system)?;
        filter.id = hook.query().map_err(system)?;
        Ok(filter)
    }

    /// Detaches the program, unless that of another process has replaced it.
    fn detach(&self) {
        let mut hook = self.hook();
        if hook.query().is_ok_and(|id| id == self.id) {
            // Filters of a removed device are already gone, so errors do not matter.
            let _ = hook.detach();
        }
    }

    fn hook(&self) -> TcHook {
        let mut hook = TcHook::new(self.program.as_fd());
        hook.ifindex(self.ifindex)
            .attach_point(match self.point {
                AttachPoint::Ingress | AttachPoint::IngressFirst => TC_INGRESS,
                AttachPoint::Egress => TC_EGRESS,
            })
            .priority(self.priority)
            .handle(HANDLE);
        hook
    }
}

impl Drop for Filter {
    fn drop(&mut self) {
        // The clsact stays: without filters it does nothing, and other programs may use it by now.
        match Netns::current() {
            Ok(here) if here.id() == self.netns.id() => self.detach(),
            _ => drop(self.netns.run(|| self.detach())),
        }
    }
}

/// Attaches `program`, of type SCHED_CLS, to device `ifindex` of the calling thread's network
/// namespace.
///
/// The returned descriptor is the link: the program is detached when its last copy is closed,
/// however the process ends.
///
/// # Errors
/// `EINVAL` if the kernel has no tcx; `ENODEV` if there is no such device; `EPERM` without
/// CAP_NET_ADMIN and CAP_BPF.
pub fn attach_tcx(
    program: BorrowedFd<'_>,
    ifindex: u32,
    point: AttachPoint,
) -> Result<OwnedFd, Errno> {
    let ifindex = i32::try_from(ifindex).map_err(|_| Errno::NODEV)?;
    let kind = match point {
        AttachPoint::Ingress | AttachPoint::IngressFirst => sys::BPF_TCX_INGRESS,
        AttachPoint::Egress => sys::BPF_TCX_EGRESS,
    };
    let options = sys::bpf_link_create_opts {
        sz: size_of::<sys::bpf_link_create_opts>() as sys::size_t,
        flags: match point {
            // Without a reference program, this means before all programs.
            AttachPoint::IngressFirst => sys::BPF_F_BEFORE,
            AttachPoint::Ingress | AttachPoint::Egress => 0,
        },
        ..Default::default()
    };
    // SAFETY: the program's descriptor is open; the options outlive the call and contain their own
    // size.
    let link =
        unsafe { sys::bpf_link_create(program.as_raw_fd(), ifindex, kind, &raw const options) };
    if link < 0 {
        // libbpf returns the error as a negative number.
        return Err(Errno::from_raw_os_error(-link));
    }
    // SAFETY: the call has just created this descriptor, which has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(link) })
}
