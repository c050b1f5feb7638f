//! Resizes buffers of sockets that no process is known to have, from inside the kernel (a BPF
//! iterator with bpf_setsockopt(), Linux 5.15).

use std::fmt;
use std::io::{self, Read as _};

use libbpf_rs::{Iter, Link};
use taut_bpf::{CEnum as _, Error, Map, Object, Open};
use taut_observe::namespaces::Namespace;

use crate::demand::Direction;

taut_bpf::bindings!(mod raw from "set");

const PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/set.bpf.o"));
/// The maximum number of requests in one run.
pub(super) const MAX_REQUESTS: usize = raw::REQUESTS as usize;

/// The BPF iterator, which can run in any network namespace.
pub(super) struct BufferIter {
    link: Link,
    requests: Map<raw::RequestKey, raw::Request>,
    _object: Object,
}

/// A request to resize a buffer, if it is fixed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BufferRequest {
    /// The socket's cookie.
    pub(super) cookie: u64,
    /// Which of its buffers.
    pub(super) direction: Direction,
    /// The new size, in bytes with overhead; zero: only search for the buffer.
    pub(super) to: u32,
    /// The sizes that the buffer may have now; `None`: any size.
    pub(super) expect: Option<[u32; 2]>,
}

/// The outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestOutcome {
    /// No namespace has this connection.
    NotFound,
    /// The buffer was resized.
    Set { from: u32, now: u32 },
    /// The buffer has another size than expected.
    OtherSize { size: u32 },
    /// The kernel tunes the buffer. Resizing would lock it, and could not be undone.
    NotFixed,
    /// bpf_setsockopt() failed with this error.
    Failed(i32),
    /// The buffer exists, and the request was only to search for it.
    Found,
    /// The socket is closed, and only the kernel has it until TCP is done.
    Orphan,
}

// === impl BufferIter ===

impl BufferIter {
    /// Loads the program.
    ///
    /// # Errors
    /// The process lacks CAP_BPF or CAP_PERFMON, or the kernel lacks a feature.
    pub(super) fn load() -> Result<Self, Error> {
        let object = Open::new("taut_tune", PROGRAM)?.load()?;
        let link = object.program("taut_set")?.attach();
        Ok(Self {
            link: link.map_err(Error::during("attach the BPF iterator"))?,
            requests: object.map("requests")?,
            _object: object,
        })
    }

    /// Handles up to [`MAX_REQUESTS`] requests in all of these namespaces. Returns the outcomes in
    /// the order of the requests, and whether all namespaces were searched. If not, a buffer that
    /// was not found may still exist.
    ///
    /// # Errors
    /// The iterator failed; some buffers may have been resized.
    pub(super) fn run<'a>(
        &self,
        namespaces: impl IntoIterator<Item = &'a Namespace>,
        requests: &[BufferRequest],
    ) -> Result<(Vec<RequestOutcome>, bool), Error> {
        let mut is_whole = true;
        let outcomes = self.write(requests).and_then(|()| {
            for namespace in namespaces {
                match namespace.run(|| iterate(&self.link)) {
                    Ok(Some(result)) => result?,
                    // The namespace has ended, or only the process that it was known by.
                    Ok(None) => is_whole = false,
                    Err(error) => {
                        tracing::debug!(%error, "a namespace cannot be entered");
                        is_whole = false;
                    }
                }
            }
            requests.iter().map(|request| self.read(request)).collect()
        });
        for request in requests {
            // Fails for a request that could not be written, which is not in the map.
            let _ = self.requests.remove(&key(request));
        }
        Ok((outcomes?, is_whole))
    }

    fn write(&self, requests: &[BufferRequest]) -> Result<(), Error> {
        for request in requests {
            let [expect, expect_too] = request.expect.unwrap_or_default();
            let value = raw::Request {
                to: request.to,
                expect,
                expect_too,
                ..raw::Request::default()
            };
            self.requests.insert(&key(request), &value)?;
        }
        Ok(())
    }

    fn read(&self, request: &BufferRequest) -> Result<RequestOutcome, Error> {
        let request = self.requests.get(&key(request))?.unwrap_or_default();
        Ok(match raw::RequestOutcome::from_raw(request.outcome) {
            Some(raw::RequestOutcome::Set) => RequestOutcome::Set {
                from: request.from,
                now: request.now,
            },
            Some(raw::RequestOutcome::OtherSize) => {
                RequestOutcome::OtherSize { size: request.from }
            }
            Some(raw::RequestOutcome::NotFixed) => RequestOutcome::NotFixed,
            Some(raw::RequestOutcome::Failed) => RequestOutcome::Failed(request.error),
            Some(raw::RequestOutcome::Found) => RequestOutcome::Found,
            Some(raw::RequestOutcome::Orphan) => RequestOutcome::Orphan,
            Some(raw::RequestOutcome::NotFound) | None => RequestOutcome::NotFound,
        })
    }
}

impl fmt::Debug for BufferIter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BufferIter").finish_non_exhaustive()
    }
}

fn key(request: &BufferRequest) -> raw::RequestKey {
    raw::RequestKey {
        cookie: request.cookie,
        receive: u32::from(request.direction == Direction::Receive),
        ..raw::RequestKey::default()
    }
}

/// Runs the iterator over the connections of the calling thread's network namespace.
fn iterate(link: &Link) -> Result<(), Error> {
    let failed = Error::during("run the BPF iterator");
    let mut iterator = match Iter::new(link) {
        Ok(iterator) => iterator,
        Err(error) => return Err(failed(error)),
    };
    // The program writes no output, but reading runs it.
    let mut output = [0; 16];
    loop {
        match iterator.read(&mut output) {
            Ok(0) => return Ok(()),
            Ok(_) => {}
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(failed(e.into())),
        }
    }
}
