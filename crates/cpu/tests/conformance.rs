//! The device test suite on every instruction set of this machine: every operation, forward and backward, on random
//! shapes, against the reference interpreter; and the same bits for any number of threads.

use std::collections::BTreeMap;

use proptest::prelude::*;
use vit_conformance::{cases, cases_partly_differentiated, check, check_updates, non_finite_variants, updates};
use vit_cpu::{Cpu, Isa};
use vit_graph::device::{Device, Elements};
use vit_graph::ops::Conv2d;
use vit_graph::{DType, Graph, Init, Tensor};

/// f32 against f64 over sums of up to a few hundred terms, relative to the largest value.
const TOLERANCE: f64 = 3e-6;

#[test]
fn every_operation_agrees_with_the_reference_on_every_instruction_set() {
    let all = (100..112).map(|seed| (seed, cases(seed).unwrap()));
    let some = (120..126).map(|seed| (seed, cases_partly_differentiated(seed).unwrap()));
    let cases: Vec<_> = all.chain(some).collect();
    for isa in Isa::available() {
        let device = Cpu::with_isa(isa, Some(2));
        for (seed, cases) in &cases {
            for case in cases {
                for (output, difference) in check(&device, case).unwrap() {
                    assert!(
                        difference <= TOLERANCE,
                        "{isa}, seed {seed}, {}: {output} differs by {difference:e}",
                        case.name
                    );
                }
            }
        }
    }
}

