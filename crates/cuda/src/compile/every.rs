//! Compiling every kernel without a GPU, for tests.

use super::sources::{KernelSource, KernelVariant, SOURCES};
use super::{CompileTarget, compile};
use crate::driver::libraries::{CudaLibrary, Unavailable};
use crate::lower;

/// Compiles every kernel without a GPU for an architecture such as `80` or `90a`, each with several values of its
/// macros, and returns the failures. Kernels for Hopper are compiled for `90a` alone, the only architecture with their
/// instructions.
pub fn compile_every_kernel(architecture: &str) -> Result<Vec<String>, Unavailable> {
    CudaLibrary::Nvrtc.find()?;
    let target = CompileTarget { architecture: architecture.into(), ptx: false, versions: String::new() };
    let mut variants: Vec<KernelVariant> = SOURCES.iter().flat_map(|source| variants(source)).collect();
    variants.extend(lower::mma_variants());
    if target.is_hopper() {
        variants.extend(lower::hopper_variants());
        variants.extend(lower::convolution_variants());
    }
    let compiled = variants.iter().map(|v| compile(v.source, &target.options(v), false));
    Ok(compiled.filter_map(Result::err).collect())
}

/// A source with its defaults, with all storage types bf16, all f16, with e4m3 where it supports that, and with further
/// values of its other macros, one at a time.
fn variants(source: &'static KernelSource) -> Vec<KernelVariant> {
    let plain = KernelVariant::new(source);
    let lines = || source.text.lines();
    let half = |name: &str| source.storage_types.iter().fold(plain.clone(), |variant, ty| variant.with(ty, name));
    let e4m3: &[(&'static str, &str)] = match source.name {
        "norm" => &[("X", "bf16"), ("Y", "e4m3")],
        "activation" => &[("X", "bf16"), ("Y", "e4m3"), ("ACTIVATION", "gelu_tanh")],
        "gemm" => &[("X", "e4m3"), ("Y", "e4m3"), ("B", "bf16")],
        _ => &[],
    };
    let values: &[(&'static str, &[usize])] = match source.name {
        "norm" => &[("DIM", &[1, 17, 48, 1024]), ("LANES", &[8, 64, 1024]), ("SUMS", &[1]), ("DROP", &[1])],
        "attention" => &[("HEAD_DIM", &[1, 20, 128])],
        "channel_norm" => &[("BATCH", &[0]), ("RELU", &[1, 2]), ("VEC", &[8]), ("LANES", &[8, 16])],
        "pool" => &[("MAX", &[0]), ("VEC", &[8])],
        "rotary" => &[("VEC", &[1, 2, 4]), ("ADJACENT", &[1])],
        "cosine" => &[("VEC", &[1, 2])],
        "windows" => &[("VEC", &[2, 4, 8])],
        "conv_layout" => &[("VEC", &[4])],
        "dropout" | "tokens" => &[("VEC", &[8])],
        "depthwise" => &[("VEC", &[8]), ("KERNEL_WIDTH", &[1, 5, 31])],
        "arithmetic" | "movement" | "patchify" | "reduce" => &[("VEC", &[1, 2, 4, 8])],
        _ => &[],
    };
    // The operations of a file, by the lines that define them.
    let functions: Vec<KernelVariant> = match source.name {
        "arithmetic" => lines()
            .filter_map(|line| Some(line.strip_prefix("ELEMENTWISE(")?.split_once(',')?.0))
            .map(|function| plain.clone().with("FUNCTION", function))
            .collect(),
        "activation" => lines()
            .filter_map(|line| line.strip_prefix("struct ")?.strip_suffix(" {"))
            .map(|function| plain.clone().with("ACTIVATION", function))
            .collect(),
        _ => Vec::new(),
    };
    let values = values.iter().flat_map(|(name, values)| values.iter().map(|v| plain.clone().with(name, v)));
    let e4m3 = e4m3.iter().fold(plain.clone(), |variant, (name, value)| variant.with(name, value));
    [plain.clone(), half("bf16"), half("f16"), e4m3].into_iter().chain(values).chain(functions).collect()
}
