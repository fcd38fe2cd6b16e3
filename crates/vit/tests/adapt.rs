//! Weights for another image size, other classes or other channels: each change is one line of the report, and what
//! does not match is an error that lists it.

mod support;

use support::{copy, open, outputs, recorded, write};
use vit_models::weights::positions::{Resampling, resample};
use vit_models::weights::{self, Tensor, patch_filters};
use vit_models::{Changes, Checkpoint, ModelError, OpenOptions};

fn changed(case: &str, changes: Changes) -> Checkpoint {
    let mut checkpoint = open(case);
    checkpoint.change(changes).unwrap();
    checkpoint
}

fn size(height: usize, width: usize) -> Changes {
    Changes { image_size: Some([height, width]), ..Changes::default() }
}

#[test]
fn another_image_size_resamples_positions() {
    for (case, to, prefix, old, tokens) in [
        ("timm_vit", [48, 48], 1, [4, 4], 37),
        ("timm_vit", [40, 24], 1, [4, 4], 16),
        ("timm_vit_rect", [32, 32], 1, [4, 6], 17),
        ("timm_vit_modern", [16, 24], 0, [4, 4], 6),
        ("timm_deit_distilled", [48, 32], 2, [4, 4], 26),
        ("hf_deit_plain", [48, 32], 2, [4, 4], 26),
        ("jax_vit", [48, 48], 1, [4, 4], 37),
        ("tv_vit", [24, 24], 1, [4, 4], 10),
    ] {
        let checkpoint = changed(case, size(to[0], to[1]));
        let (method, name) = match case.split_once('_') {
            Some(("jax", _)) => (Resampling::Linear, "linear"),
            Some(("hf", _)) => (Resampling::SharpBicubic, "bicubic without antialiasing"),
            _ => (Resampling::Bicubic, "bicubic"),
        };
        let before = &open(case).weights.tensors["pos_embed"];
        let [_, old_tokens, dim] = before.shape[..] else { panic!("{:?}", before.shape) };
        let line = format!("pos_embed: [1, {old_tokens}, {dim}] -> [1, {tokens}, {dim}], positions resampled ({name})");
        assert_eq!(checkpoint.report, [line], "{case}");
        let expected = resample(before, prefix, Some(old), to.map(|side| side / 8), method).unwrap();
        assert_eq!(checkpoint.weights.tensors["pos_embed"], expected, "{case}");
        assert_eq!(checkpoint.config.preprocessing.image_size, to);
        let found = outputs(&checkpoint, &vec![0.5; 3 * to[0] * to[1]]);
        assert!(found.iter().flatten().all(|v| v.is_finite()));
    }
}

#[test]
fn a_grid_with_as_many_patches_is_another_grid() {
    let checkpoint = changed("timm_vit", size(16, 64));
    assert_eq!(checkpoint.report, ["pos_embed: 4x4 -> 2x8 patches, positions resampled (bicubic)"]);
    let before = &open("timm_vit").weights.tensors["pos_embed"];
    let expected = resample(before, 1, Some([4, 4]), [2, 8], Resampling::Bicubic).unwrap();
    assert_ne!(*before, expected);
    assert_eq!(checkpoint.weights.tensors["pos_embed"], expected);
}

#[test]
fn the_same_size_changes_nothing() {
    let checkpoint = changed("timm_vit", size(32, 32));
    assert_eq!(checkpoint.report, [""; 0]);
    assert_eq!(checkpoint.weights, open("timm_vit").weights);
}

#[test]
fn there_and_back_is_close_to_where_it_started() {
    let mut checkpoint = changed("timm_vit", size(64, 64));
    checkpoint.change(size(32, 32)).unwrap();
    assert_eq!(checkpoint.report.len(), 2);
    let input = recorded("timm_vit").tensors["input"].data.clone();
    let (before, after) = (outputs(&open("timm_vit"), &input), outputs(&checkpoint, &input));
    let largest = support::difference(&before[2], &after[2]);
    assert!(largest > 0.0 && largest < 2.0, "{largest}");
}

