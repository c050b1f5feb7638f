//! Reading all elements of a BPF hash map.

use std::collections::BTreeMap;
use std::os::fd::AsFd as _;

use libbpf_rs::libbpf_sys::bpf_map_create_opts;
use libbpf_rs::{MapCore as _, MapFlags, MapHandle, MapType};
use taut_sys::bpf::hash_entries;

fn map(room: u32) -> MapHandle {
    map_of(MapType::Hash, 8, room)
}

fn map_of(kind: MapType, key: u32, room: u32) -> MapHandle {
    assert!(
        rustix::process::geteuid().is_root(),
        "this test creates BPF maps and must run as root, as `make test` does"
    );
    let opts = bpf_map_create_opts {
        sz: size_of::<bpf_map_create_opts>() as u64,
        ..Default::default()
    };
    MapHandle::create(kind, Some("listed"), key, 4, room, &opts).unwrap()
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
        let listed = hash_entries(map.as_fd(), 0).unwrap();
        assert_eq!(listed.len(), all.len());
        assert_eq!(listed.into_iter().collect::<BTreeMap<_, _>>(), all);
    }
}

#[test]
fn unsupported_flags_are_an_error() {
    let map = map(10);
    // BPF_F_LOCK, although the elements have no lock.
    assert!(hash_entries(map.as_fd(), 4).is_err());
}

#[test]
fn a_map_of_another_type_is_an_error_before_anything_is_read() {
    // Values of the first two take more room than the value size says.
    for (kind, key) in [
        (MapType::PercpuHash, 8),
        (MapType::LruPercpuHash, 8),
        (MapType::Array, 4),
        (MapType::PercpuArray, 4),
    ] {
        let map = map_of(kind, key, 10);
        assert_eq!(
            hash_entries(map.as_fd(), 0).unwrap_err().raw_os_error(),
            22,
            "{kind:?}"
        );
    }
    let map = map_of(MapType::LruHash, 8, 10);
    map.update(&[7; 8], &[9; 4], MapFlags::ANY).unwrap();
    let listed = hash_entries(map.as_fd(), 0).unwrap();
    assert_eq!(listed, [(vec![7; 8], vec![9; 4])]);
}
