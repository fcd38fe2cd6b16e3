//! The peak rate of multiply-adds of this CPU, to compare kernels with.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::Cpu;
use crate::isa::fma_loop;

/// Measures the peak rate of multiply-adds over all threads of a device, in FLOP/s: the best of several short runs,
/// since other load on the machine can only lower it.
pub fn measure_peak_flops(cpu: &Cpu, time: Duration) -> f64 {
    let (pool, isa, threads) = (cpu.pool(), cpu.isa(), cpu.threads());
    let (mut best, start, mut loops) = (0.0f64, Instant::now(), 1 << 12);
    while start.elapsed() < time {
        let begin = Instant::now();
        let operations = AtomicU64::new(0);
        pool.run(threads, &|_| {
            operations.fetch_add(fma_loop(isa, loops), Ordering::Relaxed);
        });
        let seconds = begin.elapsed().as_secs_f64();
        best = best.max(operations.into_inner() as f64 / seconds);
        // Long enough to amortise waking the threads, short enough to fit between two preemptions.
        if seconds < 5e-3 {
            loops *= 2;
        }
    }
    best
}
