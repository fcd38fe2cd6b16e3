//! Position embeddings resized as timm and vision_transformer resize them, against their own recorded results.

use std::path::Path;

use vit_models::weights::positions::{Resampling, resample, resample_bicubic, resample_linear};
use vit_models::weights::{Tensor, read};

#[test]
fn both_methods_agree_with_their_libraries() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/posembed");
    let arrays = read(&folder.join("io.safetensors")).unwrap();
    let config: serde_json::Value =
        serde_json::from_slice(&std::fs::read(folder.join("config.json")).unwrap()).unwrap();
    let pair = |value: &serde_json::Value| -> [usize; 2] { [0, 1].map(|at| value[at].as_u64().unwrap() as usize) };
    let cases = config["cases"].as_array().unwrap();
    assert_eq!(cases.len(), 5);
    for case in cases {
        let input = arrays.get(case["input"].as_str().unwrap()).unwrap();
        let prefix = case["prefix"].as_u64().unwrap() as usize;
        let (old, new) = (pair(&case["old"]), pair(&case["new"]));
        for (library, method) in [("timm", Resampling::Bicubic), ("vit_jax", Resampling::Linear)] {
            let name = case[library].as_str().unwrap();
            let expected = arrays.get(name).unwrap();
            let input =
                Tensor::new([&[1], &input.shape[input.shape.len() - 2..]].concat(), input.data.clone()).unwrap();
            let resized = resample(&input, prefix, Some(old), new, method).unwrap();
            assert_eq!(resized.data.len(), expected.data.len(), "{name}");
            let worst = resized.data.iter().zip(&expected.data).map(|(a, b)| (a - b).abs()).fold(0f32, f32::max);
            println!("{name}: {worst:e}");
            assert!(worst <= 1e-5, "{name}: {worst}");
        }
    }
}

#[test]
fn a_square_grid_needs_no_size_and_prefix_tokens_are_kept() {
    let positions = Tensor::new(vec![1, 5, 2], (0..10).map(|v| v as f32).collect()).unwrap();
    let resized = resample(&positions, 1, None, [3, 3], Resampling::Bicubic).unwrap();
    assert_eq!(resized.shape, [1, 10, 2]);
    assert_eq!(resized.data[..2], positions.data[..2]);
    let same = resample(&positions, 1, None, [2, 2], Resampling::Linear).unwrap();
    assert_eq!(same, positions);
}

#[test]
fn constants_stay_constant() {
    for new in [[1, 1], [2, 9], [7, 3]] {
        for resize in [resample_bicubic, resample_linear] {
            let flat = resize(&[2.5; 15], [3, 5], new, 1).unwrap();
            assert_eq!(flat.len(), new[0] * new[1]);
            assert!(flat.iter().all(|v| (v - 2.5).abs() < 1e-6));
            assert!(resize(&[4.0], [1, 1], new, 1).unwrap().iter().all(|&v| v == 4.0));
        }
    }
}

#[test]
fn impossible_grids_are_errors() {
    let positions = Tensor::new(vec![1, 6, 1], vec![0.; 6]).unwrap();
    let to = |prefix, old, new| resample(&positions, prefix, old, new, Resampling::Bicubic);
    assert!(to(0, None, [2, 2]).unwrap_err().to_string().contains("not square"));
    assert!(to(7, None, [2, 2]).is_err());
    assert!(to(0, Some([2, 2]), [2, 2]).is_err());
    assert!(to(0, Some([2, 3]), [0, 2]).is_err());
    assert!(to(0, Some([usize::MAX, 2]), [2, 2]).is_err());
    assert!(to(0, Some([2, 3]), [usize::MAX, 2]).is_err());
    assert!(to(0, Some([2, 3]), [3, 3]).is_ok());
    assert!(resample_linear(&[0.; 5], [2, 3], [2, 2], 1).is_err());
    assert!(resample_bicubic(&[], [0, 0], [2, 2], 1).is_err());
}
