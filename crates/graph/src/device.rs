//! Devices: a [`Device`] compiles a graph once into an [`Executable`], which runs many times.

use std::borrow::Cow;
use std::collections::BTreeMap;

use crate::ops::{Data, Parameter};
use crate::{DType, Graph, GraphError, Type};
use vit_system::host::{self, FreeMemory};

/// Host memory that is copied to a device.
#[derive(Debug, Clone, Copy, PartialEq)]
#[allow(missing_docs)]
pub enum Elements<'a> {
    F32(&'a [f32]),
    I32(&'a [i32]),
}

impl<'a> Elements<'a> {
    /// The number of elements.
    pub fn len(&self) -> usize {
        match self {
            Elements::F32(data) => data.len(),
            Elements::I32(data) => data.len(),
        }
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        match self {
            Elements::F32(_) => DType::F32,
            Elements::I32(_) => DType::I32,
        }
    }

    /// Checks type and number of elements against those of an input or parameter.
    pub fn check(&self, name: &str, ty: &Type) -> Result<(), GraphError> {
        if self.dtype() == ty.dtype && self.len() == ty.shape.elements() {
            return Ok(());
        }
        Err(GraphError::Mismatch {
            name: name.into(),
            expected: format!("{ty} ({} elements)", ty.shape.elements()),
            found: format!("{} elements of {}", self.len(), self.dtype()),
        })
    }
}

/// Checks rows of f32 against the type `[rows, …]` of an input; fewer rows are allowed.
pub fn check_rows(name: &str, ty: &Type, rows: &[&[f32]]) -> Result<(), GraphError> {
    let count = ty.shape.first().copied().unwrap_or(1);
    let each = ty.shape.elements() / count.max(1);
    if ty.dtype == DType::F32 && rows.len() <= count && rows.iter().all(|row| row.len() == each) {
        return Ok(());
    }
    let lengths: Vec<usize> = rows.iter().map(|row| row.len()).collect();
    Err(GraphError::Mismatch {
        name: name.into(),
        expected: format!("{ty}, at most {count} rows of {each} elements"),
        found: format!("rows of {lengths:?} elements of f32"),
    })
}

impl<'a> From<&'a [f32]> for Elements<'a> {
    fn from(data: &'a [f32]) -> Self {
        Elements::F32(data)
    }
}

impl<'a> From<&'a [i32]> for Elements<'a> {
    fn from(data: &'a [i32]) -> Self {
        Elements::I32(data)
    }
}

impl<'a> From<&'a Data> for Elements<'a> {
    fn from(data: &'a Data) -> Self {
        match data {
            Data::F32(data) => Elements::F32(data),
            Data::I32(data) => Elements::I32(data),
        }
    }
}

/// A source of parameters for compiling a graph.
pub trait Parameters {
    /// The elements of a parameter, if the source has it. A source may move them out, so that a model is never in
    /// memory twice, in its original and its packed form: a device takes each parameter once.
    fn take(&mut self, parameter: &Parameter) -> Option<Cow<'_, [f32]>>;

    /// Bytes of host memory that this source frees as its parameters are taken.
    fn held_bytes(&self) -> u64 {
        0
    }
}

impl Parameters for BTreeMap<String, Vec<f32>> {
    fn take(&mut self, parameter: &Parameter) -> Option<Cow<'_, [f32]>> {
        self.get(&parameter.name).map(|data| Cow::Borrowed(data.as_slice()))
    }
}

/// Parameters drawn from their initialisers.
#[derive(Debug, Clone, Copy)]
pub struct Initial {
    /// The seed; random numbers also depend on the parameter's name.
    pub seed: u64,
}

impl Parameters for Initial {
    fn take(&mut self, parameter: &Parameter) -> Option<Cow<'_, [f32]>> {
        let mut data = vec![0.0; parameter.shape.elements()];
        parameter.init.fill(self.seed, &parameter.name, &mut data);
        Some(Cow::Owned(data))
    }
}

/// The memory of an executable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory {
    /// Bytes of parameters and constants in the device's layout and precision.
    pub stored_bytes: usize,
    /// Bytes of inputs, temporaries, outputs and workspaces.
    pub arena_bytes: usize,
}

impl Memory {
    /// The sum.
    pub fn bytes(&self) -> u64 {
        (self.stored_bytes + self.arena_bytes) as u64
    }
}

/// Everything besides the graph and its inputs that determines the bits of a device's results. A training run saves it,
/// so that it resumes to the same bits in another process or on another machine of the same kind.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Algorithms {
    /// The device and its libraries, by name. If these differ, results agree up to rounding.
    pub environment: BTreeMap<String, String>,
    /// The algorithms chosen by autotuning, by operation, in the device's notation.
    pub chosen: BTreeMap<String, String>,
}

