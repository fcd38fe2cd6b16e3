//! Predicts training on many GPUs without any of them. The time of a step on one GPU follows from the cost of the model's
//! graph and three constants that were fitted to measured steps; the time of communication from a model of
//! all-reduces that overlap with the backward pass. docs/scaling.md has the formulas and compares them with measurements.

mod communication;
mod hardware;

use std::time::Duration;

use vit_graph::Graph;
use vit_graph::cost::Cost;

pub use communication::Communication;
pub use hardware::{GpuModel, Network};

/// The share of its peak that a GPU reaches in matrix products. Fitted, with [`PASSES`], to measured training steps of
/// Ti/16, S/16, B/16, L/16 and H/14 on an H200, each of which the prediction meets within 6% (docs/scaling.md).
const SUSTAINED: f64 = 0.735;

/// How often the values that a forward pass computes (in f32) are moved to or from memory in a step of mixed precision.
const PASSES: f64 = 2.4;

/// Bytes per parameter that a step moves whatever its batch: weights, gradients, their norm and the optimiser's state. From
/// the measured steps of H/14 with batches of 32 and 64.
const UPDATE_BYTES: f64 = 70.0;

/// The shortest time of the work around one matrix product in a step: three times that of inference with a batch of 1,
/// measured as 0.43 ms for the 62 products of B/16 on an H200.
const SHORTEST_PRODUCT: f64 = 3.0 * 0.43e-3 / 62.0;

/// The share of a step's time before the backward pass.
const FORWARD: f64 = 1.0 / 3.0;

/// Bytes of a parameter's gradient.
const GRADIENT_BYTES: f64 = 4.0;

/// The cost of a model for one image.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ModelCost {
    /// Trainable parameters.
    pub parameters: u64,
    /// FLOPs of the forward pass.
    pub flops: u64,
    /// Bytes of the values that the forward pass computes, in f32.
    pub activation_bytes: u64,
    /// The number of matrix products.
    pub products: usize,
}

impl ModelCost {
    /// The cost of a forward pass of one image.
    pub fn of(forward: &Graph) -> ModelCost {
        let cost = Cost::of(forward);
        ModelCost {
            parameters: cost.parameters(),
            flops: cost.flops(),
            activation_bytes: cost.activation_bytes(),
            products: cost.nodes.iter().filter(|node| node.flops > 0).count(),
        }
    }

    /// The time in which one GPU computes the gradients of `batch` images.
    pub fn compute(&self, gpu: &GpuModel, batch: usize) -> Duration {
        let images = batch as f64;
        let products = 3.0 * self.flops as f64 * images / (gpu.flops * SUSTAINED);
        let memory = PASSES * self.activation_bytes as f64 * images / gpu.bandwidth;
        Duration::from_secs_f64((products + memory).max(SHORTEST_PRODUCT * self.products as f64))
    }

    /// The time of the work that does not depend on the batch.
    pub fn update(&self, gpu: &GpuModel) -> Duration {
        Duration::from_secs_f64(UPDATE_BYTES * self.parameters as f64 / gpu.bandwidth)
    }

    /// Bytes of the gradients.
    pub fn gradient_bytes(&self) -> f64 {
        GRADIENT_BYTES * self.parameters as f64
    }
}

/// A training run on many GPUs.
#[derive(Debug, Clone, PartialEq)]
pub struct ClusterRun {
    /// The model.
    pub model: ModelCost,
    /// Images of a step, on all GPUs together.
    pub batch: usize,
    /// Images of an epoch.
    pub samples: f64,
    /// Epochs.
    pub epochs: f64,
    /// The number of GPUs.
    pub gpus: usize,
    /// The kind of GPU.
    pub gpu: GpuModel,
    /// The network between nodes.
    pub network: Network,
    /// The most images that fit into a GPU's memory at once.
    pub largest_batch: usize,
}

/// The prediction for a [`ClusterRun`].
#[derive(Debug, Clone, PartialEq)]
pub struct ClusterPrediction {
    /// Images of a step on one GPU.
    pub batch_per_gpu: usize,
    /// Micro-batches of a step on one GPU.
    pub micro_batches: usize,
    /// The time of a step.
    pub step: Duration,
    /// Of it, the time of computing.
    pub compute: Duration,
    /// The all-reduce of the gradients.
    pub communication: Communication,
    /// Steps of the run.
    pub steps: f64,
    /// The time of the run.
    pub time: Duration,
    /// Days of all GPUs together.
    pub gpu_days: f64,
    /// Energy of GPUs and their hosts in kilowatt-hours, without cooling.
    pub energy: f64,
}

