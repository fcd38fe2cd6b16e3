//! The host memory that this process may still allocate: the machine's free memory, the rest of its control group's
//! limit (cgroup v1 and v2, every level up to the root), and the rest of its own limit (`ulimit -v`). All of it is read
//! from Linux's files; on other systems it is unknown. Swap does not count: computing in it would take days.

use std::fs;
use std::path::Path;

/// The origin of the tightest limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryLimit {
    /// The machine's memory.
    Machine,
    /// The limit of a control group, as containers and batch systems set it.
    ControlGroup,
    /// The limit of the process's address space.
    AddressSpace,
    /// The memory of a GPU.
    Gpu,
}

/// The free memory of the host or of a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FreeMemory {
    /// Bytes that this process may still allocate.
    pub free: u64,
    /// Bytes that the limit allows in total.
    pub total: u64,
    /// The limit's origin.
    pub limit: MemoryLimit,
}

impl std::fmt::Display for FreeMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let gb = |bytes: u64| bytes as f64 / 1e9;
        let (free, total) = (gb(self.free), gb(self.total));
        match self.limit {
            MemoryLimit::Machine => write!(f, "{free:.2} of this machine's {total:.2} GB are free"),
            MemoryLimit::ControlGroup => {
                write!(f, "{free:.2} of the {total:.2} GB are free that its control group allows")
            }
            MemoryLimit::AddressSpace => {
                write!(f, "{free:.2} of the {total:.2} GB are free that the limit of its address space allows")
            }
            MemoryLimit::Gpu => write!(f, "{free:.2} of the GPU's {total:.2} GB are free"),
        }
    }
}

/// The free memory for this process; `None` if unknown.
pub fn free_memory() -> Option<FreeMemory> {
    free_memory_in(Path::new("/"))
}

/// Bytes of memory that this process uses.
pub fn resident() -> Option<u64> {
    status_bytes(Path::new("/"), "VmRSS:")
}

/// The maximum memory that this process has used.
pub fn peak() -> Option<u64> {
    status_bytes(Path::new("/"), "VmHWM:")
}

/// The tightest of all limits in the files under `root`.
fn free_memory_in(root: &Path) -> Option<FreeMemory> {
    let mut bounds = control_groups(root);
    bounds.extend(machine(root));
    bounds.extend(address_space(root));
    bounds.into_iter().min_by_key(|room| room.free)
}

fn machine(root: &Path) -> Option<FreeMemory> {
    let text = fs::read_to_string(root.join("proc/meminfo")).ok()?;
    let [free, total] = ["MemAvailable:", "MemTotal:"].map(|name| kib_line(&text, name));
    Some(FreeMemory { free: free?, total: total?, limit: MemoryLimit::Machine })
}

fn address_space(root: &Path) -> Option<FreeMemory> {
    let text = fs::read_to_string(root.join("proc/self/limits")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("Max address space"))?;
    // The soft limit, which is the one in force; `unlimited` does not parse.
    let total: u64 = line.split_whitespace().next()?.parse().ok()?;
    let taken = status_bytes(root, "VmSize:")?;
    Some(FreeMemory { free: total.saturating_sub(taken), total, limit: MemoryLimit::AddressSpace })
}

fn status_bytes(root: &Path, name: &str) -> Option<u64> {
    kib_line(&fs::read_to_string(root.join("proc/self/status")).ok()?, name)
}

/// The value of a line such as `MemTotal:  24117392 kB`, in bytes.
fn kib_line(text: &str, name: &str) -> Option<u64> {
    let value = text.lines().find_map(|line| line.strip_prefix(name))?;
    value.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}

/// The files of a cgroup version.
struct CgroupFiles {
    limit: &'static str,
    taken: &'static str,
    /// Lines of `memory.stat` with memory that the kernel reclaims before it refuses an allocation.
    reclaimable: &'static [&'static str],
}

const V1: CgroupFiles = CgroupFiles {
    limit: "memory.limit_in_bytes",
    taken: "memory.usage_in_bytes",
    reclaimable: &["total_inactive_file", "total_active_file"],
};
const V2: CgroupFiles = CgroupFiles {
    limit: "memory.max",
    taken: "memory.current",
    reclaimable: &["inactive_file", "active_file", "slab_reclaimable"],
};

/// Version 1 writes the largest number of pages for no limit.
const UNLIMITED: u64 = 1 << 60;

