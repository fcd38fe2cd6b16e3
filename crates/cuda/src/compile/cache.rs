//! Files that make the next start faster: compiled kernels and chosen algorithms, in the user's cache folder.
//!
//! Nothing depends on them. A file that cannot be read, was cut off or was written by someone else is as good as none.

use std::path::PathBuf;

/// Where this program keeps what it can make again.
fn folder() -> Option<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let base = if cfg!(windows) {
        variable("LOCALAPPDATA")
    } else {
        variable("XDG_CACHE_HOME")
            .filter(|p| p.is_absolute())
            .or_else(|| variable("HOME").map(|home| home.join(".cache")))
    };
    base.map(|base| base.join("vit"))
}

/// A number that tells contents apart: two FNV-1a sums of 64 bits with different starts.
pub(crate) fn fingerprint(parts: &[&[u8]]) -> String {
    let sum = |start: u64| {
        let bytes = parts.iter().flat_map(|part| part.iter().copied().chain([0xff]));
        bytes.fold(start, |sum, byte| (sum ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3))
    };
    format!("{:016x}{:016x}", sum(0xcbf2_9ce4_8422_2325), sum(0x9e37_79b9_7f4a_7c15))
}

/// The content of a cached file, if it is whole.
pub(crate) fn read(name: &str) -> Option<Vec<u8>> {
    let mut content = std::fs::read(folder()?.join(name)).ok()?;
    let sum = content.split_off(content.len().checked_sub(32)?);
    (fingerprint(&[&content]).as_bytes() == sum).then_some(content)
}

/// Writes a file beside and renames it, so that nobody ever sees half of one. Failing to is no error.
pub(crate) fn write(name: &str, content: &[u8]) {
    let Some(folder) = folder() else { return };
    let (path, beside) = (folder.join(name), folder.join(format!("{name}.{}", std::process::id())));
    let whole = [content, fingerprint(&[content]).as_bytes()].concat();
    let written = std::fs::create_dir_all(&folder).and_then(|()| std::fs::write(&beside, whole));
    if written.and_then(|()| std::fs::rename(&beside, &path)).is_err() {
        // What is left of a failed attempt is in nobody's way, but needs no place either.
        std::fs::remove_file(&beside).ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fingerprints_tell_parts_apart() {
        assert_ne!(fingerprint(&[b"ab", b"c"]), fingerprint(&[b"a", b"bc"]));
        assert_eq!(fingerprint(&[b"ab"]).len(), 32);
    }
}