/// One step of a run (not a training step): the kernels of a node or of a group of fused nodes.
#[derive(Debug, Clone, PartialEq)]
pub struct StepInfo {
    /// The operation and its epilogue.
    pub op: String,
    /// The shapes of its operands.
    pub shapes: String,
    /// The module it belongs to, with its phase ([`Node::path`](crate::Node::path)).
    pub scope: String,
    /// Floating-point operations of its matrix products.
    pub flops: u64,
    /// Bytes that it reads and writes, each operand once; devices may leave out secondary outputs.
    pub bytes: u64,
}

/// A processor that runs graphs. Threads may share one: `compile` and `plan` take `&self`, and executables of one
/// device may run at the same time.
pub trait Device: Send + Sync {
    /// The kind of device: `cpu` or `cuda`.
    fn name(&self) -> &'static str;

    /// The device among those of its kind: `cpu` or `cuda:1`.
    fn id(&self) -> String {
        self.name().into()
    }

    /// The id and what the device is: `cuda:1 (NVIDIA H200)`.
    fn description(&self) -> String {
        self.id()
    }

    /// The memory that compiling a graph would take; allocates nothing.
    fn plan(&self, graph: &Graph) -> Result<Memory, GraphError>;

    /// The algorithms of everything compiled so far.
    fn algorithms(&self) -> Algorithms {
        Algorithms::default()
    }

    /// Uses these algorithms instead of autotuning from now on.
    fn use_algorithms(&self, _algorithms: &Algorithms) {}

    /// Connects the devices of several processes, where these have direct links. A collective operation: all processes
    /// call it, before they compile.
    fn connect(&self) -> Result<(), GraphError> {
        Ok(())
    }

    /// The free memory for graphs; `None` if unknown. Unless its limit is
    /// [`MemoryLimit::Gpu`](vit_system::host::MemoryLimit::Gpu), it is memory of the host.
    fn free_memory(&self) -> Option<FreeMemory> {
        host::free_memory()
    }

    /// Rewrites a graph, plans its memory, chooses kernels and copies its parameters to the device.
    fn compile(&self, graph: &Graph, parameters: &mut dyn Parameters) -> Result<Box<dyn Executable>, GraphError>;

    /// As [`Device::compile`], for a graph whose parameters never change: executables of one device that have the same
    /// constants may store them once. [`Executable::set_parameters`] of such an executable may be an error.
    fn compile_shared(
        &self,
        graph: &Graph,
        parameters: &mut dyn Parameters,
    ) -> Result<Box<dyn Executable>, GraphError> {
        self.compile(graph, parameters)
    }
}

/// A graph that is ready to run on a device. Running it allocates nothing.
pub trait Executable: Send {
    /// Sets an input for the following runs.
    fn write(&mut self, input: &str, elements: Elements) -> Result<(), GraphError>;

    /// Sets an input `[rows, …]` of f32 for the following runs: its first rows, and zeros after them.
    fn write_rows(&mut self, input: &str, rows: &[&[f32]]) -> Result<(), GraphError>;

    /// Runs the graph once; may return before the run is complete ([`Executable::is_async`]).
    fn run(&mut self) -> Result<(), GraphError>;

    /// Waits until all runs are complete.
    fn wait(&mut self) -> Result<(), GraphError> {
        Ok(())
    }

    /// The steps of a run, in order.
    fn steps(&self) -> Vec<StepInfo>;

    /// Runs the graph once and writes the seconds of each step, in the order and number of [`Executable::steps`].
    fn run_timed(&mut self, seconds: &mut [f64]) -> Result<(), GraphError>;

    /// Copies an f32 output of the last run.
    fn read(&self, output: &str, into: &mut [f32]) -> Result<(), GraphError>;

    /// Whether [`Executable::run`] returns before the run is complete, so that the host can prepare and launch the next
    /// one.
    fn is_async(&self) -> bool {
        false
    }

    /// Starts an asynchronous read-back of scalar outputs of the last run, to be collected by [`Executable::collect`].
    /// One more run and its read-back may be started before the first is collected.
    fn read_async(&mut self, outputs: &[&str]) -> Result<(), GraphError>;

    /// Collects the oldest read-back, waiting until it is complete.
    fn collect(&mut self, into: &mut [f32]) -> Result<(), GraphError>;

    /// Replaces all parameters, and whatever the device computed from them when the graph was compiled. Results of the
    /// next run are the same bits as those of the graph compiled with these parameters.
    fn set_parameters(&mut self, parameters: &mut dyn Parameters) -> Result<(), GraphError>;

    /// Copies a parameter after the last run. A parameter without updates may be unavailable, if only its packed form
    /// is kept.
    fn read_parameter(&self, name: &str, into: &mut [f32]) -> Result<(), GraphError>;

    /// Bytes of arena, parameters and constants.
    fn memory_bytes(&self) -> usize;
}
