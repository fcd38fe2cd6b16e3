//! Weights of other libraries get the names and shapes that timm's converters give them.

use std::path::Path;

use vit_models::vit::{Pooling, RotaryAngles, Vit};
use vit_models::weights::names::{hugging_face, jax, timm, torchvision};
use vit_models::weights::{self, Scheme, Tensor, Weights, canonical};
use vit_models::{Mode, guess, variant};

fn read(name: &str) -> Weights {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/weights");
    weights::read(&folder.join(name)).unwrap()
}

fn tensor(shape: &[usize], first: usize) -> Tensor {
    let count: usize = shape.iter().product();
    let data = (first..first + count).map(|v| v as f32).collect();
    Tensor::new(shape.into(), data).unwrap()
}

fn named(tensors: &[(&str, &[usize])]) -> Weights {
    let mut weights = Weights::default();
    for (at, (name, shape)) in tensors.iter().enumerate() {
        weights.insert(*name, tensor(shape, at * 1000)).unwrap();
    }
    weights
}

#[test]
fn jax_checkpoints_are_converted_as_by_timm() {
    for case in ["vit_jax", "big_vision"] {
        let (ours, scheme) = canonical(read(&format!("{case}.npz"))).unwrap();
        assert_eq!(scheme, Scheme::Jax);
        let expected = read(&format!("{case}_expected.safetensors"));
        assert_eq!(ours.tensors.keys().collect::<Vec<_>>(), expected.tensors.keys().collect::<Vec<_>>());
        for (name, tensor) in &expected.tensors {
            assert!(ours.tensors[name] == *tensor, "{case}: {name}");
        }
    }
}

#[test]
fn published_and_linen_names_are_the_same_model() {
    let published = read("vit_jax.npz");
    let mut linen = Weights::default();
    for (name, tensor) in &published.tensors {
        let name = name
            .replace("LayerNorm_2", "LayerNorm_1")
            .replace("MultiHeadDotProductAttention_1", "MultiHeadDotProductAttention_0")
            .replace("MlpBlock_3", "MlpBlock_0");
        linen.insert(name, tensor.clone()).unwrap();
    }
    assert_eq!(jax::to_canonical(linen).unwrap(), jax::to_canonical(published).unwrap());
}

#[test]
fn other_roots_and_an_inlined_pooling_head_are_found() {
    let plain = read("big_vision.npz");
    let expected = jax::to_canonical(plain.clone()).unwrap();
    for root in ["", "params/img/", "opt/target/"] {
        let mut moved = Weights::default();
        for (name, tensor) in &plain.tensors {
            let name = name.strip_prefix("params/").unwrap().replace("MAPHead_0/", "");
            moved.insert(format!("{root}{name}"), tensor.clone()).unwrap();
        }
        if !root.is_empty() {
            moved.insert("params/txt/head/kernel", tensor(&[2, 2], 0)).unwrap();
        }
        assert!(jax::detect(&moved));
        assert_eq!(jax::to_canonical(moved).unwrap(), expected, "{root}");
    }
}

#[test]
fn pre_logits_are_kept() {
    let mut weights = read("vit_jax.npz");
    weights.insert("pre_logits/kernel", tensor(&[8, 3], 0)).unwrap();
    weights.insert("pre_logits/bias", tensor(&[3], 0)).unwrap();
    let ours = jax::to_canonical(weights).unwrap();
    assert_eq!(ours.tensors["pre_logits.fc.weight"].shape, [3, 8]);
    assert_eq!(ours.tensors["pre_logits.fc.weight"].data[..3], [0., 3., 6.]);
    assert_eq!(ours.tensors["pre_logits.fc.bias"].shape, [3]);
}

