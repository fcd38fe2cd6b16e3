//! Threads share one device: their models run at the same time and give the bits that each gives alone.

mod support;

use std::sync::Arc;

use support::{open, recorded};
use vit::graph::Device;
use vit::{DeviceChoice, DeviceOptions, Model, ModelOptions};

/// The logits of a recorded model, several times over.
fn logits(case: &str, device: &dyn Device, runs: usize) -> Vec<Vec<f32>> {
    let input = recorded(case).tensors.remove("input").unwrap();
    let images: Vec<Vec<f32>> = input.data.chunks(input.data.len() / input.shape[0]).map(<[f32]>::to_vec).collect();
    let mut model = Model::new(open(case), device, &ModelOptions::new().batch(images.len())).unwrap();
    let mut run = || {
        model.run_prepared(&images).unwrap();
        model.output("logits", images.len()).unwrap()
    };
    (0..runs).map(|_| run()).collect()
}

fn share(device: Arc<dyn Device>) {
    const CASES: [&str; 2] = ["timm_vit", "tv_resnet_basic"];
    let alone = CASES.map(|case| logits(case, device.as_ref(), 1).remove(0));
    let threads: Vec<_> = CASES
        .map(|case| {
            let device = device.clone();
            std::thread::spawn(move || logits(case, device.as_ref(), 20))
        })
        .into_iter()
        .collect();
    for (thread, alone) in threads.into_iter().zip(alone) {
        assert!(thread.join().unwrap().iter().all(|logits| *logits == alone));
    }
}

#[test]
fn threads_share_a_cpu() {
    share(DeviceOptions::new().device(DeviceChoice::Cpu).threads(2).open().unwrap());
}

/// On the first GPU; nothing to see on a machine without one.
#[test]
fn threads_share_a_gpu() {
    if let Ok(device) = DeviceOptions::new().device(DeviceChoice::Cuda(0)).open() {
        share(device);
    }
}