#[test]
fn other_classes_start_a_new_head_from_zero() {
    let checkpoint = changed("timm_vit", Changes { classes: Some(5), ..Changes::default() });
    assert_eq!(checkpoint.report, ["head: 11 classes -> 5 classes, starting from zero"]);
    assert_eq!(checkpoint.weights.tensors["head.weight"], Tensor::new(vec![5, 72], vec![0.0; 360]).unwrap());
    assert_eq!(checkpoint.weights.tensors["head.bias"].data, [0.0; 5]);
    let input = recorded("timm_vit").tensors["input"].data.clone();
    let (before, after) = (outputs(&open("timm_vit"), &input), outputs(&checkpoint, &input));
    assert_eq!(before[..2], after[..2]);

    let two = changed("timm_deit_distilled", Changes { classes: Some(3), ..Changes::default() });
    let lines: Vec<&str> = two.report.iter().map(|l| l.split(':').next().unwrap()).collect();
    assert_eq!(lines, ["head", "head_dist"]);

    let none = changed("timm_vit", Changes { classes: Some(0), ..Changes::default() });
    assert_eq!(none.report, ["head.bias: left out", "head.weight: left out"]);
    assert_eq!(outputs(&none, &input)[..], before[..2]);
}

#[test]
fn other_channels_adapt_the_filters() {
    for channels in [1, 2, 4, 7] {
        let checkpoint = changed("timm_vit", Changes { channels: Some(channels), ..Changes::default() });
        assert_eq!(checkpoint.report, [format!("patch_embed.proj.weight: 3 -> {channels} input channels")]);
        let before = open("timm_vit").weights.tensors["patch_embed.proj.weight"].clone();
        let expected = patch_filters::adapt_channels(before, channels).unwrap();
        assert_eq!(checkpoint.weights.tensors["patch_embed.proj.weight"], expected);
        assert_eq!(checkpoint.config.preprocessing.mean.len(), channels);
    }
    // A grey image gives the same outputs as in RGB.
    let grey: Vec<f32> = (0..1024).map(|i| (i as f32 * 0.37).sin()).collect();
    let one = changed("timm_vit", Changes { channels: Some(1), ..Changes::default() });
    let (rgb, grey) = (outputs(&open("timm_vit"), &grey.repeat(3)), outputs(&one, &grey));
    assert!(support::difference(&rgb[2], &grey[2]) < 2e-5);
}

#[test]
fn all_changes_at_once_are_one_line_each() {
    let changes = Changes { image_size: Some([40, 48]), classes: Some(3), channels: Some(4), ..Changes::default() };
    let checkpoint = changed("timm_vit", changes);
    assert_eq!(
        checkpoint.report,
        [
            "patch_embed.proj.weight: 3 -> 4 input channels",
            "pos_embed: [1, 17, 72] -> [1, 31, 72], positions resampled (bicubic)",
            "head: 11 classes -> 3 classes, starting from zero",
        ]
    );
}

#[test]
fn weights_that_do_not_match_are_listed() {
    let folder = copy("timm_vit", "unmatched");
    let path = folder.join("model.safetensors");
    let mut weights = weights::read(&path).unwrap();
    weights.tensors.remove("norm.weight");
    weights.tensors.insert("extra.thing".into(), Tensor::new(vec![2, 3], vec![0.0; 6]).unwrap());
    weights.tensors.insert("blocks.1.mlp.fc1.bias".into(), Tensor::new(vec![4], vec![0.0; 4]).unwrap());
    write(&path, &weights);
    let lines = [
        "norm.weight [72]: not in the weights (from `embed_dim` 72, `fc_norm` false, `norm_layer` LayerNorm)",
        "blocks.1.mlp.fc1.bias: [4] in the weights, [180] in the model (from `embed_dim` 72, `mlp_ratio` for a hidden layer \
         of 180, `mlp_layer` Mlp)",
        "extra.thing [2, 3]: not in the model",
    ];

    let error = Checkpoint::open(&folder, OpenOptions::default()).unwrap_err();
    let ModelError::Unmatched(listed) = &error else { panic!("{error}") };
    for line in lines {
        assert!(listed.contains(line), "{listed}");
    }
    assert_eq!(listed.trim().lines().count(), 3, "{listed}");

    let allowed = Checkpoint::open(&folder, OpenOptions { allow_unmatched: true, ..OpenOptions::default() }).unwrap();
    let mut report: Vec<&str> = allowed.report.iter().map(String::as_str).collect();
    report.sort_unstable();
    let mut expected = lines;
    expected.sort_unstable();
    assert_eq!(report, expected);
    assert_eq!(allowed.weights.tensors["norm.weight"].data, [1.0; 72]);
    assert!(!allowed.weights.tensors.contains_key("extra.thing"));
}

