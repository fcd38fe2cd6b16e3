//! Every recorded model of timm, transformers, torchvision and vit_jax gives the recorded outputs, with any number of
//! threads and every instruction set; and `verify` finds arrays that differ.

mod support;

use support::{CASES, FAMILY, copy, fixture, open, recorded, write};
use vit::{DeviceOptions, Error, Image, Model, ModelOptions, VerifyOptions, verify};
use vit_cpu::{Cpu, Isa};
use vit_models::weights::{self, Tensor};

const ONE_HEAD: &[&str] = &["attention_0", "attention_1", "features", "logits", "tokens"];
const JAX: &[&str] = &["features", "logits", "tokens"];
const POOLED: &[&str] = &["features", "logits"];
const MAPPED: &[&str] = &["feature_map", "features", "logits"];

/// Verifies a folder on one thread and two; exactly these arrays must have been compared.
fn agrees(case: &str, weights: Option<&str>, arrays: &[&str]) {
    let weights = weights.map(|name| fixture(case).join(name));
    for threads in [1, 2] {
        let options = VerifyOptions {
            device: DeviceOptions::new().threads(threads),
            weights: weights.clone(),
            ..VerifyOptions::default()
        };
        let verification = verify(&fixture(case), &options).unwrap();
        for array in &verification.arrays {
            assert!(array.passes(), "{case} on {threads} threads: {array:?}");
        }
        let mut compared: Vec<&str> = verification.arrays.iter().map(|a| a.name.as_str()).collect();
        compared.sort_unstable();
        assert_eq!(compared, arrays, "{case}");
        assert!(verification.passes());
        if let Some(weights) = &weights {
            assert_eq!(verification.weights, *weights);
        }
    }
}

macro_rules! cases {
    ($($case:ident: $arrays:expr;)*) => {$(
        #[test]
        fn $case() {
            agrees(stringify!($case), None, $arrays);
        }
    )*};
}

cases! {
    timm_vit: &["attention_0", "attention_1", "attention_2", "features", "logits", "tokens"];
    timm_vit_gap: ONE_HEAD;
    timm_vit_gap_notoken: ONE_HEAD;
    timm_vit_rect: ONE_HEAD;
    timm_vit_modern: ONE_HEAD;
    timm_vit_map: ONE_HEAD;
    timm_vit_clip: ONE_HEAD;
    timm_clip_vit: ONE_HEAD;
    timm_aimv2: ONE_HEAD;
    timm_parallel: JAX;
    timm_deit_distilled:
        &["attention_0", "attention_1", "features", "logits", "logits_cls", "logits_dist", "tokens"];
    hf_vit: ONE_HEAD;
    hf_deit: &["attention_0", "attention_1", "logits", "logits_cls", "logits_dist", "tokens"];
    hf_deit_plain: ONE_HEAD;
    hf_dinov2: &["pooled", "tokens", "tokens_large"];
    hf_dinov2_registers: &["pooled", "tokens", "tokens_large"];
    jax_vit: JAX;
    jax_vit_gap: JAX;
    tv_vit: ONE_HEAD;
    timm_bit: POOLED;
    timm_bit_fixed: POOLED;
    timm_hybrid: JAX;
    jax_hybrid: JAX;
    tv_resnet_basic: MAPPED;
    tv_resnet_bottleneck: MAPPED;
    lenet5: POOLED;
    lenet5_relu: POOLED;
    timm_efficientnet: MAPPED;
    timm_efficientnet_tf: MAPPED;
    timm_convnext: MAPPED;
    timm_swin: MAPPED;
    timm_beit: JAX;
    timm_relpos: ONE_HEAD;
    timm_rope_mixed: JAX;
    timm_coatnet: MAPPED;
    timm_coatnet_rw: MAPPED;
}

/// Verifies a folder that is recorded with its loss and every gradient, more than `gradients` of them.
fn agrees_with_gradients(case: &str, gradients: usize) {
    let io = recorded(case);
    let ours =
        |name: &String| name.replace(".gamma_", ".ls").replace(".ls1", ".ls1.gamma").replace(".ls2", ".ls2.gamma");
    let mut arrays: Vec<String> =
        io.tensors.keys().filter(|n| !["input", "labels"].contains(&n.as_str())).map(ours).collect();
    arrays.sort_unstable();
    assert!(arrays.iter().filter(|name| name.starts_with("grad.")).count() > gradients);
    agrees(case, None, &arrays.iter().map(String::as_str).collect::<Vec<_>>());
}

