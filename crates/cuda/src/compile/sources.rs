//! The kernel files, and their variants: a file with values for its macros.

use std::collections::BTreeMap;

/// The text of one or more kernel files.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(crate) struct KernelSource {
    /// The file's name without `.cu`; of several files, that of the last after `folder_`.
    pub name: &'static str,
    pub text: &'static str,
    /// The macros that name storage types of operands; f32 unless a variant says otherwise.
    pub storage_types: &'static [&'static str],
    /// Other macros and their values, unless a variant has others.
    defaults: &'static [(&'static str, &'static str)],
}

impl KernelSource {
    /// Whether its kernels are for Hopper's tensor cores.
    pub fn is_hopper(&self) -> bool {
        self.name.starts_with("hopper")
    }
}

/// Compiled before the text of every source.
pub(super) const PRELUDE: &str = include_str!("../kernels/prelude.cuh");

/// `CONSTANT "file" [storage types] {MACRO: "default"}`.
macro_rules! sources {
    ($($constant:ident $name:literal [$($ty:ident)*] $({$($macro:ident: $value:literal),*})?),* $(,)?) => {
        $(pub(crate) static $constant: KernelSource = KernelSource {
            name: $name,
            text: include_str!(concat!("../kernels/", $name, ".cu")),
            storage_types: &[$(stringify!($ty)),*],
            defaults: &[$($((stringify!($macro), $value)),*)?],
        };)*

        /// The sources that are a single file.
        pub(super) static SOURCES: &[&KernelSource] = &[$(&$constant),*];
    };
}

/// A source of several files of one folder, concatenated: `instructions.cu` and those listed. Only `ELEMENT` and `OUT`
/// have defaults; lowering sets all other macros.
macro_rules! family {
    ($folder:literal $constant:ident $name:literal $($file:literal)*) => {
        pub(crate) static $constant: KernelSource = KernelSource {
            name: $name,
            text: concat!(
                include_str!(concat!("../kernels/", $folder, "/instructions.cu")),
                $(include_str!(concat!("../kernels/", $folder, "/", $file, ".cu")),)*
            ),
            storage_types: &[],
            defaults: &[("ELEMENT", "bf16"), ("OUT", "bf16")],
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
    ACTIVATION "activation" [X DY Y R] {ACTIVATION: "gelu"},
    ARITHMETIC "arithmetic" [A B Y] {FUNCTION: "add", INDEX: "u64", VEC: "8"},
    ATTENTION "attention" [Q B O DY DX] {HEAD_DIM: "64"},
    BIAS_GRADIENT "bias_gradient" [DX],
    CHANNEL_NORM "channel_norm" [X DY Y R DY2] {BATCH: "1", RELU: "0", VEC: "1", LANES: "32"},
    CONV "conv" [X Y],
    CONV_LAYOUT "conv_layout" [X Y] {VEC: "8"},
    COSINE "cosine" [X DY Y] {VEC: "4"},
    DEPTHWISE "depthwise" [X W DY Y] {VEC: "1", KERNEL_WIDTH: "3"},
    DROPOUT "dropout" [X Y] {VEC: "1"},
    EXCHANGE "exchange" [],
    FP8 "fp8" [X B],
    GATHER "gather" [X Y],
    GEMM "gemm" [X Y B],
    LOSS "loss" [X Y],
    MOVEMENT "movement" [X Y] {VEC: "1", INDEX: "u64"},
    NORM "norm" [X Z Y S DY R DX DD DB] {DIM: "768", LANES: "32", CENTRED: "1", DROP: "0", SUMS: "0"},
    OPTIMISE "optimise" [],
    PATCHIFY "patchify" [X Y] {VEC: "1", INDEX: "u64"},
    POOL "pool" [X DY Y] {MAX: "1", VEC: "1", TAP: "u32"},
    REDUCE "reduce" [X Y] {VEC: "1"},
    ROTARY "rotary" [X DY Y] {VEC: "8", ADJACENT: "0", INDEX: "u64"},
    SOFTMAX "softmax" [X DY Y],
    TOKENS "tokens" [X Y] {VEC: "1"},
    WINDOWS "windows" [X Y] {VEC: "1", INDEX: "u64"},
);

/// A source with values for its macros: storage types, functions, and extents that are compile-time constants.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct KernelVariant {
    pub source: &'static KernelSource,
    pub(super) defines: BTreeMap<&'static str, String>,
}

impl KernelVariant {
    /// The source with f32 for its storage types, and its defaults for other macros.
    pub fn new(source: &'static KernelSource) -> Self {
        let types = source.storage_types.iter().map(|&name| (name, "float"));
        let defines = types.chain(source.defaults.iter().copied()).map(|(name, value)| (name, value.to_string()));
        KernelVariant { source, defines: defines.collect() }
    }

    /// Sets the value of a macro.
    pub fn with(mut self, name: &'static str, value: impl ToString) -> Self {
        self.defines.insert(name, value.to_string());
        self
    }
}
