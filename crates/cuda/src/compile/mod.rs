//! Kernels from CUDA C to machine code: by NVRTC for the GPU at hand, in parallel, cached on disk.

pub(crate) mod cache;
mod every;
mod sources;

use std::ffi::{CStr, CString, c_char};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use cudarc::nvrtc::sys::{self as rtc, nvrtcResult};

pub use every::compile_every_kernel;
pub(crate) use sources::*;

/// The GPU to compile for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CompileTarget {
    /// The newest architecture up to the GPU's that NVRTC supports, as `80` or `90a`.
    architecture: String,
    /// Whether NVRTC does not know the GPU's own architecture and emits PTX, which the driver compiles.
    ptx: bool,
    /// Versions of NVRTC and driver, on which the machine code may depend.
    versions: String,
}

impl CompileTarget {
    /// The target for a GPU of this compute capability. NVRTC must be loaded.
    pub fn of((major, minor): (u32, u32), driver: &str) -> CompileTarget {
        let capability = 10 * major + minor;
        let (mut count, mut rtc_major, mut rtc_minor) = (0, 0, 0);
        // SAFETY: NVRTC is loaded (`info::initialise`), the pointers are to live memory of the length that it returned.
        let known = unsafe {
            rtc::nvrtcVersion(&mut rtc_major, &mut rtc_minor);
            rtc::nvrtcGetNumSupportedArchs(&mut count);
            let mut known = vec![0; count.max(0) as usize];
            rtc::nvrtcGetSupportedArchs(known.as_mut_ptr());
            known
        };
        let nearest = known.iter().map(|&a| a as u32).filter(|&a| a <= capability).max().unwrap_or(capability);
        // wgmma and setmaxnreg need the architecture-specific target.
        let architecture = if capability == 90 && nearest == 90 { "90a".to_string() } else { nearest.to_string() };
        CompileTarget {
            architecture,
            ptx: nearest != capability,
            versions: format!("{rtc_major}.{rtc_minor} {driver}"),
        }
    }

    /// NVRTC's options for a variant.
    fn options(&self, variant: &KernelVariant) -> Vec<String> {
        let prefix = if self.ptx { "compute" } else { "sm" };
        let mut options = vec![format!("--gpu-architecture={prefix}_{}", self.architecture), "--std=c++17".to_string()];
        options.extend(variant.defines.iter().map(|(name, value)| format!("-D{name}={value}")));
        options
    }

    /// Whether kernels may use wgmma, TMA and setmaxnreg.
    pub fn is_hopper(&self) -> bool {
        self.architecture == "90a"
    }
}

/// The machine code of all variants (with [`CompileTarget::ptx`], PTX), in the order given, compiled on all cores where
/// it is not cached.
pub(crate) fn compile_all(variants: &[&KernelVariant], target: &CompileTarget) -> Vec<Result<Vec<u8>, String>> {
    let next = AtomicUsize::new(0);
    let empty = variants.iter().map(|_| Err("a kernel was not compiled".to_string())).collect();
    let results: Mutex<Vec<Result<Vec<u8>, String>>> = Mutex::new(empty);
    let workers = std::thread::available_parallelism().map_or(1, |n| n.get()).min(variants.len());
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                loop {
                    let i = next.fetch_add(1, Ordering::Relaxed);
                    let Some(variant) = variants.get(i) else { break };
                    let result = machine_code(variant, target);
                    results.lock().unwrap_or_else(|poisoned| poisoned.into_inner())[i] = result;
                }
            });
        }
    });
    results.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// The machine code or PTX of a variant, from the cache if possible.
fn machine_code(variant: &KernelVariant, target: &CompileTarget) -> Result<Vec<u8>, String> {
    let options = target.options(variant);
    let key = vit_system::hash::fingerprint(&[
        PRELUDE.as_bytes(),
        variant.source.text.as_bytes(),
        options.join(" ").as_bytes(),
        target.versions.as_bytes(),
    ]);
    let name = format!("{}-{key}.cubin", variant.source.name);
    if let Some(binary) = cache::read(&name) {
        return Ok(binary);
    }
    let binary = compile(variant.source, &options, target.ptx)?;
    cache::write(&name, &binary);
    Ok(binary)
}

struct NvrtcProgram(rtc::nvrtcProgram);

impl Drop for NvrtcProgram {
    fn drop(&mut self) {
        // SAFETY: the program was created and is not used any more.
        unsafe { rtc::nvrtcDestroyProgram(&mut self.0) };
    }
}

/// As [`machine_code`], without the cache. NVRTC must be loaded.
fn compile(source: &KernelSource, options: &[String], ptx: bool) -> Result<Vec<u8>, String> {
    let fail = |what: &str| format!("{what} {}.cu failed", source.name);
    let c_string = |text: String| CString::new(text).map_err(|_| fail("reading"));
    let (code, name) = (c_string(format!("{PRELUDE}{}", source.text))?, c_string(format!("{}.cu", source.name))?);
    let options = options.iter().map(|o| c_string(o.clone())).collect::<Result<Vec<_>, _>>()?;
    let pointers: Vec<*const c_char> = options.iter().map(|o| o.as_ptr()).collect();
    let done = |result: nvrtcResult, what: &str| match result {
        nvrtcResult::NVRTC_SUCCESS => Ok(()),
        other => Err(format!("{} ({other:?})", fail(what))),
    };
    let mut program = NvrtcProgram(std::ptr::null_mut());
    // SAFETY: NVRTC is loaded, all strings are zero-terminated and outlive the calls, all buffers have the sizes that
    // NVRTC returned.
    unsafe {
        let created = rtc::nvrtcCreateProgram(
            &mut program.0,
            code.as_ptr(),
            name.as_ptr(),
            0,
            std::ptr::null(),
            std::ptr::null(),
        );
        done(created, "reading")?;
        if rtc::nvrtcCompileProgram(program.0, pointers.len() as i32, pointers.as_ptr()) != nvrtcResult::NVRTC_SUCCESS {
            let mut size = 0;
            rtc::nvrtcGetProgramLogSize(program.0, &mut size);
            let mut log: Vec<u8> = vec![0; size.max(1)];
            rtc::nvrtcGetProgramLog(program.0, log.as_mut_ptr().cast());
            let log = CStr::from_bytes_until_nul(&log).map(|l| l.to_string_lossy().into_owned()).unwrap_or_default();
            let start: Vec<&str> = log.lines().filter(|line| !line.trim().is_empty()).take(6).collect();
            return Err(format!("{}: {}", fail("compiling"), start.join(" | ")));
        }
        let mut size = 0;
        let measured =
            if ptx { rtc::nvrtcGetPTXSize(program.0, &mut size) } else { rtc::nvrtcGetCUBINSize(program.0, &mut size) };
        done(measured, "compiling")?;
        let mut binary: Vec<u8> = vec![0; size];
        let got = if ptx {
            rtc::nvrtcGetPTX(program.0, binary.as_mut_ptr().cast())
        } else {
            rtc::nvrtcGetCUBIN(program.0, binary.as_mut_ptr().cast())
        };
        done(got, "compiling")?;
        Ok(binary)
    }
}
