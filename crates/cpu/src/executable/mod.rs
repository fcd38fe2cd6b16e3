//! A graph that is ready to run on the CPU: kernels with the addresses of their operands, all temporaries in one arena.

mod constants;
mod exchanged;
mod lowered_graph;
mod shared;
mod step;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use vit_graph::device::{Elements, Executable, Parameters, StepInfo, check_rows};
use vit_graph::{GraphError, NodeId, Type, Value};

use crate::buffer::Buffer;
use crate::device::Processor;
use constants::{Constants, StoredBuffers};
use exchanged::Exchanges;
pub(crate) use lowered_graph::LoweredGraph;
pub(crate) use shared::{SharedBuffers, SharedStorage};
use step::{Addresses, KernelStep};

const DEVICE: &str = "cpu";

pub(crate) struct CpuExecutable {
    processor: Arc<Processor>,
    steps: Vec<KernelStep>,
    exchanges: Exchanges,
    /// Inputs, temporaries, outputs and workspaces, at the addresses that the steps hold.
    arena: Buffer,
    /// Computes `stored`, again whenever parameters are set.
    constants: Constants,
    stored: StoredBuffers,
    /// Outputs without consumers, and so without a range of the arena, of kernels that work in place and thus write
    /// them.
    spares: Vec<Buffer>,
    inputs: NamedValues,
    outputs: NamedValues,
    /// Parameters that are stored unpacked.
    parameters: NamedValues,
    /// New values of parameters that no kernel writes in place, and the parameters: copied when all kernels have run.
    updates: Vec<(*const [f32], *mut [f32])>,
    /// Values of `read_async` that have not been collected.
    read_back: VecDeque<f32>,
}

// SAFETY: the raw pointers point into buffers that do not move with this value; it owns them, or shares them with
// executables that only read them, as it does itself.
unsafe impl Send for CpuExecutable {}

impl CpuExecutable {
    pub fn new(
        processor: Arc<Processor>,
        lowered: LoweredGraph,
        parameters: &mut dyn Parameters,
        shared: Option<SharedStorage>,
    ) -> Result<Self, GraphError> {
        let LoweredGraph { graph, mut kernels, constant, in_place, plan } = lowered;
        let constants = Constants::new(graph, &mut kernels, &constant);
        // Before the steps, which hold the addresses of the buffers.
        let mut stored = StoredBuffers { shared, ..StoredBuffers::default() };
        constants.compute(&processor, parameters, &mut stored)?;
        let graph = &constants.graph;
        let arena = Buffer::new(plan.arena_bytes / 4)?;
        let addresses = Addresses { graph, plan: &plan, arena: &arena, stored: &stored, in_place: &in_place };
        let (mut nodes, mut steps, mut spares) = (Vec::new(), Vec::new(), Vec::new());
        for (id, lowered) in kernels.into_iter().enumerate() {
            if let Some(lowered) = lowered {
                nodes.push(id);
                steps.push(KernelStep::new(&addresses, id, lowered, &mut spares)?);
            }
        }
        let exchanges = Exchanges::new(&addresses, &nodes);
        let mut updates = Vec::new();
        for &(parameter, new) in graph.updates() {
            let (to, from) = (addresses.of(parameter), addresses.of(new).cast_const());
            if from.cast::<f32>() != to.cast_const().cast::<f32>() {
                updates.push((from, to));
            }
        }
        let first_output = |node: NodeId| Value { node, output: 0 };
        let inputs = graph.inputs().map(|(node, input)| (&input.name, first_output(node)));
        let parameters = graph.parameters().map(|(node, parameter)| (&parameter.name, first_output(node)));
        let unpacked = parameters.filter(|(_, value)| stored.values.contains_key(value));
        let outputs = graph.outputs().iter().map(|(name, value)| (name, *value));
        let (inputs, outputs, parameters) = (
            NamedValues::new(&addresses, inputs),
            NamedValues::new(&addresses, outputs),
            NamedValues::new(&addresses, unpacked),
        );
        let read_back = VecDeque::new();
        Ok(CpuExecutable {
            processor,
            steps,
            exchanges,
            arena,
            constants,
            stored,
            spares,
            inputs,
            outputs,
            parameters,
            updates,
            read_back,
        })
    }

    fn run_step(&mut self, step: usize) -> Result<(), GraphError> {
        let Some(thread) = &self.processor.exchange else {
            self.steps[step].run(&self.processor);
            return Ok(());
        };
        self.exchanges.before(step, thread)?;
        self.steps[step].run(&self.processor);
        // SAFETY: `drop` calls `finish` before the arena is freed.
        unsafe { self.exchanges.after(step, thread) };
        Ok(())
    }

    fn finish_exchanges(&mut self) -> Result<(), GraphError> {
        self.processor.exchange.as_ref().map_or(Ok(()), |thread| self.exchanges.finish(thread))
    }

    fn apply_updates(&mut self) {
        for &(from, to) in &self.updates {
            // SAFETY: both point into buffers of `self`, which is borrowed exclusively; a parameter and its new value
            // have one type and do not overlap.
            unsafe { (*to).copy_from_slice(&*from) };
        }
    }
}

