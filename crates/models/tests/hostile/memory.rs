//! A global allocator that counts what each thread holds, so that a test can say how much a reader took.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static HELD: Cell<usize> = const { Cell::new(0) };
    static PEAK: Cell<usize> = const { Cell::new(0) };
}

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn add(size: usize) {
    HELD.with(|held| {
        held.set(held.get().saturating_add(size));
        PEAK.with(|peak| peak.set(peak.get().max(held.get())));
    });
}

fn remove(size: usize) {
    HELD.with(|held| held.set(held.get().saturating_sub(size)));
}

// SAFETY: every call goes to the system allocator unchanged; counting touches only cells without destructors.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        add(layout.size());
        // SAFETY: the caller's promise about `layout` is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        remove(layout.size());
        // SAFETY: the caller's promise about `pointer` and `layout` is passed on.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // Old and new may exist at once.
        add(size);
        remove(layout.size());
        // SAFETY: the caller's promise about `pointer`, `layout` and `size` is passed on.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

/// The result, and the most memory this thread held at once on the way, beyond what it held before.
pub fn measure<T>(work: impl FnOnce() -> T) -> (T, usize) {
    let before = HELD.with(Cell::get);
    PEAK.with(|peak| peak.set(before));
    let result = work();
    (result, PEAK.with(Cell::get).saturating_sub(before))
}
