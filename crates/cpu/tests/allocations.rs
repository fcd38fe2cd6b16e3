//! Running a graph a second time allocates nothing, on any thread.

use std::alloc::{GlobalAlloc, Layout, System};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use vit_cpu::Cpu;
use vit_graph::DType;
use vit_graph::conformance::cases;
use vit_graph::device::{Device, Elements};

struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: everything is handed on to the system's allocator; only a counter is added.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

#[test]
fn running_again_allocates_nothing() {
    let device = Cpu::new(Some(2));
    for case in cases(3).unwrap() {
        let mut values: BTreeMap<String, Vec<f32>> =
            case.names.iter().map(|n| (n.clone(), case.bindings.get(n).unwrap().to_f32())).collect();
        let mut executable = device.compile(&case.graph, &mut values).unwrap();
        let seed = [1, 2, 3, 4];
        let loss = case.graph.output("y0").unwrap();
        let mut out = vec![0.0; case.graph.shape(loss).elements()];
        let inputs: Vec<_> = case.graph.inputs().map(|(_, i)| (i.name.clone(), i.ty.dtype)).collect();
        let mut step = || {
            for (name, dtype) in &inputs {
                match dtype {
                    DType::I32 => executable.write(name, Elements::I32(&seed)).unwrap(),
                    _ => executable.write(name, Elements::F32(&values[name])).unwrap(),
                }
            }
            executable.run().unwrap();
            executable.read("y0", &mut out).unwrap();
        };
        step();
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        step();
        let after = ALLOCATIONS.load(Ordering::Relaxed);
        assert_eq!(after - before, 0, "{}", case.name);
    }
}