#[test]
fn timm_swinv2() {
    agrees_with_gradients("timm_swinv2", 90);
}

#[test]
fn timm_eva02() {
    agrees_with_gradients("timm_eva02", 30);
}

#[test]
fn timm_dinov3() {
    agrees_with_gradients("timm_dinov3", 30);
}

#[test]
fn jax_vit_with_the_names_of_todays_linen() {
    agrees("jax_vit", Some("model_linen.npz"), JAX);
}

#[test]
fn every_instruction_set_agrees() {
    for isa in Isa::available() {
        let device = Cpu::with_isa(isa, Some(2));
        for case in CASES.into_iter().chain(FAMILY) {
            let mut io = recorded(case);
            let input = io.tensors.remove("input").unwrap();
            // Other tests compare attention weights and feature maps; here the last outputs suffice.
            io.tensors.retain(|name, _| !name.starts_with("attention_") && name != "feature_map");
            let options = ModelOptions::new().batch(input.shape[0]);
            let options = io.tensors.keys().fold(options, |options, name| options.output(name));
            let mut model = Model::new(open(case), &device, &options).unwrap();
            let each = input.data.len() / input.shape[0];
            let images: Vec<Vec<f32>> = input.data.chunks(each).map(<[f32]>::to_vec).collect();
            model.run_prepared(&images).unwrap();
            for (name, expected) in &io.tensors {
                let found = model.output(name, images.len()).unwrap();
                let largest = support::difference(&expected.data, &found);
                let tolerance = if name == "tokens" { 5e-5 } else { 2e-5 };
                assert!(largest <= tolerance, "{case} with {isa}: {name} differs by {largest:e}");
            }
        }
    }
}

#[test]
fn every_weight_matters() {
    let folder = copy("timm_vit_map", "every_weight_matters");
    let path = folder.join("model.safetensors");
    let original = weights::read(&path).unwrap();
    assert!(verify(&folder, &VerifyOptions::default()).unwrap().passes());
    for name in original.tensors.keys() {
        let mut spoilt = original.clone();
        spoilt.tensors.get_mut(name).unwrap().data.iter_mut().for_each(|v| *v *= 1.05);
        write(&path, &spoilt);
        let verification = verify(&folder, &VerifyOptions::default()).unwrap();
        assert!(!verification.passes(), "nothing changed with {name}");
        assert!(verification.arrays.iter().any(|a| a.name == "logits" && !a.passes()), "no logit changed with {name}");
    }
}

#[test]
fn one_wrong_element_is_found() {
    let folder = copy("timm_vit", "one_wrong_element");
    let path = folder.join("model.safetensors");
    let mut weights = weights::read(&path).unwrap();
    weights.tensors.get_mut("blocks.2.mlp.fc1.weight").unwrap().data[100] += 0.1;
    write(&path, &weights);
    let verification = verify(&folder, &VerifyOptions::default()).unwrap();
    let passes = |name: &str| verification.arrays.iter().find(|a| a.name == name).unwrap().passes();
    assert!(!passes("logits") && !passes("tokens"));
    // Arrays before the wrong element still agree.
    assert!(passes("attention_2"));
    let lenient = VerifyOptions { tolerance: Some(10.0), ..VerifyOptions::default() };
    assert!(verify(&folder, &lenient).unwrap().passes());
}

#[test]
fn a_not_a_number_is_a_difference() {
    let folder = copy("timm_vit", "not_a_number");
    let path = folder.join("io.safetensors");
    let mut io = weights::read(&path).unwrap();
    io.tensors.get_mut("logits").unwrap().data[3] = f32::NAN;
    write(&path, &io);
    let lenient = VerifyOptions { tolerance: Some(1e30), ..VerifyOptions::default() };
    assert!(!verify(&folder, &lenient).unwrap().passes());
}

