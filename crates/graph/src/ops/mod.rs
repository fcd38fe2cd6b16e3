//! The operations. A file per family holds an operation's definition, shape inference, gradient, FLOPs, the facts that
//! passes need ([`Operation`]), and its reference implementation in f64, which every device is tested against.
//!
//! NaN propagates: an element of a result that depends on a NaN is NaN, also where a maximum or a comparison would drop
//! it, so that errors stay visible. Devices are tested for it.
//!
//! To add an operation, write its file and add it to `operations!` below; a new elementwise function is a variant of
//! [`Unary`] or [`Binary`].

mod activation;
mod arithmetic;
mod attention;
mod batch_norm;
mod conv;
mod cosine;
mod dropout;
mod exchange;
mod fused_conv;
mod gather;
mod group_norm;
mod linear;
mod loss;
mod matmul;
mod movement;
mod norm;
mod optimise;
mod patchify;
mod pool;
mod reduce;
mod rotary;
mod softmax;
mod source;
mod sync_batch_norm;
mod tokens;
mod uniform;
mod windows;

pub use activation::{Activation, ActivationGrad};
pub use arithmetic::{Binary, Scale, Unary};
pub use attention::{Attention, AttentionGrad};
pub use batch_norm::{BatchNorm, BatchNormGrad};
pub use conv::{Conv2d, Conv2dGradInput, Conv2dGradWeight};
pub use cosine::{CosineQkv, CosineQkvGrad, LEAST_LENGTH};
pub use dropout::{Dropout, Granularity};
pub use exchange::{AllGather, AllReduce, PartSum, ReduceScatter, Shards};
pub use fused_conv::{FusedConv2d, ResidualAt};
pub use gather::{Gather, GatherGrad};
pub use group_norm::{GroupNorm, GroupNormGrad};
pub use linear::{Linear, LinearWithDerivative};
pub use loss::{CrossEntropy, CrossEntropyGrad, OneHotMax, SigmoidCrossEntropy, SquaredError};
pub use matmul::{MatMul, MatMulTimes};
pub use movement::{Broadcast, Concat, Pad, Permute, Reshape, Slice};
pub use norm::{AddLayerNorm, LayerNorm, LayerNormGrad, LayerNormGradAdd};
pub use optimise::*;
pub use patchify::{ImageLayout, Patchify, Unpatchify};
pub use pool::{Pool2d, Pool2dGrad, PoolMode};
pub use reduce::{Reduce, Reduction};
pub use rotary::{Rotary, RotaryExtents, RotaryGrad, RotaryPairs, RotaryTables, RotaryTablesGrad};
pub use softmax::{Softmax, SoftmaxGrad};
pub use source::{Constant, Data, Input, Parameter};
pub use sync_batch_norm::{
    BatchMoments, SyncBatchNorm, SyncBatchNormGrad, SyncedParts, VarianceAbout, sync_batch_norm,
};
pub use tokens::{ColourClass, GatherTokens, RandomPartition, ScatterTokens, TokenCorruption};
pub use uniform::Uniform;
pub use windows::{Unwindows, Windows};

use crate::autodiff::Backward;
use crate::reference::Array;
use crate::{DType, GraphError, Type};

/// An operation: its semantics, and the facts about it that rewrites, the memory plan and devices need.
pub trait Operation {
    /// The name in errors and tables; of an elementwise operation also that of its function in device kernels.
    fn name(&self) -> &'static str;

    /// The name with the epilogue, for profiles: `linear+gelu+residual`.
    fn label(&self) -> String {
        self.name().into()
    }

    /// Infers the types of the outputs, or returns what is wrong with the inputs.
    fn infer(&self, inputs: &[Type]) -> Result<Vec<Type>, String>;

    /// Floating-point operations of the operation's matrix products, 2 per multiply-add; other work is not counted, as
    /// in published figures.
    fn flops(&self, _inputs: &[Type], _outputs: &[Type]) -> u64 {
        0
    }

