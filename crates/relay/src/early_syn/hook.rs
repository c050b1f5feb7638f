//! The program on one device.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use libbpf_rs::{TC_INGRESS, TcHook};
use taut_sys::Errno;

/// A program on a device; dropped, it is taken off.
#[derive(Debug)]
pub(super) enum Hook {
    /// A link (tcx, Linux 6.6), which also goes when the process is killed.
    Link {
        #[expect(dead_code, reason = "it is held, and closed when it is dropped")]
        link: OwnedFd,
    },
    /// A filter of the clsact queueing discipline.
    Filter {
        #[expect(dead_code, reason = "it is held, and detached when it is dropped")]
        filter: Filter,
    },
}

/// A filter of clsact. One that a killed process has left behind still writes into a ring that
/// nobody reads, until the next one takes its place.
#[derive(Debug)]
pub(super) struct Filter {
    program: OwnedFd,
    ifindex: i32,
}

/// The filter's place among those of a device, so that the next process finds what a killed one
/// has left. Filters without a place of their own get theirs from 49152 down.
const PRIORITY: u32 = 50_773;
const HANDLE: u32 = 1;

// === impl Hook ===

impl Hook {
    /// Puts `program` on device `ifindex`, by a link where the kernel has such.
    pub(super) fn attach(program: BorrowedFd<'_>, ifindex: u32) -> io::Result<Self> {
        match taut_sys::bpf::attach_tcx_ingress(program, ifindex) {
            Ok(link) => Ok(Self::Link { link }),
            Err(Errno::INVAL | Errno::OPNOTSUPP) => {
                let filter = Filter::attach(program, ifindex)?;
                Ok(Self::Filter { filter })
            }
            Err(e) => Err(e.into()),
        }
    }
}

// === impl Filter ===

impl Filter {
    pub(super) fn attach(program: BorrowedFd<'_>, ifindex: u32) -> io::Result<Self> {
        let system = |e: libbpf_rs::Error| io::Error::other(e.to_string());
        let filter = Self {
            program: program.try_clone_to_owned()?,
            ifindex: i32::try_from(ifindex).map_err(|_| Errno::NODEV)?,
        };
        let mut hook = filter.hook();
        hook.create().map_err(system)?;
        hook.replace(true).attach().map_err(system)?;
        Ok(filter)
    }

    fn hook(&self) -> TcHook {
        let mut hook = TcHook::new(self.program.as_fd());
        hook.ifindex(self.ifindex)
            .attach_point(TC_INGRESS)
            .priority(PRIORITY)
            .handle(HANDLE);
        hook
    }
}

impl Drop for Filter {
    fn drop(&mut self) {
        // A device that has gone has taken its filters with it. The clsact itself stays: without
        // filters it does nothing, and others may have put theirs there since.
        let _ = self.hook().detach();
    }
}

#[cfg(test)]
mod tests;
