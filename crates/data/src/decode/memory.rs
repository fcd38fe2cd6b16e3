//! Whether there is memory for a large image. Asking the allocator alone is not enough: Linux promises memory that it does
//! not have, and ends the process once it is used.

use vit_system::host;

/// Images that take less are decoded without asking, since asking reads files of the system.
const LARGE: usize = 1 << 28;

/// Whether as many bytes can be had at once.
pub(super) fn suffices(bytes: usize) -> bool {
    bytes < LARGE
        || (host::free_memory().is_none_or(|room| bytes as u64 <= room.free)
            && Vec::<u8>::new().try_reserve_exact(bytes).is_ok())
}