#[test]
fn a_jax_checkpoint_that_lacks_a_part_names_it() {
    let mut weights = read("vit_jax.npz");
    weights.take("Transformer/encoderblock_1/MlpBlock_3/Dense_0/kernel").unwrap();
    let message = jax::to_canonical(weights).unwrap_err().to_string();
    assert!(message.contains("encoderblock_1/MlpBlock_3/Dense_0/kernel"), "{message}");

    let mut weights = read("vit_jax.npz");
    weights.tensors.insert("embedding/kernel".into(), tensor(&[12, 8], 0));
    let message = jax::to_canonical(weights).unwrap_err().to_string();
    assert!(message.contains("embedding/kernel") && message.contains("[12, 8]"), "{message}");
}

#[test]
fn transformers_files_and_state_dicts_are_the_same_model() {
    let file = read("hf_vit.safetensors");
    let (ours, scheme) = canonical(file.clone()).unwrap();
    assert_eq!(scheme, Scheme::HuggingFace);
    assert_eq!(ours.tensors["blocks.1.attn.qkv.weight"].shape, [24, 8]);
    assert_eq!(ours.tensors["head.weight"].shape, [5, 8]);
    assert_eq!(
        ours.tensors["blocks.1.attn.qkv.weight"].data[64..128],
        file.tensors["vit.encoder.layer.1.attention.attention.key.weight"].data
    );
    let (in_memory, scheme) = canonical(read("hf_vit_in_memory.pt")).unwrap();
    assert_eq!(scheme, Scheme::HuggingFace);
    assert_eq!(in_memory.tensors, ours.tensors);
    // Converted back, exactly the file's tensors.
    assert_eq!(hugging_face::from_canonical(&ours).unwrap(), file);
}

#[test]
fn transformers_deit_has_two_heads_there_and_back() {
    let names: Vec<(&str, &[usize])> = vec![
        ("deit.embeddings.cls_token", &[1, 1, 4]),
        ("deit.embeddings.distillation_token", &[1, 1, 4]),
        ("deit.embeddings.position_embeddings", &[1, 6, 4]),
        ("deit.embeddings.patch_embeddings.projection.weight", &[4, 3, 2, 2]),
        ("deit.embeddings.patch_embeddings.projection.bias", &[4]),
        ("deit.encoder.layer.0.attention.attention.query.weight", &[4, 4]),
        ("deit.encoder.layer.0.attention.attention.key.weight", &[4, 4]),
        ("deit.encoder.layer.0.attention.attention.value.weight", &[4, 4]),
        ("deit.encoder.layer.0.attention.output.dense.weight", &[4, 4]),
        ("deit.encoder.layer.0.intermediate.dense.weight", &[8, 4]),
        ("deit.encoder.layer.0.output.dense.weight", &[4, 8]),
        ("deit.layernorm.weight", &[4]),
        ("cls_classifier.weight", &[2, 4]),
        ("distillation_classifier.weight", &[2, 4]),
    ];
    let theirs = named(&names);
    let ours = hugging_face::to_canonical(theirs.clone()).unwrap();
    for name in ["dist_token", "head.weight", "head_dist.weight", "blocks.0.mlp.fc2.weight"] {
        assert!(ours.tensors.contains_key(name), "{name}");
    }
    assert_eq!(hugging_face::from_canonical(&ours).unwrap(), theirs);
}

#[test]
fn a_bare_transformers_model_needs_no_prefix_and_loses_its_pooler() {
    let ours = hugging_face::to_canonical(named(&[
        ("embeddings.cls_token", &[1, 1, 4]),
        ("embeddings.mask_token", &[1, 1, 4]),
        ("embeddings.patch_embeddings.projection.weight", &[4, 3, 2, 2]),
        ("pooler.dense.weight", &[4, 4]),
    ]))
    .unwrap();
    assert_eq!(ours.tensors.keys().collect::<Vec<_>>(), ["cls_token", "patch_embed.proj.weight"]);
}

