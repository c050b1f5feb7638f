//! The kernel's notifications of changes to the network, and netlink errors.

use std::io;

use futures_util::FutureExt as _;
use rtnetlink::MulticastGroup;
use rtnetlink::sys::{AsyncSocket as _, AsyncSocketExt as _, SocketAddr, TokioSocket};
use taut_sys::Errno;

/// The maximum number of notifications read at once; the socket's buffer rarely holds more.
const REPORTS: usize = 4096;

/// Notifications of changes. Only their presence matters, so a flood of them stays in the socket's buffer,
/// or is lost there, at no cost.
pub(crate) struct Changes(TokioSocket);

// === impl Changes ===

impl Changes {
    /// Starts to receive the notifications of `groups`.
    pub(crate) fn listen(groups: &[MulticastGroup]) -> io::Result<Self> {
        let mut socket = TokioSocket::new(rtnetlink::sys::protocols::NETLINK_ROUTE)?;
        let netlink = socket.socket_mut();
        netlink.bind(&SocketAddr::new(0, 0))?;
        for &group in groups {
            netlink.add_membership(group as u32)?;
        }
        Ok(Self(socket))
    }

    /// Waits for a notification, or for the loss of one.
    pub(crate) async fn next(&self) {
        let mut byte = [0; 1];
        // An error means that the buffer was full.
        let _ = self.0.recv(&mut &mut byte[..]).await;
    }

    /// Discards all notifications.
    pub(crate) fn drain(&self) {
        for _ in 0..REPORTS {
            if self.next().now_or_never().is_none() {
                return;
            }
        }
    }
}

/// Returns whether the error means that the kernel has no IPv6.
pub(crate) fn is_unsupported(error: &rtnetlink::Error) -> bool {
    let rtnetlink::Error::NetlinkError(message) = error else {
        return false;
    };
    let code = message.raw_code().unsigned_abs().cast_signed();
    [Errno::AFNOSUPPORT, Errno::OPNOTSUPP]
        .iter()
        .any(|e| e.raw_os_error() == code)
}
