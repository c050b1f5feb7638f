//! Integer socket options that rustix lacks (getsockopt(2), setsockopt(2)).

use std::os::fd::{AsFd, AsRawFd as _};

use crate::Errno;

/// A type of option values, of integers alone. Every bit pattern is a value, and there is no padding.
pub(crate) trait Integer: Copy + Default {}

impl Integer for i32 {}
impl Integer for u32 {}
impl Integer for u64 {}
impl Integer for [u32; 9] {}

/// Reads a socket option.
///
/// # Errors
/// Those of getsockopt(2).
pub(crate) fn get<T: Integer>(
    socket: impl AsFd,
    level: libc::c_int,
    option: libc::c_int,
) -> Result<T, Errno> {
    let mut value = T::default();
    let mut len = size_of::<T>() as libc::socklen_t;
    // SAFETY: the borrowed descriptor is open; the kernel writes at most `len` bytes, the size of
    // `value`, and the length to `len`; both outlive the call.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            level,
            option,
            (&raw mut value).cast(),
            &raw mut len,
        )
    };
    match result {
        0 => Ok(value),
        _ => Err(last_error()),
    }
}

/// Sets a socket option.
///
/// # Errors
/// Those of setsockopt(2).
pub(crate) fn set<T: Integer>(
    socket: impl AsFd,
    level: libc::c_int,
    option: libc::c_int,
    value: T,
) -> Result<(), Errno> {
    // SAFETY: the borrowed descriptor is open; the kernel reads `size_of::<T>()` bytes from
    // `value`, which outlives the call.
    let result = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            level,
            option,
            (&raw const value).cast(),
            size_of::<T>() as libc::socklen_t,
        )
    };
    match result {
        0 => Ok(()),
        _ => Err(last_error()),
    }
}

/// Returns the error of the last system call.
pub(crate) fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}