#[test]
fn a_tensor_that_transformers_does_not_have_is_named() {
    let weights = named(&[("reg_token", &[1, 4, 8])]);
    let message = hugging_face::from_canonical(&weights).unwrap_err().to_string();
    assert!(message.contains("`reg_token`"), "{message}");
    let weights = named(&[("blocks.0.attn.qkv.weight", &[4, 4])]);
    assert!(hugging_face::from_canonical(&weights).is_err());
}

#[test]
fn half_a_projection_is_an_error() {
    let message = hugging_face::to_canonical(named(&[
        ("vit.encoder.layer.0.attention.attention.query.weight", &[4, 4]),
        ("vit.encoder.layer.0.attention.attention.key.weight", &[4, 4]),
    ]))
    .unwrap_err()
    .to_string();
    assert!(message.contains("blocks.0.attn.qkv.weight"), "{message}");
}

#[test]
fn torchvision_names_old_and_new_are_mapped() {
    let theirs = named(&[
        ("class_token", &[1, 1, 4]),
        ("conv_proj.weight", &[4, 3, 2, 2]),
        ("encoder.pos_embedding", &[1, 5, 4]),
        ("encoder.layers.encoder_layer_0.ln_1.weight", &[4]),
        ("encoder.layers.encoder_layer_0.self_attention.in_proj_weight", &[12, 4]),
        ("encoder.layers.encoder_layer_0.self_attention.in_proj_bias", &[12]),
        ("encoder.layers.encoder_layer_0.self_attention.out_proj.weight", &[4, 4]),
        ("encoder.layers.encoder_layer_0.mlp.0.weight", &[8, 4]),
        ("encoder.layers.encoder_layer_0.mlp.3.weight", &[4, 8]),
        ("encoder.layers.encoder_layer_11.mlp.linear_1.weight", &[8, 4]),
        ("encoder.layers.encoder_layer_11.mlp.linear_2.weight", &[4, 8]),
        ("encoder.ln.weight", &[4]),
        ("heads.pre_logits.weight", &[4, 4]),
        ("heads.head.weight", &[2, 4]),
        ("something.else", &[1]),
    ]);
    assert!(torchvision::detect(&theirs));
    let (ours, scheme) = canonical(theirs).unwrap();
    assert_eq!(scheme, Scheme::Torchvision);
    assert_eq!(
        ours.tensors.keys().collect::<Vec<_>>(),
        [
            "blocks.0.attn.proj.weight",
            "blocks.0.attn.qkv.bias",
            "blocks.0.attn.qkv.weight",
            "blocks.0.mlp.fc1.weight",
            "blocks.0.mlp.fc2.weight",
            "blocks.0.norm1.weight",
            "blocks.11.mlp.fc1.weight",
            "blocks.11.mlp.fc2.weight",
            "cls_token",
            "head.weight",
            "norm.weight",
            "patch_embed.proj.weight",
            "pos_embed",
            "pre_logits.fc.weight",
            "something.else",
        ]
    );
}

#[test]
fn timm_names_stay_and_older_ones_are_understood() {
    let theirs = named(&[
        ("module.blocks.0.gamma_1", &[4]),
        ("module.blocks.0.gamma_2", &[4]),
        ("module.mask_token", &[1, 4]),
        ("module.patch_embed.proj.weight", &[4, 3, 2, 2]),
        ("module.pre_logits.fc.weight", &[4, 4]),
        ("module.register_tokens", &[1, 4, 4]),
    ]);
    assert!(timm::detect(&theirs));
    let (ours, scheme) = canonical(theirs).unwrap();
    assert_eq!(scheme, Scheme::Timm);
    assert_eq!(
        ours.tensors.keys().collect::<Vec<_>>(),
        ["blocks.0.ls1.gamma", "blocks.0.ls2.gamma", "patch_embed.proj.weight", "pre_logits.fc.weight", "reg_token",]
    );
}

#[test]
fn other_architectures_pass_unchanged() {
    let resnet = named(&[("conv1.weight", &[4, 3, 2, 2]), ("fc.weight", &[2, 4])]);
    assert_eq!(Scheme::detect(&resnet), None);
    let (same, scheme) = canonical(resnet.clone()).unwrap();
    assert_eq!((same, scheme), (resnet, Scheme::Timm));
}