fn refusal(folder: &std::path::Path) -> String {
    match verify(folder, &VerifyOptions::default()) {
        Err(error @ Error::Recording { .. }) => error.to_string(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_folder_without_recorded_arrays_is_refused() {
    let folder = copy("timm_vit", "nothing_recorded");
    let path = folder.join("io.safetensors");
    let io = weights::read(&path).unwrap();

    let mut without_input = io.clone();
    without_input.tensors.remove("input");
    write(&path, &without_input);
    assert!(refusal(&folder).contains("no array named `input`"));

    let mut only_input = io.clone();
    only_input.tensors.retain(|name, _| name == "input");
    write(&path, &only_input);
    assert!(refusal(&folder).contains("only `input`"));

    let mut flat = io.clone();
    flat.tensors.insert("input".into(), Tensor::new(vec![6], vec![0.0; 6]).unwrap());
    write(&path, &flat);
    assert!(refusal(&folder).contains("[batch, channels, height, width]"));

    let mut grey = io.clone();
    grey.tensors.insert("input".into(), Tensor::new(vec![2, 1, 32, 32], vec![0.0; 2048]).unwrap());
    write(&path, &grey);
    assert!(refusal(&folder).contains("1 channels, the model takes 3"));

    std::fs::remove_file(&path).unwrap();
    let what = refusal(&folder);
    assert!(what.contains("io.safetensors") && what.contains("nothing to compare with"), "{what}");
}

#[test]
fn unknown_arrays_and_wrong_shapes_fail_and_say_why() {
    let folder = copy("timm_vit", "unknown_arrays");
    let path = folder.join("io.safetensors");
    let mut io = weights::read(&path).unwrap();
    let logits = io.tensors["logits"].clone();
    io.tensors.insert("logitz".into(), logits.clone());
    io.tensors.insert("attention_9".into(), logits.clone());
    let mut fewer = logits;
    fewer.shape = vec![1, 22];
    io.tensors.insert("logits".into(), fewer);
    write(&path, &io);
    let verification = verify(&folder, &VerifyOptions::default()).unwrap();
    assert!(!verification.passes());
    for (name, note) in [
        ("logitz", "the model gives no such array"),
        ("attention_9", "the model gives no such array"),
        ("logits", "the model gives [2, 11]"),
    ] {
        let array = verification.arrays.iter().find(|a| a.name == name).unwrap();
        assert!(!array.passes() && array.difference.is_none(), "{array:?}");
        assert_eq!(array.note.as_deref(), Some(note));
    }
    // The others are compared nevertheless.
    assert_eq!(verification.arrays.iter().filter(|a| a.passes()).count(), 5);
}

/// Every recording of `bench/parity --names`, in the folder that `VIT_RECORDINGS` names: from an image file to the output, to
/// 1e-5 of its largest value.
#[test]
#[ignore = "run by bench/parity --names"]
fn recordings_of_named_models() {
    let folder = std::path::PathBuf::from(std::env::var_os("VIT_RECORDINGS").unwrap());
    let mut cases: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    cases.sort();
    assert!(!cases.is_empty(), "no recordings");
    let mut wrong = Vec::new();
    for case in cases {
        let name = case.file_name().unwrap().to_string_lossy().into_owned();
        let io = weights::read(&case.join("io.safetensors")).unwrap();
        let (output, expected) = io.tensors.iter().next().unwrap();
        let mut model = match Model::open_with(&case, &ModelOptions::new().output(output)) {
            Ok(model) => model,
            Err(error) => {
                println!("{name}: {error}");
                wrong.push(name);
                continue;
            }
        };
        support::survives_writing(model.config()).unwrap_or_else(|what| {
            println!("{name}: {what}");
            wrong.push(name.clone());
        });
        model.run(&Image::open(case.join("image.png")).unwrap()).unwrap();
        let difference = support::difference(&model.output(output, 1).unwrap(), &expected.data);
        let largest = expected.data.iter().fold(0f32, |m, v| m.max(v.abs()));
        println!("{name}: {output} differ by {:.1e} of the largest", difference / largest);
        if difference > 1e-5 * largest {
            wrong.push(name);
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join(", "));
}