    /// Adds the nodes that compute the gradients of the operation's inputs, where needed.
    fn gradient(&self, backward: &mut Backward) -> Result<(), GraphError> {
        Err(backward.unsupported("it belongs to a backward pass, or was fused before differentiation"))
    }

    /// The reference implementation, in f64.
    fn evaluate(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array>;

    /// Whether a device has something to compute; false for inputs, parameters, constants and views.
    fn computes(&self) -> bool {
        true
    }

    /// Whether every element of the output depends only on the elements of the inputs at the same position, after
    /// broadcasting. False says nothing: gradients do not state it where it holds.
    fn is_elementwise(&self) -> bool {
        false
    }

    /// Whether every element of the output is an element of its only input, or 0.
    fn moves_elements(&self) -> bool {
        false
    }

    /// For an operation that computes each row of axis 1 of `[batch, rows, width]` independently: which inputs it reads
    /// row by row. It reads the others as a whole. `None` for other operations. The output has three axes.
    fn row_inputs(&self, inputs: &[Type], output: &Type) -> Option<Vec<bool>> {
        let rows = output.shape[1];
        let by_row = |input: &Type| match input.shape.len() {
            3 if input.shape[1] == rows => Some(true),
            3 if input.shape[1] == 1 => Some(false),
            0 | 1 => Some(false),
            _ => None,
        };
        if self.is_elementwise() { inputs.iter().map(by_row).collect() } else { None }
    }

    /// Pairs of an input and the output that may overwrite it, element by element.
    fn in_place(&self) -> &'static [(usize, usize)] {
        &[]
    }

    /// Whether kernels write the first output even if only other outputs are used.
    fn always_writes_first_output(&self) -> bool {
        false
    }

    /// How a device with low-precision storage reads an input.
    fn input_precision(&self, _input: usize) -> InputPrecision {
        InputPrecision::AsStored
    }

    /// Whether an output is stored in f32 whatever the precision: statistics, losses, new parameters.
    fn is_f32_output(&self, _output: usize) -> bool {
        false
    }

    /// Whether computing it a second time in one run gives the same result; false if it updates state or exchanges with
    /// other processes.
    fn is_repeatable(&self) -> bool {
        true
    }

    /// The index of the random stream that it draws from; mutable, since inlining renumbers streams.
    fn random_stream(&mut self) -> Option<&mut u32> {
        None
    }
}

/// How a device with low-precision storage reads an input of an operation. Sums are accumulated in f32 or wider
/// whatever is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InputPrecision {
    /// In whatever precision it is stored.
    AsStored,
    /// In f32, so it is also stored in f32.
    F32,
    /// In the precision of matrix products, as one of their operands.
    Operand,
    /// In the precision of the result, as a term that the epilogue of a matrix product adds.
    Addend,
}

impl InputPrecision {
    fn f32_if(condition: bool) -> Self {
        if condition { InputPrecision::F32 } else { InputPrecision::AsStored }
    }
}

/// Checks the number of inputs.
fn arity(inputs: &[Type], expected: usize) -> Result<(), String> {
    if inputs.len() == expected {
        Ok(())
    } else {
        Err(format!("{expected} inputs are needed, {} were given", inputs.len()))
    }
}

/// Checks that an input has a shape.
fn expect_shape(what: &str, found: &Type, expected: &[usize]) -> Result<(), String> {
    if found.shape[..] == *expected {
        Ok(())
    } else {
        Err(format!("{what} should be {}, not {}", crate::Shape::from(expected), found.shape))
    }
}

/// Checks the rank of an input.
fn expect_rank(what: &str, found: &Type, rank: usize) -> Result<(), String> {
    if found.shape.len() == rank {
        Ok(())
    } else {
        Err(format!("{what} should have {rank} axes, not {}", found.shape.len()))
    }
}

/// Checks that a value is a seed.
fn expect_seed(found: &Type) -> Result<(), String> {
    if *found == Type::new(DType::I32, [4]) { Ok(()) } else { Err(format!("the seed should be i32[4], not {found}")) }
}

