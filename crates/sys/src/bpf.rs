//! BPF programs at the kernel's hooks, where libbpf-rs has no call for it.

pub mod tc;

use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;
use std::time::Duration;

use libbpf_rs::libbpf_sys as sys;

use crate::Errno;

/// The kernel's count of how often each program runs and for how long (Linux 5.8), while this is
/// held. It costs every program of the machine some tens of nanoseconds a run.
#[derive(Debug)]
pub struct RunTimes {
    #[expect(dead_code, reason = "it is held, and closed when it is dropped")]
    enabled: OwnedFd,
}

// === impl RunTimes ===

impl RunTimes {
    /// Begins to count.
    ///
    /// # Errors
    /// `EPERM` without CAP_SYS_ADMIN.
    pub fn enable() -> Result<Self, Errno> {
        // SAFETY: the call takes a number and touches no memory of this process.
        let fd = unsafe { sys::bpf_enable_stats(sys::BPF_STATS_RUN_TIME) };
        if fd < 0 {
            return Err(Errno::from_raw_os_error(-fd));
        }
        // SAFETY: the call has made this descriptor and nobody else owns it.
        let enabled = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Self { enabled })
    }
}

/// How long a program has run, while somebody held [`RunTimes`].
///
/// # Errors
/// `EINVAL` when the descriptor is of no program.
pub fn run_time(program: BorrowedFd<'_>) -> Result<Duration, Errno> {
    let mut info = sys::bpf_prog_info::default();
    let mut len = size_of::<sys::bpf_prog_info>() as u32;
    // SAFETY: the kernel writes at most `len` bytes, which `info` has; all its pointers are null and
    // their lengths zero, so that it writes nowhere else.
    let done =
        unsafe { sys::bpf_prog_get_info_by_fd(program.as_raw_fd(), &raw mut info, &raw mut len) };
    if done < 0 {
        return Err(Errno::from_raw_os_error(-done));
    }
    Ok(Duration::from_nanos(info.run_time_ns))
}

/// Elements that are asked for in one call, at first.
const BATCH: usize = 1024;

/// More than any bucket holds.
const BATCH_MAX: usize = 1 << 20;

/// Calls that a signal may end before one says something.
const INTERRUPTIONS: u32 = 1000;

/// A key of a map, and its value.
pub type Entry = (Vec<u8>, Vec<u8>);

/// All elements of a hash map whose keys and values have these sizes, as pairs of both. It goes on bucket
/// after bucket, so that it comes to an end however many come and go meanwhile. What is there all the
/// time is listed once; of the others some are missed, and one that is taken out and put in again may
/// come twice. `flags` are those of each element, such as `BPF_F_LOCK`.
///
/// # Errors
/// `EINVAL` where it is no such map, or has no such flags.
pub fn hash_entries(
    map: BorrowedFd<'_>,
    key_size: usize,
    value_size: usize,
    flags: u64,
) -> Result<Vec<Entry>, Errno> {
    let opts = sys::bpf_map_batch_opts {
        sz: size_of::<sys::bpf_map_batch_opts>() as u64,
        elem_flags: flags,
        ..Default::default()
    };
    let mut size = BATCH;
    let mut entries = Vec::new();
    // Of a hash map the place to go on from is a bucket's number.
    let (mut from, mut next) = (None, 0_u32);
    let mut interruptions = 0;
    loop {
        let (mut keys, mut values) = (vec![0; size * key_size], vec![0; size * value_size]);
        let mut count = size as u32;
        let start = from.as_mut().map_or(ptr::null_mut(), ptr::from_mut::<u32>);
        // SAFETY: `keys` and `values` have room for `count` elements of the sizes that the caller has said
        // are the map's; `start` and `next` are a bucket's number each, as hash maps have it; all of them
        // and `opts` live until the call returns.
        let done = unsafe {
            sys::bpf_map_lookup_batch(
                map.as_raw_fd(),
                start.cast(),
                (&raw mut next).cast(),
                keys.as_mut_ptr().cast(),
                values.as_mut_ptr().cast(),
                &raw mut count,
                &raw const opts,
            )
        };
        let error = (done != 0).then(|| Errno::from_raw_os_error(-done));
        match error {
            // Not all of a bucket fits; a batch that is not full is no end, but one before a full bucket.
            Some(Errno::NOSPC) if count == 0 && size < BATCH_MAX => {
                size *= 2;
                continue;
            }
            Some(Errno::INTR) if interruptions < INTERRUPTIONS => {
                interruptions += 1;
                continue;
            }
            None | Some(Errno::NOENT) => {}
            Some(error) => return Err(error),
        }
        let pairs = keys
            .chunks_exact(key_size)
            .zip(values.chunks_exact(value_size));
        let found = pairs.take(count as usize);
        entries.extend(found.map(|(key, value)| (key.to_vec(), value.to_vec())));
        if error.is_some() {
            return Ok(entries);
        }
        from = Some(next);
    }
}

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
