//! Programs of type SCHED_CLS at a device: by a link where the kernel has tcx, and else as a filter of
//! the clsact queueing discipline.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use libbpf_rs::libbpf_sys as sys;
use libbpf_rs::{TC_EGRESS, TC_INGRESS, TcHook};

use crate::Errno;
use crate::netns::Netns;

/// A program on a device; dropped, it is taken off, whatever network namespace the thread is in.
#[derive(Debug)]
pub enum Attached {
    /// A link (tcx, Linux 6.6), which also goes when the process is killed.
    Link(OwnedFd),
    /// A filter of clsact.
    Filter(Filter),
}

/// A filter of clsact. One that a killed process has left behind goes on until the next one takes its
/// place.
#[derive(Debug)]
pub struct Filter {
    program: OwnedFd,
    /// Where `ifindex` is this device and no other.
    netns: Netns,
    ifindex: i32,
    point: AttachPoint,
    priority: u32,
}

/// There is one filter of each priority, so that the next process finds what a killed one has left.
const HANDLE: u32 = 1;

/// Where at a device a program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttachPoint {
    /// What the device receives; after the programs that are there already.
    Ingress,
    /// What the device receives; before the programs that are there already.
    IngressFirst,
    /// What it is about to send; after the programs that are there already.
    Egress,
}

/// Programs that run at this point of device `ifindex` of the calling thread's network namespace by way
/// of links (tcx); none where the kernel has no tcx. Filters of clsact are not counted.
///
/// # Errors
/// `ENODEV` when there is no such device; `EPERM` without CAP_NET_ADMIN.
pub fn linked(ifindex: u32, point: AttachPoint) -> Result<u32, Errno> {
    let ifindex = i32::try_from(ifindex).map_err(|_| Errno::NODEV)?;
    let kind = match point {
        AttachPoint::Ingress | AttachPoint::IngressFirst => sys::BPF_TCX_INGRESS,
        AttachPoint::Egress => sys::BPF_TCX_EGRESS,
    };
    let mut options = sys::bpf_prog_query_opts {
        sz: size_of::<sys::bpf_prog_query_opts>() as sys::size_t,
        ..Default::default()
    };
    // SAFETY: the options are there and of the size they say for the length of the call, and have no
    // arrays for the kernel to fill.
    let done = unsafe { sys::bpf_prog_query_opts(ifindex, kind, &raw mut options) };
    if done >= 0 {
        // SAFETY: the count is a number in both of its names.
        return Ok(unsafe { options.__bindgen_anon_1.count });
    }
    match Errno::from_raw_os_error(-done) {
        // No tcx.
        Errno::INVAL | Errno::OPNOTSUPP | Errno::NOENT => Ok(0),
        other => Err(other),
    }
}

// === impl Attached ===

impl Attached {
    /// Puts `program` on device `ifindex` of the calling thread's network namespace, by a link where
    /// the kernel has such. Otherwise `priority` is the filter's own: the next process with the same
    /// takes the place of what a killed one has left. (Filters without one get theirs from 49152 down.)
    ///
    /// # Errors
    /// `ENODEV` when there is no such device; `EPERM` without CAP_NET_ADMIN and CAP_BPF.
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
    /// Puts `program` on device `ifindex` with clsact, which is made if there is none.
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
        let filter = Self {
            program: program.try_clone_to_owned()?,
            netns: Netns::current().map_err(io::Error::other)?,
            ifindex: i32::try_from(ifindex).map_err(|_| Errno::NODEV)?,
            point,
            priority,
        };
        let mut hook = filter.hook();
        hook.create().map_err(system)?;
        hook.replace(true).attach().map_err(system)?;
        Ok(filter)
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
        // A device that has gone has taken its filters with it. The clsact itself stays: without
        // filters it does nothing, and others may have put theirs there since.
        match Netns::current() {
            Ok(here) if here.id() == self.netns.id() => drop(self.hook().detach()),
            _ => drop(self.netns.run(|| self.hook().detach())),
        }
    }
}

/// Attaches `program`, of type SCHED_CLS, to device `ifindex` of the calling thread's network
/// namespace.
///
/// The link is the descriptor: the program is detached when the last copy of it is closed, however
/// the process ends.
///
/// # Errors
/// `EINVAL` where the kernel has no tcx; `ENODEV` when there is no such device; `EPERM` without
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
            // Before the one that is named, which without a name is all of them.
            AttachPoint::IngressFirst => sys::BPF_F_BEFORE,
            AttachPoint::Ingress | AttachPoint::Egress => 0,
        },
        ..Default::default()
    };
    // SAFETY: the program's descriptor is open, and the options are there and of the size they say,
    // for the length of the call.
    let link =
        unsafe { sys::bpf_link_create(program.as_raw_fd(), ifindex, kind, &raw const options) };
    if link < 0 {
        // libbpf gives the error as a negative number.
        return Err(Errno::from_raw_os_error(-link));
    }
    // SAFETY: the call has made this descriptor and nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(link) })
}
