//! Running a whole model a second time allocates nothing, on any thread. Alone in its binary, since the counter counts
//! the allocations of the whole process.

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use support::{open, recorded};
use vit_cpu::Cpu;
use vit_graph::device::{Device, Elements};
use vit_models::Mode;

struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is forwarded to the system's allocator; the other methods of the trait call these two.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller upholds the contract of the same method of `System`.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller upholds the contract of the same method of `System`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

#[test]
fn running_a_model_again_allocates_nothing() {
    for threads in [1, 2] {
        let device = Cpu::new(Some(threads));
        for case in ["timm_vit_modern", "timm_vit_map", "timm_deit_distilled", "timm_vit_rect"] {
            let mut checkpoint = open(case);
            let input = recorded(case).tensors["input"].clone();
            let graph = checkpoint.config.architecture.build(input.shape[0], Mode::Inference).unwrap();
            let mut executable = device.compile(&graph, &mut checkpoint.weights).unwrap();
            let logits = graph.output("logits").unwrap();
            let mut out = vec![0.0; graph.shape(logits).elements()];
            let mut step = || {
                executable.write("image", Elements::F32(&input.data)).unwrap();
                executable.run().unwrap();
                executable.read("logits", &mut out).unwrap();
            };
            step();
            let before = ALLOCATIONS.load(Ordering::Relaxed);
            step();
            step();
            let after = ALLOCATIONS.load(Ordering::Relaxed);
            assert_eq!(after - before, 0, "{case} on {threads} threads");
            assert!(out.iter().any(|v| *v != 0.0));
        }
    }
}
