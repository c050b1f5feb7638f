//! Network interfaces of the calling thread's namespace, by index and by name.

use std::ffi::{CStr, CString};
use std::io;

use crate::Errno;

/// What the interface with this index is called now: bytes of its owner's choice. `None`: there is none.
///
/// # Errors
/// The system's: no descriptors are left to ask with.
pub fn name(index: u32) -> io::Result<Option<CString>> {
    let mut buffer = [0_u8; libc::IF_NAMESIZE];
    // SAFETY: the library writes at most `IF_NAMESIZE` bytes, a zero among them, to `buffer`, which lives until the call returns.
    let named = unsafe { libc::if_indextoname(index, buffer.as_mut_ptr().cast()) };
    if named.is_null() {
        return none();
    }
    let name = CStr::from_bytes_until_nul(&buffer).map_err(io::Error::other)?;
    Ok(Some(name.to_owned()))
}

/// The index of the interface that has this name now. `None`: there is none.
///
/// # Errors
/// As of [`name`].
pub fn index(name: &CStr) -> io::Result<Option<u32>> {
    // SAFETY: `name` ends with a zero and lives until the call returns; the library only reads it.
    match unsafe { libc::if_nametoindex(name.as_ptr()) } {
        0 => none(),
        index => Ok(Some(index)),
    }
}

/// The last call found nothing, or failed.
fn none<T>() -> io::Result<Option<T>> {
    let error = io::Error::last_os_error();
    match Errno::from_io_error(&error) {
        // The C libraries say NXIO where the kernel says NODEV.
        Some(Errno::NXIO | Errno::NODEV) => Ok(None),
        _ => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_is_known_by_index_and_by_name() {
        assert_eq!(index(c"lo").unwrap(), Some(1));
        assert_eq!(name(1).unwrap().as_deref(), Some(c"lo"));
    }

    #[test]
    fn none_is_none_and_no_failure() {
        assert_eq!(index(c"nobody-has-it").unwrap(), None);
        assert_eq!(name(0).unwrap(), None);
        assert_eq!(name(i32::MAX as u32).unwrap(), None);
    }
}