/// Facebook's own file of a DINOv3 model: stacked biases with a mask for those of the keys, registers and layers of SwiGLU
/// under other names, periods of rotary positions in bf16.
#[test]
fn facebooks_dinov3_files_open_under_timms_names() {
    for (name, gated) in [("vit_tiny_patch16_dinov3_qkvb", false), ("vit_small_plus_patch16_dinov3_qkvb", true)] {
        let vit = variant(name).unwrap().architecture;
        let graph = vit.build(1, Mode::Inference).unwrap();
        let mut theirs = Weights::default();
        for (_, parameter) in graph.parameters() {
            let shape = parameter.shape.to_vec();
            if let Some(attention) = parameter.name.strip_suffix(".q_bias") {
                theirs.insert(format!("{attention}.qkv.bias"), tensor(&[3 * shape[0]], 0)).unwrap();
                theirs.insert(format!("{attention}.qkv.bias_mask"), tensor(&[3 * shape[0]], 0)).unwrap();
            } else if !parameter.name.ends_with(".v_bias") {
                let original = parameter
                    .name
                    .replace("reg_token", "storage_tokens")
                    .replace("mlp.fc1_g", "mlp.w1")
                    .replace("mlp.fc1_x", "mlp.w2");
                let original = if gated { original.replace("mlp.fc2", "mlp.w3") } else { original };
                theirs.insert(original, Tensor::new(shape, vec![0.5; parameter.shape.elements()]).unwrap()).unwrap();
            }
        }
        theirs.insert("rope_embed.periods", Tensor::new(vec![2], vec![1.0, 1.15625]).unwrap()).unwrap();
        theirs.insert("mask_token", tensor(&[1, 4], 0)).unwrap();
        let (ours, scheme) = canonical(theirs).unwrap();
        assert_eq!(scheme, Scheme::Dinov3 { bf16_periods: true });
        let found = guess(&ours, scheme).unwrap();
        assert_eq!(found.name.as_deref(), Some(name));
        let vit: &Vit = found.architecture.downcast_ref().unwrap();
        assert_eq!((vit.pooling, vit.dim), (Pooling::Token, ours.tensors["norm.weight"].shape[0]));
        let periods = vit.rotary.map(|rotary| rotary.angles);
        assert!(matches!(periods, Some(RotaryAngles::Centred { bf16_periods: true, .. })));
        // The keys' third is left out.
        assert_eq!(ours.tensors["blocks.0.attn.q_bias"].data[0], 0.0);
        assert_eq!(ours.tensors["blocks.0.attn.v_bias"].data[0], 2.0 * vit.dim as f32);
    }
}

/// As `_convert_dinov2` of timm: the position of the class token becomes part of it.
#[test]
fn original_files_of_dinov2_with_registers_have_timms_names() {
    let theirs = named(&[
        ("patch_embed.proj.weight", &[4, 3, 2, 2]),
        ("cls_token", &[1, 1, 4]),
        ("register_tokens", &[1, 2, 4]),
        ("mask_token", &[1, 4]),
        ("pos_embed", &[1, 10, 4]),
        ("blocks.0.mlp.w12.weight", &[16, 4]),
        ("blocks.0.mlp.w3.weight", &[4, 8]),
        ("blocks.0.ls1.gamma", &[4]),
    ]);
    let (ours, scheme) = canonical(theirs.clone()).unwrap();
    assert_eq!(scheme, Scheme::Timm);
    let names: Vec<&str> = ours.tensors.keys().map(String::as_str).collect();
    let expected = [
        "blocks.0.ls1.gamma",
        "blocks.0.mlp.fc1.weight",
        "blocks.0.mlp.fc2.weight",
        "cls_token",
        "patch_embed.proj.weight",
        "pos_embed",
        "reg_token",
    ];
    assert_eq!(names, expected);
    assert_eq!(ours.tensors["pos_embed"].shape, [1, 9, 4]);
    assert_eq!(ours.tensors["pos_embed"].data, theirs.tensors["pos_embed"].data[4..]);
    let sum = |i: usize| theirs.tensors["cls_token"].data[i] + theirs.tensors["pos_embed"].data[i];
    assert_eq!(ours.tensors["cls_token"].data, (0..4).map(sum).collect::<Vec<_>>());
}

