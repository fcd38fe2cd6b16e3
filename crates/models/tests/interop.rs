//! Configurations for timm and transformers, field by field; `bench/interop` opens them with these libraries.

use serde_json::{Value, json};
use vit_models::coatnet::CoAtNet;
use vit_models::config::{self, hugging_face_config, hugging_face_preprocessor, timm_config, timm_differences};
use vit_models::resnet::ResNet;
use vit_models::swin::Swin;
use vit_models::vit::Vit;
use vit_models::{Config, Preprocess, ProblemType, variant, variants};

fn named(name: &str) -> Config {
    let found = variant(name).unwrap();
    Config {
        name: Some(name.into()),
        architecture: found.architecture,
        preprocessing: found.preprocessing,
        labels: vec![],
        problem_type: ProblemType::default(),
    }
}

/// Writes timm's form, checks that it is read back as the same model of the same name, and returns it.
fn written(config: &Config) -> Value {
    let json = timm_config(config);
    let read = config::parse(&json, None).unwrap();
    assert_eq!(read.architecture, config.architecture, "{json:#}");
    // A model without a name gets that of timm's base model.
    let named = config.name.clone().or_else(|| Some(json["architecture"].as_str()?.to_string()));
    assert_eq!(read.name, named, "{json:#}");
    json
}

#[test]
fn own_small_models_are_written_under_names_that_timm_has() {
    for (name, base) in [
        ("vit_pico_patch4_32", "vit_base_patch16_224"),
        ("vit_nano_patch4_32", "vit_base_patch16_224"),
        ("vit_lite_patch4_32", "vit_base_patch16_224"),
        ("vit_tiny_patch4_32", "vit_base_patch16_224"),
        ("vit_pico_patch4_gap_32", "vit_base_patch16_224"),
        ("vit_medium_patch16_224", "vit_base_patch16_224"),
        ("deit_pico_distilled_patch4_32", "deit_base_distilled_patch16_224"),
        ("vit_small_r26_s32_224", "vit_small_r26_s32_224"),
    ] {
        let json = written(&named(name));
        assert_eq!(json["architecture"], base, "{name}");
        assert_eq!(json["vit"]["name"], if name == base { Value::Null } else { json!(name) });
        assert!(timm_differences(&named(name)).is_empty(), "{name}");
        let model = named(name).architecture;
        let vit: &Vit = model.downcast_ref().unwrap();
        let args = &json["model_args"];
        for (argument, value) in [
            ("img_size", json!(vit.image_size)),
            ("embed_dim", json!(vit.dim)),
            ("depth", json!(vit.depth)),
            ("num_heads", json!(vit.heads)),
            ("mlp_ratio", json!(vit.mlp_dim as f64 / vit.dim as f64)),
            ("class_token", json!(vit.class_token)),
        ] {
            assert_eq!(args[argument], value, "{name}: {argument}");
        }
        assert_eq!(json["num_classes"], vit.classes);
    }
}

#[test]
fn rates_of_dropout_do_not_hide_a_published_model_from_timm() {
    for (name, rate) in [
        ("resnet18", "drop_path_rate"),
        ("resnetv2_50x1_bit", "drop_path_rate"),
        ("efficientnet_b0", "drop_path_rate"),
        ("convnextv2_atto", "drop_path_rate"),
        ("swin_tiny_patch4_window7_224", "drop_path_rate"),
        ("coatnet_0_rw_224", "drop_path_rate"),
    ] {
        let mut config = named(name);
        config.architecture.set_drop_path(0.25);
        config.architecture.set_classes(3);
        let json = written(&config);
        assert_eq!((&json["architecture"], &json["model_args"][rate]), (&json!(name), &json!(0.25)), "{json:#}");
        assert_eq!(json["num_classes"], 3);
    }
}

