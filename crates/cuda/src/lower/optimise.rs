//! Optimiser updates and the global norm of the gradients, each for all tensors in few launches (multi-tensor apply).
//!
//! To add an optimiser: a kernel in `kernels/optimise.cu`, an arm in [`UpdateKernel::of`].

use vit_graph::Node;
use vit_graph::ops::{CLIP_EPSILON, Op, OptimiserUpdate, SQUARES};

use super::{Emitter, Operand, THREADS};
use crate::compile::{self, KernelVariant};
use crate::run::arguments::{CStruct, KernelArguments};
use crate::run::launch::Request;

/// Elements of one block: `CHUNK` of the kernels.
const CHUNK: usize = 8192;

fn blocks(elements: usize) -> usize {
    elements.div_ceil(CHUNK)
}

/// `Chunk` of the kernels for every block: the number of the tensor, and of the chunk within it.
fn chunks(counts: &[usize]) -> Vec<u8> {
    let chunks = counts.iter().enumerate().flat_map(|(tensor, &count)| (0..blocks(count)).map(move |i| [tensor, i]));
    chunks.flat_map(|chunk| CStruct::new().u32s(&chunk).finish()).collect()
}

pub(super) fn global_norm(e: &mut Emitter) {
    let blocks: usize = e.inputs.iter().map(|x| blocks(x.shape.elements())).sum();
    let partials = e.scratch(4 * blocks);
    sum_squares(e, partials);
    root_of_sum(e, partials, blocks);
}

pub(super) fn square_sums(e: &mut Emitter) {
    let sums = e.outputs[0].address;
    sum_squares(e, sums);
}

pub(super) fn norm_of_sums(e: &mut Emitter) {
    let counts: Vec<usize> = e.inputs.iter().map(|sums| sums.shape.elements()).collect();
    let all = e.scratch(4 * counts.iter().sum::<usize>());
    let mut to = all;
    for (input, count) in counts.iter().enumerate().filter(|(_, count)| **count > 0) {
        e.requests.push(Request::Copy { to, from: e.inputs[input].address, bytes: 4 * count });
        to += 4 * *count as u64;
    }
    root_of_sum(e, all, counts.iter().sum());
}

/// Writes the sum of squares of every chunk of the inputs, one f32 each, to the address `to`.
fn sum_squares(e: &mut Emitter, to: u64) {
    const { assert!(CHUNK == SQUARES) };
    let counts: Vec<usize> = e.inputs.iter().map(|x| x.shape.elements()).collect();
    let gradients =
        e.inputs.iter().zip(&counts).flat_map(|(x, &n)| CStruct::new().u64(x.address).u64(n as u64).finish());
    let gradients = gradients.collect();
    let blocks: usize = counts.iter().map(|&count| blocks(count)).sum();
    let (gradients, chunks) = (e.table(gradients), e.table(chunks(&counts)));
    if blocks > 0 {
        let arguments = KernelArguments::new().pointers(&[gradients, chunks, to]);
        e.kernel(KernelVariant::new(&compile::OPTIMISE), "sum_squares", [blocks, 1, 1], THREADS, 0, arguments);
    }
}

fn root_of_sum(e: &mut Emitter, partials: u64, count: usize) {
    let arguments = KernelArguments::new().pointer(partials).u32(count).pointer(e.outputs[0].address);
    e.kernel(KernelVariant::new(&compile::OPTIMISE), "global_norm", [1, 1, 1], THREADS, 0, arguments);
}

/// How the kernels compute one update.
///
/// The inputs of an update are the parameter, the gradient (or new value), `state` tensors of optimiser state, the
/// learning rate (or another scalar of this tensor), and scalars that all tensors share. Its outputs are the new
/// parameter and state.
struct UpdateKernel {
    kernel: &'static str,
    /// Tensors of optimiser state, at most two.
    state: usize,
    /// Scalar inputs after the rate; a launch passes those of the first tensor.
    shared_scalars: usize,
    /// Scalar parameters of the kernel without an input, which are null.
    absent_scalars: usize,
    /// The kernel's struct of hyperparameters, one for all tensors of a launch.
    hyperparameters: Option<CStruct>,
    /// Weight decay of this tensor: that added to the gradient, and that added to the update (decoupled, as in AdamW).
    weight_decay: [f32; 2],
    /// Whether the update is scaled by the ratio of the parameter's norm to the update's (LAMB).
    trust_ratio: bool,
    /// The kernel of the second pass, over tensors with a trust ratio. Both passes take partial sums of the norms.
    second_pass: Option<&'static str>,
}

