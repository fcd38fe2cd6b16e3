//! NCCL where it is installed, with one rank where there is a GPU. It has one rank per GPU, so one machine with one GPU cannot
//! test more.

use std::collections::BTreeMap;

use vit_cuda::{Cuda, Precision, Unavailable, nccl};
use vit_graph::device::{Device, Elements};
use vit_graph::ops::{AllReduce, Binary, Input, Scale};
use vit_graph::{Graph, Shape, Type};

#[test]
fn a_library_that_is_missing_is_named() {
    match nccl::version() {
        Ok(version) => assert!(version.starts_with("2."), "{version}"),
        Err(reason) => {
            assert_eq!(reason, Unavailable::NoNccl);
            println!("{reason}");
        }
    }
}

#[test]
fn sums_of_one_rank_are_its_values_in_captured_runs() {
    let (Ok(device), Ok(_)) = (Cuda::new(0, Precision::F32), nccl::version()) else {
        println!("no GPU or no NCCL: nothing is tested");
        return;
    };
    let device = device.with_one_nccl_rank().unwrap();
    // Two values in one bucket, and one that is read in between.
    let mut graph = Graph::new();
    let ty = Type::f32(Shape::from([1001]));
    let x = graph.value(Input { name: "x".into(), ty }, &[]).unwrap();
    let twice = graph.value(Scale(2.0), &[x]).unwrap();
    let sums = [x, twice].map(|value| graph.value(AllReduce, &[value]).unwrap());
    let total = graph.value(Binary::Add, &sums).unwrap();
    let total = graph.value(AllReduce, &[total]).unwrap();
    graph.set_output("total", total).unwrap();
    let mut executable = device.compile(&graph, &mut BTreeMap::<String, Vec<f32>>::new()).unwrap();
    for run in 0..4 {
        let values: Vec<f32> = (0..1001).map(|i| (i + run) as f32).collect();
        let mut total = vec![0.0; 1001];
        executable.write("x", Elements::F32(&values)).unwrap();
        executable.run().unwrap();
        executable.read("total", &mut total).unwrap();
        assert!(total.iter().zip(&values).all(|(total, x)| *total == 3.0 * x), "run {run}");
    }
}