/// The limits of the process's control group and of all groups above it.
fn control_groups(root: &Path) -> Vec<FreeMemory> {
    let groups = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let mounts = fs::read_to_string(root.join("proc/self/mountinfo")).unwrap_or_default();
    let mut found = Vec::new();
    for line in groups.lines() {
        // ID:controllers:path; version 2 has the ID 0 and no controllers.
        let mut parts = line.splitn(3, ':');
        let (Some(id), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next()) else { continue };
        let version_2 = id == "0" && controllers.is_empty();
        if !version_2 && !controllers.split(',').any(|controller| controller == "memory") {
            continue;
        }
        let Some((mount, below)) = mounted(&mounts, path, version_2) else { continue };
        let files = if version_2 { V2 } else { V1 };
        let mount = root.join(mount.trim_start_matches('/'));
        let mut folder = mount.join(below.trim_start_matches('/'));
        while folder.starts_with(&mount) {
            found.extend(group(&folder, &files));
            if !folder.pop() {
                break;
            }
        }
    }
    found
}

/// Where a hierarchy is mounted, and the group's path below that. In a container, the mount may begin at a group.
fn mounted<'a>(mounts: &'a str, path: &'a str, version_2: bool) -> Option<(&'a str, &'a str)> {
    mounts.lines().find_map(|line| {
        // ID parent major:minor root mount-point options [optional fields] - type source options
        let (place, kind) = line.split_once(" - ")?;
        let mut kind = kind.split_whitespace();
        let (name, options) = (kind.next()?, kind.nth(1).unwrap_or_default());
        let is_meant = match version_2 {
            true => name == "cgroup2",
            false => name == "cgroup" && options.split(',').any(|option| option == "memory"),
        };
        let mut place = place.split_whitespace().skip(3);
        let (from, at) = (place.next()?, place.next()?);
        // A group outside of the mount, such as `/../other`, has no files there; the mount's root still limits.
        let below =
            path.strip_prefix(from).filter(|below| !below.split('/').any(|part| part == "..")).unwrap_or_default();
        is_meant.then_some((at, below))
    })
}