/// FLOPs per second of a TPUv3 core in bf16 (123 TFLOP/s per chip of two cores).
const TPU_V3_CORE: f64 = 61.5e12;

impl ClusterRun {
    /// The prediction; `None` if there are more GPUs than images in a step.
    pub fn predict(&self) -> Option<ClusterPrediction> {
        let batch_per_gpu = self.batch.div_ceil(self.gpus);
        if self.gpus == 0 || self.gpus > self.batch {
            return None;
        }
        let micro_batches = batch_per_gpu.div_ceil(self.largest_batch.max(1));
        let micro = self.model.compute(&self.gpu, batch_per_gpu.div_ceil(micro_batches));
        let compute = micro * micro_batches as u32 + self.model.update(&self.gpu);
        // Gradients are complete, and can be sent, in the backward pass of the last micro-batch.
        let backward = micro.mul_f64(1.0 - FORWARD);
        let bytes = self.model.gradient_bytes();
        let communication = Communication::of(bytes, backward, self.gpus, &self.gpu, &self.network);
        let step = compute + communication.exposed;
        let steps = (self.samples * self.epochs / self.batch as f64).ceil();
        let time = step.mul_f64(steps);
        let gpu_days = time.as_secs_f64() / 86400.0 * self.gpus as f64;
        let energy = gpu_days * 24.0 * self.gpu.watts / 1000.0;
        Some(ClusterPrediction {
            batch_per_gpu,
            micro_batches,
            step,
            compute,
            communication,
            steps,
            time,
            gpu_days,
            energy,
        })
    }

    /// TPUv3-core-days with the same number of FLOPs at the peak as so many GPU-days.
    pub fn tpu_core_days(&self, gpu_days: f64) -> f64 {
        gpu_days * self.gpu.flops / TPU_V3_CORE
    }

    /// Images per second.
    pub fn images_per_second(&self, prediction: &ClusterPrediction) -> f64 {
        self.batch as f64 / prediction.step.as_secs_f64()
    }
}

/// Pre-training in TPUv3-core-days, from table 2 of the paper.
pub const PAPER_CORE_DAYS: [(&str, f64); 5] = [
    ("ViT-H/14 on JFT-300M", 2500.0),
    ("ViT-L/16 on JFT-300M", 680.0),
    ("ViT-L/16 on ImageNet-21k", 230.0),
    ("BiT-L (ResNet-152x4)", 9900.0),
    ("Noisy Student (EfficientNet-L2)", 12300.0),
];

#[cfg(test)]
mod tests {
    use super::*;
    use vit_models::{Mode, variant};

    fn cost(name: &str) -> ModelCost {
        ModelCost::of(&variant(name).unwrap().architecture.build(1, Mode::Inference).unwrap())
    }

    fn run(name: &str, gpus: usize) -> ClusterRun {
        ClusterRun {
            model: cost(name),
            batch: 4096,
            samples: 303e6,
            epochs: 7.0,
            gpus,
            gpu: GpuModel::named("h200").unwrap(),
            network: Network::with_gigabits(400.0),
            largest_batch: 64,
        }
    }

    /// The measured steps of docs/scaling.md.
    #[test]
    fn steps_on_one_gpu_are_as_measured() {
        let gpu = GpuModel::named("h200").unwrap();
        let steps = [
            ("Ti/16", 1024, 29.49),
            ("S/16", 512, 36.53),
            ("B/16", 256, 52.65),
            ("L/16", 128, 88.99),
            ("H/14", 64, 128.58),
            ("H/14", 32, 68.86),
        ];
        for (name, batch, measured) in steps {
            let model = cost(name);
            let predicted = 1e3 * (model.compute(&gpu, batch) + model.update(&gpu)).as_secs_f64();
            assert!((predicted / measured - 1.0).abs() < 0.06, "{name}: {predicted:.1} instead of {measured} ms");
        }
    }

    #[test]
    fn more_gpus_are_faster_and_dearer() {
        let mut before: Option<ClusterPrediction> = None;
        for gpus in [1, 8, 64, 512, 4096] {
            let now = run("H/14", gpus).predict().unwrap();
            if let Some(before) = before {
                assert!(now.time < before.time && now.gpu_days >= 0.999 * before.gpu_days, "{gpus}");
            }
            before = Some(now);
        }
        assert_eq!(run("H/14", 8192).predict(), None);
    }

    #[test]
    fn one_gpu_sends_nothing() {
        let alone = run("B/16", 1).predict().unwrap();
        assert_eq!(alone.communication.total, Duration::ZERO);
        assert_eq!(alone.step, alone.compute);
        assert_eq!(alone.micro_batches, 64);
    }
}