/// With one NaN or infinity among the inputs, a kernel has NaN where the reference has NaN, and correct values elsewhere.
#[test]
fn a_value_that_is_not_finite_spreads_as_in_the_reference_on_every_instruction_set() {
    let mut wrong = Vec::new();
    for isa in Isa::available() {
        let device = Cpu::with_isa(isa, Some(2));
        for (seed, with) in [(200, f64::NAN), (201, f64::NAN), (202, f64::INFINITY), (203, f64::NEG_INFINITY)] {
            for case in cases(seed).unwrap().iter().flat_map(|case| non_finite_variants(case, seed, with)) {
                for (output, difference) in check(&device, &case).unwrap() {
                    if difference.is_nan() || difference > TOLERANCE {
                        wrong.push(format!("{isa}, seed {seed}, {}: {output} differs by {difference:e}", case.name));
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_consumer_of_a_parameter_reads_the_value_before_its_in_place_update() {
    for finite in [true, false] {
        for (what, difference) in check_updates(&Cpu::new(Some(2)), &updates(finite).unwrap(), 3).unwrap() {
            assert!(difference <= TOLERANCE, "finite: {finite}, {what} differs by {difference:e}");
        }
    }
}

#[test]
fn results_do_not_depend_on_the_number_of_threads() {
    for isa in Isa::available() {
        let devices = [1, 2, 3, 5].map(|threads| Cpu::with_isa(isa, Some(threads)));
        for case in cases(7).unwrap() {
            let expected = case.bits(&devices[0], 1).unwrap();
            for device in &devices[1..] {
                let found = case.bits(device, 1).unwrap();
                assert_eq!(expected, found, "{isa}, {} threads: {}", device.threads(), case.name);
            }
        }
    }
}

#[test]
fn an_executable_with_new_parameters_computes_what_one_compiled_with_them_does() {
    for isa in Isa::available() {
        let device = Cpu::with_isa(isa, Some(2));
        for case in cases(7).unwrap().into_iter().chain([updates(true).unwrap()]) {
            let mut others = case.values();
            others.values_mut().flatten().for_each(|value| *value = 0.5 - *value);
            let mut executable = device.compile(&case.graph, &mut others).unwrap();
            case.run(executable.as_mut(), 1).unwrap();
            let bytes = executable.memory_bytes();
            executable.set_parameters(&mut case.values()).unwrap();
            let found = case.run(executable.as_mut(), 1).unwrap();
            assert_eq!(found, case.bits(&device, 1).unwrap(), "{isa}: {}", case.name);
            assert_eq!(executable.memory_bytes(), bytes, "{isa}: {}", case.name);
        }
    }
}

/// A patch embedding; with padding that no filter reaches, it stays a convolution instead of becoming a matrix product.
fn patch_embedding(
    batch: usize,
    grid: [usize; 2],
    patch: [usize; 2],
    channels: usize,
    dim: usize,
    padding: usize,
) -> Graph {
    let image = Tensor::input("image", DType::F32, [batch, grid[0] * patch[0], grid[1] * patch[1], channels]);
    let weight = image.parameter("weight", [dim, channels, patch[0], patch[1]], Init::Zeros);
    let bias = image.parameter("bias", [dim], Init::Zeros);
    let conv = Conv2d { padding: [[0, padding], [0, padding]], ..Conv2d::patches(patch, true) };
    image.conv2d(conv, &weight, Some(&bias)).output("y");
    image.finish().unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn patch_embedding_as_a_convolution_and_as_one_matrix_product_agree_on_the_device(
        batch in 1usize..4, grid in (1usize..5, 1usize..5), patch in (2usize..9, 2usize..9), channels in 1usize..5, dim in 1usize..70,
    ) {
        let (grid, patch) = ([grid.0, grid.1], [patch.0, patch.1]);
        let values = |count: usize, step: f32| (0..count).map(|i| (i as f32 * step).sin()).collect::<Vec<_>>();
        let image = values(batch * grid[0] * patch[0] * grid[1] * patch[1] * channels, 0.7);
        let columns = channels * patch[0] * patch[1];
        // Scaled so that sums are near 1 for every shape.
        let weight: Vec<f32> = values(dim * columns, 0.3).iter().map(|w| w / (columns as f32).sqrt()).collect();
        let mut parameters = BTreeMap::from([("weight".to_string(), weight), ("bias".to_string(), values(dim, 0.9))]);
        for isa in Isa::available() {
            let device = Cpu::with_isa(isa, Some(2));
            let mut results = [0, 1].map(|padding| {
                let graph = patch_embedding(batch, grid, patch, channels, dim, padding);
                let mut executable = device.compile(&graph, &mut parameters).unwrap();
                executable.write("image", Elements::F32(&image)).unwrap();
                executable.run().unwrap();
                let mut y = vec![0.0; batch * grid[0] * grid[1] * dim];
                executable.read("y", &mut y).unwrap();
                y
            });
            let [product, convolution] = &mut results;
            // Two orders of summation differ by their rounding errors: each addition rounds a partial sum, whose magnitude
            // is at most the sum of the terms' magnitudes, and the errors have random signs.
            let magnitudes = 1.0 + 0.41 * (columns as f32).sqrt();
            let bound = 2.0 * f32::EPSILON * (columns as f32).sqrt() * magnitudes;
            for (a, b) in product.iter().zip(convolution) {
                prop_assert!((a - *b).abs() <= bound, "{isa}: {a} and {b}");
            }
        }
    }
}

#[test]
fn errors_name_missing_parameters_wrong_lengths_and_unknown_inputs() {
    let graph = patch_embedding(1, [2, 2], [2, 2], 1, 3, 0);
    let device = Cpu::new(Some(1));
    let error = |parameters: &[(&str, usize)]| {
        let mut map = parameters.iter().map(|(n, c)| (n.to_string(), vec![0.0; *c])).collect::<BTreeMap<_, _>>();
        device.compile(&graph, &mut map).err().unwrap().to_string()
    };
    assert_eq!(error(&[("weight", 12)]), "cpu: no weights for the parameter `bias` [3]");
    assert_eq!(
        error(&[("weight", 11), ("bias", 3)]),
        "`weight` should be f32[3, 1, 2, 2] (12 elements) but 11 elements of f32 was given"
    );

    let mut map = [("weight", 12), ("bias", 3)]
        .map(|(n, c)| (n.to_string(), vec![0.0f32; c]))
        .into_iter()
        .collect::<BTreeMap<_, _>>();
    let mut executable = device.compile(&graph, &mut map).unwrap();
    let wrong = executable.write("pixels", Elements::F32(&[])).unwrap_err().to_string();
    assert_eq!(wrong, "the graph has no input named `pixels`; it has: image");
}