/// What is wrong with a recorded model whose arguments are changed.
fn unmatched(case: &str, name: &str, changes: serde_json::Value) -> String {
    let folder = copy(case, name);
    let path = folder.join("config.json");
    let mut config: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    for (argument, value) in changes.as_object().unwrap() {
        config["args"][argument] = value.clone();
    }
    std::fs::write(path, config.to_string()).unwrap();
    Checkpoint::open(&folder, OpenOptions::default()).unwrap_err().to_string()
}

#[test]
fn misfits_name_the_class_of_blocks_and_attention_and_the_stages_of_a_hybrid() {
    let json = |text: &str| serde_json::from_str(text).unwrap();
    for (case, name, changes, line) in [
        (
            "timm_parallel",
            "misfit_block",
            r#"{"block_fn": "Block"}"#,
            "blocks.0.norm1.weight [48]: not in the weights (from `embed_dim` 48, `norm_layer` RmsNorm, `block_fn` Block)",
        ),
        (
            "timm_parallel",
            "misfit_branches",
            r#"{"block_fn": "ParallelThingsBlock"}"#,
            r#"blocks.0.attns.0.attn.proj.weight [48, 48]: not in the weights (from `embed_dim` 48, `block_fn` {"ParallelThingsBlock":{"num_parallel":2}})"#,
        ),
        (
            "timm_vit",
            "misfit_attention",
            r#"{"attn_layer": "diff"}"#,
            "blocks.0.attn.lambda_q1 [12]: not in the weights (from `embed_dim` 72, `num_heads` 3, `attn_layer` diff)",
        ),
        (
            "timm_hybrid",
            "misfit_stages",
            r#"{"backbone": {"layers": [1, 1], "channels": [128, 512], "stem_chs": 32, "preact": false, "stem_type": "same",
                "conv_layer": {"StdConv2dSame": {"eps": 1e-8}}, "norm_layer": {"GroupNormAct": {"num_groups": 32}}}}"#,
            r#"patch_embed.backbone.stages.1.blocks.0.conv3.weight: [256, 64, 1, 1] in the weights, [512, 128, 1, 1] in the model (from `backbone` of layers [1,1], channels [128,512], stem_chs 32, stem_type "same")"#,
        ),
    ] {
        let message = unmatched(case, name, json(changes));
        assert!(message.contains(line), "{message}");
    }
}

#[test]
fn a_missing_head_is_an_error_unless_classes_are_asked_for() {
    let folder = copy("timm_vit", "headless");
    let path = folder.join("model.safetensors");
    let mut weights = weights::read(&path).unwrap();
    weights.tensors.retain(|name, _| !name.starts_with("head."));
    write(&path, &weights);
    let error = Checkpoint::open(&folder, OpenOptions::default()).unwrap_err().to_string();
    assert!(error.contains("head.weight [11, 72]: not in the weights"), "{error}");
}

/// FlexiViT's rule: where patches are enlarged like their filters, tokens stay the same.
#[test]
fn a_model_with_enlarged_patches_sees_an_enlarged_image_as_before() {
    let mut checkpoint = open("timm_vit");
    let ([height, width], [rows, columns]) = {
        let vit: &vit_models::vit::Vit = checkpoint.config.architecture.downcast_ref().unwrap();
        (vit.image_size, vit.patch_size)
    };
    let changes = Changes {
        image_size: Some([2 * height, 2 * width]),
        patch_size: Some([2 * rows, 2 * columns]),
        ..Changes::default()
    };
    checkpoint.report.clear();
    checkpoint.change(changes).unwrap();
    assert!(checkpoint.report.iter().any(|line| line.contains("resized as in FlexiViT")), "{:?}", checkpoint.report);
    let filters = &checkpoint.weights.tensors["patch_embed.proj.weight"];
    assert_eq!(filters.shape[2..], [2 * rows, 2 * columns]);
    let odd = Changes { patch_size: Some([2 * rows + 1, columns]), ..Changes::default() };
    assert!(checkpoint.change(odd).is_err());
}
