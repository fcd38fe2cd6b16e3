//! Running a graph a second time allocates nothing, on any thread.

mod counting_allocator;

use std::collections::BTreeMap;

use counting_allocator::allocations;
use vit_conformance::cases;
use vit_cpu::Cpu;
use vit_graph::DType;
use vit_graph::device::{Device, Elements};

#[test]
fn running_again_allocates_nothing() {
    let device = Cpu::new(Some(2));
    for case in cases(3).unwrap() {
        let mut values: BTreeMap<String, Vec<f32>> =
            case.names.iter().map(|n| (n.clone(), case.bindings.get(n).unwrap().to_f32())).collect();
        let mut executable = device.compile(&case.graph, &mut values).unwrap();
        let seed = [1, 2, 3, 4];
        let loss = case.graph.output("y0").unwrap();
        let mut out = vec![0.0; case.graph.shape(loss).elements()];
        let inputs: Vec<_> = case.graph.inputs().map(|(_, i)| (i.name.clone(), i.ty.dtype)).collect();
        let mut step = || {
            for (name, dtype) in &inputs {
                match dtype {
                    DType::I32 => executable.write(name, Elements::I32(&seed)).unwrap(),
                    _ => executable.write(name, Elements::F32(&values[name])).unwrap(),
                }
            }
            executable.run().unwrap();
            executable.read("y0", &mut out).unwrap();
        };
        step();
        let before = allocations();
        step();
        assert_eq!(allocations() - before, 0, "{}", case.name);
    }
}