impl UpdateKernel {
    fn of(op: &Op) -> Option<UpdateKernel> {
        let defaults = UpdateKernel {
            kernel: "",
            state: 0,
            shared_scalars: 0,
            absent_scalars: 0,
            hyperparameters: None,
            weight_decay: [0.0; 2],
            trust_ratio: false,
            second_pass: None,
        };
        Some(match op {
            Op::OptimiserUpdate(OptimiserUpdate::Adam(adam)) => UpdateKernel {
                kernel: "adam",
                state: 2,
                shared_scalars: 2 + usize::from(adam.scheduled_decay),
                absent_scalars: usize::from(!adam.scheduled_decay),
                hyperparameters: Some(
                    CStruct::new()
                        .f32(adam.beta1)
                        .f32(adam.beta2)
                        .f32(adam.epsilon)
                        .f32(adam.clip.unwrap_or(0.0))
                        .f32(CLIP_EPSILON)
                        .u32(usize::from(adam.clip.is_some())),
                ),
                weight_decay: if adam.decoupled { [0.0, adam.weight_decay] } else { [adam.weight_decay, 0.0] },
                trust_ratio: adam.trust_ratio,
                second_pass: Some("adam_with_trust"),
            },
            Op::OptimiserUpdate(OptimiserUpdate::Lion(lion)) => UpdateKernel {
                kernel: "lion",
                state: 1,
                shared_scalars: 2 + usize::from(lion.scheduled_decay),
                absent_scalars: usize::from(!lion.scheduled_decay),
                hyperparameters: Some(
                    CStruct::new()
                        .f32(lion.beta1)
                        .f32(lion.beta2)
                        .f32(lion.clip.unwrap_or(0.0))
                        .f32(CLIP_EPSILON)
                        .u32(usize::from(lion.clip.is_some())),
                ),
                weight_decay: [0.0, lion.weight_decay],
                ..defaults
            },
            Op::OptimiserUpdate(OptimiserUpdate::Sgd(sgd)) => UpdateKernel {
                kernel: "sgd",
                state: 1,
                shared_scalars: 2,
                hyperparameters: Some(
                    CStruct::new()
                        .f32(sgd.momentum)
                        .f32(sgd.dampening)
                        .f32(sgd.clip.unwrap_or(0.0))
                        .f32(CLIP_EPSILON)
                        .u32(usize::from(sgd.nesterov))
                        .u32(usize::from(sgd.clip.is_some())),
                ),
                weight_decay: [sgd.weight_decay, 0.0],
                ..defaults
            },
            Op::MovingAverage(_) => UpdateKernel { kernel: "moving_average", shared_scalars: 1, ..defaults },
            // The norm is in place of the learning rate.
            Op::GuardedUpdate(_) => UpdateKernel { kernel: "guarded_update", ..defaults },
            _ => return None,
        })
    }

    /// `TensorUpdate` of the kernels. `inputs` and `outputs` are those of one update.
    fn tensor(&self, inputs: &[Operand], outputs: &[Operand]) -> TensorUpdate {
        let mut tensor = TensorUpdate {
            count: inputs[0].shape.elements(),
            inputs: [0; 4],
            outputs: [0; 4],
            rate: inputs[2 + self.state].address,
            weight_decay: self.weight_decay,
            trust_ratio: self.trust_ratio,
        };
        inputs[..2 + self.state].iter().zip(&mut tensor.inputs).for_each(|(operand, to)| *to = operand.address);
        outputs[..1 + self.state].iter().zip(&mut tensor.outputs).for_each(|(operand, to)| *to = operand.address);
        tensor.outputs[3] = outputs[0].half;
        tensor
    }
}

/// The addresses of one tensor's update; 0 where it has no such operand.
struct TensorUpdate {
    count: usize,
    /// Parameter, gradient, first and second state.
    inputs: [u64; 4],
    /// Parameter, first and second state, and the parameter in 16 bits.
    outputs: [u64; 4],
    rate: u64,
    weight_decay: [f32; 2],
    trust_ratio: bool,
}

