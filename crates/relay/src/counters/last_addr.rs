//! The last address of an event, as an example in log lines.

use std::net::IpAddr;
use std::sync::Mutex;

/// The address that an event concerned last. Neither side ever waits: if both meet, the address is
/// not recorded or not returned, which costs a log line its example.
#[derive(Debug, Default)]
pub(crate) struct LastAddr(Mutex<Option<IpAddr>>);

impl LastAddr {
    pub(crate) fn set(&self, addr: IpAddr) {
        if let Ok(mut last) = self.0.try_lock() {
            *last = Some(addr);
        }
    }

    /// Returns the address that was recorded since the last call.
    pub(crate) fn take(&self) -> Option<IpAddr> {
        self.0.try_lock().ok()?.take()
    }
}
