//! The conformance suite on a GPU: every operation, forward and backward, on random shapes, against the reference
//! interpreter; and the same bits twice. Skipped without a GPU.

use std::collections::BTreeMap;

use vit_conformance::{Case, cases, cases_partly_differentiated, check, non_finite_variants};
use vit_cuda::{Cuda, Precision};
use vit_graph::device::{Device, Elements};
use vit_graph::ops::{Activation, Op, PoolMode};
use vit_graph::{DType, GraphError};

/// f32 against f64 over sums of up to a few hundred terms, relative to the largest value.
const TOLERANCE: f64 = 3e-6;

/// Values are rounded to 8 mantissa bits between operations.
const BF16_TOLERANCE: f64 = 2e-2;

/// Values are rounded to 11 mantissa bits between operations, which would allow an eighth of bf16's tolerance; but
/// small gradients are subnormal and have fewer.
const F16_TOLERANCE: f64 = 5e-3;

fn gpu(precision: Precision) -> Option<Cuda> {
    Cuda::new(0, precision).map_err(|reason| eprintln!("skipped: {reason}")).ok()
}

/// Whether the device does not support a case.
fn is_for_the_cpu(error: &GraphError) -> bool {
    error.to_string().contains("only for the CPU")
}

/// Whether a gradient of the case is discontinuous: rounding may change the sign of a relu's input or the argmax of a
/// pool.
fn is_discontinuous(case: &Case) -> bool {
    case.graph.nodes().iter().any(|node| match &node.op {
        Op::Activation(activation) => *activation == Activation::Relu,
        Op::Pool2d(pool) => pool.pooling == PoolMode::Max,
        _ => false,
    })
}

/// Rounds a case's inputs to the device's storage type, so that both sides compute with the same values.
fn round(case: &mut Case, precision: Precision) {
    for name in &case.names {
        for value in case.bindings.get_mut(name).into_iter().flat_map(|array| array.data_mut()) {
            *value = match precision {
                Precision::Bf16 => half::bf16::from_f64(*value).to_f64(),
                Precision::F16 => half::f16::from_f64(*value).to_f64(),
                _ => *value,
            };
        }
    }
}

/// The outputs of a case that differ by more than the tolerance.
fn differences(device: &Cuda, precision: Precision, tolerance: f64, case: &Case) -> Vec<String> {
    let differences = match check(device, case) {
        Err(error) if is_for_the_cpu(&error) => return Vec::new(),
        other => other.unwrap_or_else(|error| panic!("{}: {error}", case.name)),
    };
    let rounded = precision != Precision::F32 && is_discontinuous(case);
    let mut wrong = Vec::new();
    for (output, difference) in differences {
        if rounded && output.starts_with("grad.") {
            continue;
        }
        if difference.is_nan() || difference > tolerance {
            wrong.push(format!("{precision}, {}: {output} differs by {difference:e}", case.name));
        }
    }
    wrong
}

fn compare(precision: Precision, tolerance: f64) {
    let Some(device) = gpu(precision) else { return };
    let mut wrong = Vec::new();
    let all = (100..112).map(|seed| (seed, cases(seed).unwrap()));
    let some = (120..126).map(|seed| (seed, cases_partly_differentiated(seed).unwrap()));
    for (seed, cases) in all.chain(some) {
        for mut case in cases {
            round(&mut case, precision);
            let found = differences(&device, precision, tolerance, &case);
            wrong.extend(found.into_iter().map(|what| format!("seed {seed}, {what}")));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// With one NaN or infinity among the inputs, results are NaN exactly where the reference has NaN.
#[test]
fn values_that_are_not_finite_propagate_as_in_the_reference() {
    let f32s = [f64::NAN, f64::NAN, f64::INFINITY, f64::NEG_INFINITY].map(|with| (Precision::F32, TOLERANCE, with));
    let rounded = [(Precision::Bf16, BF16_TOLERANCE, f64::NAN), (Precision::F16, F16_TOLERANCE, f64::NAN)];
    let mut wrong = Vec::new();
    for (seed, (precision, tolerance, with)) in (200..).zip(f32s.into_iter().chain(rounded)) {
        let Some(device) = gpu(precision) else { return };
        for case in cases(seed).unwrap().iter().flat_map(|case| non_finite_variants(case, seed, with)) {
            let mut case = case;
            round(&mut case, precision);
            let found = differences(&device, precision, tolerance, &case);
            wrong.extend(found.into_iter().map(|what| format!("seed {seed}, {what}")));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_operation_agrees_with_the_reference() {
    compare(Precision::F32, TOLERANCE);
}

#[test]
fn every_operation_agrees_with_the_reference_as_far_as_bf16_can() {
    compare(Precision::Bf16, BF16_TOLERANCE);
}

#[test]
fn every_operation_agrees_with_the_reference_as_far_as_f16_can() {
    compare(Precision::F16, F16_TOLERANCE);
}

#[test]
fn the_same_bits_come_out_every_time() {
    for precision in [Precision::F32, Precision::Bf16] {
        let Some(device) = gpu(precision) else { return };
        for case in cases(7).unwrap() {
            match (case.bits(&device, 1), case.bits(&device, 4)) {
                (Err(error), _) if is_for_the_cpu(&error) => {}
                (first, second) => assert!(first.unwrap() == second.unwrap(), "{precision}, {}", case.name),
            }
        }
    }
}

#[test]
fn an_executable_with_new_parameters_computes_what_one_compiled_with_them_does() {
    for precision in [Precision::F32, Precision::Bf16] {
        let Some(device) = gpu(precision) else { return };
        for case in cases(7).unwrap() {
            let mut others = case.values();
            others.values_mut().flatten().for_each(|value| *value = 0.5 - *value);
            let mut executable = match device.compile(&case.graph, &mut others) {
                Err(error) if is_for_the_cpu(&error) => continue,
                other => other.unwrap(),
            };
            case.run(executable.as_mut(), 2).unwrap();
            executable.set_parameters(&mut case.values()).unwrap();
            let found = case.run(executable.as_mut(), 1).unwrap();
            assert!(found == case.bits(&device, 1).unwrap(), "{precision}, {}", case.name);
        }
    }
}

#[test]
fn missing_and_wrong_values_are_named() {
    let Some(device) = gpu(Precision::F32) else { return };
    let x = vit_graph::Tensor::input("x", DType::F32, [2, 3]);
    let weight = x.parameter("weight", [4, 3], vit_graph::Init::Zeros);
    x.linear(&weight, None).output("y");
    let graph = x.finish().unwrap();
    let error = device.compile(&graph, &mut BTreeMap::<String, Vec<f32>>::new()).err().unwrap();
    assert_eq!(error.to_string(), "cuda: no weights for the parameter `weight` [4, 3]");
    let mut values = BTreeMap::from([("weight".to_string(), vec![0.0f32; 12])]);
    let mut executable = device.compile(&graph, &mut values).unwrap();
    let wrong = executable.write("image", Elements::F32(&[])).unwrap_err().to_string();
    assert_eq!(wrong, "the graph has no input named `image`; it has: x");
}
