//! Lowering: from an operation to the requests (kernels, products, copies) that compute it.
//!
//! Lowering is a pure function of operation, shapes, storage types and addresses. It first runs with placeholder
//! addresses, to find the scratch memory of each node, and again with the final ones.

mod arithmetic;
mod attention;
mod channel_norm;
mod conv;
mod cosine;
mod depthwise;
mod gather;
mod loss;
mod matrix;
mod movement;
mod norm;
mod optimise;
mod patchify;
mod pool;
mod reduce;
mod rotary;
mod rows;
mod tokens;
mod windows;

pub(crate) use arithmetic::conversion;
pub(crate) use attention::{hopper_variants, mma_variants};
pub(crate) use channel_norm::{
    batch_add_relu_grad as batch_norm_add_relu_grad, batch_relu as batch_norm_relu,
    batch_relu_grad as batch_norm_relu_grad,
};
pub(crate) use conv::convolution_variants;
pub(crate) use norm::{NormGradFusion, backward as norm_grad, dropped_add_layer_norm as dropped_add_norm};
pub(crate) use optimise::{is_optimiser, share_launch, updates};
pub(crate) use rows::{activation_grad_and_sums, supports_column_sums};
use vit_graph::ops::{Binary, Op, Operation};
use vit_graph::{Hint, Shape};

use crate::Precision;
use crate::compile::{self, KernelVariant};
use crate::driver::memory::ALIGNMENT;
use crate::plan::prepare::LoweringTarget;
use crate::plan::storage::Storage;
use crate::run::arguments::KernelArguments;
use crate::run::launch::{KernelLaunch, Request};

/// A value as an operand of kernels.
#[derive(Debug, Clone)]
pub(crate) struct Operand {
    /// 0 for an output that nothing outside its fused group reads, and for a stored value without an f32 form.
    pub address: u64,
    /// The storage type at `address`.
    pub storage: Storage,
    /// The address of a stored value's 16-bit form ([`StoredForms`](crate::plan::prepare::StoredForms)); 0 without one.
    pub half: u64,
    /// The address of a stored value's e4m3 form; 0 without one.
    pub e4m3: u64,
    /// The address of the value's quantisation scale; the inverse is [`INVERSE`](crate::plan::fp8::INVERSE) bytes further.
    /// 0 without one.
    pub scales: u64,
    pub shape: Shape,
}

impl Operand {
    /// Whether this output has consumers, so that it must be written.
    pub fn is_written(&self) -> bool {
        self.address != 0
    }
}

/// Collects the requests of a node.
pub(crate) struct Emitter {
    pub inputs: Vec<Operand>,
    pub outputs: Vec<Operand>,
    pub precision: Precision,
    /// The number of multiprocessors: it decides the tiles of some kernels, and into how many splits sums are divided.
    pub multiprocessors: usize,
    /// Whether kernels with wgmma and TMA can run.
    pub hopper: bool,
    /// Whether the node is part of a training step.
    pub training: bool,
    pub requests: Vec<Request>,
    scratch: BumpRegion,
    /// cuBLASLt's workspace, shared by the node's products, which run one after another.
    workspace: Option<u64>,
    /// Constant tables that the kernels read.
    tables: BumpRegion,
    /// Addresses and contents of the tables, to be uploaded before the first run.
    pub table_contents: Vec<(u64, Vec<u8>)>,
}

/// A bump allocator.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BumpRegion {
    pub base: u64,
    pub used: usize,
}

impl BumpRegion {
    pub fn at(base: u64) -> Self {
        BumpRegion { base, used: 0 }
    }

    fn take(&mut self, bytes: usize) -> u64 {
        let address = self.base + self.used as u64;
        self.used += bytes.next_multiple_of(ALIGNMENT);
        address
    }
}

/// Elements of the widest vector of a thread: `VEC` of the kernel files that define it as 8.
const VECTOR: usize = 8;

/// The widest vector, in elements, that divides all extents.
fn vector_width(extents: &[usize]) -> usize {
    [8, 4, 2].into_iter().find(|width| extents.iter().all(|extent| extent.is_multiple_of(*width))).unwrap_or(1)
}

/// The width of vectors of channels in kernels that have only the widest and the scalar one.
fn channel_vector(channels: usize) -> usize {
    if channels.is_multiple_of(VECTOR) { VECTOR } else { 1 }
}

/// Threads of a block in elementwise kernels and most reductions: `THREADS` of their files.
const THREADS: usize = 256;

impl Emitter {
    /// `scratch` and `tables` are the addresses of the node's scratch memory and tables.
    pub fn new(
        inputs: Vec<Operand>,
        outputs: Vec<Operand>,
        LoweringTarget { precision, multiprocessors, hopper }: LoweringTarget,
        [scratch, tables]: [u64; 2],
    ) -> Self {
        Emitter {
            inputs,
            outputs,
            precision,
            multiprocessors,
            hopper,
            training: false,
            requests: Vec::new(),
            scratch: BumpRegion::at(scratch),
            workspace: None,
            tables: BumpRegion::at(tables),
            table_contents: Vec::new(),
        }
    }

