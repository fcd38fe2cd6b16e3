//! A compiled graph with named inputs and outputs.

use vit_graph::device::{Device, Elements, Executable};
use vit_graph::rewrite::eliminate_dead_code;
use vit_graph::{Graph, Shape};
use vit_models::weights::Weights;

use crate::InsightError;

/// A compiled graph whose first input is `image [batch, …]`.
pub(crate) struct Runner {
    executable: Box<dyn Executable>,
    shapes: Vec<(String, Shape)>,
    batch: usize,
    image: Vec<f32>,
}

impl Runner {
    /// Compiles the part of the graph that its outputs depend on.
    pub fn new(graph: &Graph, weights: &Weights, device: &dyn Device) -> Result<Self, InsightError> {
        let graph = eliminate_dead_code(graph)?;
        let shapes = graph.outputs().iter().map(|(name, value)| (name.clone(), graph.shape(*value).clone())).collect();
        let input = graph.inputs().find(|(_, input)| input.name == "image").map(|(_, input)| input.ty.shape.clone());
        let Some(input) = input else {
            return Err(InsightError::Unsuitable("none of the outputs depends on the image".into()));
        };
        let executable = device.compile_shared(&graph, &mut &*weights)?;
        Ok(Runner { executable, shapes, batch: input[0], image: vec![0.0; input.elements()] })
    }

    pub fn batch(&self) -> usize {
        self.batch
    }

    /// Runs the graph on at most a batch of images and the other inputs.
    pub fn run<'a>(
        &mut self,
        images: impl IntoIterator<Item = &'a [f32]>,
        others: &[(&str, &[f32])],
    ) -> Result<(), InsightError> {
        let each = self.image.len() / self.batch;
        self.image.fill(0.0);
        for (place, image) in self.image.chunks_mut(each).zip(images) {
            if image.len() != each {
                return Err(InsightError::Length { what: "a preprocessed image", found: image.len(), expected: each });
            }
            place.copy_from_slice(image);
        }
        self.executable.write("image", Elements::F32(&self.image))?;
        for (name, values) in others {
            self.executable.write(name, Elements::F32(values))?;
        }
        Ok(self.executable.run()?)
    }

    /// Runs the graph of a masked autoencoder on one image, whose patches are masked by their order.
    pub fn run_masked(&mut self, image: &[f32], order: &[i32]) -> Result<(), InsightError> {
        self.executable.write("order", Elements::I32(order))?;
        self.run([image], &[])
    }

    /// An output of the last run, for the whole batch.
    pub fn read(&self, name: &str) -> Result<Vec<f32>, InsightError> {
        let elements = self.shape(name).map_or(0, Shape::elements);
        let mut values = vec![0.0; elements];
        self.executable.read(name, &mut values)?;
        Ok(values)
    }

    /// The shape of an output.
    pub fn shape(&self, name: &str) -> Option<&Shape> {
        self.shapes.iter().find(|(n, _)| n == name).map(|(_, shape)| shape)
    }
}
