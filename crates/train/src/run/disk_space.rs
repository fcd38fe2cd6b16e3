//! The disk space that a run's folder takes, known before the run begins.

use std::path::Path;

use crate::run::memory::StateBytes;

/// Bytes that a run's checkpoints take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunDisk {
    /// Between two saves: the last two checkpoints, and the weights of the last two best models.
    pub at_rest: u64,
    /// While the next checkpoint is written.
    pub peak: u64,
}

impl RunDisk {
    /// Checkpoints of this size; without validation there is no best one.
    pub fn new(state: StateBytes, validation: bool) -> RunDisk {
        let whole = state.model + state.optimiser;
        let best = if validation { 2 * state.model } else { 0 };
        RunDisk { at_rest: 2 * whole + best, peak: 3 * whole + best }
    }
}

/// Bytes that this user can write at a path, which need not exist; `None` if unknown.
pub fn free_disk(path: &Path) -> Option<u64> {
    let path = std::path::absolute(path).ok()?;
    let there = path.ancestors().find(|path| path.exists())?;
    #[cfg(unix)]
    return rustix::fs::statvfs(there).ok().map(|disk| disk.f_bavail.saturating_mul(disk.f_frsize));
    #[cfg(not(unix))]
    return None.filter(|_: &u64| there.exists());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peak_is_three_checkpoints() {
        let state = StateBytes { model: 10, optimiser: 20 };
        assert_eq!(RunDisk::new(state, true), RunDisk { at_rest: 80, peak: 110 });
        assert_eq!(RunDisk::new(state, false), RunDisk { at_rest: 60, peak: 90 });
    }

    #[test]
    #[cfg(unix)]
    fn a_folder_that_does_not_exist_is_on_the_disk_of_its_parent() {
        let folder = tempfile::tempdir().unwrap();
        assert!(free_disk(&folder.path().join("runs/one")).unwrap() > 0);
    }
}
