//! Lowering: every operation becomes a kernel, a closure with everything that shapes decide, so that a run allocates
//! nothing.

mod arithmetic;
mod attention;
mod channel_norm;
mod conv;
mod cosine;
mod dropout;
mod fused_conv;
mod gather;
mod loss;
mod matrix;
mod movement;
mod optimise;
mod patchify;
mod pool;
mod reduce;
mod rotary;
mod rows;
mod tokens;
mod windows;

use vit_graph::Type;
use vit_graph::ops::{Binary, LayerNormGradAdd, Op};

use crate::device::Processor;
use crate::isa::Isa;
use crate::{gemm, int8};

/// A function of inputs, outputs and workspace ([`Lowered::workspace`] elements). An output without consumers may be an
/// empty slice, unless it is the first of an operation that always writes it. Elements of i32 are passed as their bits.
pub(crate) type NodeKernel = Box<dyn Fn(&Processor, &[&[f32]], &mut [&mut [f32]], &mut [f32]) + Send>;

/// An input that the kernel reads packed: what it gets is the packed form in place of the value.
#[derive(Clone, Copy)]
pub(crate) struct WeightPacking {
    pub input: usize,
    pub form: PackedForm,
}

/// How the weight `[n, k]` of a linear layer or a convolution is stored.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum PackedForm {
    F32,
    Int8,
}

impl PackedForm {
    /// The length in f32, also of int8.
    pub fn len(self, isa: Isa, k: usize, n: usize) -> usize {
        match self {
            PackedForm::F32 => gemm::packed_len(isa, k, n),
            PackedForm::Int8 => int8::packed_len(isa, k, n),
        }
    }

    pub fn pack(self, processor: &Processor, weight: &[f32], k: usize, n: usize, to: &mut [f32]) {
        let (pool, isa) = (&processor.pool, processor.isa);
        match self {
            PackedForm::F32 => gemm::pack_b_parallel(pool, isa, weight, gemm::BLayout::RowsAreN, k, k, n, to),
            PackedForm::Int8 => int8::pack_parallel(pool, isa, weight, k, n, to),
        }
    }
}

/// An operation as a kernel.
pub(crate) struct Lowered {
    pub kernel: NodeKernel,
    /// Elements of workspace.
    pub workspace: usize,
    pub packing: Option<WeightPacking>,
    /// Whether the kernel updates the pairs of [`vit_graph::ops::Operation::in_place`] in place: when it starts, the
    /// output holds the elements of the input. It must not read the slice of the input, which is empty in the steps of
    /// a run.
    pub in_place: bool,
}

impl Lowered {
    fn new(kernel: impl Fn(&Processor, &[&[f32]], &mut [&mut [f32]], &mut [f32]) + Send + 'static) -> Self {
        Lowered { kernel: Box::new(kernel), workspace: 0, packing: None, in_place: false }
    }

    fn with_workspace(mut self, elements: usize) -> Self {
        self.workspace = elements;
        self
    }

    fn in_place(mut self) -> Self {
        self.in_place = true;
        self
    }
}

