//! Checks free memory before a large image is decoded. The allocator alone does not suffice: Linux overcommits memory
//! and kills the process when it is used.

use vit_system::host;

/// Smaller images are decoded without a check, which reads files of the system.
const LARGE: usize = 1 << 28;

/// Whether this many bytes are free.
pub(super) fn suffices(bytes: usize) -> bool {
    bytes < LARGE
        || (host::free_memory().is_none_or(|room| bytes as u64 <= room.free)
            && Vec::<u8>::new().try_reserve_exact(bytes).is_ok())
}
