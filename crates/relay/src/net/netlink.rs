//! The kernel's notifications of changes to the network, and netlink errors.

use std::io;
use std::time::Duration;

use futures_util::FutureExt as _;
use rtnetlink::MulticastGroup;
use rtnetlink::sys::{AsyncSocket as _, AsyncSocketExt as _, SocketAddr, TokioSocket};
use taut_sys::Errno;
use taut_sys::privileges::{self, Capability};
use tokio::task::AbortHandle;
use tokio::time::timeout;

/// The maximum number of notifications read at once; the socket's buffer rarely holds more.
const REPORTS: usize = 4096;

/// How long the answers to the requests of one job are waited for. The kernel answers at once, unless
/// others hold its lock of devices and routes.
const PATIENCE: Duration = Duration::from_secs(10);

/// How often a removal is tried while the kernel's answers are lost. What lets them be lost is a lack of
/// memory, which may be over soon.
pub(crate) const ATTEMPTS: usize = 3;

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

/// Runs a job that makes requests over a connection of rtnetlink. Returns `None`, and ends the connection, if
/// an answer was lost. A connection whose socket fails ends by itself: the request of that moment then looks
/// as if it were done, a list as if it were whole, and later requests fail. If the kernel had no memory for
/// an answer (ENOBUFS), the connection goes on, and the request would wait forever.
pub(crate) async fn answered<T>(
    connection: &AbortHandle,
    job: impl Future<Output = T>,
) -> Option<T> {
    answered_within(PATIENCE, connection, job).await
}

async fn answered_within<T>(
    limit: Duration,
    connection: &AbortHandle,
    job: impl Future<Output = T>,
) -> Option<T> {
    let done = timeout(limit, job).await.ok();
    let done = done.filter(|_| !connection.is_finished());
    if done.is_none() {
        connection.abort();
    }
    done
}

/// Returns what to do about a request that takes CAP_NET_ADMIN, to be appended to its error: the
/// capability if the kernel denied the request, or else `requirement`.
pub(crate) fn hint(error: &rtnetlink::Error, requirement: &str) -> String {
    let denied = match error {
        rtnetlink::Error::NetlinkError(message) => {
            privileges::hint(&message.to_io(), &[Capability::NetAdmin])
        }
        _ => String::new(),
    };
    match denied.is_empty() {
        true => format!("; {requirement}"),
        false => denied,
    }
}

/// Returns whether the error means that the kernel has no IPv6.
pub(crate) fn is_unsupported(error: &rtnetlink::Error) -> bool {
    is_one_of(error, &[Errno::AFNOSUPPORT, Errno::OPNOTSUPP])
}

/// Returns whether the error means that what was to be added exists.
pub(crate) fn is_existing(error: &rtnetlink::Error) -> bool {
    is_one_of(error, &[Errno::EXIST])
}

fn is_one_of(error: &rtnetlink::Error, errors: &[Errno]) -> bool {
    let rtnetlink::Error::NetlinkError(message) = error else {
        return false;
    };
    let code = message.raw_code().unsigned_abs().cast_signed();
    errors.iter().any(|e| e.raw_os_error() == code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_job_that_waits_for_a_lost_answer_ends_and_so_does_its_connection() {
        let connection = tokio::spawn(std::future::pending::<()>());
        let handle = connection.abort_handle();
        assert_eq!(answered(&handle, async { 1 }).await, Some(1));
        let unanswered = std::future::pending::<()>();
        let waited = answered_within(Duration::ZERO, &handle, unanswered).await;
        assert_eq!(waited, None);
        assert!(connection.await.is_err_and(|error| error.is_cancelled()));
        // Whatever a job says then, the kernel has not answered it.
        assert_eq!(answered(&handle, async { 1 }).await, None);
    }
}
