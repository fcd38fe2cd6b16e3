//! The kernel files, and their variants: a file with values for its macros.

use std::collections::BTreeMap;

/// The text of some kernels.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(crate) struct KernelSource {
    /// Its name without `.cu`.
    pub name: &'static str,
    pub text: &'static str,
}

impl KernelSource {
    /// Whether its kernels are for Hopper's tensor cores.
    pub fn is_hopper(&self) -> bool {
        self.name.starts_with("hopper")
    }
}

/// The header of every file.
pub(super) const PRELUDE: &str = include_str!("../kernels/prelude.cuh");

macro_rules! sources {
    ($($constant:ident $name:literal),* $(,)?) => {
        $(pub(crate) static $constant: KernelSource =
            KernelSource { name: $name, text: include_str!(concat!("../kernels/", $name, ".cu")) };)*

        /// All files of one part.
        pub(super) static SOURCES: &[&KernelSource] = &[$(&$constant),*];
    };
}

/// A source of several files of one folder, concatenated.
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

/// A source with values for its macros: storage types, and the extents that the compiler specialises for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct KernelVariant {
    pub source: &'static KernelSource,
    pub(super) defines: BTreeMap<&'static str, String>,
}

impl KernelVariant {
    pub fn new(source: &'static KernelSource) -> Self {
        KernelVariant { source, defines: BTreeMap::new() }
    }

    /// Defines one more macro.
    pub fn with(mut self, name: &'static str, value: impl ToString) -> Self {
        self.defines.insert(name, value.to_string());
        self
    }
}
