//! Recorded steps of pre-training without labels: masks, predictions, loss and gradients of transformers' masked autoencoder and
//! of the ViT paper's masked patch prediction.

mod support;

use support::fixture;
use vit::{DeviceOptions, VerifyOptions, verify};

/// Verifies a folder on one thread and two; so many gradients and these other arrays must have been compared.
fn agrees(case: &str, gradients: usize, others: &[&str]) {
    for threads in [1, 2] {
        let options = VerifyOptions { device: DeviceOptions::new().threads(threads), ..VerifyOptions::default() };
        let verification = verify(&fixture(case), &options).unwrap();
        for array in &verification.arrays {
            assert!(array.passes(), "{case} on {threads} threads: {array:?}");
        }
        let names = verification.arrays.iter().map(|array| array.name.as_str());
        let (found, mut compared): (Vec<&str>, Vec<&str>) = names.partition(|name| name.starts_with("grad."));
        compared.sort_unstable();
        assert_eq!((found.len(), &compared[..]), (gradients, others), "{case}");
    }
}

#[test]
fn a_masked_autoencoder_is_that_of_transformers() {
    let others =
        ["decoder_prediction", "encoder_tokens", "ids_restore", "loss", "mask", "sincos_decoder", "sincos_encoder"];
    // Query, key and value are one tensor here.
    agrees("hf_mae", 76 - 2 * 2 * 4, &others);
}

#[test]
fn masked_patches_are_those_of_the_paper() {
    agrees("masked_patch", 33, &["logits", "loss", "targets"]);
}