/// The tables of tensors and of chunks.
fn tables(e: &mut Emitter, tensors: &[TensorUpdate]) -> [u64; 2] {
    let (mut table, mut first_block) = (Vec::new(), 0);
    for tensor in tensors {
        let addresses = tensor.inputs.iter().chain(&tensor.outputs).chain([&tensor.rate]);
        let fields = addresses.fold(CStruct::new(), |fields, &address| fields.u64(address)).u64(tensor.count as u64);
        let [coupled, decoupled] = tensor.weight_decay;
        let fields = fields.f32(coupled).f32(decoupled).u32(usize::from(tensor.trust_ratio)).u32(first_block);
        table.extend(fields.finish());
        first_block += blocks(tensor.count);
    }
    let counts: Vec<usize> = tensors.iter().map(|tensor| tensor.count).collect();
    [e.table(table), e.table(chunks(&counts))]
}

/// Whether [`updates`] lowers an operation: updates from gradients, moving averages, guarded updates.
pub(super) fn is_update(op: &Op) -> bool {
    UpdateKernel::of(op).is_some()
}

/// Whether an operation updates a parameter from its gradient.
pub(crate) fn is_optimiser(op: &Op) -> bool {
    matches!(op, Op::OptimiserUpdate(_))
}

/// Whether two updates can share a launch: everything that they differ in is in the tables.
pub(crate) fn share_launch(a: &Node, b: &Node) -> bool {
    let (Some(x), Some(y)) = (UpdateKernel::of(&a.op), UpdateKernel::of(&b.op)) else { return false };
    let shared = |node: &Node| node.inputs[node.inputs.len() - x.shared_scalars..].to_vec();
    x.kernel == y.kernel
        && x.shared_scalars == y.shared_scalars
        && x.hyperparameters == y.hyperparameters
        && shared(a) == shared(b)
}

/// The launches of updates, any two of which [`share_launch`]; the emitter has the inputs and outputs of all of them,
/// one update after another.
pub(crate) fn updates(ops: &[&Op], e: &mut Emitter) {
    let kernels: Vec<UpdateKernel> = ops.iter().filter_map(|op| UpdateKernel::of(op)).collect();
    let Some(first) = kernels.first() else { return };
    let (inputs, outputs) = (e.inputs.len() / ops.len(), e.outputs.len() / ops.len());
    let operands = e.inputs.chunks(inputs).zip(e.outputs.chunks(outputs));
    let mut tensors: Vec<TensorUpdate> =
        kernels.iter().zip(operands).map(|(kernel, (inputs, outputs))| kernel.tensor(inputs, outputs)).collect();
    // The second pass reads the state that the first one wrote, even if it has no other consumer.
    for tensor in tensors.iter_mut().filter(|tensor| tensor.trust_ratio) {
        for state in tensor.outputs[1..3].iter_mut().filter(|state| **state == 0) {
            *state = e.scratch(4 * tensor.count);
        }
    }
    let [table, chunk_table] = tables(e, &tensors);
    let all_blocks: usize = tensors.iter().map(|tensor| blocks(tensor.count)).sum();
    let scaled: Vec<usize> = tensors.iter().map(|t| if t.trust_ratio { t.count } else { 0 }).collect();
    let scaled_blocks: usize = scaled.iter().map(|&count| blocks(count)).sum();
    let scalars = e.inputs[inputs - first.shared_scalars..inputs].iter().map(|x| x.address);
    let scalars: Vec<u64> = scalars.chain(std::iter::repeat_n(0, first.absent_scalars)).collect();
    // Two f32 per block: the squares of parameter and update.
    let partials = first.second_pass.map(|_| if scaled_blocks > 0 { e.scratch(8 * all_blocks) } else { 0 });
    let launch = |e: &mut Emitter, kernel: &'static str, chunks: u64, blocks: usize| {
        let arguments =
            KernelArguments::new().pointers(&[table, chunks]).pointers(&scalars).pointers(partials.as_slice());
        let arguments = first.hyperparameters.iter().fold(arguments, |all, fields| all.fields(fields.clone()));
        if blocks > 0 {
            e.kernel(KernelVariant::new(&compile::OPTIMISE), kernel, [blocks, 1, 1], THREADS, 0, arguments);
        }
    };
    launch(e, first.kernel, chunk_table, all_blocks);
    if let (Some(second_pass), true) = (first.second_pass, scaled_blocks > 0) {
        let chunks = e.table(chunks(&scaled));
        launch(e, second_pass, chunks, scaled_blocks);
    }
}
