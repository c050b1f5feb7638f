#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| taut_mesh::fuzzing::signed_members(data));
