//! The algorithms of matrix products are chosen by timing; a process with restored choices takes those, whichever is
//! fastest now. The driver is fake (`fake/lib.rs`), and the test decides which algorithm is the fastest.
#![cfg(target_os = "linux")]

mod fake_driver;

use std::collections::BTreeMap;

use fake_driver::{ALL, CHILD, child_output};
use vit_cuda::{Cuda, Precision};
use vit_graph::device::{Algorithms, Device};
use vit_graph::{DType, Graph, Init, Tensor};

/// The choices that the child restores, as `product=algorithm` lines.
const GIVEN: &str = "VIT_TEST_ALGORITHMS";

/// One product that is timed, and one that is too small for it.
fn graph() -> Graph {
    let x = Tensor::input("x", DType::F32, [1024, 256]);
    let wide = x.parameter("wide", [256, 256], Init::Ones);
    let narrow = x.parameter("narrow", [8, 256], Init::Ones);
    x.linear(&wide, None).linear(&narrow, None).output("y");
    x.finish().unwrap()
}

#[test]
fn child() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    let device = Cuda::new(0, Precision::F32).unwrap();
    if let Ok(given) = std::env::var(GIVEN) {
        let chosen = given.lines().filter_map(|line| line.rsplit_once('='));
        let chosen = chosen.map(|(product, algorithm)| (product.to_string(), algorithm.to_string())).collect();
        device.use_algorithms(&Algorithms { environment: device.algorithms().environment, chosen });
    }
    let weights = [("wide", 256 * 256), ("narrow", 8 * 256)];
    let mut weights: BTreeMap<String, Vec<f32>> = weights.map(|(name, size)| (name.into(), vec![1.0; size])).into();
    device.compile(&graph(), &mut weights).unwrap();
    for (product, algorithm) in device.algorithms().chosen {
        println!("chosen: {product}={algorithm}");
    }
}

/// The choices of a process where this algorithm is the fastest, with the choices of another to restore.
fn choices(fastest: usize, given: Option<&str>) -> Vec<String> {
    let variables: Vec<(&str, &str)> = given.into_iter().map(|given| (GIVEN, given)).collect();
    let output = child_output(&format!("fast:{fastest}"), &ALL, &variables);
    output.lines().filter_map(|line| line.strip_prefix("chosen: ")).map(str::to_string).collect()
}

#[test]
fn restored_algorithms_are_used_though_others_are_faster_now() {
    let (second, third) = (choices(2, None), choices(3, None));
    assert_eq!(second.len(), 2, "every product is recorded, also one that is not timed: {second:?}");
    assert!(second.iter().any(|choice| choice.ends_with("=2,2,2,2,2,2,2,2")), "{second:?}");
    assert!(third.iter().any(|choice| choice.ends_with("=3,3,3,3,3,3,3,3")), "{third:?}");
    assert_eq!(choices(3, Some(&second.join("\n"))), second);
}
