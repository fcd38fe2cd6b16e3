//! A device that fails on demand.

use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use vit::graph::{Device, Elements, Executable, Graph, GraphError, Memory, Parameters, StepInfo};
use vit::{DeviceChoice, DeviceOptions};

/// What the next runs do.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Mode {
    Work,
    Fail,
    Panic,
    /// Runs wait until the mode changes.
    Block,
}

/// Decides what runs do, and counts them.
pub struct Switch {
    state: Mutex<(Mode, usize)>,
    changed: Condvar,
}

impl Switch {
    pub fn set(&self, mode: Mode) {
        self.state.lock().unwrap().0 = mode;
        self.changed.notify_all();
    }

    /// Runs that have begun.
    pub fn runs(&self) -> usize {
        self.state.lock().unwrap().1
    }

    /// Waits until a run has begun after `runs` earlier ones.
    pub fn wait_for_run(&self, runs: usize) {
        let state = self.state.lock().unwrap();
        let limit = Duration::from_secs(20);
        let (state, _) = self.changed.wait_timeout_while(state, limit, |state| state.1 <= runs).unwrap();
        assert!(state.1 > runs, "no run has begun");
    }

    fn run(&self) -> Result<(), GraphError> {
        let mut state = self.state.lock().unwrap();
        state.1 += 1;
        self.changed.notify_all();
        let state = self.changed.wait_while(state, |state| state.0 == Mode::Block).unwrap();
        let mode = state.0;
        drop(state);
        match mode {
            Mode::Fail => Err(GraphError::device("fragile", "the device has fallen off the bus")),
            Mode::Panic => panic!("a kernel panics on purpose"),
            Mode::Work | Mode::Block => Ok(()),
        }
    }
}

/// The CPU behind a switch, under another name.
pub struct FragileDevice {
    inner: Arc<dyn Device>,
    switch: Arc<Switch>,
}

impl FragileDevice {
    pub fn with_switch() -> (Arc<dyn Device>, Arc<Switch>) {
        let inner = DeviceOptions::new().device(DeviceChoice::Cpu).threads(1).open().unwrap();
        let switch = Arc::new(Switch { state: Mutex::new((Mode::Work, 0)), changed: Condvar::new() });
        (Arc::new(FragileDevice { inner, switch: switch.clone() }), switch)
    }
}

impl Device for FragileDevice {
    fn name(&self) -> &'static str {
        "fragile"
    }
    fn plan(&self, graph: &Graph) -> Result<Memory, GraphError> {
        self.inner.plan(graph)
    }
    fn compile(&self, graph: &Graph, parameters: &mut dyn Parameters) -> Result<Box<dyn Executable>, GraphError> {
        let inner = self.inner.compile_shared(graph, parameters)?;
        Ok(Box::new(FragileExecutable { inner, switch: self.switch.clone() }))
    }
}

struct FragileExecutable {
    inner: Box<dyn Executable>,
    switch: Arc<Switch>,
}

impl Executable for FragileExecutable {
    fn write(&mut self, input: &str, elements: Elements) -> Result<(), GraphError> {
        self.inner.write(input, elements)
    }
    fn write_rows(&mut self, input: &str, rows: &[&[f32]]) -> Result<(), GraphError> {
        self.inner.write_rows(input, rows)
    }
    fn run(&mut self) -> Result<(), GraphError> {
        self.switch.run()?;
        self.inner.run()
    }
    fn steps(&self) -> Vec<StepInfo> {
        self.inner.steps()
    }
    fn run_timed(&mut self, seconds: &mut [f64]) -> Result<(), GraphError> {
        self.inner.run_timed(seconds)
    }
    fn read(&self, output: &str, into: &mut [f32]) -> Result<(), GraphError> {
        self.inner.read(output, into)
    }
    fn read_async(&mut self, outputs: &[&str]) -> Result<(), GraphError> {
        self.inner.read_async(outputs)
    }
    fn collect(&mut self, into: &mut [f32]) -> Result<(), GraphError> {
        self.inner.collect(into)
    }
    fn set_parameters(&mut self, parameters: &mut dyn Parameters) -> Result<(), GraphError> {
        self.inner.set_parameters(parameters)
    }
    fn read_parameter(&self, name: &str, into: &mut [f32]) -> Result<(), GraphError> {
        self.inner.read_parameter(name, into)
    }
    fn memory_bytes(&self) -> usize {
        self.inner.memory_bytes()
    }
}
