//! Whether there is memory for a large image. Asking the allocator alone is not enough: Linux promises memory that it does
//! not have, and ends the process once it is used.

/// Below this nobody looks: a machine without this much has other troubles.
const LARGE: usize = 1 << 28;

/// Whether as many bytes can be had at once.
pub(super) fn suffices(bytes: usize) -> bool {
    bytes < LARGE
        || (available().is_none_or(|available| bytes as u64 <= available)
            && Vec::<u8>::new().try_reserve_exact(bytes).is_ok())
}

/// What the machine and the control groups of this process have left; nothing where they do not say.
#[cfg(target_os = "linux")]
fn available() -> Option<u64> {
    use std::fs::read_to_string;
    use std::path::Path;
    let field = |text: &str, name: &str| -> Option<u64> {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().trim_end_matches(" kB").parse().ok()
    };
    let machine = read_to_string("/proc/meminfo").ok().and_then(|text| field(&text, "MemAvailable:"));
    let group = read_to_string("/proc/self/cgroup").unwrap_or_default();
    let group =
        group.lines().find_map(|line| line.strip_prefix("0::/")).map(|group| Path::new("/sys/fs/cgroup").join(group));
    let groups = group.iter().flat_map(|group| group.ancestors()).filter_map(|group| {
        let number = |name: &str| read_to_string(group.join(name)).ok()?.trim().parse::<u64>().ok();
        let used = number("memory.current")?;
        // Cached files give way.
        let cached = read_to_string(group.join("memory.stat")).ok().and_then(|text| field(&text, "inactive_file "));
        Some(number("memory.max")?.saturating_sub(used.saturating_sub(cached.unwrap_or(0))))
    });
    machine.map(|kilobytes| kilobytes.saturating_mul(1024)).into_iter().chain(groups).min()
}

#[cfg(not(target_os = "linux"))]
fn available() -> Option<u64> {
    None
}
