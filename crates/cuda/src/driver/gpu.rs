//! A GPU in use: its context, its loaded kernels, its cuBLASLt handle.

use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use cudarc::cublaslt::sys as lt;
use cudarc::driver::sys::{self as cu, CUresult};
use vit_graph::{GraphError, Hint};

use crate::compile::{self, KernelVariant};
use crate::driver::failure;
use crate::driver::info::{self, DeviceInfo};
use crate::driver::libraries::Unavailable;
use crate::gemm::tuning::AlgorithmChoices;

/// The device's name in errors and on the command line.
pub(crate) const NAME: &str = "cuda";

pub(crate) fn error(reason: impl Into<String>) -> GraphError {
    GraphError::device(NAME, reason)
}

pub(crate) fn error_with_hints(reason: impl Into<String>, hints: &[Hint]) -> GraphError {
    GraphError::Device { device: NAME, reason: reason.into(), hints: hints.to_vec() }
}

/// The driver's text and name of a result that it returned.
pub(crate) fn message(result: CUresult) -> String {
    let text = |get: unsafe fn(CUresult, *mut *const std::ffi::c_char) -> CUresult| {
        let mut text = std::ptr::null();
        // SAFETY: the driver returns a pointer to a static string, or none for an unknown result.
        unsafe {
            match get(result, &mut text) {
                CUresult::CUDA_SUCCESS if !text.is_null() => CStr::from_ptr(text).to_string_lossy().into_owned(),
                _ => format!("error {}", result as u32),
            }
        }
    };
    format!("{} ({})", text(cu::cuGetErrorString), text(cu::cuGetErrorName))
}

/// An error that names what was being done, unless the result is a success.
pub(crate) fn check(result: CUresult, doing: &str) -> Result<(), GraphError> {
    match result {
        CUresult::CUDA_SUCCESS => Ok(()),
        other => Err(failure::of_driver(other, doing, &message(other))),
    }
}

/// One GPU, shared by all devices and executables of this process that use it.
pub(crate) struct Gpu {
    pub info: DeviceInfo,
    pub target: compile::CompileTarget,
    pub lt: lt::cublasLtHandle_t,
    gemm_algorithms: Mutex<AlgorithmChoices>,
    device: cu::CUdevice,
    context: cu::CUcontext,
    modules: Mutex<HashMap<KernelVariant, Module>>,
}

struct Module(cu::CUmodule);

// SAFETY: contexts, modules and cuBLASLt handles may be used from any thread; what changes is behind locks.
unsafe impl Send for Gpu {}
// SAFETY: as above.
unsafe impl Sync for Gpu {}

/// A kernel that is ready to be launched, valid while its [`Gpu`] lives.
#[derive(Clone, Copy)]
pub(crate) struct KernelFunction(pub cu::CUfunction);

impl Gpu {
    /// Opens GPU number `ordinal`, or returns it if it is open already.
    pub fn open(ordinal: usize) -> Result<Arc<Gpu>, Unavailable> {
        static OPEN: Mutex<Vec<(usize, Weak<Gpu>)>> = Mutex::new(Vec::new());
        let found = info::initialise()?;
        if ordinal >= found {
            return Err(Unavailable::NoGpu { wanted: ordinal, found });
        }
        let mut open = OPEN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(gpu) = open.iter().find(|(o, _)| *o == ordinal).and_then(|(_, gpu)| gpu.upgrade()) {
            return Ok(gpu);
        }
        let gpu = Arc::new(Gpu::new(DeviceInfo::read(ordinal)?)?);
        open.retain(|(o, _)| *o != ordinal);
        open.push((ordinal, Arc::downgrade(&gpu)));
        Ok(gpu)
    }

