//! Generates the CPU load of a busy guest.

use std::hint::black_box;
use std::time::{Duration, Instant};

/// The length of one cycle of computing and sleeping. A guest's clock ticks every 10 ms (HZ=100),
/// and a sleep ends at a tick.
const PERIOD: Duration = Duration::from_millis(50);

/// Computes `load` per cent of the time (0 to 100), for ever.
///
/// Reads the clock all the time, so that the gate can stop it. In User Mode Linux, reading the
/// clock is a system call, and a call stops the process until the guest's kernel has handled it.
/// When the kernel's process is stopped, this process therefore continues for some microseconds at
/// most. The gate cannot stop this process directly: the kernel traces it and would take a SIGSTOP
/// for a fault.
pub(super) fn burn(load: u8) {
    let busy = PERIOD * u32::from(load.min(100)) / 100;
    loop {
        let began = Instant::now();
        while began.elapsed() < busy {
            compute();
        }
        let rest = PERIOD.saturating_sub(began.elapsed());
        if !rest.is_zero() {
            std::thread::sleep(rest);
        }
    }
}

/// About 20 us of work.
fn compute() {
    let mut value = 1_u64;
    for step in 0..20_000_u64 {
        value = black_box(
            value
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(step),
        );
    }
}
