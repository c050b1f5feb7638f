//! The programs' ring buffers to user space and their counters.

use std::sync::{Arc, Mutex};

use libbpf_rs::{MapCore, MapFlags, MapHandle, RingBuffer, RingBufferBuilder};

/// A ring buffer to user space.
pub(crate) struct Records {
    buffer: RingBuffer<'static>,
    taken: Arc<Mutex<Vec<Vec<u8>>>>,
}

/// The exit counters of a program.
pub(crate) struct Exits {
    map: MapHandle,
    names: Vec<&'static str>,
    /// The value of each at the last check.
    seen: Vec<u64>,
}

// === impl Records ===

impl Records {
    pub(crate) fn of(map: &MapHandle) -> Self {
        let taken = Arc::new(Mutex::new(Vec::new()));
        let mut builder = RingBufferBuilder::new();
        let to = taken.clone();
        let take = move |bytes: &[u8]| {
            to.lock().unwrap().push(bytes.to_vec());
            0
        };
        builder.add(map, take).unwrap();
        let buffer = builder.build().unwrap();
        Self { buffer, taken }
    }

    /// Takes all records.
    pub(crate) fn take(&self) -> Vec<Vec<u8>> {
        self.buffer.consume().unwrap();
        std::mem::take(&mut self.taken.lock().unwrap())
    }
}

// === impl Exits ===

impl Exits {
    /// `names`: in the order of the counters.
    pub(crate) fn of(map: MapHandle, names: Vec<&'static str>) -> Self {
        let seen = vec![0; names.len()];
        Self { map, names, seen }
    }

    fn count(&self, at: usize) -> u64 {
        let key = (at as u32).to_ne_bytes();
        let values = self.map.lookup_percpu(&key, MapFlags::ANY);
        let values = values.unwrap().unwrap_or_default();
        let count = |bytes: &Vec<u8>| u64::from_ne_bytes(bytes[..8].try_into().unwrap());
        values.iter().map(count).sum()
    }

    /// Returns whether a packet has left by this exit since the last check.
    pub(crate) fn has_left_by(&mut self, name: &str) -> bool {
        let Some(at) = self.names.iter().position(|n| *n == name) else {
            panic!("the programs have no exit `{name}`");
        };
        let now = self.count(at);
        now != std::mem::replace(&mut self.seen[at], now)
    }

    /// Returns the exits taken since the last check.
    pub(crate) fn left_by(&mut self) -> Vec<&'static str> {
        let mut left = Vec::new();
        for at in 0..self.names.len() {
            let now = self.count(at);
            if now != std::mem::replace(&mut self.seen[at], now) {
                left.push(self.names[at]);
            }
        }
        left
    }

    /// Returns each exit taken so far, with its count.
    pub(crate) fn shown(&self) -> String {
        let all = self.names.iter().enumerate();
        let all = all.map(|(at, name)| (name, self.count(at)));
        let used: Vec<_> = all.filter(|(_, count)| *count > 0).collect();
        let shown = used.iter().map(|(name, count)| format!("{name} {count}"));
        shown.collect::<Vec<_>>().join(", ")
    }
}
