//! Optimiser updates and the norm of gradients, each for all tensors at once.

use vit_graph::ops::{Adam, CLIP_EPSILON, Op, Sgd};

use super::{Emitter, Operand};
use crate::compile::{self, Variant};
use crate::run::arguments::{Arguments, Fields};

/// Elements of one block, as the kernels have it.
const CHUNK: usize = 8192;

/// Which block works on which part of which tensor.
fn chunks(counts: &[usize]) -> Vec<u8> {
    let parts = counts.iter().enumerate().flat_map(|(i, count)| (0..count.div_ceil(CHUNK)).map(move |part| [i, part]));
    parts.flat_map(|numbers| Fields::new().u32s(&numbers).finish()).collect()
}

pub(super) fn global_norm(e: &mut Emitter) {
    let counts: Vec<usize> = e.inputs.iter().map(|x| x.shape.elements()).collect();
    let gradients =
        e.inputs.iter().zip(&counts).flat_map(|(x, &n)| Fields::new().u64(x.address).u64(n as u64).finish());
    let gradients = gradients.collect();
    let blocks: usize = counts.iter().map(|count| count.div_ceil(CHUNK)).sum();
    let (gradients, chunks) = (e.table(gradients), e.table(chunks(&counts)));
    let (partials, norm) = (e.scratch(4 * blocks), e.outputs[0].address);
    let variant = Variant::new(&compile::OPTIMISE);
    if blocks > 0 {
        let arguments = Arguments::new().pointers(&[gradients, chunks, partials]);
        e.kernel(variant.clone(), "sum_squares", [blocks, 1, 1], 256, 0, arguments);
    }
    let arguments = Arguments::new().pointer(partials).u32(blocks).pointer(norm);
    e.kernel(variant, "root_of_sum", [1, 1, 1], 256, 0, arguments);
}

/// Where the kernels find one tensor's numbers; what an update does not have is empty.
struct Row {
    count: usize,
    /// Parameter, gradient, mean and variance.
    inputs: [u64; 4],
    /// Parameter, mean and variance, and the parameter's copy in bf16.
    outputs: [u64; 4],
    rate: u64,
    /// Weight decay of the gradient and of the update.
    decay: [f32; 2],
    trust_ratio: bool,
}

impl Row {
    fn new(inputs: &[Operand], outputs: &[Operand], state: usize, rate: usize) -> Self {
        let mut row = Row {
            count: inputs[0].shape.elements(),
            inputs: [0; 4],
            outputs: [0; 4],
            rate: inputs[rate].address,
            decay: [0.0; 2],
            trust_ratio: false,
        };
        inputs[..2 + state].iter().zip(&mut row.inputs).for_each(|(operand, place)| *place = operand.address);
        outputs[..1 + state].iter().zip(&mut row.outputs).for_each(|(operand, place)| *place = operand.address);
        row.outputs[3] = outputs[0].copy;
        row
    }
}

/// The rows of several updates, one after another in the node's inputs and outputs, as `row` reads them.
fn rows(e: &mut Emitter, count: usize, row: impl Fn(usize, &[Operand], &[Operand]) -> Row) -> (Vec<Row>, usize) {
    let arity = [e.inputs.len() / count, e.outputs.len() / count];
    let parts = e.inputs.chunks(arity[0]).zip(e.outputs.chunks(arity[1])).enumerate();
    let rows: Vec<Row> = parts.map(|(i, (inputs, outputs))| row(i, inputs, outputs)).collect();
    let blocks = rows.iter().map(|row| row.count.div_ceil(CHUNK)).sum();
    (rows, blocks)
}

/// The tables of rows and of chunks.
fn tables(e: &mut Emitter, rows: &[Row]) -> [u64; 2] {
    let (mut table, mut first_block) = (Vec::new(), 0);
    for row in rows {
        let places = row.inputs.iter().chain(&row.outputs).chain([&row.rate]);
        let fields = places.fold(Fields::new(), |fields, &place| fields.u64(place)).u64(row.count as u64);
        let [coupled, decoupled] = row.decay;
        table.extend(fields.f32(coupled).f32(decoupled).u32(usize::from(row.trust_ratio)).u32(first_block).finish());
        first_block += row.count.div_ceil(CHUNK);
    }
    let counts: Vec<usize> = rows.iter().map(|row| row.count).collect();
    [e.table(table), e.table(chunks(&counts))]
}

/// Few launches for all these updates, which are of one kind and differ only in what [`alike`] leaves out. Each has its
/// inputs and outputs, one after another.
pub(super) fn updates(ops: &[&Op], e: &mut Emitter) {
    match ops.first() {
        Some(Op::Adam(_)) => {
            let ops: Vec<Adam> =
                ops.iter().filter_map(|op| if let Op::Adam(op) = op { Some(*op) } else { None }).collect();
            adam(&ops, e);
        }
        Some(Op::Sgd(_)) => {
            let ops: Vec<Sgd> =
                ops.iter().filter_map(|op| if let Op::Sgd(op) = op { Some(*op) } else { None }).collect();
            sgd(&ops, e);
        }
        Some(Op::GuardedUpdate(_)) => guarded_update(ops.len(), e),
        _ => moving_average(ops.len(), e),
    }
}