    /// Bytes of scratch memory.
    pub fn scratch_bytes(&self) -> usize {
        self.scratch.used
    }

    /// Bytes of tables.
    pub fn table_bytes(&self) -> usize {
        self.tables.used
    }

    /// The address of memory that only this node uses while it runs.
    fn scratch(&mut self, bytes: usize) -> u64 {
        self.scratch.take(bytes)
    }

    /// The address of memory with a constant content.
    fn table(&mut self, content: Vec<u8>) -> u64 {
        let address = self.tables.take(content.len());
        self.table_contents.push((address, content));
        address
    }

    fn kernel(
        &mut self,
        variant: KernelVariant,
        name: &'static str,
        grid: [usize; 3],
        threads: usize,
        shared: usize,
        arguments: KernelArguments,
    ) {
        self.requests.push(Request::Kernel(KernelLaunch {
            variant,
            name,
            grid,
            threads,
            shared,
            maps: Vec::new(),
            arguments,
        }));
    }

    /// A one-dimensional launch over `count` elements (or vectors), `each` per thread.
    fn kernel_1d(
        &mut self,
        variant: KernelVariant,
        name: &'static str,
        count: usize,
        each: usize,
        arguments: KernelArguments,
    ) {
        if count > 0 {
            self.kernel(variant, name, [count.div_ceil(each * THREADS), 1, 1], THREADS, 0, arguments);
        }
    }

    /// The address of an input in a storage type; converted into scratch memory unless it is stored in that type.
    fn input_as(&mut self, input: usize, storage: Storage) -> u64 {
        let operand = self.inputs[input].clone();
        if operand.storage == storage && operand.address != 0 {
            return operand.address;
        }
        if storage == self.operand_storage() && operand.half != 0 {
            return operand.half;
        }
        let count = operand.shape.elements();
        let to = self.scratch(count * storage.bytes());
        self.convert(operand.address, operand.storage, to, storage, count);
        to
    }

    /// The address and storage type of an input as it is stored; in f32, if it is also stored in that.
    fn stored(&self, input: usize) -> (u64, Storage) {
        let operand = &self.inputs[input];
        if operand.address != 0 { (operand.address, operand.storage) } else { (operand.half, self.operand_storage()) }
    }

    fn convert(&mut self, from: u64, stored: Storage, to: u64, storage: Storage, count: usize) {
        if count > 0 {
            self.requests.push(Request::Kernel(conversion((from, stored), (to, storage), count)));
        }
    }

    /// The address of an input in e4m3; quantised into scratch memory unless it is stored in e4m3. It must have scales.
    fn quantised(&mut self, input: usize) -> u64 {
        let x = self.inputs[input].clone();
        if x.storage == Storage::E4m3 {
            return x.address;
        }
        let to = self.scratch(x.shape.elements());
        self.quantise((x.address, x.storage), to, x.scales, x.shape.elements());
        to
    }

    fn quantise(&mut self, (from, stored): (u64, Storage), to: u64, scales: u64, count: usize) {
        let variant = KernelVariant::new(&compile::FP8).with("X", stored.name());
        self.kernel_1d(
            variant,
            "quantise",
            count,
            VECTOR,
            KernelArguments::new().pointers(&[from, to, scales]).u64(count),
        );
    }
}

/// Why this device does not run an operation.
pub(crate) struct Unsupported {
    pub reason: String,
    pub hint: Option<Hint>,
}

impl From<String> for Unsupported {
    fn from(reason: String) -> Self {
        Unsupported { reason, hint: None }
    }
}

/// Checks that the extents of all operands fit 31 bits, since kernels compute with them in u32.
pub(crate) fn check_extents(e: &Emitter) -> Result<(), Unsupported> {
    let mut extents = e.inputs.iter().chain(&e.outputs).flat_map(|operand| &operand.shape[..]);
    match extents.find(|&&extent| extent > u32::MAX as usize / 2) {
        Some(extent) => Err(format!("an extent of {extent} is too large for this device").into()),
        None => Ok(()),
    }
}

/// Checks that what kernels count in u32, such as the pixels of a batch, fits.
pub(crate) fn check_arguments(e: &Emitter) -> Result<(), Unsupported> {
    let too_large = |request: &Request| match request {
        Request::Kernel(kernel) => kernel.arguments.too_large(),
        _ => None,
    };
    match e.requests.iter().find_map(too_large) {
        Some(count) => Err(format!("a count of {count} is too large for this device").into()),
        None => Ok(()),
    }
}

