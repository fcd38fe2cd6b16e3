//! Arguments become lists of image files.

use std::fs;
use std::path::{Path, PathBuf};
use vit_data::{FilesError, find_images, find_images_each};

/// A temporary folder per test.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str, files: &[&str]) -> Self {
        let root = std::env::temp_dir().join(format!("vit-data-{name}-{}", std::process::id()));
        for file in files {
            let path = root.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, b"x").unwrap();
        }
        Self(root)
    }

    fn argument(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }

    /// Relative paths with forward slashes.
    fn names(&self, paths: &[PathBuf]) -> Vec<String> {
        let name = |path: &PathBuf| path.strip_prefix(&self.0).unwrap().to_owned();
        let text = |path: PathBuf| path.to_str().unwrap().replace('\\', "/");
        paths.iter().map(name).map(text).collect()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn tree(name: &str) -> Scratch {
    Scratch::new(
        name,
        &[
            "img10.jpg",
            "img2.JPG",
            "img1.png",
            "notes.txt",
            ".hidden.png",
            "odd.dat",
            "cats/a.webp",
            "cats/deep/b.tiff",
            ".git/c.png",
            "dogs[1].bmp",
        ],
    )
}

#[test]
fn a_folder_gives_its_images_in_natural_order() {
    let tree = tree("order");
    let all = find_images(&[tree.argument("")], true).unwrap();
    let expected = ["cats/a.webp", "cats/deep/b.tiff", "dogs[1].bmp", "img1.png", "img2.JPG", "img10.jpg"];
    assert_eq!(tree.names(&all), expected);
    let flat = find_images(&[tree.argument("")], false).unwrap();
    assert_eq!(tree.names(&flat), expected[2..]);
}

#[test]
fn a_file_named_by_itself_is_taken_whatever_its_ending() {
    let tree = tree("explicit");
    let names = ["notes.txt", ".hidden.png", "dogs[1].bmp"].map(|name| tree.argument(name));
    let found = find_images(&names, false).unwrap();
    assert_eq!(tree.names(&found), ["notes.txt", ".hidden.png", "dogs[1].bmp"]);
}

#[test]
fn a_pattern_gives_what_it_matches() {
    let tree = tree("pattern");
    let find = |pattern: &str| find_images(&[tree.argument(pattern)], true).map(|found| tree.names(&found));
    assert_eq!(find("img*").unwrap(), ["img1.png", "img2.JPG", "img10.jpg"]);
    assert_eq!(find("*.dat").unwrap(), ["odd.dat"]);
    assert_eq!(find("**/*.tiff").unwrap(), ["cats/deep/b.tiff"]);
    assert_eq!(find("ca*").unwrap(), ["cats/a.webp", "cats/deep/b.tiff"]);
    assert!(matches!(find("*.gif"), Err(FilesError::NoMatch { .. })));
    assert!(matches!(find("note*"), Err(FilesError::NoMatch { .. })));
    assert!(matches!(find("img[.jpg"), Err(FilesError::Pattern { .. })));
}

#[test]
fn nothing_is_given_twice() {
    let tree = tree("twice");
    let arguments = ["img2.JPG", "", "./img1.png", "img*"].map(|name| tree.argument(name));
    let found = find_images(&arguments, false).unwrap();
    assert_eq!(tree.names(&found), ["img2.JPG", "dogs[1].bmp", "img1.png", "img10.jpg"]);
}

#[test]
fn what_is_missing_is_named() {
    let tree = Scratch::new("missing", &["empty/readme.md"]);
    let message = find_images(&[tree.argument("no.jpg")], true).unwrap_err().to_string();
    assert!(message.ends_with("no.jpg: no such file or folder"), "{message}");
    let message = find_images(&[tree.argument("empty")], true).unwrap_err().to_string();
    assert!(message.contains("empty: no images"), "{message}");
    assert!(find_images::<String>(&[], true).unwrap().is_empty());
}

#[cfg(unix)]
#[test]
fn links_in_a_circle_end() {
    let tree = Scratch::new("circle", &["a/1.png"]);
    std::os::unix::fs::symlink(&tree.0, tree.0.join("a/up")).unwrap();
    let found = find_images(&[tree.argument("")], true).unwrap();
    assert_eq!(tree.names(&found), ["a/1.png"]);
}

#[cfg(unix)]
#[test]
fn every_link_to_one_file_or_folder_is_listed() {
    use std::os::unix::fs::symlink;
    let tree = Scratch::new("links", &["real/1.png"]);
    symlink("real/1.png", tree.0.join("a.png")).unwrap();
    symlink("real/1.png", tree.0.join("b.png")).unwrap();
    symlink("real", tree.0.join("again")).unwrap();
    let expected = ["a.png", "again/1.png", "b.png", "real/1.png"];
    assert_eq!(tree.names(&find_images(&[tree.argument("")], true).unwrap()), expected);
    let named = find_images(&["b.png", "a.png"].map(|name| tree.argument(name)), true).unwrap();
    assert_eq!(tree.names(&named), ["b.png", "a.png"]);
}

#[cfg(unix)]
#[test]
fn folders_that_link_to_one_another_end() {
    let names: Vec<String> = (0..8).map(|i| format!("{i}/x.png")).collect();
    let tree = Scratch::new("cross", &names.iter().map(String::as_str).collect::<Vec<_>>());
    for (from, to) in (0..8).flat_map(|from| (0..8).map(move |to| (from, to))) {
        std::os::unix::fs::symlink(tree.0.join(to.to_string()), tree.0.join(format!("{from}/to{to}"))).unwrap();
    }
    let found = tree.names(&find_images(&[tree.argument("")], true).unwrap());
    assert!(found.len() < 8 * 64 && names.iter().all(|name| found.contains(name)), "{}", found.len());
}

#[cfg(target_os = "linux")]
#[test]
fn names_that_are_not_text_work() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    let tree = Scratch::new("bytes", &["a.png"]);
    let odd = tree.0.join(OsStr::from_bytes(b"\xff\xfe.png"));
    fs::write(&odd, b"x").unwrap();
    assert_eq!(find_images(&[&odd], true).unwrap(), std::slice::from_ref(&odd));
    assert_eq!(find_images(&[&tree.0], true).unwrap().len(), 2);
    let missing = Path::new(OsStr::from_bytes(b"\xff"));
    assert!(matches!(find_images(&[missing], true), Err(FilesError::Missing(_))));
}