macro_rules! operations {
    ($($name:ident),* $(,)?) => {
        /// Any operation.
        #[derive(Debug, Clone, PartialEq)]
        #[allow(missing_docs)]
        pub enum Op { $($name($name)),* }

        $(impl From<$name> for Op {
            fn from(op: $name) -> Op { Op::$name(op) }
        })*

        impl Op {
            fn operation(&self) -> &dyn Operation {
                match self { $(Op::$name(op) => op),* }
            }

            fn operation_mut(&mut self) -> &mut dyn Operation {
                match self { $(Op::$name(op) => op),* }
            }
        }
    };
}

operations!(
    Input,
    Parameter,
    Constant,
    Linear,
    LinearWithDerivative,
    MatMul,
    MatMulTimes,
    Conv2d,
    FusedConv2d,
    Conv2dGradInput,
    Conv2dGradWeight,
    Patchify,
    Unpatchify,
    Pool2d,
    Pool2dGrad,
    Windows,
    Unwindows,
    Attention,
    AttentionGrad,
    Rotary,
    RotaryGrad,
    RotaryTables,
    RotaryTablesGrad,
    CosineQkv,
    CosineQkvGrad,
    LayerNorm,
    LayerNormGrad,
    LayerNormGradAdd,
    AddLayerNorm,
    GroupNorm,
    GroupNormGrad,
    BatchNorm,
    BatchNormGrad,
    BatchMoments,
    VarianceAbout,
    SyncBatchNorm,
    SyncBatchNormGrad,
    Activation,
    ActivationGrad,
    Softmax,
    SoftmaxGrad,
    Binary,
    Scale,
    Unary,
    Dropout,
    Uniform,
    RandomPartition,
    TokenCorruption,
    GatherTokens,
    ScatterTokens,
    ColourClass,
    Reshape,
    Permute,
    Slice,
    Pad,
    Concat,
    Broadcast,
    Reduce,
    Gather,
    GatherGrad,
    CrossEntropy,
    CrossEntropyGrad,
    SigmoidCrossEntropy,
    SquaredError,
    OneHotMax,
    GlobalNorm,
    SquareSums,
    NormOfSums,
    OptimiserUpdate,
    MovingAverage,
    GuardedUpdate,
    PartSum,
    AllReduce,
    ReduceScatter,
    AllGather,
);

impl Operation for Op {
    fn name(&self) -> &'static str {
        self.operation().name()
    }
    fn label(&self) -> String {
        self.operation().label()
    }
    fn infer(&self, inputs: &[Type]) -> Result<Vec<Type>, String> {
        self.operation().infer(inputs)
    }
    fn flops(&self, inputs: &[Type], outputs: &[Type]) -> u64 {
        self.operation().flops(inputs, outputs)
    }
    fn gradient(&self, backward: &mut Backward) -> Result<(), GraphError> {
        self.operation().gradient(backward)
    }
    fn evaluate(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
        self.operation().evaluate(inputs, outputs)
    }
    fn computes(&self) -> bool {
        self.operation().computes()
    }
    fn is_elementwise(&self) -> bool {
        self.operation().is_elementwise()
    }
    fn moves_elements(&self) -> bool {
        self.operation().moves_elements()
    }
    fn row_inputs(&self, inputs: &[Type], output: &Type) -> Option<Vec<bool>> {
        self.operation().row_inputs(inputs, output)
    }
    fn in_place(&self) -> &'static [(usize, usize)] {
        self.operation().in_place()
    }
    fn always_writes_first_output(&self) -> bool {
        self.operation().always_writes_first_output()
    }
    fn input_precision(&self, input: usize) -> InputPrecision {
        self.operation().input_precision(input)
    }
    fn is_f32_output(&self, output: usize) -> bool {
        self.operation().is_f32_output(output)
    }
    fn is_repeatable(&self) -> bool {
        self.operation().is_repeatable()
    }
    fn random_stream(&mut self) -> Option<&mut u32> {
        self.operation_mut().random_stream()
    }
}
