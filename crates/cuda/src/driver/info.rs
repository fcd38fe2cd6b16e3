//! The GPUs of this machine, and the versions of driver and libraries.

use std::ffi::{CStr, c_char, c_int};
use std::fmt;

use cudarc::driver::sys::{self as cu, CUdevice_attribute as Attribute};
use cudarc::{cublaslt, nvrtc};

use crate::driver::libraries::{CudaLibrary, Unavailable};
use crate::driver::message;

/// The oldest driver with all functions that are called: CUDA 12.8.
const OLDEST_DRIVER: i32 = 12080;

/// The oldest major version of NVRTC and cuBLASLt with all functions that are called.
const OLDEST_TOOLKIT: usize = 12;

/// One GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Its number.
    pub ordinal: usize,
    /// Its name.
    pub name: String,
    /// Bytes of its memory.
    pub memory_bytes: usize,
    /// Its compute capability, e.g. 9 and 0.
    pub compute_capability: (u32, u32),
    /// Its multiprocessors.
    pub multiprocessors: usize,
    /// The CUDA version that the driver supports.
    pub driver: String,
    /// The version of cuBLASLt.
    pub cublas: String,
    /// The version of NVRTC.
    pub nvrtc: String,
}

impl fmt::Display for DeviceInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (major, minor) = self.compute_capability;
        write!(
            f,
            "{} ({:.1} GB, compute capability {major}.{minor}, driver for CUDA {}, cuBLASLt {}, NVRTC {})",
            self.name,
            self.memory_bytes as f64 / 1e9,
            self.driver,
            self.cublas,
            self.nvrtc
        )
    }
}

/// All GPUs of this machine, or why none can be used.
pub fn devices() -> Result<Vec<DeviceInfo>, Unavailable> {
    (0..initialise()?).map(DeviceInfo::read).collect()
}

/// Loads the driver, NVRTC and cuBLASLt and checks their versions; returns the number of GPUs, at least one. It must be
/// the first call into CUDA.
pub(crate) fn initialise() -> Result<usize, Unavailable> {
    CudaLibrary::Driver.find()?;
    let succeeded = |result: cu::CUresult| match result {
        cu::CUresult::CUDA_SUCCESS => Ok(()),
        cu::CUresult::CUDA_ERROR_NO_DEVICE => Err(Unavailable::NoGpu { wanted: 0, found: 0 }),
        // The driver's library and its kernel module have different versions.
        cu::CUresult::CUDA_ERROR_SYSTEM_DRIVER_MISMATCH => Err(Unavailable::DriverMismatch),
        other => Err(Unavailable::Driver(message(other))),
    };
    let (mut version, mut count) = (0, 0);
    // SAFETY: the driver is loaded, the pointers are to live variables.
    unsafe {
        succeeded(cu::cuInit(0))?;
        succeeded(cu::cuDriverGetVersion(&mut version))?;
        if version < OLDEST_DRIVER {
            return Err(Unavailable::OldDriver { found: cuda_version(version), needed: "12.8" });
        }
        succeeded(cu::cuDeviceGetCount(&mut count))?;
    }
    if count == 0 {
        return Err(Unavailable::NoGpu { wanted: 0, found: 0 });
    }
    CudaLibrary::Nvrtc.find()?;
    CudaLibrary::CublasLt.find()?;
    let (mut nvrtc, mut minor) = (0, 0);
    // SAFETY: both libraries are loaded, the pointers are to live variables.
    let cublas = unsafe {
        nvrtc::sys::nvrtcVersion(&mut nvrtc, &mut minor);
        cublaslt::sys::cublasLtGetVersion() / 10000
    };
    for (name, found) in [("NVRTC", nvrtc.max(0) as usize), ("cuBLASLt", cublas)] {
        if found < OLDEST_TOOLKIT {
            return Err(Unavailable::OldLibrary { name, found, needed: OLDEST_TOOLKIT });
        }
    }
    Ok(count as usize)
}

impl DeviceInfo {
    /// Reads the properties of GPU number `ordinal`, which must be below the result of [`initialise`].
    pub(crate) fn read(ordinal: usize) -> Result<DeviceInfo, Unavailable> {
        let succeeded = |result: cu::CUresult| match result {
            cu::CUresult::CUDA_SUCCESS => Ok(()),
            other => Err(Unavailable::Driver(message(other))),
        };
        let (mut device, mut memory, mut version) = (0, 0, 0);
        let mut name: [c_char; 256] = [0; 256];
        // SAFETY: the driver is loaded, the pointers are to live memory of the given lengths, and the driver terminates
        // names with a zero.
        let name = unsafe {
            succeeded(cu::cuDriverGetVersion(&mut version))?;
            succeeded(cu::cuDeviceGet(&mut device, ordinal as c_int))?;
            succeeded(cu::cuDeviceTotalMem_v2(&mut memory, device))?;
            succeeded(cu::cuDeviceGetName(name.as_mut_ptr(), name.len() as c_int, device))?;
            CStr::from_ptr(name.as_ptr()).to_string_lossy().into_owned()
        };
        let attribute = |name: Attribute| {
            let mut value = 0;
            // SAFETY: the driver is loaded, `value` is live, and `cuDeviceGet` returned `device`.
            succeeded(unsafe { cu::cuDeviceGetAttribute(&mut value, name, device) })?;
            Ok(value as u32)
        };
        let compute_capability = (
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        );
        let multiprocessors = attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)? as usize;
        let (mut major, mut minor) = (0, 0);
        // SAFETY: `initialise` has loaded both libraries, the pointers are to live variables.
        let cublas = unsafe {
            nvrtc::sys::nvrtcVersion(&mut major, &mut minor);
            cublaslt::sys::cublasLtGetVersion()
        };
        Ok(DeviceInfo {
            ordinal,
            name,
            memory_bytes: memory,
            compute_capability,
            multiprocessors,
            driver: cuda_version(version),
            cublas: format!("{}.{}.{}", cublas / 10000, cublas / 100 % 100, cublas % 100),
            nvrtc: format!("{major}.{minor}"),
        })
    }
}

/// 13000 as `13.0`.
fn cuda_version(number: i32) -> String {
    format!("{}.{}", number / 1000, number / 10 % 100)
}