#[test]
fn what_is_missing_has_its_place_among_the_others() {
    let tree = tree("each");
    let names = ["img1.png", "gone.png", "cats", "*.gif", "img1.png"].map(|name| tree.argument(name));
    let each = find_images_each(&names, true);
    let seen: Vec<String> = each
        .iter()
        .map(|found| match found {
            Ok(path) => tree.names(std::slice::from_ref(path)).remove(0),
            Err(error) => format!("! {}", tree.names(&[error.place().to_owned()]).remove(0)),
        })
        .collect();
    assert_eq!(seen, ["img1.png", "! gone.png", "cats/a.webp", "cats/deep/b.tiff", "! *.gif"]);
}

#[cfg(unix)]
#[test]
fn pipes_sockets_and_devices_are_named_and_never_opened() {
    let tree = Scratch::new("pipe", &["a.png"]);
    let made = std::process::Command::new("mkfifo").arg(tree.0.join("pipe.png")).status();
    assert!(made.is_ok_and(|status| status.success()));
    let _socket = std::os::unix::net::UnixListener::bind(tree.0.join("socket.png")).unwrap();
    std::os::unix::fs::symlink("/dev/zero", tree.0.join("zero.png")).unwrap();
    std::os::unix::fs::symlink("nowhere", tree.0.join("link.png")).unwrap();
    let expected = [
        "a.png",
        "link.png",
        "pipe.png: it is a named pipe (FIFO), and only regular files are read",
        "socket.png: it is a socket, and only regular files are read",
        "zero.png: it is a device, and only regular files are read",
    ];
    // By their folder, by a pattern, and by their names.
    let names = ["a.png", "link.png", "pipe.png", "socket.png", "zero.png"].map(|name| tree.argument(name));
    for arguments in [&[tree.argument("")][..], &[tree.argument("*.png")], &names] {
        let found = find_images_each(arguments, true);
        let root = format!("{}/", tree.0.display());
        let found = found.into_iter().map(|one| match one {
            Ok(path) => path.display().to_string().replace(&root, ""),
            Err(error) => error.to_string().replace(&root, ""),
        });
        let found: Vec<String> = found.collect();
        // A broken link that is named directly is an error at once.
        let found: Vec<&str> = found.iter().map(|one| one.trim_end_matches(": no such file or folder")).collect();
        assert_eq!(found, expected, "{arguments:?}");
    }
}

/// On a separate thread, because opening a pipe blocks for ever.
#[cfg(unix)]
#[test]
fn a_pipe_that_nobody_writes_to_is_an_error_and_no_wait() {
    let tree = Scratch::new("wait", &["a.png"]);
    let pipe = tree.0.join("pipe.png");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().is_ok_and(|status| status.success()));
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || sender.send(vit_data::open(&pipe, &vit_data::DecodeOptions::default())));
    let opened = receiver.recv_timeout(std::time::Duration::from_secs(60)).expect("it waits for the pipe");
    assert!(opened.unwrap_err().to_string().ends_with("it is a named pipe (FIFO), and only regular files are read"));
}
