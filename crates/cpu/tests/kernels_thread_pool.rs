//! The guarantees of the thread pool.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use vit_cpu::thread_pool::ThreadPool;

#[test]
fn every_task_runs_exactly_once() {
    for threads in [0, 1, 2, 3, 8] {
        let pool = ThreadPool::new(threads);
        assert_eq!(pool.threads(), threads.max(1));
        for round in 0..300 {
            let tasks = round % 41;
            let counts: Vec<AtomicUsize> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
            pool.run(tasks, &|i| {
                counts[i].fetch_add(1, Ordering::Relaxed);
            });
            assert!(counts.iter().all(|c| c.load(Ordering::Relaxed) == 1));
        }
    }
}

#[test]
fn workers_wake_after_a_pause() {
    let pool = ThreadPool::new(3);
    for _ in 0..20 {
        let total = AtomicUsize::new(0);
        pool.run(100, &|i| {
            total.fetch_add(i, Ordering::Relaxed);
        });
        assert_eq!(total.into_inner(), 4950);
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn worker_indices_are_never_shared() {
    let pool = ThreadPool::new(3);
    let busy: Vec<AtomicBool> = (0..3).map(|_| AtomicBool::new(false)).collect();
    for _ in 0..200 {
        pool.run_with_worker(30, &|_, worker| {
            assert!(!busy[worker].swap(true, Ordering::SeqCst));
            std::hint::spin_loop();
            busy[worker].store(false, Ordering::SeqCst);
        });
    }
}

#[test]
fn a_panic_reaches_the_caller_and_the_pool_lives_on() {
    let pool = ThreadPool::new(3);
    for _ in 0..20 {
        let result = catch_unwind(AssertUnwindSafe(|| {
            pool.run(50, &|i| {
                if i == 17 {
                    std::panic::panic_any("seventeen");
                }
            });
        }));
        let payload = result.expect_err("the panic was lost");
        assert_eq!(payload.downcast_ref::<&str>(), Some(&"seventeen"));
        let total = AtomicUsize::new(0);
        pool.run(10, &|_| {
            total.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(total.into_inner(), 10);
    }
}

#[test]
fn a_call_from_inside_a_task_runs_inline() {
    let pool = ThreadPool::new(2);
    let total = AtomicUsize::new(0);
    pool.run(8, &|_| {
        let thread = std::thread::current().id();
        pool.run(5, &|_| {
            assert_eq!(std::thread::current().id(), thread);
            total.fetch_add(1, Ordering::Relaxed);
        });
    });
    assert_eq!(total.into_inner(), 40);
}

#[test]
fn threads_can_call_at_the_same_time() {
    let pool = ThreadPool::new(2);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..500 {
                    let total = AtomicUsize::new(0);
                    pool.run(9, &|i| {
                        total.fetch_add(i, Ordering::Relaxed);
                    });
                    assert_eq!(total.into_inner(), 36);
                }
            });
        }
    });
}

#[test]
fn chunks_cover_the_slice() {
    let pool = ThreadPool::new(2);
    let mut data = vec![0usize; 103];
    pool.run_chunks(&mut data, 10, &|i, chunk| {
        assert_eq!(chunk.len(), if i == 10 { 3 } else { 10 });
        chunk.fill(i + 1);
    });
    assert!(data.iter().enumerate().all(|(i, &x)| x == i / 10 + 1));
}
