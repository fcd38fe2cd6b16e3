//! MPI libraries, found at run time. There are three binary interfaces: that of Open MPI, whose handles are addresses of
//! its variables; that of MPICH (also Intel MPI, MVAPICH and Cray MPICH), whose handles are `int`; and the standard one of
//! MPI 5, chapter 20, whose handles are small constants of the size of a pointer.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::PathBuf;
use std::sync::OnceLock;

use libloading::os::unix::{Library as Dynamic, RTLD_GLOBAL, RTLD_NOW};

use crate::ClusterError;

/// The variable with the path of the MPI library, where several are installed or the loader does not search its folder.
pub(crate) const LIBRARY: &str = "VIT_MPI_LIBRARY";

/// A handle, passed in one register or stack slot. A callee that declares an `int` reads the lower half of it,
/// which is its first half in memory, too.
pub(super) type Handle = usize;

#[cfg(target_endian = "big")]
compile_error!("handles of MPI are passed as if the machine were little-endian");

/// Space for a status of any of the interfaces; the longest has 32 bytes.
pub(super) type Status = [u64; 8];

/// The values that differ between the interfaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Constants {
    pub world: Handle,
    pub byte: Handle,
    pub float: Handle,
    pub double: Handle,
    pub sum: Handle,
    pub errors_return: Handle,
    pub in_place: usize,
    pub thread_serialized: c_int,
}

/// From MPICH's `mpi.h`, which its ABI compatibility initiative froze.
const MPICH: Constants = Constants {
    world: 0x4400_0000,
    byte: 0x4c00_010d,
    float: 0x4c00_040a,
    double: 0x4c00_080b,
    sum: 0x5800_0003,
    errors_return: 0x5400_0001,
    in_place: usize::MAX,
    thread_serialized: 2,
};

/// From appendix A.1.1 of MPI 5.0.
const STANDARD: Constants = Constants {
    world: 0x101,
    byte: 0x247,
    float: 0x210,
    double: 0x214,
    sum: 0x21,
    errors_return: 0x143,
    in_place: 1,
    thread_serialized: 2048,
};

