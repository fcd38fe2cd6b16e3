//! Executables of one device store equal constants once.

use vit_cpu::Cpu;
use vit_graph::device::{Device, Elements, Executable, Initial};
use vit_graph::{DType, Graph, Init, Tensor};

const WIDTH: usize = 192;

/// A few linear layers, whose weights are packed, and a norm, whose weights are not.
fn graph(batch: usize) -> Graph {
    let x = Tensor::input("x", DType::F32, [batch, WIDTH]);
    let mut y = x.clone();
    for layer in 0..6 {
        let weight = x.parameter(&format!("{layer}.weight"), [WIDTH, WIDTH], Init::TruncatedNormal { std: 0.1 });
        let bias = x.parameter(&format!("{layer}.bias"), [WIDTH], Init::TruncatedNormal { std: 0.1 });
        let scale = x.parameter(&format!("{layer}.scale"), [WIDTH], Init::Ones);
        let shift = x.parameter(&format!("{layer}.shift"), [WIDTH], Init::Zeros);
        y = y.linear(&weight, Some(&bias)).layer_norm(&scale, &shift, 1e-6);
    }
    y.output("y");
    x.finish().unwrap()
}

fn run(executable: &mut dyn Executable, batch: usize) -> Vec<f32> {
    let x: Vec<f32> = (0..batch * WIDTH).map(|i| (i as f32 * 0.37).sin()).collect();
    let mut y = vec![0.0; x.len()];
    executable.write("x", Elements::F32(&x)).unwrap();
    executable.run().unwrap();
    executable.read("y", &mut y).unwrap();
    y
}

const BATCHES: [usize; 4] = [1, 2, 4, 8];

#[test]
fn batch_sizes_share_one_set_of_weights_and_give_the_same_bits() {
    let device = Cpu::new(Some(2));
    let mut shared: Vec<_> =
        BATCHES.map(|batch| device.compile_shared(&graph(batch), &mut Initial { seed: 1 }).unwrap()).into();
    let plans = BATCHES.map(|batch| device.plan(&graph(batch)).unwrap());
    let arenas: usize = plans.iter().map(|plan| plan.arena_bytes).sum();
    let together: usize = shared.iter().map(|executable| executable.memory_bytes()).sum();
    let once = plans[0].stored_bytes + arenas;
    assert!(together <= once + once / 50, "{together} bytes, one set of weights and all arenas are {once}");
    for (executable, batch) in shared.iter_mut().zip(BATCHES) {
        let mut alone = device.compile(&graph(batch), &mut Initial { seed: 1 }).unwrap();
        assert_eq!(run(executable.as_mut(), batch), run(alone.as_mut(), batch), "batch {batch}");
    }
}

#[test]
fn weights_live_as_long_as_one_executable_that_has_them() {
    let device = Cpu::new(Some(1));
    let compile = |batch| device.compile_shared(&graph(batch), &mut Initial { seed: 1 }).unwrap();
    let (first, mut second) = (compile(1), compile(2));
    let expected = run(second.as_mut(), 2);
    let half = second.memory_bytes();
    drop(first);
    assert!(second.memory_bytes() > half, "the weights belong to the last executable alone");
    assert_eq!(run(second.as_mut(), 2), expected);
}

#[test]
fn other_weights_are_not_shared() {
    let device = Cpu::new(Some(1));
    let mut one = device.compile_shared(&graph(1), &mut Initial { seed: 1 }).unwrap();
    let before = run(one.as_mut(), 1);
    let mut other = device.compile_shared(&graph(1), &mut Initial { seed: 2 }).unwrap();
    assert_ne!(run(other.as_mut(), 1), before);
    assert_eq!(run(one.as_mut(), 1), before);
}

#[test]
fn shared_parameters_are_not_replaced() {
    let device = Cpu::new(Some(1));
    let mut shared = device.compile_shared(&graph(1), &mut Initial { seed: 1 }).unwrap();
    let before = run(shared.as_mut(), 1);
    assert!(shared.set_parameters(&mut Initial { seed: 2 }).unwrap_err().to_string().contains("cannot be replaced"));
    assert_eq!(run(shared.as_mut(), 1), before);
    let mut alone = device.compile(&graph(1), &mut Initial { seed: 1 }).unwrap();
    alone.set_parameters(&mut Initial { seed: 2 }).unwrap();
    assert_ne!(run(alone.as_mut(), 1), before);
}

#[test]
fn fewer_rows_than_the_input_has_are_followed_by_zeros() {
    let device = Cpu::new(Some(1));
    let mut executable = device.compile(&graph(4), &mut Initial { seed: 1 }).unwrap();
    let row: Vec<f32> = (0..WIDTH).map(|i| i as f32).collect();
    let mut whole = [row.clone(), vec![0.0; 3 * WIDTH]].concat();
    let mut read = |executable: &mut dyn Executable| {
        executable.run().unwrap();
        executable.read("y", &mut whole).unwrap();
        whole.clone()
    };
    executable.write("x", Elements::F32(&[7.0; 4 * WIDTH])).unwrap();
    executable.write_rows("x", &[&row]).unwrap();
    let rows = read(executable.as_mut());
    executable.write("x", Elements::F32(&[row.clone(), vec![0.0; 3 * WIDTH]].concat())).unwrap();
    assert_eq!(rows, read(executable.as_mut()));
    assert!(executable.write_rows("x", &[&row[1..]]).is_err());
    assert!(executable.write_rows("x", &[row.as_slice(); 5]).is_err());
}
