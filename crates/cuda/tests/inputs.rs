//! Large inputs are copied while the run before is under way: no run may read those of the next.

use std::collections::BTreeMap;

use vit_cuda::{Cuda, Precision};
use vit_graph::device::{Device, Elements, Executable};
use vit_graph::{DType, Tensor};

const COUNT: usize = 1 << 20;

fn batch(index: usize) -> Vec<f32> {
    (0..COUNT).map(|i| ((i * 31 + index * 17) % 101) as f32 / 101.0).collect()
}

#[test]
fn every_run_reads_its_own_inputs() {
    let device = match Cuda::new(0, Precision::F32) {
        Ok(device) => device,
        Err(reason) => return eprintln!("skipped: {reason}"),
    };
    let early = Tensor::input("early", DType::F32, [COUNT]);
    let late = early.another_input("late", DType::F32, [COUNT]);
    let small = early.another_input("small", DType::F32, [1]);
    // The first input is read only at the beginning, the second only at the end.
    let long = (0..20).fold(early.scale(2.0), |x, _| x.scale(-1.0));
    (&(&long - &late) * &small).output("y");
    let graph = early.finish().unwrap();
    let mut executable = device.compile(&graph, &mut BTreeMap::<String, Vec<f32>>::new()).unwrap();
    let (mut y, runs) = (vec![0.0; COUNT], 6);
    let write = |executable: &mut dyn Executable, run: usize| {
        executable.write("early", Elements::F32(&batch(run))).unwrap();
        executable.write("late", Elements::F32(&batch(run + 50))).unwrap();
    };
    write(executable.as_mut(), 0);
    for run in 0..runs {
        let factor = 1.0 + run as f32;
        executable.write("small", Elements::F32(&[factor])).unwrap();
        executable.run().unwrap();
        write(executable.as_mut(), run + 1);
        executable.read("y", &mut y).unwrap();
        let (early, late) = (batch(run), batch(run + 50));
        let wrong = (0..COUNT).find(|&i| y[i] != (2.0 * early[i] - late[i]) * factor);
        assert_eq!(wrong, None, "run {run}");
    }
}
