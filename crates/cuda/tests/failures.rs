//! What a user reads when the GPU, its driver or its memory fails: one clear sentence, no panic, no hang. A stand-in for
//! the driver (`fake/lib.rs`) fails on demand, in a process of its own for each failure.
#![cfg(target_os = "linux")]

mod stand_in;

use std::collections::BTreeMap;

use stand_in::{ALL, CHILD, says};
use vit_cuda::{Cuda, Precision};
use vit_graph::device::{Device, Elements, Executable};
use vit_graph::{DType, Graph, Init, Tensor};

fn graph() -> Graph {
    let x = Tensor::input("x", DType::F32, [64, 256]);
    let weight = x.parameter("weight", [256, 256], Init::Ones);
    x.linear(&weight, None).linear(&weight, None).output("y");
    x.finish().unwrap()
}

/// Opens the GPU, compiles a small graph and runs it ten times; prints what went wrong.
#[test]
fn child() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    let device = match Cuda::new(0, Precision::F32) {
        Ok(device) => device,
        Err(reason) => return println!("unavailable: {reason}"),
    };
    let mut weights = BTreeMap::from([("weight".to_string(), vec![1.0; 256 * 256])]);
    let mut executable = match device.compile(&graph(), &mut weights) {
        Ok(executable) => executable,
        Err(error) => return println!("compiling: {error}"),
    };
    for run in 1..=10 {
        if let Err(error) = step(executable.as_mut()) {
            println!("run {run}: {error}");
            // Whoever goes on all the same is told again.
            println!("again: {}", step(executable.as_mut()).unwrap_err());
            return;
        }
    }
    println!("fine");
}

fn step(executable: &mut dyn Executable) -> Result<(), vit_graph::GraphError> {
    executable.write("x", Elements::F32(&[1.0; 64 * 256]))?;
    executable.run()?;
    executable.read("y", &mut [0.0; 64 * 256])
}

fn expect(failure: &str, libraries: &[&str], parts: &[&str]) {
    let said = says(failure, libraries, &[]);
    for part in parts {
        assert!(said.contains(part), "{failure}: {part:?} is not in {said}");
    }
}

#[test]
fn the_stand_in_works_where_nothing_fails() {
    expect("nothing", &ALL, &["fine"]);
}

#[test]
fn drivers_that_cannot_be_used_are_named() {
    expect("old", &ALL, &["unavailable: the NVIDIA driver is made for CUDA 11.8; update it to one for CUDA 12.8"]);
    expect("mismatch", &ALL, &["unavailable: the parts of the NVIDIA driver have different versions", "restart"]);
    expect("none", &ALL, &["unavailable: there is no GPU number 0; the driver finds 0"]);
}

#[test]
fn memory_that_is_not_there_is_an_error_with_a_way_out() {
    expect("small", &ALL, &["compiling: cuda: this model needs 0.0", "of 0.00 GB are free", "take a smaller batch"]);
}

#[test]
fn kernels_that_do_not_compile_are_an_error_with_a_way_out() {
    expect("uncompiled", &ALL, &["compiling: cuda: compiling arithmetic.cu failed", "use the device cpu"]);
}

#[test]
fn a_gpu_that_is_lost_in_mid_run_is_an_error_every_time() {
    // The first run is launched kernel by kernel, so the third launch of the graph is the fourth run.
    expect(
        "lost:3",
        &ALL,
        &["run 4: cuda: the GPU was lost while", "error number 700", "again: cuda: the GPU was lost"],
    );
}
