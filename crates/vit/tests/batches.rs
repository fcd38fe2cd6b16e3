//! A model with several batch sizes: a run takes the smallest that holds its images, with the bits of a model of that size.

use vit::models::Checkpoint;
use vit::{DeviceChoice, DeviceOptions, Error, Model, ModelOptions};

fn options() -> ModelOptions {
    ModelOptions::new()
        .device(DeviceOptions::new().device(DeviceChoice::Cpu).threads(2))
        .output("logits")
        .output("features")
}

fn image(number: usize, len: usize) -> Vec<f32> {
    (0..len).map(|i| ((i * (number + 1)) as f32 * 0.013).sin()).collect()
}

#[test]
fn a_run_takes_the_smallest_batch_that_fits() {
    let checkpoint = Checkpoint::open("cifar10".as_ref(), Default::default()).unwrap();
    let device = options().device.open().unwrap();
    let alone = |batch: usize| Model::of(&checkpoint, device.as_ref(), &options().batch(batch)).unwrap();
    let mut model = Model::of(&checkpoint, device.as_ref(), &options().batches([4, 1, 2, 4])).unwrap();
    assert_eq!(model.batch(), 4);
    assert_eq!(model.outputs()[0], ("logits".to_string(), vec![4, 10]));
    let images: Vec<Vec<f32>> = (0..5).map(|number| image(number, model.preprocess().output_len())).collect();
    for (count, batch) in [(1, 1), (2, 2), (3, 4), (4, 4), (1, 1)] {
        let mut single = alone(batch);
        single.run_prepared(&images[..count]).unwrap();
        model.run_prepared(&images[..count]).unwrap();
        for output in ["logits", "features"] {
            let found = model.output(output, count).unwrap();
            assert_eq!(found, single.output(output, count).unwrap(), "{output} of {count} images");
            assert!(found.iter().any(|value| *value != 0.0));
        }
    }
    assert!(matches!(model.run_prepared(&images), Err(Error::Batch { images: 5, batch: 4 })));
}

#[test]
fn batch_sizes_store_the_weights_once() {
    let checkpoint = Checkpoint::open("cifar10".as_ref(), Default::default()).unwrap();
    let device = options().device.open().unwrap();
    let weights: usize = checkpoint.weights.tensors.values().map(|tensor| 4 * tensor.data.len()).sum();
    let single = Model::of(&checkpoint, device.as_ref(), &options().batch(8)).unwrap().memory_bytes();
    let several = Model::of(&checkpoint, device.as_ref(), &options().batches([1, 2, 4, 8])).unwrap().memory_bytes();
    // The arenas of 1, 2 and 4 images are together smaller than that of 8.
    let arena = single.saturating_sub(weights);
    assert!(several <= single + arena + weights / 10, "{several} bytes, {single} for batches of 8 alone");
}
