//! Kernels from CUDA C to machine code: NVRTC for the GPU found, several files at once, remembered on disk.

pub(crate) mod cache;

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use cudarc::nvrtc::sys::{self as rtc, nvrtcResult};

use crate::driver::libraries::{CudaLibrary, Unavailable};

/// A file of kernels.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(crate) struct KernelSource {
    /// Its name without `.cu`.
    pub name: &'static str,
    text: &'static str,
}

impl KernelSource {
    /// Whether its kernels are for Hopper's tensor cores.
    pub fn is_hopper(&self) -> bool {
        self.name.starts_with("hopper")
    }
}

/// What every file starts with.
const PRELUDE: &str = include_str!("../kernels/prelude.cuh");

macro_rules! sources {
    ($($constant:ident $name:literal),* $(,)?) => {
        $(pub(crate) static $constant: KernelSource =
            KernelSource { name: $name, text: include_str!(concat!("../kernels/", $name, ".cu")) };)*

        /// All files.
        static SOURCES: &[&KernelSource] = &[$(&$constant),*];
    };
}

/// Kernels of several files that stand one after another.
macro_rules! family {
    ($folder:literal $constant:ident $name:literal $($file:literal)*) => {
        pub(crate) static $constant: KernelSource = KernelSource {
            name: $name,
            text: concat!(
                include_str!(concat!("../kernels/", $folder, "/instructions.cu")),
                $(include_str!(concat!("../kernels/", $folder, "/", $file, ".cu")),)*
            ),
        };
    };
}

family!("hopper" HOPPER_FORWARD "hopper_forward" "tiles" "forward");
family!("hopper" HOPPER_BACKWARD "hopper_backward" "tiles" "steps_keys" "steps_queries" "backward");
family!("hopper" HOPPER_BACKWARD_QUERIES "hopper_backward_queries" "tiles" "steps_queries" "backward_queries");
family!("hopper" HOPPER_BACKWARD_KEYS "hopper_backward_keys" "tiles" "steps_keys" "backward_keys");
family!("hopper" HOPPER_CONVOLVE "hopper_convolve" "gather" "convolve");
family!("hopper" HOPPER_CORRELATE "hopper_correlate" "gather" "correlate");

family!("mma" MMA_FORWARD "mma_forward" "tiles" "bias" "forward");
family!("mma" MMA_BACKWARD "mma_backward" "tiles" "bias" "backward");
family!("mma" MMA_BACKWARD_QUERIES "mma_backward_queries" "tiles" "bias" "backward_queries");
family!("mma" MMA_BACKWARD_KEYS "mma_backward_keys" "tiles" "bias" "backward_keys");

sources!(
    ACTIVATION "activation",
    ARITHMETIC "arithmetic",
    ATTENTION "attention",
    BIAS_GRADIENT "bias_gradient",
    CHANNEL_NORM "channel_norm",
    CONV "conv",
    CONV_LAYOUT "conv_layout",
    DEPTHWISE "depthwise",
    DROPOUT "dropout",
    FP8 "fp8",
    GATHER "gather",
    GEMM "gemm",
    LOSS "loss",
    MOVEMENT "movement",
    NORM "norm",
    OPTIMISE "optimise",
    PATCHIFY "patchify",
    POOL "pool",
    REDUCE "reduce",
    SOFTMAX "softmax",
    WINDOWS "windows",
);

/// A file with values for its macros: storage types, extents that are worth knowing when compiling.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct KernelVariant {
    pub source: &'static KernelSource,
    defines: BTreeMap<&'static str, String>,
}

impl KernelVariant {
    pub fn new(source: &'static KernelSource) -> Self {
        KernelVariant { source, defines: BTreeMap::new() }
    }

    /// With one more macro.
    pub fn with(mut self, name: &'static str, value: impl ToString) -> Self {
        self.defines.insert(name, value.to_string());
        self
    }

