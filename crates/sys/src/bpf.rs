//! BPF system calls that libbpf-rs lacks.

pub mod tc;

use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;
use std::time::Duration;

use libbpf_rs::libbpf_sys as sys;

use crate::Errno;

/// Enables the kernel's run-time statistics of BPF programs (Linux 5.8) until it is dropped. They
/// cost every program of the machine some tens of nanoseconds per run.
#[derive(Debug)]
pub struct RunTimes {
    #[expect(dead_code, reason = "closing it on drop disables the statistics")]
    enabled: OwnedFd,
}

// === impl RunTimes ===

impl RunTimes {
    /// Enables the statistics.
    ///
    /// # Errors
    /// `EPERM` without CAP_SYS_ADMIN.
    pub fn enable() -> Result<Self, Errno> {
        // SAFETY: the call takes an integer only.
        let fd = unsafe { sys::bpf_enable_stats(sys::BPF_STATS_RUN_TIME) };
        if fd < 0 {
            return Err(Errno::from_raw_os_error(-fd));
        }
        // SAFETY: the call has just created this descriptor, which has no other owner.
        let enabled = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Self { enabled })
    }
}

/// Returns how long a program has run while statistics were enabled ([`RunTimes`]).
///
/// # Errors
/// `EINVAL` if the descriptor does not refer to a program.
pub fn run_time(program: BorrowedFd<'_>) -> Result<Duration, Errno> {
    let mut info = sys::bpf_prog_info::default();
    let mut len = size_of::<sys::bpf_prog_info>() as u32;
    // SAFETY: the kernel writes at most `len` bytes, the size of `info`, and the length to `len`.
    // All pointers in `info` are null with length 0, so it writes nowhere else.
    let done =
        unsafe { sys::bpf_prog_get_info_by_fd(program.as_raw_fd(), &raw mut info, &raw mut len) };
    if done < 0 {
        return Err(Errno::from_raw_os_error(-done));
    }
    Ok(Duration::from_nanos(info.run_time_ns))
}

/// Elements requested in the first call.
const BATCH: usize = 1024;

/// Upper limit of a batch: more than any bucket contains.
const BATCH_MAX: usize = 1 << 20;

/// Interrupted calls after which [`hash_entries`] gives up.
const INTERRUPTIONS: u32 = 1000;

/// A key of a map and its value.
pub type Entry = (Vec<u8>, Vec<u8>);

/// Returns all elements of a hash map, by key and value. `flags` apply to each element, such as
/// `BPF_F_LOCK`.
///
/// The map is read bucket by bucket, so the call ends even if elements are added and removed
/// meanwhile. An element that exists throughout is returned once. Elements that are added or
/// removed meanwhile may be missed, and an element that is removed and added again may be returned
/// twice.
///
/// # Errors
/// `EINVAL` if the map is not of type hash or LRU hash (one per CPU has several values for a key), or
/// does not support the flags.
pub fn hash_entries(map: BorrowedFd<'_>, flags: u64) -> Result<Vec<Entry>, Errno> {
    // The kernel writes elements of the map's sizes, whatever room there is.
    let info = map_info(map)?;
    if ![sys::BPF_MAP_TYPE_HASH, sys::BPF_MAP_TYPE_LRU_HASH].contains(&info.type_) {
        return Err(Errno::INVAL);
    }
    let (key_size, value_size) = (info.key_size as usize, info.value_size as usize);
    let opts = sys::bpf_map_batch_opts {
        sz: size_of::<sys::bpf_map_batch_opts>() as u64,
        elem_flags: flags,
        ..Default::default()
    };
    let mut size = BATCH;
    let mut entries = Vec::new();
    // The position in a hash map is a bucket number.
    let (mut from, mut next) = (None, 0_u32);
    let mut interruptions = 0;
    loop {
        let (mut keys, mut values) = (vec![0; size * key_size], vec![0; size * value_size]);
        let mut count = size as u32;
        let start = from.as_mut().map_or(ptr::null_mut(), ptr::from_mut::<u32>);
        // SAFETY: `keys` and `values` have room for `count` elements of the map's sizes, which the
        // kernel has told; `start` and `next` point to a bucket's number, the position type of
        // hash maps; all of them and `opts` outlive the call.
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
            // The next bucket does not fit the batch. (A partly filled batch is not the end either:
            // the bucket after it did not fit.)
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

fn map_info(map: BorrowedFd<'_>) -> Result<sys::bpf_map_info, Errno> {
    let mut info = sys::bpf_map_info::default();
    let mut len = size_of::<sys::bpf_map_info>() as u32;
    // SAFETY: the kernel writes at most `len` bytes, the size of `info`, and the length to `len`.
    let done = unsafe { sys::bpf_map_get_info_by_fd(map.as_raw_fd(), &raw mut info, &raw mut len) };
    match done {
        0 => Ok(info),
        error => Err(Errno::from_raw_os_error(-error)),
    }
}

/// A BPF object, which exists in the kernel as long as something refers to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Object {
    /// A program, by its ID.
    Program(u32),
    /// A map, by its ID. Registered struct_ops are maps, too.
    Map(u32),
}

impl Object {
    /// Returns whether the object still exists. The kernel reuses an ID only after 2^31 others.
    ///
    /// # Errors
    /// `EPERM` without CAP_SYS_ADMIN.
    pub fn exists(self) -> Result<bool, Errno> {
        // SAFETY: both calls take an integer only.
        let fd = unsafe {
            match self {
                Self::Program(id) => sys::bpf_prog_get_fd_by_id(id),
                Self::Map(id) => sys::bpf_map_get_fd_by_id(id),
            }
        };
        if fd >= 0 {
            // SAFETY: the call has just created this descriptor, which has no other owner.
            drop(unsafe { OwnedFd::from_raw_fd(fd) });
            return Ok(true);
        }
        match Errno::from_raw_os_error(-fd) {
            Errno::NOENT => Ok(false),
            other => Err(other),
        }
    }

    /// Parses the content of a `/proc/PID/fdinfo` file. Returns `None` if the descriptor does not
    /// refer to a BPF program or map.
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
    fn fdinfo_names_the_object_of_a_descriptor() {
        let program = "pos:\t0\nflags:\t02\nprog_type:\t27\nprog_id:\t712\n";
        assert_eq!(Object::of_fdinfo(program), Some(Object::Program(712)));
        let map = "pos:\t0\nmap_type:\t1\nmap_id:\t9\n";
        assert_eq!(Object::of_fdinfo(map), Some(Object::Map(9)));
        assert_eq!(Object::of_fdinfo("pos:\t0\nflags:\t02\n"), None);
    }

    #[test]
    fn an_object_with_an_unused_id_does_not_exist() {
        if !rustix::process::geteuid().is_root() {
            taut_sys_testing::skip::skip("looking up an ID needs root");
            return;
        }
        let never = i32::MAX.unsigned_abs();
        assert_eq!(Object::Program(never).exists(), Ok(false));
        assert_eq!(Object::Map(never).exists(), Ok(false));
    }
}
