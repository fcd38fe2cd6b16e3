//! Finding the driver, NVRTC and cuBLASLt at run time, before any of their functions is called.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use cudarc::{cublaslt, driver, nvrtc};
use libloading::Library;
use vit_graph::Precision;

/// Why no GPU, or with [`Unavailable::NoNccl`] no NCCL, can be used, in one line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unavailable {
    /// There is no driver.
    #[error("there is no NVIDIA driver on this machine; install one for CUDA 12.8 or newer")]
    NoDriver,
    /// The driver does not work.
    #[error("the NVIDIA driver does not start: {0}")]
    Driver(String),
    /// The driver was updated while it ran.
    #[error("the parts of the NVIDIA driver have different versions, as after an update; restart the machine")]
    DriverMismatch,
    /// The driver is too old.
    #[error("the NVIDIA driver is made for CUDA {found}; update it to one for CUDA {needed} or newer")]
    OldDriver {
        /// The CUDA version that it supports.
        found: String,
        /// The oldest that works.
        needed: &'static str,
    },
    /// There is a driver but no GPU, or not one of this number.
    #[error("there is no GPU number {wanted}; the driver finds {found}")]
    NoGpu {
        /// The requested number.
        wanted: usize,
        /// The number of GPUs.
        found: usize,
    },
    /// The GPU is too old.
    #[error("{name} has compute capability {found}; 8.0 (Ampere) or newer is needed")]
    OldGpu {
        /// The GPU's name.
        name: String,
        /// Its compute capability.
        found: String,
    },
    /// The GPU has no fp8.
    #[error("{name} has compute capability {found}, and fp8 needs 8.9 (Ada) or newer; use bf16 or f16")]
    NoFp8 {
        /// The GPU's name.
        name: String,
        /// Its compute capability.
        found: String,
    },
    /// The precision is the CPU's alone.
    #[error("{0} is only for the CPU; use f32, tf32, bf16, f16 or fp8 on a GPU")]
    CpuPrecision(Precision),
    /// A library of the CUDA toolkit is missing.
    #[error("the library {0} of the CUDA toolkit was not found; install it or add its folder to LD_LIBRARY_PATH")]
    NoLibrary(&'static str),
    /// There is no NCCL.
    #[error(
        "NCCL was not found; install it (package libnccl2 of NVIDIA's repository, or `pip install nvidia-nccl-cu13`) or add \
         its folder to LD_LIBRARY_PATH"
    )]
    NoNccl,
    /// A library of the CUDA toolkit is too old.
    #[error("the library {name} is of CUDA {found}; version {needed} or newer is needed")]
    OldLibrary {
        /// The library's name.
        name: &'static str,
        /// The version that was found.
        found: usize,
        /// The oldest that works.
        needed: usize,
    },
}

/// A library without which no GPU can be used.
#[derive(Clone, Copy)]
pub(crate) enum CudaLibrary {
    Driver,
    Nvrtc,
    CublasLt,
}

impl CudaLibrary {
    /// Loads the library. It must succeed before any call into it: the bindings panic where their library is missing.
    pub fn find(self) -> Result<(), Unavailable> {
        static FOUND: [OnceLock<bool>; 3] = [const { OnceLock::new() }; 3];
        let found = *FOUND[self as usize].get_or_init(|| self.present() || self.load_from_known_folders());
        match self {
            _ if found => Ok(()),
            CudaLibrary::Driver => Err(Unavailable::NoDriver),
            CudaLibrary::Nvrtc => Err(Unavailable::NoLibrary("NVRTC")),
            CudaLibrary::CublasLt => Err(Unavailable::NoLibrary("cuBLASLt")),
        }
    }

    /// Loads the library if the system's loader finds it by name; whether it does.
    fn present(self) -> bool {
        // SAFETY: this loads NVIDIA's own libraries by name, whose initialisers do nothing but set themselves up.
        unsafe {
            match self {
                CudaLibrary::Driver => driver::sys::is_culib_present(),
                CudaLibrary::Nvrtc => nvrtc::sys::is_culib_present(),
                CudaLibrary::CublasLt => cublaslt::sys::is_culib_present(),
            }
        }
    }

    /// Loads the library by its path where the system's loader does not search its folder. The bindings then find it by
    /// name, since the loader returns a library of that name that is already loaded.
    fn load_from_known_folders(self) -> bool {
        let prefix = match self {
            CudaLibrary::Driver => return false,
            CudaLibrary::Nvrtc if cfg!(windows) => "nvrtc64_",
            CudaLibrary::Nvrtc => "libnvrtc.so",
            CudaLibrary::CublasLt if cfg!(windows) => "cublasLt64_",
            CudaLibrary::CublasLt => "libcublasLt.so",
        };
        known_folders().iter().any(|folder| {
            let matches =
                |path: &PathBuf| path.file_name().and_then(OsStr::to_str).is_some_and(|n| n.starts_with(prefix));
            entries(folder).into_iter().filter(matches).any(|path| {
                // SAFETY: as in `present`.
                match unsafe { Library::new(&path) } {
                    // Never unloaded: its functions are called until the process ends.
                    Ok(library) => {
                        std::mem::forget(library);
                        self.present()
                    }
                    Err(_) => false,
                }
            })
        })
    }
}

/// The usual folders of the CUDA toolkit and of its Python packages.
pub(crate) fn known_folders() -> Vec<PathBuf> {
    let mut folders = Vec::new();
    let toolkits = ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(std::env::var_os).map(PathBuf::from);
    for toolkit in toolkits.chain([PathBuf::from("/usr/local/cuda")]) {
        folders.extend(["lib64", "bin", "bin/x64"].map(|part| toolkit.join(part)));
    }
    let environments = ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().filter_map(std::env::var_os).map(PathBuf::from);
    for environment in environments {
        folders.push(environment.join("lib"));
        for python in entries(&environment.join("lib")) {
            folders.extend(entries(&python.join("site-packages/nvidia")).into_iter().map(|part| part.join("lib")));
        }
    }
    folders
}

/// The paths in a folder, sorted; none if it cannot be read.
pub(crate) fn entries(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    found.sort();
    found
}
