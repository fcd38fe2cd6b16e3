//! Every measurement against a plain NumPy computation in f64, on attention, positions and filters recorded from timm.

use std::collections::BTreeMap;
use std::path::Path;

use safetensors::SafeTensors;
use vit_insight::{Attention, attention_distance, cosine_similarity, principal_components, rollout, rollout_of};

type Arrays = BTreeMap<String, (Vec<usize>, Vec<f32>)>;

fn recorded(case: &str) -> Arrays {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/recorded/{case}.safetensors"));
    let bytes = std::fs::read(path).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let number = |b: &[u8]| f32::from_le_bytes([b[0], b[1], b[2], b[3]]);
    let array = |t: safetensors::tensor::TensorView| (t.shape().to_vec(), t.data().chunks(4).map(number).collect());
    file.tensors().into_iter().map(|(name, tensor)| (name, array(tensor))).collect()
}

fn assert_close(what: &str, found: &[f32], expected: &[f32], tolerance: f32) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (i, (f, e)) in found.iter().zip(expected).enumerate() {
        assert!((f - e).abs() <= tolerance, "{what}[{i}]: {f}, NumPy gives {e}");
    }
}

/// The layers' attention for one image.
fn layers(arrays: &Arrays, depth: usize, image: usize) -> Vec<Attention<'_>> {
    let layer = |i: usize| {
        let (shape, data) = &arrays[&format!("attention_{i}")];
        let each = shape[1] * shape[2] * shape[3];
        Attention::new(shape[1], shape[2], &data[image * each..(image + 1) * each]).unwrap()
    };
    (0..depth).map(layer).collect()
}

#[test]
fn measurements_equal_numpy() {
    for (case, depth, prefix) in [("timm_vit", 3, 1), ("timm_vit_modern", 2, 5)] {
        let arrays = recorded(case);
        let (shape, flows) = &arrays["rollout"];
        let (images, each) = (shape[0], shape[1] * shape[2]);
        let (shape, distances) = &arrays["distance"];
        let heads = shape[2];
        for image in 0..images {
            let layers = layers(&arrays, depth, image);
            let flow = rollout(&layers).unwrap();
            assert_close(&format!("{case} rollout"), &flow, &flows[image * each..(image + 1) * each], 1e-6);
            let means: Vec<Vec<f32>> =
                layers.iter().map(|layer| layer.mean().into_iter().map(|v| v as f32).collect()).collect();
            let means: Vec<&[f32]> = means.iter().map(Vec::as_slice).collect();
            let tokens = layers[0].tokens();
            for token in 0..tokens {
                let mut start = vec![0.0; tokens];
                start[token] = 1.0;
                let row = &flows[image * each + token * tokens..][..tokens];
                assert_close(&format!("{case} rollout of {token}"), &rollout_of(&start, &means).unwrap(), row, 1e-5);
            }
            for (depth, layer) in layers.iter().enumerate() {
                let found = attention_distance(*layer, prefix, [4, 4], [8.0, 8.0]).unwrap();
                let expected = &distances[(depth * images + image) * heads..][..heads];
                assert_close(&format!("{case} distance"), &found, expected, 1e-5);
            }
        }
        let (shape, positions) = &arrays["positions"];
        let similarity = cosine_similarity(positions, shape[1]).unwrap();
        assert_close(&format!("{case} similarity"), &similarity, &arrays["similarity"].1, 1e-6);
        let (shape, filters) = &arrays["filters"];
        let shares = &arrays["shares"].1;
        let components = principal_components(filters, shape[1], shares.len()).unwrap();
        assert_close(&format!("{case} shares"), &components.shares, shares, 1e-6);
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let weights = vec![0.2; 2 * 5 * 5];
    let layer = Attention::new(2, 5, &weights).unwrap();
    assert!(Attention::new(2, 4, &weights).is_err());
    assert!(attention_distance(layer, 1, [2, 3], [8.0, 8.0]).is_err());
    let smaller = vec![0.25; 16];
    assert!(rollout(&[layer, Attention::new(1, 4, &smaller).unwrap()]).is_err());
    assert!(rollout(&[]).is_err());
}