    fn new(info: DeviceInfo) -> Result<Gpu, Unavailable> {
        let (major, minor) = info.compute_capability;
        if major < 8 {
            return Err(Unavailable::OldGpu { name: info.name, found: format!("{major}.{minor}") });
        }
        let target = compile::CompileTarget::of(info.compute_capability, &info.driver);
        let started = |result: CUresult| match result {
            CUresult::CUDA_SUCCESS => Ok(()),
            other => Err(Unavailable::Driver(message(other))),
        };
        let (mut device, mut context, mut handle) = (0, std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: `info::initialise` has found the driver and cuBLASLt, the pointers are to live variables.
        unsafe {
            started(cu::cuDeviceGet(&mut device, info.ordinal as i32))?;
            started(cu::cuDevicePrimaryCtxRetain(&mut context, device))?;
            started(cu::cuCtxSetCurrent(context))?;
            let status = lt::cublasLtCreate(&mut handle);
            if status != lt::cublasStatus_t::CUBLAS_STATUS_SUCCESS {
                cu::cuDevicePrimaryCtxRelease_v2(device);
                return Err(Unavailable::Driver(format!("cuBLASLt does not start ({status:?})")));
            }
        }
        let gemm_algorithms = Mutex::new(AlgorithmChoices::cached(&info));
        Ok(Gpu { info, target, lt: handle, gemm_algorithms, device, context, modules: Mutex::default() })
    }

    /// Makes the GPU's context current in this thread, as the driver's calls require.
    pub fn enter(&self) -> Result<(), GraphError> {
        // SAFETY: the context lives as long as `self`.
        check(unsafe { cu::cuCtxSetCurrent(self.context) }, "choosing the GPU")
    }

    /// The cuBLASLt algorithms chosen for matrix products so far.
    pub fn gemm_algorithms(&self) -> MutexGuard<'_, AlgorithmChoices> {
        self.gemm_algorithms.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Loads the variants that are not loaded yet; those not in the cache are compiled, on all cores. The context must be
    /// current.
    pub fn load(&self, variants: &[KernelVariant]) -> Result<(), GraphError> {
        let mut modules = self.modules.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let mut missing: Vec<&KernelVariant> = Vec::new();
        for variant in variants.iter().filter(|v| !modules.contains_key(v)) {
            if !missing.contains(&variant) {
                missing.push(variant);
            }
        }
        for (variant, image) in missing.iter().zip(compile::compile_all(&missing, &self.target)) {
            let image = image.map_err(|reason| error_with_hints(reason, &[Hint::Device("cpu"), Hint::Report]))?;
            let mut module = std::ptr::null_mut();
            // SAFETY: the image is a complete cubin, or zero-terminated PTX.
            let result = unsafe { cu::cuModuleLoadData(&mut module, image.as_ptr().cast()) };
            check(result, &format!("loading the kernels of {}.cu", variant.source.name))?;
            modules.insert((*variant).clone(), Module(module));
        }
        Ok(())
    }

    /// A kernel by its name, compiled if it is not loaded yet. The context must be current.
    pub fn function(&self, variant: &KernelVariant, name: &str) -> Result<KernelFunction, GraphError> {
        self.load(std::slice::from_ref(variant))?;
        let modules = self.modules.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let module = modules.get(variant).ok_or_else(|| error("a module is not loaded"))?;
        let text = CString::new(name).map_err(|_| error("a kernel's name has a zero in it"))?;
        let mut function = std::ptr::null_mut();
        // SAFETY: the module stays loaded, the name is zero-terminated.
        let result = unsafe { cu::cuModuleGetFunction(&mut function, module.0, text.as_ptr()) };
        check(result, &format!("looking for the kernel {name}"))?;
        Ok(KernelFunction(function))
    }

    /// The GPU's identity, which no other has.
    pub fn uuid(&self) -> Result<[u8; 16], GraphError> {
        let mut uuid = cu::CUuuid { bytes: [0; 16] };
        // SAFETY: the device is valid, the pointer is to a live variable.
        check(unsafe { cu::cuDeviceGetUuid_v2(&mut uuid, self.device) }, "reading the GPU's identity")?;
        Ok(uuid.bytes.map(|byte| byte as u8))
    }

    /// Free and total bytes of the GPU's memory.
    pub fn memory(&self) -> Result<(usize, usize), GraphError> {
        let (mut free, mut total) = (0, 0);
        self.enter()?;
        // SAFETY: the context is current, the pointers are to live variables.
        check(unsafe { cu::cuMemGetInfo_v2(&mut free, &mut total) }, "reading the free memory")?;
        Ok((free, total))
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        let modules = self.modules.get_mut().unwrap_or_else(|poisoned| poisoned.into_inner());
        // SAFETY: every user of the GPU held an `Arc` of it, so none is left. Errors cannot be returned from here.
        unsafe {
            cu::cuCtxSetCurrent(self.context);
            for (_, module) in modules.drain() {
                cu::cuModuleUnload(module.0);
            }
            lt::cublasLtDestroy(self.lt);
            cu::cuDevicePrimaryCtxRelease_v2(self.device);
        }
    }
}
