#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| taut_observe::fuzzing::both_ends(data));