macro_rules! functions {
    ($($(#[$meta:meta])* $field:ident = $symbol:literal ( $($argument:ty),* );)*) => {
        /// The functions of an MPI library, which is never unloaded.
        pub(super) struct Library {
            pub constants: Constants,
            /// Name and version.
            pub name: String,
            $($(#[$meta])* pub $field: unsafe extern "C" fn($($argument),*) -> c_int,)*
        }

        impl Library {
            /// # Safety
            /// The library must be an MPI library.
            unsafe fn bind(library: &Dynamic, constants: Constants, name: String) -> Result<Library, libloading::Error> {
                // SAFETY: the caller guarantees the library, and MPI fixes the parameters of these functions up to
                // the representation of handles, for which see `Handle`.
                unsafe { Ok(Library { constants, name, $($field: *library.get($symbol)?,)* }) }
            }
        }
    };
}

functions! {
    init_thread = b"MPI_Init_thread\0" (*mut c_int, *mut *mut *mut c_char, c_int, *mut c_int);
    initialized = b"MPI_Initialized\0" (*mut c_int);
    finalize = b"MPI_Finalize\0" ();
    abort = b"MPI_Abort\0" (Handle, c_int);
    comm_rank = b"MPI_Comm_rank\0" (Handle, *mut c_int);
    comm_size = b"MPI_Comm_size\0" (Handle, *mut c_int);
    comm_set_errhandler = b"MPI_Comm_set_errhandler\0" (Handle, Handle);
    isend = b"MPI_Isend\0" (*const c_void, c_int, Handle, c_int, c_int, Handle, *mut Handle);
    irecv = b"MPI_Irecv\0" (*mut c_void, c_int, Handle, c_int, c_int, Handle, *mut Handle);
    iallreduce = b"MPI_Iallreduce\0" (*const c_void, *mut c_void, c_int, Handle, Handle, Handle, *mut Handle);
    test = b"MPI_Test\0" (*mut Handle, *mut c_int, *mut Status);
    cancel = b"MPI_Cancel\0" (*mut Handle);
    get_count = b"MPI_Get_count\0" (*const Status, Handle, *mut c_int);
    error_string = b"MPI_Error_string\0" (c_int, *mut c_char, *mut c_int);
}

impl Library {
    /// The MPI library of this process, loaded once.
    pub fn find() -> Result<&'static Library, ClusterError> {
        static FOUND: OnceLock<Result<Library, ClusterError>> = OnceLock::new();
        FOUND.get_or_init(load).as_ref().map_err(Clone::clone)
    }
}

fn load() -> Result<Library, ClusterError> {
    if let Some(path) = std::env::var_os(LIBRARY) {
        return open(&path).map_err(|reason| ClusterError::Library {
            name: "MPI",
            path: path.to_string_lossy().into_owned(),
            reason,
        });
    }
    let hydra = std::env::var_os("PMI_RANK").is_some() && std::env::var_os("OMPI_COMM_WORLD_SIZE").is_none();
    let mut names = [OPEN_MPI, MPICHS];
    if hydra {
        names.reverse();
    }
    // The standard's name last: it does not tell whose mpirun the library works with.
    let names = [names.concat(), STANDARDS.to_vec()].concat();
    // Beside mpirun before the folders of the loader, where an older library may be.
    let beside = library_folder().into_iter().flat_map(|folder| names.iter().map(move |name| folder.join(name)));
    let candidates = beside.chain(names.iter().map(PathBuf::from));
    candidates.map(PathBuf::into_os_string).find_map(|path| open(&path).ok()).ok_or(ClusterError::NoMpi)
}

/// The folder of libraries that belongs to the first mpirun of the path.
fn library_folder() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let programs = std::env::split_paths(&path).find(|folder| folder.join("mpirun").exists())?;
    Some(programs.parent()?.join("lib"))
}

#[cfg(not(target_os = "macos"))]
const OPEN_MPI: &[&str] = &["libmpi.so.40", "libmpi.so"];
#[cfg(not(target_os = "macos"))]
const MPICHS: &[&str] = &["libmpich.so.12", "libmpi.so.12", "libmpi.so"];
#[cfg(not(target_os = "macos"))]
const STANDARDS: &[&str] = &["libmpi_abi.so.0", "libmpi_abi.so.1", "libmpi_abi.so"];
#[cfg(target_os = "macos")]
const OPEN_MPI: &[&str] = &["libmpi.40.dylib", "/opt/homebrew/lib/libmpi.40.dylib", "libmpi.dylib"];
#[cfg(target_os = "macos")]
const MPICHS: &[&str] = &["libmpi.12.dylib", "/opt/homebrew/lib/libmpi.12.dylib", "libmpi.dylib"];
#[cfg(target_os = "macos")]
const STANDARDS: &[&str] = &["libmpi_abi.0.dylib", "libmpi_abi.dylib"];

fn open(path: &std::ffi::OsStr) -> Result<Library, String> {
    // SAFETY: loading an MPI library only runs its initialisers. Its symbols are global, because the plugins of Open MPI
    // need them.
    let library = unsafe { Dynamic::open(Some(path), RTLD_NOW | RTLD_GLOBAL) }.map_err(reason)?;
    let library = std::mem::ManuallyDrop::new(library);
    // SAFETY: as above.
    unsafe {
        let constants = constants(&library).map_err(reason)?;
        let name = version(&library).map_err(reason)?;
        Library::bind(&library, constants, name).map_err(reason)
    }
}

/// The words of the system's loader.
fn reason(error: libloading::Error) -> String {
    std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string)
}

/// # Safety
/// The library must be an MPI library.
unsafe fn constants(library: &Dynamic) -> Result<Constants, libloading::Error> {
    type Pair = unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int;
    // SAFETY: these functions may be called at any time, and fill two variables.
    let pair = |function: Pair| unsafe {
        let (mut major, mut minor) = (0, 0);
        if function(&mut major, &mut minor) == 0 { major } else { 0 }
    };
    // SAFETY: these symbols have these types in every MPI library that has them.
    unsafe {
        // Drafts of the interface, before MPI 5, had other constants. A library with another interface returns -1.
        if let Ok(abi) = library.get::<Pair>(b"MPI_Abi_get_version\0")
            && pair(*abi) >= 1
            && pair(*library.get::<Pair>(b"MPI_Get_version\0")?) >= 5
        {
            return Ok(STANDARD);
        }
        let address =
            |symbol: &[u8]| Ok::<_, libloading::Error>(library.get::<*mut c_void>(symbol)?.into_raw() as usize);
        if address(b"ompi_mpi_comm_world\0").is_err() {
            return Ok(MPICH);
        }
        Ok(Constants {
            world: address(b"ompi_mpi_comm_world\0")?,
            byte: address(b"ompi_mpi_byte\0")?,
            float: address(b"ompi_mpi_float\0")?,
            double: address(b"ompi_mpi_double\0")?,
            sum: address(b"ompi_mpi_op_sum\0")?,
            errors_return: address(b"ompi_mpi_errors_return\0")?,
            in_place: 1,
            thread_serialized: 2,
        })
    }
}

/// # Safety
/// The library must be an MPI library.
unsafe fn version(library: &Dynamic) -> Result<String, libloading::Error> {
    type Version = unsafe extern "C" fn(*mut c_char, *mut c_int) -> c_int;
    // MPI_MAX_LIBRARY_VERSION_STRING is 256 in Open MPI and 8192 in the others.
    let (mut text, mut length) = (vec![0u8; 8193], 0);
    // SAFETY: the function may be called at any time and writes a terminated text of at most 8192 bytes.
    let text = unsafe {
        library.get::<Version>(b"MPI_Get_library_version\0")?(text.as_mut_ptr().cast(), &mut length);
        CStr::from_ptr(text.as_ptr().cast()).to_string_lossy().into_owned()
    };
    Ok(short_version(&text))
}

/// `Open MPI v4.1.4, package: Debian ...` and `MPICH Version:\t4.0.2\nMPICH Release date: ...` in a few words.
fn short_version(text: &str) -> String {
    let line = text.lines().next().unwrap_or_default();
    let words = line.split(',').next().unwrap_or_default().replace("Version:", "");
    let words: Vec<&str> = words.split_whitespace().take(6).collect();
    if words.is_empty() { "MPI".into() } else { words.join(" ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_a_few_words() {
        for (text, short) in [
            ("Open MPI v4.1.4, package: Debian OpenMPI, ident: 4.1.4, repo rev: v4.1.4", "Open MPI v4.1.4"),
            ("MPICH Version:\t4.0.2\nMPICH Release date:\tThu Apr 7", "MPICH 4.0.2"),
            ("Intel(R) MPI Library 2021.11 for Linux* OS\n", "Intel(R) MPI Library 2021.11 for Linux*"),
            ("", "MPI"),
        ] {
            assert_eq!(short_version(text), short);
        }
    }
}
