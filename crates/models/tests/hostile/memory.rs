//! A global allocator that counts the bytes of each thread.

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

// SAFETY: every call is forwarded unchanged to the system allocator; counting only accesses cells without destructors.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        add(layout.size());
        // SAFETY: the caller guarantees what `System` requires of `layout`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        remove(layout.size());
        // SAFETY: the caller guarantees what `System` requires of `pointer` and `layout`.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // Both blocks may exist at once.
        add(size);
        remove(layout.size());
        // SAFETY: the caller guarantees what `System` requires of `pointer`, `layout` and `size`.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

/// The result, and this thread's peak memory meanwhile, beyond what it had before.
pub fn measure<T>(work: impl FnOnce() -> T) -> (T, usize) {
    let before = HELD.with(Cell::get);
    PEAK.with(|peak| peak.set(before));
    let result = work();
    (result, PEAK.with(Cell::get).saturating_sub(before))
}