fn group(folder: &Path, files: &CgroupFiles) -> Option<FreeMemory> {
    let number = |name: &str| fs::read_to_string(folder.join(name)).ok()?.trim().parse::<u64>().ok();
    let total = number(files.limit).filter(|limit| *limit < UNLIMITED)?;
    let stat = fs::read_to_string(folder.join("memory.stat")).unwrap_or_default();
    let line = |name: &str| {
        let value = stat.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
        value.trim().parse::<u64>().ok()
    };
    let reclaimable: u64 = files.reclaimable.iter().filter_map(|name| line(name)).sum();
    let taken = number(files.taken)?.saturating_sub(reclaimable);
    Some(FreeMemory { free: total.saturating_sub(taken), total, limit: MemoryLimit::ControlGroup })
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    /// A folder with files as Linux has them.
    struct HostFiles(PathBuf);

    impl HostFiles {
        fn new(name: &str, files: &[(&str, &str)]) -> HostFiles {
            let made = HostFiles(std::env::temp_dir().join(format!("vit-host-{}-{name}", std::process::id())));
            for (path, text) in files {
                let path = made.0.join(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            }
            made
        }

        fn free_memory(&self) -> Option<FreeMemory> {
            free_memory_in(&self.0)
        }
    }

    impl Drop for HostFiles {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    const MEMINFO: &str = "MemTotal:       16000000 kB\nMemFree:  1 kB\nMemAvailable:    8000000 kB\n";
    const MOUNT_2: &str = "24 30 0:22 / /proc rw,relatime - proc proc rw\n33 24 0:28 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw\n";

    #[test]
    fn without_files_nothing_is_known() {
        assert_eq!(HostFiles::new("none", &[("readme", "")]).free_memory(), None);
    }

    #[test]
    fn the_machine_bounds_where_nothing_else_does() {
        let made = HostFiles::new("machine", &[("proc/meminfo", MEMINFO)]);
        let room = FreeMemory { free: 8_192_000_000, total: 16_384_000_000, limit: MemoryLimit::Machine };
        assert_eq!(made.free_memory(), Some(room));
        assert_eq!(room.to_string(), "8.19 of this machine's 16.38 GB are free");
    }

    #[test]
    fn the_tightest_group_on_the_way_to_the_root_bounds_and_its_page_cache_does_not_count() {
        let made = HostFiles::new(
            "v2",
            &[
                ("proc/meminfo", MEMINFO),
                ("proc/self/cgroup", "0::/jobs/one/step\n"),
                ("proc/self/mountinfo", MOUNT_2),
                ("sys/fs/cgroup/jobs/one/step/memory.max", "max\n"),
                ("sys/fs/cgroup/jobs/one/step/memory.current", "1000\n"),
                ("sys/fs/cgroup/jobs/one/memory.max", "4000000000\n"),
                ("sys/fs/cgroup/jobs/one/memory.current", "3000000000\n"),
                (
                    "sys/fs/cgroup/jobs/one/memory.stat",
                    "anon 500000000\ninactive_file_x 7\ninactive_file 1500000000\nactive_file 900000000\nslab_reclaimable 100000000\n",
                ),
                ("sys/fs/cgroup/jobs/memory.max", "9000000000\n"),
                ("sys/fs/cgroup/jobs/memory.current", "3000000000\n"),
            ],
        );
        let room = FreeMemory { free: 3_500_000_000, total: 4_000_000_000, limit: MemoryLimit::ControlGroup };
        assert_eq!(made.free_memory(), Some(room));
    }

    #[test]
    fn a_container_sees_its_own_group_at_the_mount_point() {
        let mount = "33 24 0:28 /docker/abc /sys/fs/cgroup ro - cgroup2 cgroup rw\n";
        for path in ["/docker/abc", "/", "/elsewhere"] {
            let made = HostFiles::new(
                &format!("container{}", path.len()),
                &[
                    ("proc/self/cgroup", &format!("0::{path}\n")),
                    ("proc/self/mountinfo", mount),
                    ("sys/fs/cgroup/memory.max", "1000000"),
                    ("sys/fs/cgroup/memory.current", "400000"),
                ],
            );
            let room = FreeMemory { free: 600_000, total: 1_000_000, limit: MemoryLimit::ControlGroup };
            assert_eq!(made.free_memory(), Some(room), "{path}");
        }
    }

    #[test]
    fn version_1_is_read_as_well_and_its_largest_limit_is_none() {
        let files = |limit: &'static str| {
            [
                ("proc/self/cgroup", "5:cpu,cpuacct:/a\n4:memory:/a\n0::/a\n"),
                (
                    "proc/self/mountinfo",
                    "30 24 0:26 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n31 24 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n",
                ),
                ("sys/fs/cgroup/memory/a/memory.limit_in_bytes", limit),
                ("sys/fs/cgroup/memory/a/memory.usage_in_bytes", "300\n"),
                ("sys/fs/cgroup/memory/a/memory.stat", "inactive_file 1\ntotal_inactive_file 100\n"),
            ]
        };
        let limited = HostFiles::new("v1", &files("1000\n"));
        assert_eq!(
            limited.free_memory(),
            Some(FreeMemory { free: 800, total: 1000, limit: MemoryLimit::ControlGroup })
        );
        assert_eq!(HostFiles::new("v1-none", &files("9223372036854771712\n")).free_memory(), None);
    }

    #[test]
    fn a_limit_of_the_address_space_counts() {
        let limits = "Limit                     Soft Limit           Hard Limit           Units     \nMax address space         2000000              unlimited            bytes     \n";
        let status = "Name:\tvit\nVmPeak:\t 9 kB\nVmSize:\t    1000 kB\nVmHWM:\t 8 kB\n";
        let made = HostFiles::new("limits", &[("proc/self/limits", limits), ("proc/self/status", status)]);
        assert_eq!(
            made.free_memory(),
            Some(FreeMemory { free: 976_000, total: 2_000_000, limit: MemoryLimit::AddressSpace })
        );
        let unlimited = limits.replace("2000000  ", "unlimited");
        let made = HostFiles::new("unlimited", &[("proc/self/limits", &unlimited), ("proc/self/status", status)]);
        assert_eq!(made.free_memory(), None);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn this_process_uses_memory_within_its_limit() {
        let (now, peak) = (resident().unwrap(), peak().unwrap());
        assert!(0 < now && now <= peak, "{now} {peak}");
        assert!(free_memory().unwrap().free > 0);
    }
}