/// Lowers one operation, whose extents were checked.
pub(crate) fn node(op: &Op, e: &mut Emitter) -> Result<(), Unsupported> {
    match op {
        Op::Linear(op) if op.int8 => {
            return Err(Unsupported { reason: "int8 is only for the CPU".into(), hint: Some(Hint::Precision("fp8")) });
        }
        Op::Linear(op) => matrix::linear(op, e),
        Op::MatMul(op) => matrix::matmul(op, e),
        Op::Conv2d(op) if depthwise::is_depthwise(op, &e.inputs[1].shape) => depthwise::forward(op, e),
        Op::Conv2dGradInput(op) if depthwise::is_depthwise(&op.conv, &e.inputs[1].shape) => {
            depthwise::grad_input(op, e);
        }
        Op::Conv2dGradWeight(op) if depthwise::is_depthwise(&op.conv, &op.weight) => depthwise::grad_weight(op, e),
        Op::Conv2d(op) => conv::forward(op, e),
        Op::Conv2dGradInput(op) => conv::grad_input(op, e),
        Op::Conv2dGradWeight(op) => conv::grad_weight(op, e),
        Op::Pool2d(op) => pool::forward(op, e),
        Op::Pool2dGrad(op) => pool::backward(&op.0, e),
        Op::Windows(op) => windows::partition(op, e),
        Op::Unwindows(op) => windows::merge(op, e),
        Op::BatchNorm(op) => channel_norm::batch(op, e),
        Op::BatchNormGrad(_) => channel_norm::backward(None, e),
        Op::BatchMoments(_) => channel_norm::batch_moments(e),
        Op::VarianceAbout(op) => channel_norm::variance_about(op, e),
        Op::SyncBatchNorm(op) => channel_norm::sync_batch(op, e),
        Op::SyncBatchNormGrad(op) => channel_norm::sync_batch_grad(op, e),
        Op::GroupNorm(op) => channel_norm::group(op, e),
        Op::GroupNormGrad(op) => channel_norm::backward(Some(op.groups), e),
        Op::Patchify(op) => patchify::patchify(op, e),
        Op::Unpatchify(op) => patchify::unpatchify(op, e),
        Op::Attention(op) => attention::forward(op, e)?,
        Op::AttentionGrad(op) => attention::backward(&op.0, e)?,
        Op::Rotary(op) => rotary::rotate(op, e),
        Op::RotaryGrad(op) => rotary::cos_sin_grad(op, e),
        Op::RotaryTables(_) => rotary::tables(e),
        Op::RotaryTablesGrad(_) => rotary::frequencies_grad(e),
        Op::Uniform(op) => rotary::uniform(op, e),
        Op::RandomPartition(op) => tokens::random_partition(*op, e),
        Op::TokenCorruption(op) => tokens::token_corruption(*op, e),
        Op::GatherTokens(op) => tokens::gather_tokens(*op, e),
        Op::ScatterTokens(op) => tokens::scatter_tokens(*op, e),
        Op::ColourClass(op) => tokens::colour_class(op, e),
        Op::CosineQkv(op) => cosine::forward(op.heads, e),
        Op::CosineQkvGrad(op) => cosine::backward(op.heads, e),
        Op::LayerNorm(op) => norm::layer_norm(op, e),
        Op::AddLayerNorm(op) => norm::add_layer_norm(&op.0, e),
        Op::LayerNormGrad(op) => norm::backward(*op, norm::NormGradFusion::default(), e),
        Op::Softmax(_) => rows::softmax(e),
        Op::SoftmaxGrad(_) => rows::softmax_grad(e),
        Op::Activation(op) => rows::activation(*op, e),
        Op::ActivationGrad(op) => rows::activation_grad(op.0, e),
        Op::Binary(op) => arithmetic::elementwise2(op.name(), e)?,
        Op::PartSum(_) => arithmetic::elementwise2(Binary::Add.name(), e)?,
        Op::AllReduce(_) | Op::ReduceScatter(_) => movement::copy_for_exchange(0, e),
        Op::AllGather(op) => movement::copy_for_exchange(op.shards.own().start, e),
        Op::Unary(op) => arithmetic::elementwise(op.name(), op.parameter(), e),
        Op::Scale(op) => arithmetic::elementwise(op.name(), op.0, e),
        Op::Dropout(op) => rows::dropout(*op, e),
        Op::Permute(op) => movement::permute(op, e)?,
        Op::Slice(op) => movement::slice(op, e)?,
        Op::Pad(op) => movement::pad(op, e)?,
        Op::Concat(op) => movement::concat(op, e)?,
        Op::Broadcast(op) => movement::broadcast(op, e)?,
        Op::Reduce(op) => reduce::reduce(op, e)?,
        Op::Gather(_) => gather::gather(e),
        Op::GatherGrad(_) => gather::gather_grad(e),
        Op::CrossEntropy(_) => loss::cross_entropy(e),
        Op::CrossEntropyGrad(_) => loss::cross_entropy_grad(e),
        Op::GlobalNorm(_) => optimise::global_norm(e),
        Op::SquareSums(_) => optimise::square_sums(e),
        Op::NormOfSums(_) => optimise::norm_of_sums(e),
        Op::SigmoidCrossEntropy(_) => loss::sigmoid_cross_entropy(e),
        Op::SquaredError(_) => loss::squared_error(e),
        Op::OneHotMax(_) => loss::one_hot_max(e),
        update if optimise::is_update(update) => optimise::updates(&[update], e),
        // Fused operations of rewrites that only the CPU applies.
        other => return Err(format!("{} is only for the CPU", other.name()).into()),
    }
    Ok(())
}
