//! What a device is: something that turns a graph into an executable once, which then runs many times.

use std::borrow::Cow;
use std::collections::BTreeMap;

use crate::ops::{Data, Parameter};
use crate::{DType, Graph, GraphError, Type};
use vit_system::host::{self, FreeMemory};

/// Elements that go to or come from a device.
#[derive(Debug, Clone, Copy, PartialEq)]
#[allow(missing_docs)]
pub enum Elements<'a> {
    F32(&'a [f32]),
    I32(&'a [i32]),
}

impl<'a> Elements<'a> {
    /// How many there are.
    pub fn len(&self) -> usize {
        match self {
            Elements::F32(data) => data.len(),
            Elements::I32(data) => data.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The type of one.
    pub fn dtype(&self) -> DType {
        match self {
            Elements::F32(_) => DType::F32,
            Elements::I32(_) => DType::I32,
        }
    }

    /// Checks that these are the elements of a value of this type.
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

/// Where parameters come from when a graph is compiled.
pub trait Parameters {
    /// The elements of a parameter, if there are any. A source that owns them gives them away, so that a model in its
    /// original and its packed form never lies in memory at once.
    fn take(&mut self, parameter: &Parameter) -> Option<Cow<'_, [f32]>>;

    /// Bytes of host memory that this source holds and gives away bit by bit as its parameters are taken.
    fn held_bytes(&self) -> u64 {
        0
    }
}

impl Parameters for BTreeMap<String, Vec<f32>> {
    fn take(&mut self, parameter: &Parameter) -> Option<Cow<'_, [f32]>> {
        self.get(&parameter.name).map(|data| Cow::Borrowed(data.as_slice()))
    }
}

/// Parameters that start as their initialisers say.
#[derive(Debug, Clone, Copy)]
pub struct Initial {
    /// What the random numbers depend on, besides the parameters' names.
    pub seed: u64,
}

impl Parameters for Initial {
    fn take(&mut self, parameter: &Parameter) -> Option<Cow<'_, [f32]>> {
        let mut data = vec![0.0; parameter.shape.elements()];
        parameter.init.fill(self.seed, &parameter.name, &mut data);
        Some(Cow::Owned(data))
    }
}

/// What an executable holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory {
    /// Bytes of parameters and constants in the form that the device keeps.
    pub stored_bytes: usize,
    /// Bytes of inputs, temporaries, outputs and scratch memory.
    pub arena_bytes: usize,
}

impl Memory {
    /// All of it.
    pub fn bytes(&self) -> u64 {
        (self.stored_bytes + self.arena_bytes) as u64
    }
}

/// What the bits of a device's results depend on besides the graph and its inputs. A training run keeps this, so that
/// another process, and another machine of the same kind, goes on to the same bits.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Algorithms {
    /// The device and the libraries that it computes with, by name. Where these differ, results agree to rounding only.
    pub environment: BTreeMap<String, String>,
    /// The algorithms that were chosen by timing them, by operation, in the device's own notation.
    pub chosen: BTreeMap<String, String>,
}

/// One kernel of an executable.
#[derive(Debug, Clone, PartialEq)]
pub struct StepInfo {
    /// The operation, with what was fused into it.
    pub op: String,
    /// The shapes it works on.
    pub shapes: String,
    /// Its place in the model.
    pub scope: String,
    /// Floating-point operations of its matrix products.
    pub flops: u64,
    /// Bytes that it reads and writes, each operand once.
    pub bytes: u64,
}

/// A processor that runs graphs. Threads may share one: `compile` and `plan` take `&self`, and executables of one device
/// may run at the same time.
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

    /// What running a graph would take, without its parameters.
    fn plan(&self, graph: &Graph) -> Result<Memory, GraphError>;

    /// What the bits of everything that it compiled so far depend on.
    fn algorithms(&self) -> Algorithms {
        Algorithms::default()
    }

    /// Takes these algorithms, instead of timing any, for what is compiled from now on.
    fn use_algorithms(&self, _algorithms: &Algorithms) {}

    /// What is left of the memory that graphs take here; `None` where nothing is known. A bound other than
    /// [`MemoryLimit::Gpu`](vit_system::host::MemoryLimit::Gpu) means that it is the host's memory.
    fn free_memory(&self) -> Option<FreeMemory> {
        host::free_memory()
    }

    /// Prepares a graph: rewrites it, plans its memory, and brings its parameters onto the device.
    fn compile(&self, graph: &Graph, parameters: &mut dyn Parameters) -> Result<Box<dyn Executable>, GraphError>;
}

/// A graph that is ready to run on a device. Running it allocates nothing.
pub trait Executable: Send {
    /// Gives an input for the runs that follow.
    fn write(&mut self, input: &str, elements: Elements) -> Result<(), GraphError>;

    /// Runs the graph once; a device may still be at it when this returns.
    fn run(&mut self) -> Result<(), GraphError>;

    /// Waits until everything asked for is done.
    fn wait(&mut self) -> Result<(), GraphError> {
        Ok(())
    }

    /// What a run does, one entry per kernel.
    fn steps(&self) -> Vec<StepInfo>;

    /// Runs the graph once and writes how many seconds each kernel took, in the order of [`Executable::steps`].
    fn run_timed(&mut self, seconds: &mut [f64]) -> Result<(), GraphError>;

    /// Copies an f32 output of the last run.
    fn read(&self, output: &str, into: &mut [f32]) -> Result<(), GraphError>;

    /// Whether [`Executable::run`] returns before the run is complete, so that the host can prepare and launch the next one.
    fn is_async(&self) -> bool {
        false
    }

    /// Starts an asynchronous read-back of scalar outputs of the last run, to be collected by [`Executable::poll`]. One more
    /// run and its read-back may be started before the first is collected.
    fn read_async(&mut self, outputs: &[&str]) -> Result<(), GraphError>;

    /// Collects the oldest read-back, waiting until it is complete.
    fn poll(&mut self, into: &mut [f32]) -> Result<(), GraphError>;

    /// Replaces all parameters, and whatever the device computed from them when the graph was compiled. Results of the next
    /// run are the same bits as those of the graph compiled with these parameters.
    fn set_parameters(&mut self, parameters: &mut dyn Parameters) -> Result<(), GraphError>;

    /// Copies a parameter as the last run left it; one that runs do not change may no longer be there in this form.
    fn read_parameter(&self, name: &str, into: &mut [f32]) -> Result<(), GraphError>;

    /// Bytes held: arena, parameters and what was made of them.
    fn memory_bytes(&self) -> usize;
}
