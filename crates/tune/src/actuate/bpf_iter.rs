//! Buffers of sockets that nobody is known to have, set from inside the kernel (a BPF iterator with bpf_setsockopt(), Linux 5.15).

use libbpf_rs::{Iter, Link, MapCore as _, MapFlags, MapHandle, Object, ObjectBuilder};
use std::io::{self, Read as _};

use taut_observe::namespaces::Namespace;

use crate::demand::Direction;

const PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/set.bpf.o"));
/// That are asked for at once, at most: `WISHES` of set.h.
pub(super) const WISHES: usize = 4096;
/// Bytes of `struct wish` of set.h.
const WISH: usize = 32;

/// The program, ready to be run in any network namespace.
pub(super) struct Inside {
    walk: Link,
    wishes: MapHandle,
    _object: Object,
}

/// A buffer that is to be set, if it is a fixed one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wish {
    /// The kernel's name of the socket.
    pub(super) cookie: u64,
    /// Which of its buffers.
    pub(super) direction: Direction,
    /// Bytes with overhead; zero: it is only looked for.
    pub(super) to: u32,
    /// Only if it has one of these; none: whatever it has.
    pub(super) expect: Option<[u32; 2]>,
}

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Granted {
    /// There is no such connection in these namespaces.
    NotSeen,
    /// It had so much, and has.
    Set { from: u32, now: u32 },
    /// It has something else than was expected.
    Others { has: u32 },
    /// The kernel sizes it, and what is set here could not be undone.
    NotFixed,
    /// The kernel's.
    Failed(i32),
    /// It is there, and nothing was to be set.
    Seen,
}

// === impl Inside ===

impl Inside {
    /// # Errors
    /// Without CAP_BPF and CAP_PERFMON, or a kernel that cannot.
    pub(super) fn load() -> Result<Self, libbpf_rs::Error> {
        libbpf_rs::set_print(None);
        let object = ObjectBuilder::default()
            .name("taut_tune")?
            .open_memory(PROGRAM)?
            .load()?;
        let missing = || libbpf_rs::Error::from(io::Error::from(io::ErrorKind::NotFound));
        let program = object.progs_mut().next().ok_or_else(missing)?;
        let walk = program.attach()?;
        let map = object.maps().find(|map| map.name() == "wishes");
        let wishes = MapHandle::try_from(&map.ok_or_else(missing)?)?;
        Ok(Self {
            walk,
            wishes,
            _object: object,
        })
    }

    /// What comes of each, in their order; they are looked for in all of these namespaces. No more than [`WISHES`]. And whether all of these were
    /// looked through: else what was not seen may be there.
    ///
    /// # Errors
    /// The system's: some may have been set.
    pub(super) fn set<'a>(
        &self,
        namespaces: impl IntoIterator<Item = &'a Namespace>,
        wishes: &[Wish],
    ) -> Result<(Vec<Granted>, bool), libbpf_rs::Error> {
        let mut is_whole = true;
        let told = self.tell(wishes).and_then(|()| {
            for namespace in namespaces {
                match namespace.run(|| walk(&self.walk)) {
                    Ok(Some(result)) => result?,
                    // It, or only the process by which it was known, has ended.
                    Ok(None) => is_whole = false,
                    Err(error) => {
                        tracing::debug!(%error, "a namespace cannot be entered");
                        is_whole = false;
                    }
                }
            }
            wishes.iter().map(|wish| self.ask(wish)).collect()
        });
        for wish in wishes {
            // It may not have come to be there.
            let _ = self.wishes.delete(&key(wish));
        }
        Ok((told?, is_whole))
    }

    fn tell(&self, wishes: &[Wish]) -> Result<(), libbpf_rs::Error> {
        for wish in wishes {
            let expect = wish.expect.unwrap_or_default();
            let mut value = [0; WISH];
            for (bytes, figure) in value
                .chunks_exact_mut(4)
                .zip([wish.to, expect[0], expect[1]])
            {
                bytes.copy_from_slice(&figure.to_ne_bytes());
            }
            self.wishes.update(&key(wish), &value, MapFlags::ANY)?;
        }
        Ok(())
    }

    fn ask(&self, wish: &Wish) -> Result<Granted, libbpf_rs::Error> {
        let value = self.wishes.lookup(&key(wish), MapFlags::ANY)?;
        let figure = |index: usize| -> Option<u32> {
            let bytes = value.as_deref()?.get(4 * index..)?.first_chunk()?;
            Some(u32::from_ne_bytes(*bytes))
        };
        let figure = |index| figure(index).unwrap_or_default();
        // `enum wish_outcome` of set.h.
        Ok(match figure(6) {
            1 => Granted::Set {
                from: figure(3),
                now: figure(4),
            },
            2 => Granted::Others { has: figure(3) },
            3 => Granted::NotFixed,
            4 => Granted::Failed(figure(5).cast_signed()),
            5 => Granted::Seen,
            _ => Granted::NotSeen,
        })
    }
}

impl std::fmt::Debug for Inside {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inside").finish_non_exhaustive()
    }
}

/// `struct wish_key` of set.h.
fn key(wish: &Wish) -> [u8; 16] {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&wish.cookie.to_ne_bytes());
    let receive = u32::from(wish.direction == Direction::Receive);
    key[8..12].copy_from_slice(&receive.to_ne_bytes());
    key
}

/// In the network namespace that the calling thread is in.
fn walk(walk: &Link) -> Result<(), libbpf_rs::Error> {
    let mut iterator = Iter::new(walk)?;
    // It writes nothing.
    let mut nothing = [0; 16];
    loop {
        match iterator.read(&mut nothing) {
            Ok(0) => return Ok(()),
            Ok(_) => {}
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e.into()),
        }
    }
}
