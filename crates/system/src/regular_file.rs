//! Opens files that a user names. Opening or reading a named pipe, a terminal or a device may block for ever, so only
//! regular files (after following links) are opened; anything else is an error that names what the path is.

use std::fs::{File, FileType, Metadata, OpenOptions};
use std::io::{self, Read};
use std::path::Path;

/// Opens a regular file for reading.
pub fn open(path: &Path) -> io::Result<File> {
    // Checked before opening, because opening alone may affect a device.
    check(&path.metadata()?)?;
    let mut options = OpenOptions::new();
    options.read(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;
        // No effect on a regular file. A named pipe that has replaced it meanwhile is opened without blocking.
        options.custom_flags(libc::O_NONBLOCK);
    }
    let file = options.open(path)?;
    check(&file.metadata()?)?;
    Ok(file)
}

/// The content of a regular file.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut file = open(path)?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The content of a regular file that is text in UTF-8.
pub fn read_to_string(path: &Path) -> io::Result<String> {
    let mut file = open(path)?;
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    Ok(text)
}

/// Fails for anything but a regular file.
pub fn check(metadata: &Metadata) -> io::Result<()> {
    let kind = metadata.file_type();
    match kind.is_file() {
        true => Ok(()),
        false if kind.is_dir() => Err(io::Error::new(io::ErrorKind::IsADirectory, "it is a folder, not a file")),
        false => {
            let message = format!("it is {}, and only regular files are read", special(kind));
            Err(io::Error::new(io::ErrorKind::InvalidInput, message))
        }
    }
}

#[cfg(unix)]
fn special(kind: FileType) -> &'static str {
    use std::os::unix::fs::FileTypeExt;
    match () {
        () if kind.is_fifo() => "a named pipe (FIFO)",
        () if kind.is_socket() => "a socket",
        () if kind.is_char_device() || kind.is_block_device() => "a device",
        () => "neither a file nor a folder",
    }
}

#[cfg(not(unix))]
fn special(_: FileType) -> &'static str {
    "neither a file nor a folder"
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;
    use std::sync::mpsc::channel;
    use std::time::Duration;

    /// On a separate thread, because opening a named pipe would block.
    #[test]
    fn only_regular_files_are_opened() {
        let folder = std::env::temp_dir().join(format!("vit-regular-file-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let place = |name: &str| folder.join(name);
        std::fs::write(place("file"), "text").unwrap();
        std::os::unix::fs::symlink("file", place("link")).unwrap();
        std::os::unix::fs::symlink("/dev/zero", place("device")).unwrap();
        std::os::unix::fs::symlink("nowhere", place("broken")).unwrap();
        let _socket = UnixListener::bind(place("socket")).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(place("pipe")).status().unwrap().success());
        let names = ["file", "link", "pipe", "socket", "device", ".", "broken"];
        let (sender, receiver) = channel();
        let paths = names.map(place);
        std::thread::spawn(move || {
            let found: Vec<_> =
                paths.iter().map(|path| read_to_string(path).map_err(|error| error.to_string())).collect();
            sender.send(found)
        });
        let found = receiver.recv_timeout(Duration::from_secs(60)).expect("it waits for the pipe");
        std::fs::remove_dir_all(&folder).unwrap();
        let refused = |what: &str| Err(format!("it is {what}, and only regular files are read"));
        assert_eq!(found[0], Ok("text".to_owned()));
        assert_eq!(found[1], found[0]);
        assert_eq!(found[2], refused("a named pipe (FIFO)"));
        assert_eq!(found[3], refused("a socket"));
        assert_eq!(found[4], refused("a device"));
        assert_eq!(found[5], Err("it is a folder, not a file".to_owned()));
        assert!(found[6].is_err());
    }
}