    fn options(&self, target: &CompileTarget) -> Vec<String> {
        let prefix = if target.ptx { "compute" } else { "sm" };
        let mut options =
            vec![format!("--gpu-architecture={prefix}_{}", target.architecture), "--std=c++17".to_string()];
        options.extend(self.defines.iter().map(|(name, value)| format!("-D{name}={value}")));
        options
    }
}

/// What to compile for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CompileTarget {
    /// The number of the architecture: `80`, `90a`.
    architecture: String,
    /// Whether the driver does the last step, because NVRTC does not know a GPU that new.
    ptx: bool,
    /// The versions that the machine code may depend on.
    versions: String,
}

impl CompileTarget {
    /// The target for a GPU; NVRTC must be there.
    pub fn of((major, minor): (u32, u32), driver: &str) -> CompileTarget {
        let own = 10 * major + minor;
        let (mut count, mut rtc_major, mut rtc_minor) = (0, 0, 0);
        // SAFETY: NVRTC is there (everyone who has a GPU to name asked for it), the pointers are to live memory of the
        // length that NVRTC asked for.
        let known = unsafe {
            rtc::nvrtcVersion(&mut rtc_major, &mut rtc_minor);
            rtc::nvrtcGetNumSupportedArchs(&mut count);
            let mut known = vec![0; count.max(0) as usize];
            rtc::nvrtcGetSupportedArchs(known.as_mut_ptr());
            known
        };
        let nearest = known.iter().map(|&a| a as u32).filter(|&a| a <= own).max().unwrap_or(own);
        // Hopper's own instructions are only in the architecture-specific target.
        let architecture = if own == 90 && nearest == 90 { "90a".to_string() } else { nearest.to_string() };
        CompileTarget { architecture, ptx: nearest != own, versions: format!("{rtc_major}.{rtc_minor} {driver}") }
    }

    /// Whether kernels may use the instructions that only Hopper has: wgmma, TMA, setmaxnreg.
    pub fn is_hopper(&self) -> bool {
        self.architecture == "90a"
    }
}

/// Compiles or finds all of these, in the order given, on all cores.
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
                    let result = image(variant, target);
                    results.lock().unwrap_or_else(|poisoned| poisoned.into_inner())[i] = result;
                }
            });
        }
    });
    results.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// The machine code of a variant, from disk where it was compiled before.
fn image(variant: &KernelVariant, target: &CompileTarget) -> Result<Vec<u8>, String> {
    let options = variant.options(target);
    let key = vit_system::hash::fingerprint(&[
        PRELUDE.as_bytes(),
        variant.source.text.as_bytes(),
        options.join(" ").as_bytes(),
        target.versions.as_bytes(),
    ]);
    let name = format!("{}-{key}.cubin", variant.source.name);
    if let Some(image) = cache::read(&name) {
        return Ok(image);
    }
    let image = compile(variant.source, &options, target.ptx)?;
    cache::write(&name, &image);
    Ok(image)
}

/// A program of NVRTC, destroyed in the end.
struct NvrtcProgram(rtc::nvrtcProgram);

impl Drop for NvrtcProgram {
    fn drop(&mut self) {
        // SAFETY: the program was created and is not used any more.
        unsafe { rtc::nvrtcDestroyProgram(&mut self.0) };
    }
}

fn compile(source: &KernelSource, options: &[String], ptx: bool) -> Result<Vec<u8>, String> {
    let fail = |what: &str| format!("{what} {}.cu failed", source.name);
    let text = |text: String| CString::new(text).map_err(|_| fail("reading"));
    let (code, name) = (text(format!("{PRELUDE}{}", source.text))?, text(format!("{}.cu", source.name))?);
    let options = options.iter().map(|o| text(o.clone())).collect::<Result<Vec<_>, _>>()?;
    let pointers: Vec<*const c_char> = options.iter().map(|o| o.as_ptr()).collect();
    let done = |result: nvrtcResult, what: &str| match result {
        nvrtcResult::NVRTC_SUCCESS => Ok(()),
        other => Err(format!("{} ({other:?})", fail(what))),
    };
    let mut program = NvrtcProgram(std::ptr::null_mut());
    // SAFETY: NVRTC is there, all texts end with a zero and outlive the calls, all buffers have the sizes that NVRTC
    // asked for.
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
        let mut image: Vec<u8> = vec![0; size];
        let got = if ptx {
            rtc::nvrtcGetPTX(program.0, image.as_mut_ptr().cast())
        } else {
            rtc::nvrtcGetCUBIN(program.0, image.as_mut_ptr().cast())
        };
        done(got, "compiling")?;
        Ok(image)
    }
}

