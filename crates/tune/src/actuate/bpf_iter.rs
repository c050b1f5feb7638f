//! Buffers of sockets that nobody is known to have, set from inside the kernel (a BPF iterator with bpf_setsockopt(), Linux 5.15).

use std::io::{self, Read as _};

use libbpf_rs::{Iter, Link};
use taut_bpf::{CEnum as _, Error, Map, Object, Open};

use taut_observe::namespaces::Namespace;

use crate::demand::Direction;

taut_bpf::bindings!(mod raw from "set");

const PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/set.bpf.o"));
/// Buffers that can be asked for at once.
pub(super) const WISHES: usize = raw::WISHES as usize;

/// The program, ready to be run in any network namespace.
pub(super) struct Inside {
    walk: Link,
    wishes: Map<raw::WishKey, raw::Wish>,
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
    pub(super) fn load() -> Result<Self, Error> {
        let object = Open::new("taut_tune", PROGRAM)?.load()?;
        let walk = object.program("taut_set")?.attach();
        Ok(Self {
            walk: walk.map_err(Error::during("attach the BPF iterator"))?,
            wishes: object.map("wishes")?,
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
    ) -> Result<(Vec<Granted>, bool), Error> {
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
            let _ = self.wishes.remove(&key(wish));
        }
        Ok((told?, is_whole))
    }

    fn tell(&self, wishes: &[Wish]) -> Result<(), Error> {
        for wish in wishes {
            let [expect, expect_too] = wish.expect.unwrap_or_default();
            let value = raw::Wish {
                to: wish.to,
                expect,
                expect_too,
                ..raw::Wish::default()
            };
            self.wishes.insert(&key(wish), &value)?;
        }
        Ok(())
    }

    fn ask(&self, wish: &Wish) -> Result<Granted, Error> {
        let wish = self.wishes.get(&key(wish))?.unwrap_or_default();
        Ok(match raw::WishOutcome::from_raw(wish.outcome) {
            Some(raw::WishOutcome::Set) => Granted::Set {
                from: wish.from,
                now: wish.now,
            },
            Some(raw::WishOutcome::Others) => Granted::Others { has: wish.from },
            Some(raw::WishOutcome::NotFixed) => Granted::NotFixed,
            Some(raw::WishOutcome::Failed) => Granted::Failed(wish.error),
            Some(raw::WishOutcome::Seen) => Granted::Seen,
            Some(raw::WishOutcome::NotSeen) | None => Granted::NotSeen,
        })
    }
}

impl std::fmt::Debug for Inside {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inside").finish_non_exhaustive()
    }
}

fn key(wish: &Wish) -> raw::WishKey {
    raw::WishKey {
        cookie: wish.cookie,
        receive: u32::from(wish.direction == Direction::Receive),
        ..raw::WishKey::default()
    }
}

/// In the network namespace that the calling thread is in.
fn walk(walk: &Link) -> Result<(), Error> {
    let failed = Error::during("run the BPF iterator");
    let mut iterator = match Iter::new(walk) {
        Ok(iterator) => iterator,
        Err(error) => return Err(failed(error)),
    };
    // It writes nothing.
    let mut nothing = [0; 16];
    loop {
        match iterator.read(&mut nothing) {
            Ok(0) => return Ok(()),
            Ok(_) => {}
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(failed(e.into())),
        }
    }
}
