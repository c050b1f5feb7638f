//! Reading all elements of a BPF hash map.
#![allow(clippy::unwrap_used, reason = "in a test, a panic is the report")]

use std::collections::BTreeMap;
use std::os::fd::AsFd as _;

use libbpf_rs::libbpf_sys::bpf_map_create_opts;
use libbpf_rs::{MapCore as _, MapFlags, MapHandle, MapType};
use taut_sys::bpf::hash_entries;

fn map(room: u32) -> MapHandle {
    assert!(
        rustix::process::geteuid().is_root(),
        "this test creates BPF maps and must run as root, as `make test` does"
    );
    let opts = bpf_map_create_opts {
        sz: size_of::<bpf_map_create_opts>() as u64,
        ..Default::default()
    };
    MapHandle::create(MapType::Hash, Some("listed"), 8, 4, room, &opts).unwrap()
}

#[test]
fn every_element_is_returned_once_whatever_their_number() {
    // Many of these buckets have several elements, so batches end before they are full.
    for (room, count) in [(10, 0), (10, 1), (10, 10), (1024, 1024), (40_000, 30_000)] {
        let map = map(room);
        let all: BTreeMap<_, _> = (0..count)
            .map(|n: u64| (n.to_ne_bytes().to_vec(), (n as u32).to_ne_bytes().to_vec()))
            .collect();
        for (key, value) in &all {
            map.update(key, value, MapFlags::ANY).unwrap();
        }
        let listed = hash_entries(map.as_fd(), 8, 4, 0).unwrap();
        assert_eq!(listed.len(), all.len());
        assert_eq!(listed.into_iter().collect::<BTreeMap<_, _>>(), all);
    }
}

#[test]
fn unsupported_flags_are_an_error() {
    let map = map(10);
    // BPF_F_LOCK, although the elements have no lock.
    assert!(hash_entries(map.as_fd(), 8, 4, 4).is_err());
}
