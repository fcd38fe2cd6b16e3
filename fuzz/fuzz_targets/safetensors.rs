//! Any bytes as a safetensors file: an error or weights, and weights that are written come back the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use vit_models::weights::safetensors::{self, Dtype};
use vit_models::weights::{Tensor, names};

fn bits(tensor: &Tensor) -> impl Iterator<Item = u32> {
    tensor.data.iter().map(|value| value.to_bits())
}

fuzz_target!(|bytes: &[u8]| {
    let Ok(weights) = safetensors::from_bytes(bytes) else {
        return;
    };
    let written = safetensors::to_bytes(weights.iter(), Dtype::F32, &weights.metadata).unwrap();
    let back = safetensors::from_bytes(&written).unwrap();
    assert_eq!(back.tensors.len(), weights.tensors.len());
    for (name, tensor) in &weights.tensors {
        assert_eq!(back.tensors[name].shape, tensor.shape);
        assert!(bits(&back.tensors[name]).eq(bits(tensor)));
    }
    let _ = names::canonical(weights);
});