#[test]
fn other_sizes_of_a_class_are_arguments_where_timm_takes_them() {
    let mut net = named("resnet26");
    let resnet: &mut ResNet = net.architecture.downcast_mut().unwrap();
    (resnet.depths, resnet.widths) = (vec![1, 1], vec![16, 32]);
    net.name = None;
    let json = written(&net);
    assert_eq!(json["architecture"], "resnet50");
    assert_eq!(json["model_args"]["layers"], json!([1, 1]));
    assert_eq!(json["model_args"]["channels"], json!([16, 32]));
    assert!(json["model_args"].get("block").is_none() && json["model_args"].get("norm_layer").is_none());

    let mut net = named("coatnet_rmlp_nano_rw_224");
    let coatnet: &mut CoAtNet = net.architecture.downcast_mut().unwrap();
    coatnet.transformers.head_dim = 16;
    net.name = None;
    let json = written(&net);
    assert_eq!(json["architecture"], "coatnet_0_rw_224");
    assert_eq!(json["model_args"]["transformer_dim_head"], 16);
    assert_eq!(json["model_args"]["transformer_rel_pos_type"], "mlp");
    assert_eq!(json["model_args"]["block_type"], json!(["C", "C", "T", "T"]));

    let mut net = named("swin_tiny_patch4_window7_224");
    let swin: &mut Swin = net.architecture.downcast_mut().unwrap();
    (swin.widths, swin.heads) = (vec![32, 64, 128, 256], vec![1, 2, 4, 8]);
    net.name = None;
    let json = written(&net);
    assert_eq!(json["model_args"]["embed_dim"], 32);
    assert!(json["model_args"].get("norm_layer").is_none() && json["model_args"].get("head_dim").is_none());
}

#[test]
fn a_model_that_timm_cannot_build_is_reported_and_keeps_its_name() {
    for (name, reason) in [
        ("resnet18_cifar", "no first layer for small images"),
        ("vit_pico_r20_s4_32", "no such convolutional stages"),
        ("lenet5", "timm has no LeNet"),
        ("lenet5_relu_cifar", "timm has no LeNet"),
    ] {
        let config = named(name);
        let json = written(&config);
        assert!(json.get("architecture").is_none() && json.get("class").is_some(), "{json:#}");
        let [line] = &timm_differences(&config)[..] else { panic!("{name}") };
        assert!(line.starts_with("timm cannot open this model, only vit can: ") && line.contains(reason), "{line}");
        let refusal = hugging_face_config(&config).unwrap_err();
        assert!(refusal.contains("neither library"), "{refusal}");
    }
    let refusal = hugging_face_config(&named("deit3_small_patch16_224")).unwrap_err();
    assert!(refusal.contains("layer scale") && refusal.contains("write timm's layout"), "{refusal}");
}

#[test]
fn every_published_model_is_written_for_timm() {
    for v in variants().into_iter().filter(|v| v.family != "LeNet") {
        let config = named(&v.name);
        assert!(timm_differences(&config).is_empty(), "{}", v.name);
        assert!(written(&config)["architecture"].is_string());
    }
}

#[test]
fn transformers_gets_a_processor_that_keeps_proportions_where_the_model_does() {
    let class = |crop_mode: &str, crop_pct: f64| {
        let mut config = named("vit_pico_patch4_32");
        config.preprocessing = Preprocess { crop_mode: crop_mode.parse().unwrap(), crop_pct, ..config.preprocessing };
        let json = hugging_face_preprocessor(&config);
        (json["image_processor_type"].as_str().unwrap().to_string(), json["size"].clone())
    };
    assert_eq!(class("squash", 1.0), ("ViTImageProcessor".into(), json!({ "height": 32, "width": 32 })));
    assert_eq!(class("squash", 0.5), ("DeiTImageProcessor".into(), json!({ "height": 64, "width": 64 })));
    assert_eq!(class("center", 0.5), ("CLIPImageProcessor".into(), json!({ "shortest_edge": 64 })));
}
