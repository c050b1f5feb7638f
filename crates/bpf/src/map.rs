//! Maps whose keys and values have types.

use std::marker::PhantomData;
use std::os::fd::AsFd as _;

use libbpf_rs::{ErrorKind, MapCore as _, MapFlags, MapHandle};
use taut_sys::bpf::hash_entries;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::Error;

/// Plain data: every sequence of bytes of its size is a value. Generated structs and integers are.
pub trait Plain: FromBytes + IntoBytes + Immutable + Copy {}

impl<T: FromBytes + IntoBytes + Immutable + Copy> Plain for T {}

/// A map with keys `K` and values `V`. It refers to the map in the kernel, which stays for as long.
#[derive(Debug)]
pub struct Map<K, V> {
    handle: MapHandle,
    name: &'static str,
    flags: MapFlags,
    types: PhantomData<fn(K) -> V>,
}

/// A per-CPU array with values `V`.
#[derive(Debug)]
pub struct PerCpu<V> {
    handle: MapHandle,
    name: &'static str,
    types: PhantomData<fn() -> V>,
}

// === impl Map ===

impl<K: Plain, V: Plain> Map<K, V> {
    /// Gives types to a map. `name` is for errors.
    ///
    /// # Errors
    /// [`Error::Layout`] if its keys or values have other sizes.
    pub fn new(handle: MapHandle, name: &'static str) -> Result<Self, Error> {
        check(name, "keys", handle.key_size(), size_of::<K>())?;
        check(name, "values", handle.value_size(), size_of::<V>())?;
        Ok(Self {
            handle,
            name,
            flags: MapFlags::ANY,
            types: PhantomData,
        })
    }

    /// The same map; values, which have a `bpf_spin_lock`, are read while it is held.
    #[must_use]
    pub fn locked(mut self) -> Self {
        self.flags = MapFlags::LOCK;
        self
    }

    /// The value of a key; `None` if there is none.
    ///
    /// # Errors
    /// [`Error::Kernel`].
    pub fn get(&self, key: &K) -> Result<Option<V>, Error> {
        let found = self.handle.lookup(key.as_bytes(), self.flags);
        let found = found.map_err(|e| self.failed("read", e))?;
        Ok(found.and_then(|bytes| V::read_from_bytes(&bytes).ok()))
    }

    /// Sets the value of a key.
    ///
    /// # Errors
    /// [`Error::Kernel`], such as `E2BIG` of a map that is full.
    pub fn insert(&self, key: &K, value: &V) -> Result<(), Error> {
        let done = self
            .handle
            .update(key.as_bytes(), value.as_bytes(), MapFlags::ANY);
        done.map_err(|e| self.failed("write", e))
    }

    /// Removes a key; returns whether it was there.
    ///
    /// # Errors
    /// [`Error::Kernel`].
    pub fn remove(&self, key: &K) -> Result<bool, Error> {
        match self.handle.delete(key.as_bytes()) {
            Ok(()) => Ok(true),
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(false),
            Err(e) => Err(self.failed("delete from", e)),
        }
    }

    /// Its keys. While they change, some may be missed or come twice.
    pub fn keys(&self) -> impl Iterator<Item = K> {
        self.handle
            .keys()
            .filter_map(|key| K::read_from_bytes(&key).ok())
    }

    /// All elements of a hash map. While they change, some may be missed or come twice.
    ///
    /// # Errors
    /// [`Error::Kernel`].
    pub fn entries(&self) -> Result<Vec<(K, V)>, Error> {
        let found = hash_entries(self.handle.as_fd(), self.flags.bits());
        let found = found.map_err(|e| self.failed("list", std::io::Error::from(e).into()))?;
        let entry = |(key, value): &(Vec<u8>, Vec<u8>)| {
            Some((
                K::read_from_bytes(key).ok()?,
                V::read_from_bytes(value).ok()?,
            ))
        };
        Ok(found.iter().filter_map(entry).collect())
    }

    /// The map itself.
    pub fn handle(&self) -> &MapHandle {
        &self.handle
    }

    fn failed(&self, action: &str, source: libbpf_rs::Error) -> Error {
        Error::during(format!("{action} the BPF map `{}`", self.name))(source)
    }
}

// === impl PerCpu ===

impl<V: Plain> PerCpu<V> {
    /// Gives a type to a per-CPU array. `name` is for errors.
    ///
    /// # Errors
    /// [`Error::Layout`] if its values have another size.
    pub fn new(handle: MapHandle, name: &'static str) -> Result<Self, Error> {
        check(name, "keys", handle.key_size(), size_of::<u32>())?;
        check(name, "values", handle.value_size(), size_of::<V>())?;
        Ok(Self {
            handle,
            name,
            types: PhantomData,
        })
    }

    /// The element at this index, of each possible CPU.
    ///
    /// # Errors
    /// [`Error::Kernel`].
    pub fn get(&self, index: u32) -> Result<Vec<V>, Error> {
        let found = self.handle.lookup_percpu(index.as_bytes(), MapFlags::ANY);
        let found = found.map_err(Error::during(format!("read the BPF map `{}`", self.name)))?;
        // The kernel rounds each up to a multiple of eight bytes.
        let value = |bytes: &Vec<u8>| V::read_from_prefix(bytes).ok().map(|(value, _)| value);
        Ok(found.iter().flatten().filter_map(value).collect())
    }
}

fn check(map: &'static str, part: &'static str, found: u32, expected: usize) -> Result<(), Error> {
    match found as usize == expected {
        true => Ok(()),
        false => Err(Error::Layout {
            map,
            part,
            found,
            expected,
        }),
    }
}

/// The struct at the beginning of a record, and the bytes after it; `None` if the record is shorter.
pub fn read_prefix<T: Plain>(record: &[u8]) -> Option<(T, &[u8])> {
    T::read_from_prefix(record).ok()
}

/// The bytes of a value in memory order, such as an address that C keeps in words.
///
/// # Panics
/// If `N` is not the size of `T`.
pub fn bytes<T: Plain, const N: usize>(value: &T) -> [u8; N] {
    let bytes = value.as_bytes().try_into();
    bytes.expect("N is the size of T")
}