/// Types and addresses of values, by name.
struct NamedValues(HashMap<String, (Type, *mut [f32])>);

impl NamedValues {
    fn new<'a>(addresses: &Addresses<'_>, values: impl Iterator<Item = (&'a String, Value)>) -> Self {
        let named =
            |(name, value): (&String, Value)| (name.clone(), (addresses.graph.ty(value).clone(), addresses.of(value)));
        NamedValues(values.map(named).collect())
    }

    fn find(&self, kind: &'static str, name: &str) -> Result<(&Type, *mut [f32]), GraphError> {
        let Some((ty, address)) = self.0.get(name) else {
            let mut known: Vec<&str> = self.0.keys().map(String::as_str).collect();
            known.sort_unstable();
            return Err(GraphError::UnknownName { kind, name: name.into(), known: known.join(", ") });
        };
        Ok((ty, *address))
    }

    /// # Safety
    /// The buffers of all values must be alive and not written meanwhile.
    unsafe fn read(&self, kind: &'static str, name: &str, into: &mut [f32]) -> Result<(), GraphError> {
        let (ty, address) = self.find(kind, name)?;
        Elements::F32(into).check(name, ty)?;
        // SAFETY: guaranteed by the caller.
        into.copy_from_slice(unsafe { &*address });
        Ok(())
    }
}

impl Drop for CpuExecutable {
    fn drop(&mut self) {
        // The exchange must not use memory that is freed. An error cannot be returned from here.
        self.finish_exchanges().ok();
    }
}

impl Executable for CpuExecutable {
    fn write(&mut self, input: &str, elements: Elements) -> Result<(), GraphError> {
        let (ty, to) = self.inputs.find("input", input)?;
        elements.check(input, ty)?;
        // SAFETY: an address in the arena, and `self` is borrowed exclusively.
        let to = unsafe { &mut *to };
        match elements {
            Elements::F32(data) => to.copy_from_slice(data),
            Elements::I32(data) => to.copy_from_slice(bytemuck::cast_slice(data)),
        }
        Ok(())
    }

    fn write_rows(&mut self, input: &str, rows: &[&[f32]]) -> Result<(), GraphError> {
        let (ty, to) = self.inputs.find("input", input)?;
        check_rows(input, ty, rows)?;
        // SAFETY: as in `write`.
        let mut rest = unsafe { &mut *to };
        for row in rows {
            let (to, after) = rest.split_at_mut(row.len());
            to.copy_from_slice(row);
            rest = after;
        }
        rest.fill(0.0);
        Ok(())
    }

    fn run(&mut self) -> Result<(), GraphError> {
        (0..self.steps.len()).try_for_each(|step| self.run_step(step))?;
        self.finish_exchanges()?;
        self.apply_updates();
        Ok(())
    }

    fn steps(&self) -> Vec<StepInfo> {
        self.steps.iter().map(|step| step.info.clone()).collect()
    }

    fn run_timed(&mut self, seconds: &mut [f64]) -> Result<(), GraphError> {
        for (step, seconds) in (0..self.steps.len()).zip(seconds) {
            let start = Instant::now();
            self.run_step(step)?;
            *seconds = start.elapsed().as_secs_f64();
        }
        self.finish_exchanges()?;
        self.apply_updates();
        Ok(())
    }

    fn read(&self, output: &str, into: &mut [f32]) -> Result<(), GraphError> {
        // SAFETY: the executable owns the buffers and is borrowed.
        unsafe { self.outputs.read("output", output, into) }
    }

    fn read_async(&mut self, outputs: &[&str]) -> Result<(), GraphError> {
        for output in outputs {
            let mut value = [0.0];
            self.read(output, &mut value)?;
            self.read_back.push_back(value[0]);
        }
        Ok(())
    }

    fn collect(&mut self, into: &mut [f32]) -> Result<(), GraphError> {
        if self.read_back.len() < into.len() {
            let reason = format!("{} values were read back, but {} were requested", self.read_back.len(), into.len());
            return Err(GraphError::device(DEVICE, reason));
        }
        let count = into.len();
        into.iter_mut().zip(self.read_back.drain(..count)).for_each(|(to, value)| *to = value);
        Ok(())
    }

    fn set_parameters(&mut self, parameters: &mut dyn Parameters) -> Result<(), GraphError> {
        if self.stored.shared.is_some() {
            let reason = "the parameters of an executable that may share them cannot be replaced";
            return Err(GraphError::device(DEVICE, reason));
        }
        self.constants.compute(&self.processor, parameters, &mut self.stored)
    }

    fn read_parameter(&self, name: &str, into: &mut [f32]) -> Result<(), GraphError> {
        // SAFETY: as in `read`.
        unsafe { self.parameters.read("parameter in its original form", name, into) }
    }

    fn memory_bytes(&self) -> usize {
        self.arena.bytes() + self.stored.bytes() + self.spares.iter().map(Buffer::bytes).sum::<usize>()
    }
}