/// Compiles every kernel file for an architecture such as `80` or `90a`, with every storage type f32, bf16 and f16, and
/// with e4m3 where that is used, without a GPU; gives what failed. Hopper's kernels are compiled for `90a` alone: no other
/// architecture has their instructions.
pub fn compile_every_kernel(architecture: &str) -> Result<Vec<String>, Unavailable> {
    CudaLibrary::Nvrtc.find()?;
    let target = CompileTarget { architecture: architecture.into(), ptx: false, versions: String::new() };
    let mut variants = Vec::new();
    for &source in SOURCES {
        let types: Vec<&'static str> = source
            .text
            .lines()
            .filter_map(|line| line.strip_prefix("#define ")?.strip_suffix(" float"))
            .filter(|name| name.chars().all(|c| c.is_ascii_uppercase()))
            .collect();
        variants.push(KernelVariant::new(source));
        for short in ["bf16", "f16"] {
            variants.push(types.iter().fold(KernelVariant::new(source), |v, name| v.with(name, short)));
        }
        let eight: &[(&'static str, &str)] = match source.name {
            "norm" => &[("X", "bf16"), ("Y", "e4m3")],
            "activation" => &[("X", "bf16"), ("Y", "e4m3"), ("ACTIVATION", "gelu_tanh")],
            "gemm" => &[("X", "e4m3"), ("Y", "e4m3"), ("B", "bf16")],
            _ => &[],
        };
        variants.push(eight.iter().fold(KernelVariant::new(source), |v, (name, value)| v.with(name, value)));
        let more: &[(&'static str, &[usize])] = match source.name {
            "norm" => &[("DIM", &[1, 17, 48, 1024]), ("LANES", &[8, 64, 1024]), ("SUMS", &[1]), ("DROP", &[1])],
            "attention" => &[("HEAD", &[1, 20, 128])],
            "channel_norm" => &[("BATCH", &[0]), ("RELU", &[1, 2]), ("VEC", &[8]), ("LANES", &[8, 16])],
            "pool" => &[("MAX", &[0]), ("VEC", &[8])],
            "windows" => &[("VEC", &[2, 4, 8])],
            "conv_layout" => &[("VEC", &[4])],
            "dropout" => &[("VEC", &[8])],
            "depthwise" => &[("VEC", &[8]), ("KERNEL_WIDTH", &[1, 5, 31])],
            "arithmetic" | "movement" | "patchify" | "reduce" => &[("VEC", &[1, 2, 4, 8])],
            _ => &[],
        };
        // Operations that are structs of their file.
        let selector = match source.name {
            "arithmetic" => Some(("FUNCTION", "ELEMENTWISE(", ",")),
            "activation" => Some(("ACTIVATION", "struct ", " {")),
            _ => None,
        };
        if let Some((name, before, after)) = selector {
            let structs = source.text.lines().filter_map(|line| line.strip_prefix(before)?.split_once(after));
            variants.extend(structs.map(|(function, _)| KernelVariant::new(source).with(name, function)));
        }
        variants.extend(
            more.iter().flat_map(|(name, values)| values.iter().map(|v| KernelVariant::new(source).with(name, v))),
        );
    }
    variants.extend(crate::lower::mma_variants());
    if target.is_hopper() {
        variants.extend(crate::lower::hopper_variants());
        variants.extend(crate::lower::convolution_variants());
    }
    let compiled = variants.iter().map(|v| compile(v.source, &v.options(&target), false));
    Ok(compiled.filter_map(Result::err).collect())
}
