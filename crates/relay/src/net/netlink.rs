//! Interprets netlink errors.

use taut_sys::Errno;

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