/// Whether two updates can share a launch: what they differ in is in the tables.
pub(crate) fn alike(a: &Op, b: &Op) -> bool {
    match (a, b) {
        (Op::Adam(a), Op::Adam(b)) => {
            let Adam { weight_decay, decoupled, trust_ratio, .. } = *b;
            Adam { weight_decay, decoupled, trust_ratio, ..*a } == *b
        }
        (Op::Sgd(a), Op::Sgd(b)) => Sgd { weight_decay: b.weight_decay, ..*a } == *b,
        (Op::MovingAverage(_), Op::MovingAverage(_)) | (Op::GuardedUpdate(_), Op::GuardedUpdate(_)) => true,
        _ => false,
    }
}

fn adam(ops: &[Adam], e: &mut Emitter) {
    let Some(first) = ops.first() else { return };
    let (mut rows, blocks) = rows(e, ops.len(), |i, inputs, outputs| {
        let decay = ops[i].weight_decay;
        Row {
            decay: if ops[i].decoupled { [0.0, decay] } else { [decay, 0.0] },
            trust_ratio: ops[i].trust_ratio,
            ..Row::new(inputs, outputs, 2, 4)
        }
    });
    // The second launch reads the moments of the first, even if nobody else does.
    for row in rows.iter_mut().filter(|row| row.trust_ratio) {
        for moment in &mut row.outputs[1..3] {
            if *moment == 0 {
                *moment = e.scratch(4 * row.count);
            }
        }
    }
    let [table, all] = tables(e, &rows);
    let trusted: Vec<usize> = rows.iter().map(|row| if row.trust_ratio { row.count } else { 0 }).collect();
    let trusted_blocks: usize = trusted.iter().map(|count| count.div_ceil(CHUNK)).sum();
    let partials = if trusted_blocks > 0 { e.scratch(8 * blocks) } else { 0 };
    let [step, norm] = [e.inputs[5].address, e.inputs[6].address];
    let numbers = Fields::new()
        .f32(first.beta1)
        .f32(first.beta2)
        .f32(first.epsilon)
        .f32(first.clip.unwrap_or(0.0))
        .f32(CLIP_EPSILON)
        .u32(usize::from(first.clip.is_some()));
    let launch = |e: &mut Emitter, name: &'static str, chunks: u64, blocks: usize| {
        let arguments = Arguments::new().pointers(&[table, chunks, step, norm, partials]).fields(numbers.clone());
        if blocks > 0 {
            e.kernel(Variant::new(&compile::OPTIMISE), name, [blocks, 1, 1], 256, 0, arguments);
        }
    };
    launch(e, "adam", all, blocks);
    if trusted_blocks > 0 {
        let chunks = e.table(chunks(&trusted));
        launch(e, "adam_with_trust", chunks, trusted_blocks);
    }
}

fn sgd(ops: &[Sgd], e: &mut Emitter) {
    let Some(first) = ops.first() else { return };
    let (rows, blocks) = rows(e, ops.len(), |i, inputs, outputs| Row {
        decay: [ops[i].weight_decay, 0.0],
        ..Row::new(inputs, outputs, 1, 3)
    });
    let [table, chunks] = tables(e, &rows);
    let numbers = Fields::new()
        .f32(first.momentum)
        .f32(first.dampening)
        .f32(first.clip.unwrap_or(0.0))
        .f32(CLIP_EPSILON)
        .u32(usize::from(first.nesterov))
        .u32(usize::from(first.clip.is_some()));
    let arguments =
        Arguments::new().pointers(&[table, chunks, e.inputs[4].address, e.inputs[5].address]).fields(numbers);
    if blocks > 0 {
        e.kernel(Variant::new(&compile::OPTIMISE), "sgd", [blocks, 1, 1], 256, 0, arguments);
    }
}

fn moving_average(count: usize, e: &mut Emitter) {
    let (rows, blocks) = rows(e, count, |_, inputs, outputs| Row::new(inputs, outputs, 0, 2));
    let [table, chunks] = tables(e, &rows);
    if blocks > 0 {
        let arguments = Arguments::new().pointers(&[table, chunks, e.inputs[3].address]);
        e.kernel(Variant::new(&compile::OPTIMISE), "moving_average", [blocks, 1, 1], 256, 0, arguments);
    }
}

/// The kernel finds the norm where an optimiser has its rate.
fn guarded_update(count: usize, e: &mut Emitter) {
    let (rows, blocks) = rows(e, count, |_, inputs, outputs| Row::new(inputs, outputs, 0, 2));
    let [table, chunks] = tables(e, &rows);
    if blocks > 0 {
        let arguments = Arguments::new().pointers(&[table, chunks]);
        e.kernel(Variant::new(&compile::OPTIMISE), "guarded_update", [blocks, 1, 1], 256, 0, arguments);
    }
}
