//! The machine a process runs on and the files it reads and writes: free memory, regular files.
//! It depends on no other crate of the workspace.

pub mod host;
pub mod regular_file;
