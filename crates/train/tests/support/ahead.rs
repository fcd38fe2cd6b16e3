//! The CPU in the guise of a device that works by itself, so that the trainer starts steps before it has looked at the
//! losses of those before.

use vit_cpu::Cpu;
use vit_graph::device::{Device, Elements, Executable, Memory, Parameters, StepInfo};
use vit_graph::{Graph, GraphError};

pub struct Ahead(pub Cpu);

impl Device for Ahead {
    fn name(&self) -> &'static str {
        self.0.name()
    }
    fn plan(&self, graph: &Graph) -> Result<Memory, GraphError> {
        self.0.plan(graph)
    }
    fn compile(&self, graph: &Graph, parameters: &mut dyn Parameters) -> Result<Box<dyn Executable>, GraphError> {
        Ok(Box::new(AheadExecutable(self.0.compile(graph, parameters)?)))
    }
}

struct AheadExecutable(Box<dyn Executable>);

impl Executable for AheadExecutable {
    fn is_async(&self) -> bool {
        true
    }
    fn write(&mut self, input: &str, elements: Elements) -> Result<(), GraphError> {
        self.0.write(input, elements)
    }
    fn write_rows(&mut self, input: &str, rows: &[&[f32]]) -> Result<(), GraphError> {
        self.0.write_rows(input, rows)
    }
    fn run(&mut self) -> Result<(), GraphError> {
        self.0.run()
    }
    fn steps(&self) -> Vec<StepInfo> {
        self.0.steps()
    }
    fn run_timed(&mut self, seconds: &mut [f64]) -> Result<(), GraphError> {
        self.0.run_timed(seconds)
    }
    fn read(&self, output: &str, into: &mut [f32]) -> Result<(), GraphError> {
        self.0.read(output, into)
    }
    fn read_async(&mut self, outputs: &[&str]) -> Result<(), GraphError> {
        self.0.read_async(outputs)
    }
    fn collect(&mut self, into: &mut [f32]) -> Result<(), GraphError> {
        self.0.collect(into)
    }
    fn set_parameters(&mut self, parameters: &mut dyn Parameters) -> Result<(), GraphError> {
        self.0.set_parameters(parameters)
    }
    fn read_parameter(&self, name: &str, into: &mut [f32]) -> Result<(), GraphError> {
        self.0.read_parameter(name, into)
    }
    fn memory_bytes(&self) -> usize {
        self.0.memory_bytes()
    }
}