/// Lowers an operation. `prepacked[i]`: input `i` changes only when parameters are set, and is packed then if the
/// kernel reads it packed ([`Lowered::packing`]).
pub(crate) fn lower(
    processor: &Processor,
    op: &Op,
    inputs: &[Type],
    outputs: &[Type],
    prepacked: &[bool],
) -> Result<Lowered, String> {
    Ok(match op {
        Op::Linear(op) if op.int8 => matrix::linear_int8(processor, op, inputs, prepacked[1])?,
        Op::Linear(op) => matrix::linear(processor, op, inputs, prepacked[1]),
        Op::LinearWithDerivative(op) => matrix::linear_with_derivative(processor, op, inputs, prepacked[1]),
        Op::MatMul(op) => matrix::matmul(processor, op, inputs),
        Op::MatMulTimes(op) => matrix::matmul(processor, &op.0, inputs),
        Op::Conv2d(op) => conv::forward(processor, op, inputs, outputs),
        Op::FusedConv2d(op) => fused_conv::forward(processor, op, inputs, &outputs[0], prepacked[1]),
        Op::Conv2dGradInput(op) => conv::grad_input(processor, op, inputs),
        Op::Conv2dGradWeight(op) => conv::grad_weight(processor, op, inputs),
        Op::Patchify(op) => patchify::patchify(op, &inputs[0]),
        Op::Unpatchify(op) => patchify::unpatchify(op),
        Op::Pool2d(op) => pool::forward(op, &inputs[0], &outputs[0]),
        Op::Pool2dGrad(op) => pool::backward(&op.0, &inputs[0], &inputs[1]),
        Op::Windows(op) => windows::partition(op, &inputs[0]),
        Op::Unwindows(op) => windows::reverse(op),
        Op::Attention(op) => attention::forward(processor, op, inputs),
        Op::AttentionGrad(op) => attention::backward(processor, op, inputs),
        Op::Rotary(op) => rotary::rotate(*op, inputs),
        Op::RotaryGrad(op) => rotary::rotation_grad_tables(op, inputs),
        Op::RotaryTables(_) => rotary::tables(inputs),
        Op::RotaryTablesGrad(_) => rotary::frequencies_grad(inputs),
        Op::CosineQkv(op) => cosine::forward(op.heads, &inputs[0]),
        Op::CosineQkvGrad(op) => cosine::backward(op.heads, &inputs[1]),
        Op::LayerNorm(op) => rows::layer_norm(op, &inputs[0]),
        Op::LayerNormGrad(op) | Op::LayerNormGradAdd(LayerNormGradAdd(op)) => rows::layer_norm_grad(*op, &inputs[1]),
        Op::AddLayerNorm(op) => rows::add_layer_norm(op, &inputs[0]),
        Op::GroupNorm(op) => channel_norm::group_norm(op, &inputs[0]),
        Op::GroupNormGrad(op) => channel_norm::group_norm_grad(op.groups, &inputs[1]),
        Op::BatchNorm(op) => channel_norm::batch_norm(op, &inputs[0]),
        Op::BatchNormGrad(_) => channel_norm::batch_norm_grad(&inputs[1]),
        Op::BatchMoments(_) => channel_norm::moments(&inputs[0]),
        Op::VarianceAbout(op) => channel_norm::variance_about(op),
        Op::SyncBatchNorm(op) => channel_norm::sync_batch_norm(op, &inputs[0]),
        Op::SyncBatchNormGrad(op) => channel_norm::sync_batch_norm_grad(op, &inputs[1]),
        Op::Softmax(_) => rows::softmax(&inputs[0]),
        Op::SoftmaxGrad(_) => rows::softmax_grad(&inputs[0]),
        Op::Activation(op) => rows::activation(*op),
        Op::ActivationGrad(op) => rows::activation_grad(op.0),
        Op::Binary(op) => arithmetic::binary(*op, inputs, &outputs[0])?,
        Op::Scale(op) => arithmetic::scale(op.0),
        Op::Unary(op) => arithmetic::unary(*op),
        Op::Dropout(op) => dropout::dropout(*op, &inputs[0]),
        Op::Uniform(op) => rotary::uniform(op),
        Op::RandomPartition(op) => tokens::random_partition(*op),
        Op::TokenCorruption(op) => tokens::token_corruption(*op, &inputs[0]),
        Op::GatherTokens(op) => tokens::gather_tokens(*op, &inputs[0], &inputs[1]),
        Op::ScatterTokens(op) => tokens::scatter_tokens(*op, &inputs[0], &inputs[1]),
        Op::ColourClass(op) => tokens::colour_class(op, &inputs[0], &outputs[0]),
        Op::Permute(op) => movement::permute(op, &inputs[0])?,
        Op::Slice(op) => movement::slice(op, &inputs[0])?,
        Op::Pad(op) => movement::pad(op, &inputs[0], &outputs[0]),
        Op::Concat(op) => movement::concat(op, inputs, &outputs[0]),
        Op::Broadcast(op) => movement::broadcast(op, &inputs[0])?,
        Op::Reduce(op) => reduce::reduce(op, &inputs[0])?,
        Op::Gather(_) => gather::gather(&inputs[0]),
        Op::GatherGrad(op) => gather::gather_grad(op),
        Op::CrossEntropy(_) => loss::cross_entropy(&inputs[0]),
        Op::CrossEntropyGrad(_) => loss::cross_entropy_grad(&inputs[1]),
        Op::SigmoidCrossEntropy(_) => loss::sigmoid_cross_entropy(&inputs[0]),
        Op::SquaredError(_) => loss::squared_error(&inputs[0]),
        Op::OneHotMax(_) => loss::one_hot_max(&inputs[0]),
        Op::GlobalNorm(_) => optimise::global_norm(inputs),
        Op::SquareSums(_) => optimise::square_sums(&inputs[0]),
        Op::NormOfSums(_) => optimise::norm_of_sums(inputs),
        Op::OptimiserUpdate(op) => optimise::optimiser_update(op, &inputs[0]),
        Op::MovingAverage(_) => optimise::moving_average(),
        Op::GuardedUpdate(_) => optimise::guarded_update(),
        Op::PartSum(_) => arithmetic::binary(Binary::Add, inputs, &outputs[0])?,
        // The executable exchanges the copy with the other processes.
        Op::AllReduce(_) | Op::ReduceScatter(_) => arithmetic::scale(1.0),
        Op::AllGather(op) => movement::own_slice(op),
        Op::Input(_) | Op::Parameter(_) | Op::Constant(_) | Op::Reshape(_) => {
            unreachable!("`computed_nodes` leaves out what computes nothing")
        }
    })
}

/// An output, or `None` if it has no consumers.
fn consumed(output: &mut [f32]) -> Option<&mut [f32]> {
    (!output.is_empty()).then_some(output)
}

/// Elements of one task of an elementwise kernel: enough to outweigh its scheduling, and a constant, so that the
/// partial sums of [`optimise::global_norm`] do not depend on the number of threads.
const TASK: usize = 1 << 14;