/// As `_convert_openai_clip` of timm.
#[test]
fn the_image_encoder_of_clip_has_timms_names() {
    let theirs = named(&[
        ("visual.class_embedding", &[4]),
        ("visual.positional_embedding", &[5, 4]),
        ("visual.conv1.weight", &[4, 3, 2, 2]),
        ("visual.ln_pre.weight", &[4]),
        ("visual.transformer.resblocks.0.ln_1.bias", &[4]),
        ("visual.transformer.resblocks.0.attn.in_proj_weight", &[12, 4]),
        ("visual.transformer.resblocks.0.attn.out_proj.bias", &[4]),
        ("visual.transformer.resblocks.0.mlp.c_fc.weight", &[16, 4]),
        ("visual.transformer.resblocks.0.mlp.c_proj.weight", &[4, 16]),
        ("visual.ln_post.weight", &[4]),
        ("visual.proj", &[4, 3]),
        ("logit_scale", &[1]),
        ("token_embedding.weight", &[7, 4]),
    ]);
    let (ours, _) = canonical(theirs.clone()).unwrap();
    let shapes: Vec<(&str, &[usize])> = ours.tensors.iter().map(|(n, t)| (n.as_str(), &t.shape[..])).collect();
    let expected: [(&str, &[usize]); 12] = [
        ("blocks.0.attn.proj.bias", &[4]),
        ("blocks.0.attn.qkv.weight", &[12, 4]),
        ("blocks.0.mlp.fc1.weight", &[16, 4]),
        ("blocks.0.mlp.fc2.weight", &[4, 16]),
        ("blocks.0.norm1.bias", &[4]),
        ("cls_token", &[1, 1, 4]),
        ("head.bias", &[3]),
        ("head.weight", &[3, 4]),
        ("norm.weight", &[4]),
        ("norm_pre.weight", &[4]),
        ("patch_embed.proj.weight", &[4, 3, 2, 2]),
        ("pos_embed", &[1, 5, 4]),
    ];
    assert_eq!(shapes, expected);
    let projection = &theirs.tensors["visual.proj"].data;
    assert_eq!(ours.tensors["head.weight"].data[..4], [0, 3, 6, 9].map(|i| projection[i]));
}

/// A training checkpoint of DINO, and the whole of a masked autoencoder.
#[test]
fn heads_of_self_distillation_are_left_out_and_decoders_kept() {
    let dino = named(&[
        ("backbone.patch_embed.proj.weight", &[4, 3, 2, 2]),
        ("backbone.cls_token", &[1, 1, 4]),
        ("head.mlp.0.weight", &[8, 4]),
    ]);
    let (ours, _) = canonical(dino).unwrap();
    assert_eq!(ours.tensors.keys().collect::<Vec<_>>(), ["cls_token", "patch_embed.proj.weight"]);
    let mae = named(&[
        ("patch_embed.proj.weight", &[4, 3, 2, 2]),
        ("mask_token", &[1, 1, 2]),
        ("decoder_embed.weight", &[2, 4]),
        ("decoder_pos_embed", &[1, 5, 2]),
        ("decoder_blocks.0.norm1.weight", &[2]),
    ]);
    let theirs: Vec<String> = mae.tensors.keys().cloned().collect();
    let (ours, _) = canonical(mae).unwrap();
    assert_eq!(ours.tensors.keys().cloned().collect::<Vec<_>>(), theirs);
}
