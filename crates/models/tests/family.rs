//! The other models are those of timm 1.0.30: `sum(p.numel() for p in
//! timm.create_model(name, num_classes=1000).parameters())`, and the evaluation transform in its default configuration.

use vit_graph::cost::Cost;
use vit_graph::ops::Operation;
use vit_models::swin::Swin;
use vit_models::vit::Vit;
use vit_models::{Config, Mode, Preprocess, ProblemType, config, variant, variants};

const HALF: [f32; 2] = [0.5, 0.5];
const IMAGENET: [f32; 2] = [0.485, 0.229];

/// Name, parameters, image size, crop fraction and mode, filter, the first channel's mean and deviation.
type Row = (&'static str, u64, usize, f64, &'static str, &'static str, [f32; 2]);

const TIMM: [Row; 105] = [
    ("resnet18", 11_689_512, 224, 0.95, "center", "bicubic", IMAGENET),
    ("resnet26", 15_995_176, 224, 0.875, "center", "bicubic", IMAGENET),
    ("resnet34", 21_797_672, 224, 0.95, "center", "bicubic", IMAGENET),
    ("resnet50", 25_557_032, 224, 0.95, "center", "bicubic", IMAGENET),
    ("resnet101", 44_549_160, 224, 0.95, "center", "bicubic", IMAGENET),
    ("resnet152", 60_192_808, 224, 0.95, "center", "bicubic", IMAGENET),
    ("resnet18d", 11_708_744, 224, 0.875, "center", "bicubic", IMAGENET),
    ("resnet26d", 16_014_408, 224, 0.875, "center", "bicubic", IMAGENET),
    ("resnet34d", 21_816_904, 224, 0.875, "center", "bicubic", IMAGENET),
    ("resnet50d", 25_576_264, 224, 0.875, "center", "bicubic", IMAGENET),
    ("resnet101d", 44_568_392, 256, 0.95, "center", "bicubic", IMAGENET),
    ("resnet152d", 60_212_040, 256, 0.95, "center", "bicubic", IMAGENET),
    ("resnet200d", 64_693_064, 256, 0.95, "center", "bicubic", IMAGENET),
    ("resnext50_32x4d", 25_028_904, 224, 0.95, "center", "bicubic", IMAGENET),
    ("resnext101_32x4d", 44_177_704, 224, 0.875, "center", "bilinear", IMAGENET),
    ("resnext101_32x8d", 88_791_336, 224, 0.875, "center", "bilinear", IMAGENET),
    ("wide_resnet50_2", 68_883_240, 224, 0.875, "center", "bicubic", IMAGENET),
    ("wide_resnet101_2", 126_886_696, 224, 0.875, "center", "bilinear", IMAGENET),
    ("resnetv2_50x1_bit", 25_549_352, 224, 0.875, "center", "bicubic", HALF),
    ("resnetv2_50x3_bit", 217_319_080, 448, 1.0, "center", "bilinear", HALF),
    ("resnetv2_101x1_bit", 44_541_480, 448, 1.0, "center", "bilinear", HALF),
    ("resnetv2_101x3_bit", 387_934_888, 448, 1.0, "center", "bilinear", HALF),
    ("resnetv2_152x2_bit", 236_335_208, 224, 0.875, "center", "bicubic", HALF),
    ("resnetv2_152x4_bit", 936_533_224, 480, 1.0, "center", "bilinear", HALF),
    ("vit_tiny_r_s16_p8_224", 6_337_704, 224, 0.9, "center", "bicubic", HALF),
    ("vit_tiny_r_s16_p8_384", 6_355_944, 384, 1.0, "center", "bicubic", HALF),
    ("vit_base_r26_s32_224", 101_383_976, 224, 0.9, "center", "bicubic", HALF),
    ("vit_small_r26_s32_224", 36_431_912, 224, 0.9, "center", "bicubic", HALF),
    ("vit_small_r26_s32_384", 36_468_392, 384, 1.0, "center", "bicubic", HALF),
    ("vit_base_r50_s16_224", 98_659_112, 224, 0.9, "center", "bicubic", HALF),
    ("vit_base_r50_s16_384", 98_950_952, 384, 1.0, "center", "bicubic", HALF),
    ("vit_large_r50_s32_224", 328_994_856, 224, 0.9, "center", "bicubic", HALF),
    ("vit_large_r50_s32_384", 329_092_136, 384, 1.0, "center", "bicubic", HALF),
    ("efficientnet_b0", 5_288_548, 224, 0.875, "center", "bicubic", IMAGENET),
    ("efficientnet_b1", 7_794_184, 240, 0.9, "center", "bicubic", HALF),
    ("efficientnet_b2", 9_109_994, 256, 0.875, "center", "bicubic", IMAGENET),
    ("efficientnet_b3", 12_233_232, 288, 0.875, "center", "bicubic", IMAGENET),
    ("efficientnet_b4", 19_341_616, 320, 0.875, "center", "bicubic", IMAGENET),
    ("efficientnet_b5", 30_389_784, 448, 1.0, "squash", "bicubic", IMAGENET),
    ("efficientnet_b6", 43_040_704, 528, 0.942, "center", "bicubic", IMAGENET),
    ("efficientnet_b7", 66_347_960, 600, 0.949, "center", "bicubic", IMAGENET),
    ("efficientnet_b8", 87_413_142, 672, 0.954, "center", "bicubic", IMAGENET),
    ("efficientnet_l2", 480_309_308, 800, 0.961, "center", "bicubic", IMAGENET),
    ("tf_efficientnet_b0", 5_288_548, 224, 0.875, "center", "bicubic", IMAGENET),
    ("tf_efficientnet_b1", 7_794_184, 240, 0.882, "center", "bicubic", IMAGENET),
    ("tf_efficientnet_b2", 9_109_994, 260, 0.89, "center", "bicubic", IMAGENET),
    ("tf_efficientnet_b3", 12_233_232, 300, 0.904, "center", "bicubic", IMAGENET),
    ("tf_efficientnet_b4", 19_341_616, 380, 0.922, "center", "bicubic", IMAGENET),
    ("tf_efficientnet_b5", 30_389_784, 456, 0.934, "center", "bicubic", IMAGENET),
    ("tf_efficientnet_b6", 43_040_704, 528, 0.942, "center", "bicubic", IMAGENET),
    ("tf_efficientnet_b7", 66_347_960, 600, 0.949, "center", "bicubic", IMAGENET),
    ("tf_efficientnet_b8", 87_413_142, 672, 0.954, "center", "bicubic", HALF),
    ("tf_efficientnet_l2", 480_309_308, 475, 0.936, "center", "bicubic", IMAGENET),
    ("efficientnetv2_l", 118_515_272, 384, 1.0, "center", "bicubic", IMAGENET),
    ("efficientnetv2_m", 54_139_356, 320, 1.0, "center", "bicubic", IMAGENET),
    ("efficientnetv2_s", 21_458_488, 288, 1.0, "center", "bicubic", IMAGENET),
    ("efficientnetv2_xl", 208_119_808, 384, 1.0, "center", "bicubic", IMAGENET),
    ("tf_efficientnetv2_l", 118_515_272, 384, 1.0, "squash", "bicubic", HALF),
    ("tf_efficientnetv2_m", 54_139_356, 384, 1.0, "squash", "bicubic", HALF),
    ("tf_efficientnetv2_s", 21_458_488, 300, 1.0, "center", "bicubic", HALF),
    ("tf_efficientnetv2_xl", 208_119_808, 384, 1.0, "squash", "bicubic", HALF),
    ("convnext_atto", 3_695_520, 224, 0.875, "center", "bicubic", IMAGENET),
    ("convnext_atto_ols", 3_702_912, 224, 0.875, "center", "bicubic", IMAGENET),
    ("convnextv2_atto", 3_708_400, 224, 0.875, "center", "bicubic", IMAGENET),
    ("convnext_femto", 5_217_784, 224, 0.875, "center", "bicubic", IMAGENET),
    ("convnext_femto_ols", 5_226_520, 224, 0.875, "center", "bicubic", IMAGENET),
    ("convnextv2_femto", 5_233_240, 224, 0.875, "center", "bicubic", IMAGENET),
    ("convnext_pico", 9_045_672, 224, 0.875, "center", "bicubic", IMAGENET),
    ("convnext_pico_ols", 9_061_928, 224, 0.95, "center", "bicubic", IMAGENET),
    ("convnextv2_pico", 9_066_280, 224, 0.875, "center", "bicubic", IMAGENET),
    ("convnext_nano", 15_593_560, 224, 0.95, "center", "bicubic", IMAGENET),
    ("convnext_nano_ols", 15_649_560, 224, 0.95, "center", "bicubic", IMAGENET),
    ("convnextv2_nano", 15_623_800, 224, 0.875, "center", "bicubic", IMAGENET),
    ("convnext_tiny", 28_589_128, 224, 0.95, "center", "bicubic", IMAGENET),
    ("convnext_tiny_hnf", 28_589_128, 224, 0.95, "center", "bicubic", IMAGENET),
    ("convnextv2_tiny", 28_635_496, 224, 0.875, "center", "bicubic", IMAGENET),
    ("convnext_small", 50_223_688, 224, 0.95, "center", "bicubic", IMAGENET),
    ("convnextv2_small", 50_318_440, 224, 0.875, "center", "bicubic", IMAGENET),
    ("convnext_base", 88_591_464, 224, 0.875, "center", "bicubic", IMAGENET),
    ("convnextv2_base", 88_717_800, 224, 0.875, "center", "bicubic", IMAGENET),
    ("convnext_large", 197_767_336, 224, 0.875, "center", "bicubic", IMAGENET),
    ("convnextv2_large", 197_956_840, 224, 0.875, "center", "bicubic", IMAGENET),
    ("convnext_xlarge", 350_196_968, 224, 0.875, "center", "bicubic", IMAGENET),
    ("convnextv2_huge", 660_289_640, 384, 1.0, "squash", "bicubic", IMAGENET),
    ("coatnet_0_224", 25_036_820, 224, 0.95, "center", "bicubic", HALF),
    ("coatnet_0_rw_224", 27_435_562, 224, 0.95, "center", "bicubic", HALF),
    ("coatnet_1_224", 42_225_776, 224, 0.95, "center", "bicubic", HALF),
    ("coatnet_1_rw_224", 41_721_502, 224, 0.95, "center", "bicubic", HALF),
    ("coatnet_2_224", 74_684_744, 224, 0.95, "center", "bicubic", HALF),
    ("coatnet_2_rw_224", 73_868_400, 224, 0.95, "center", "bicubic", HALF),
    ("coatnet_3_224", 166_966_264, 224, 0.95, "center", "bicubic", HALF),
    ("coatnet_3_rw_224", 165_173_428, 224, 0.95, "center", "bicubic", HALF),
    ("coatnet_4_224", 275_425_288, 224, 0.95, "center", "bicubic", HALF),
    ("coatnet_5_224", 687_472_008, 224, 0.95, "center", "bicubic", HALF),
    ("coatnet_bn_0_rw_224", 27_435_562, 224, 0.95, "center", "bicubic", IMAGENET),
    ("coatnet_nano_cc_224", 13_757_328, 224, 0.95, "center", "bicubic", HALF),
    ("coatnet_nano_rw_224", 15_141_244, 224, 0.9, "center", "bicubic", HALF),
    ("coatnet_pico_rw_224", 10_851_364, 224, 0.95, "center", "bicubic", HALF),
    ("coatnet_rmlp_0_rw_224", 27_446_074, 224, 0.95, "center", "bicubic", HALF),
    ("coatnet_rmlp_1_rw2_224", 41_724_622, 224, 0.95, "center", "bicubic", HALF),
    ("coatnet_rmlp_1_rw_224", 41_691_982, 224, 0.95, "center", "bicubic", HALF),
    ("coatnet_rmlp_2_rw_224", 73_881_264, 224, 0.95, "center", "bicubic", HALF),
    ("coatnet_rmlp_2_rw_384", 73_881_264, 384, 1.0, "squash", "bicubic", HALF),
    ("coatnet_rmlp_3_rw_224", 165_152_788, 224, 0.95, "center", "bicubic", HALF),
    ("coatnet_rmlp_nano_rw_224", 15_145_116, 224, 0.9, "center", "bicubic", HALF),
];

/// torchvision 0.29 counts the same: `sum(p.numel() for p in torchvision.models.resnet50().parameters())`. The LeNets
/// are counted by hand: 6·25+6, 16·150+16, 120·400+120, 84·120+84, 10·84+10.
const LENET: u64 = 61_706;

fn cost(name: &str) -> Cost {
    Cost::of(&variant(name).unwrap().architecture.build(1, Mode::Inference).unwrap())
}

#[test]
fn parameters_are_as_many_as_timms() {
    for (name, parameters, ..) in TIMM {
        assert_eq!(cost(name).parameters(), parameters, "{name}");
    }
    assert_eq!((cost("lenet5").parameters(), cost("lenet5_relu").parameters()), (LENET, LENET));
}

/// The table of Vision Transformers and Swins, `timm_models.csv`, is tested in `variants.rs`.
#[test]
fn every_variant_is_in_a_table() {
    let others: Vec<&str> = include_str!("timm_models.csv").lines().filter_map(|line| line.split(',').next()).collect();
    for v in variants().iter().filter(|v| v.architecture.downcast_ref::<Vit>().is_none() && v.family != "LeNet") {
        let name = v.name.as_str();
        assert!(TIMM.iter().any(|(known, ..)| *known == name) || others.contains(&name), "{name}");
    }
}

#[test]
fn preprocessing_is_timms() {
    for (name, _, image, crop_pct, crop_mode, interpolation, [mean, std]) in TIMM {
        let found = variant(name).unwrap();
        let usual = if mean == 0.5 { Preprocess::inception() } else { Preprocess::imagenet() };
        let expected = Preprocess {
            image_size: [image, image],
            crop_pct,
            crop_mode: crop_mode.parse().unwrap(),
            interpolation: interpolation.parse().unwrap(),
            ..usual
        };
        assert_eq!(found.preprocessing, expected, "{name}");
        assert_eq!((found.preprocessing.mean[0], found.preprocessing.std[0]), (mean, std), "{name}");
        assert_eq!(found.architecture.image_size(), [image, image], "{name}");
    }
}

/// FLOPs of one image of the variant's size by `torch.utils.flop_counter.FlopCounterMode` (torch 2.15, unfused attention).
const FLOPS: [(&str, u64); 21] = [
    ("resnet18", 3_628_146_688),
    ("resnet50", 8_178_368_512),
    ("resnet50d", 8_657_649_664),
    ("resnext50_32x4d", 8_460_959_744),
    ("resnetv2_50x1_bit", 8_178_368_512),
    ("vit_base_r50_s16_224", 43_070_717_952),
    ("efficientnet_b0", 771_629_504),
    ("tf_efficientnet_b0", 771_629_504),
    ("tf_efficientnetv2_s", 10_615_122_496),
    ("convnext_atto", 1_094_664_960),
    ("convnext_nano_ols", 5_282_429_440),
    ("convnext_tiny", 8_911_062_528),
    ("convnextv2_huge", 675_449_589_760),
    ("swin_tiny_patch4_window7_224", 8_981_133_312),
    ("swin_s3_tiny_224", 9_246_664_704),
    ("swinv2_tiny_window8_256", 11_879_380_992),
    ("beit_base_patch16_224", 35_127_656_448),
    ("vit_srelpos_small_patch16_224", 9_152_532_480),
    ("coatnet_0_224", 9_093_015_552),
    ("coatnet_0_rw_224", 8_812_601_856),
    ("coatnet_rmlp_1_rw_224", 15_614_198_784),
];

#[test]
fn flops_are_as_many_as_pytorch_counts() {
    for (name, flops) in FLOPS {
        assert_eq!(cost(name).flops(), flops, "{name}");
    }
}

#[test]
fn every_variant_survives_being_written_and_read() {
    for v in variants() {
        for name in [Some(v.name.clone()), None] {
            let mut architecture = v.architecture.clone();
            architecture.set_classes(7);
            architecture.set_channels(5);
            let preprocessing = Preprocess { mean: vec![0.25; 5], std: vec![0.5; 5], ..v.preprocessing.clone() };
            let labels = (0..7).map(|i| format!("c{i}")).collect();
            let problem_type = ProblemType::MultiLabel;
            let written = Config { name, architecture, preprocessing, labels, problem_type };
            let read = config::parse(&config::timm_config(&written), None).unwrap();
            assert_eq!(read.architecture, written.architecture, "{}", v.name);
            assert_eq!(read.preprocessing, written.preprocessing, "{}", v.name);
            assert_eq!(read.labels, written.labels, "{}", v.name);
            assert_eq!(read.problem_type, written.problem_type, "{}", v.name);
        }
    }
}

#[test]
fn options_that_no_named_model_has_survive_being_written_and_read() {
    let small = serde_json::json!({ "img_size": 32, "patch_size": 8, "embed_dim": 40, "depth": 1, "num_heads": 2 });
    let timm = |class: &str, more: serde_json::Value| {
        let mut args = small.clone();
        args.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        serde_json::json!({ "class": class, "args": args })
    };
    for json in [
        timm("timm.models.beit.Beit", serde_json::json!({ "swiglu_mlp": true })),
        // The hidden layer of the pooling is not aligned.
        timm(
            "timm.models.eva.Eva",
            serde_json::json!({ "swiglu_mlp": true, "swiglu_align_to": 8, "mlp_ratio": 2.7, "global_pool": "map" }),
        ),
        // Named models with such layers have another epsilon.
        timm(
            "timm.models.vision_transformer.VisionTransformer",
            serde_json::json!({ "norm_layer": { "RmsNorm": { "eps": 1e-6 } }, "embed_norm_layer": { "RmsNorm": { "eps": 1e-6 } },
                "mlp_layer": "SwiGLU", "act_layer": "silu", "mlp_ratio": 2.0 }),
        ),
        serde_json::json!({ "model_type": "dinov3_vit", "hidden_act": "silu", "mlp_bias": false, "proj_bias": false }),
        serde_json::json!({ "model_type": "data2vec-vision", "hidden_act": "relu", "drop_path_rate": 0.0 }),
        serde_json::json!({ "model_type": "convnext", "patch_size": 2 }),
        serde_json::json!({ "model_type": "convnextv2", "patch_size": 8 }),
    ] {
        let written = config::parse(&json, None).unwrap_or_else(|what| panic!("{json}: {what}"));
        written.architecture.build(1, Mode::Inference).unwrap_or_else(|what| panic!("{json}: {what}"));
        let read = config::parse(&config::timm_config(&written), None).unwrap_or_else(|what| panic!("{json}: {what}"));
        assert_eq!(read.architecture, written.architecture, "{json}");
    }
}

#[test]
fn other_depths_of_a_named_swin_changed_its_windows() {
    let json = serde_json::json!({ "architecture": "swin_s3_tiny_224", "model_args": { "depths": [1, 2, 2, 1] } });
    let read = config::parse(&json, None).unwrap();
    let swin: &Swin = read.architecture.downcast_ref().unwrap();
    assert_eq!((&swin.depths[..], &swin.windows[..]), (&[1, 2, 2, 1][..], &[[7, 7], [7, 7], [14, 14], [7, 7]][..]));
}

#[test]
fn both_layouts_say_whether_an_image_has_several_labels() {
    let found = variant("vit_tiny_patch16_224").unwrap();
    for problem_type in [ProblemType::SingleLabel, ProblemType::MultiLabel] {
        let (architecture, preprocessing) = (found.architecture.clone(), found.preprocessing.clone());
        let written = Config { name: None, architecture, preprocessing, labels: vec![], problem_type };
        let timm = config::timm_config(&written);
        let mut hugging_face = config::hugging_face_config(&written).unwrap();
        for json in [&timm, &hugging_face] {
            assert_eq!(json["problem_type"], problem_type.name());
            assert_eq!(config::parse(json, None).unwrap().problem_type, problem_type);
        }
        // Hugging Face writes null for a model without a chosen loss.
        hugging_face["problem_type"] = serde_json::Value::Null;
        assert_eq!(config::parse(&hugging_face, None).unwrap().problem_type, ProblemType::SingleLabel);
        hugging_face["problem_type"] = "regression".into();
        assert!(config::parse(&hugging_face, None).unwrap_err().contains("regression"));
    }
}

#[test]
fn every_variant_can_be_trained() {
    // A graph for training has running statistics, and an update for each.
    for name in ["resnet18", "efficientnet_b0", "coatnet_0_224"] {
        let mut architecture = variant(name).unwrap().architecture;
        architecture.set_image_size([64, 64]);
        let graph = architecture.build(2, Mode::Training).unwrap();
        let statistics = graph.parameters().filter(|(_, p)| !p.trainable).count();
        assert!(statistics > 10 && graph.updates().len() == statistics, "{name}");
        let inference = architecture.build(2, Mode::Inference).unwrap();
        assert!(inference.updates().is_empty());
        let names = |g: &vit_graph::Graph| {
            let mut all: Vec<(String, bool)> = g.parameters().map(|(_, p)| (p.name.clone(), p.trainable)).collect();
            all.sort();
            all
        };
        assert_eq!(names(&graph), names(&inference), "{name}");
    }
}

#[test]
fn regularisation_is_random_only_while_training() {
    for name in [
        "resnet18",
        "resnetv2_50x1_bit",
        "efficientnet_b0",
        "convnext_atto",
        "swin_tiny_patch4_window7_224",
        "coatnet_0_224",
    ] {
        let mut architecture = variant(name).unwrap().architecture;
        architecture.set_image_size([64, 64]);
        architecture.set_drop_path(0.1);
        architecture.set_dropout(0.2);
        let count = |mode, op: &str| {
            let graph = architecture.build(2, mode).unwrap();
            graph.nodes().iter().filter(|n| n.op.name() == op).count()
        };
        assert!(count(Mode::Training, "drop_path") > 4 && count(Mode::Training, "dropout") == 1, "{name}");
        assert_eq!(count(Mode::Inference, "drop_path") + count(Mode::Inference, "dropout"), 0, "{name}");
    }
}

#[test]
fn image_sizes_that_do_not_suit_are_refused() {
    for (name, size) in [("swin_tiny_patch4_window7_224", [30, 32]), ("coatnet_0_224", [2, 2])] {
        let mut architecture = variant(name).unwrap().architecture;
        architecture.set_image_size(size);
        assert!(architecture.build(1, Mode::Inference).is_err(), "{name}");
    }
    // Windows are padded, and clipped to the image.
    for size in [[64, 96], [224, 224], [228, 200], [256, 320]] {
        let mut architecture = variant("swin_tiny_patch4_window7_224").unwrap().architecture;
        architecture.set_image_size(size);
        architecture.build(1, Mode::Inference).unwrap();
    }
}

#[test]
fn configurations_out_of_bounds_are_refused_and_take_no_memory() {
    let refused = |class: &str, args: serde_json::Value| {
        let parsed =
            config::parse(&serde_json::json!({ "class": class, "args": args, "input_shape": [1, 3, 64, 64] }), None);
        let built = parsed.and_then(|c| c.architecture.build(1, Mode::Inference).map_err(|e| e.to_string()));
        assert!(built.is_err(), "{class}: {args}");
    };
    let huge = u64::MAX;
    for args in [
        serde_json::json!({ "layers": [1, huge] }),
        serde_json::json!({ "layers": [1], "channels": [huge], "width_factor": 64 }),
        serde_json::json!({ "stem_chs": 0 }),
        serde_json::json!({ "norm_layer": { "GroupNormAct": { "num_groups": 0 } } }),
        serde_json::json!({ "norm_layer": "EvoNorm2dS0" }),
    ] {
        refused("timm.models.resnetv2.ResNetV2", args);
    }
    for args in [
        serde_json::json!({ "depths": [] }),
        serde_json::json!({ "embed_dim": [] }),
        serde_json::json!({ "window_size": 1024, "img_size": 65536 }),
        serde_json::json!({ "window_size": [1, 2, 3], "depths": [1, 1] }),
        serde_json::json!({ "num_heads": [0, 0, 0, 0] }),
    ] {
        refused("timm.models.swin_transformer.SwinTransformer", args);
    }
    for args in [
        serde_json::json!({ "arch_def": [["ir_r18446744073709551615_k3_s1_e1_c8", "ir_r18446744073709551615_k3_s1_e1_c8"]] }),
        serde_json::json!({ "arch_def": [["ir_r1_k3_s3_e1_c8"]] }),
        serde_json::json!({ "arch_def": [] }),
        serde_json::json!({ "arch_def": [["ir_r1_k3_s1_e1_c8"]], "channel_multiplier": 1e300 }),
    ] {
        refused("timm.models.efficientnet.EfficientNet", args);
    }
    for args in [
        serde_json::json!({ "img_size": 65536 }),
        serde_json::json!({ "cfg": { "depths": [huge] } }),
        serde_json::json!({ "cfg": { "block_type": ["M", "C", "T", "T"] } }),
        serde_json::json!({ "cfg": { "transformer_cfg": { "dim_head": 0 } } }),
        serde_json::json!({ "cfg": { "transformer_cfg": { "dim_head": 7 } } }),
    ] {
        refused("timm.models.maxxvit.MaxxVit", args);
    }
    refused("timm.models.resnet.ResNet", serde_json::json!({ "layers": [1, 1], "output_stride": 7 }));
    refused("torchvision.models.resnet.ResNet", serde_json::json!({ "block": "Bottleneck", "layers": [] }));
    refused("lenet5", serde_json::json!({ "pool": "median" }));
}

/// Forms for images of 32 pixels, without published weights, with 10 classes. ResNet-18's count is that of the
/// usual CIFAR ResNet (github.com/kuangliu/pytorch-cifar); LeNet's by hand: 6·75+6, 16·150+16, 120·576+120,
/// 84·120+84, 10·84+10; DeiT's is the ViT's of its size with one token, one position and one head more.
#[test]
fn forms_for_small_images() {
    let small = |name: &str| {
        let mut variant = variant(name).unwrap_or_else(|| panic!("{name}"));
        assert_eq!((variant.architecture.image_size(), variant.architecture.channels()), ([32, 32], 3), "{name}");
        assert_eq!((variant.preprocessing.image_size, variant.preprocessing.crop_pct), ([32, 32], 1.0), "{name}");
        variant.architecture.set_classes(10);
        variant
    };
    let parameters = |name: &str| Cost::of(&small(name).architecture.build(1, Mode::Inference).unwrap()).parameters();
    assert_eq!(parameters("resnet18_cifar"), 11_173_962);
    assert_eq!(parameters("lenet5_relu_cifar"), 83_126);
    let vit = parameters("vit_lite_patch4_32");
    assert_eq!(parameters("deit_lite_patch4_32"), vit);
    assert_eq!(parameters("deit_lite_distilled_patch4_32"), vit + 256 + 256 + 2570);
    // The patch filters become 1x1 ones on 1024 channels, and the stages come before them.
    let stages = ["vit_lite_r20_s4_32", "vit_tiny_r20_s4_32"].map(|name| {
        let dim = if name.contains("lite") { 256 } else { 192 };
        let plain = parameters(&name.replace("_r20_s4_", "_patch4_"));
        parameters(name) - (plain - 48 * dim) - 1024 * dim
    });
    assert_eq!(stages[0], stages[1]);

    for name in ["resnet50_cifar", "lenet5_cifar", "vit_lite_r20_s4_32", "deit_lite_distilled_patch4_32"] {
        let found = small(name);
        let layer = found.architecture.first_filters();
        let graph = found.architecture.build(2, Mode::Training).unwrap();
        assert!(graph.parameters().any(|(_, p)| p.name == layer), "{name}: {layer}");
        for name in [Some(found.name.clone()), None] {
            let labels = (0..10).map(|i| format!("c{i}")).collect();
            let (architecture, preprocessing) = (found.architecture.clone(), found.preprocessing.clone());
            let written = Config { name, architecture, preprocessing, labels, problem_type: ProblemType::default() };
            let read = config::parse(&config::timm_config(&written), None).unwrap();
            assert_eq!(read.architecture, written.architecture, "{}", found.name);
            assert_eq!(read.preprocessing, written.preprocessing, "{}", found.name);
        }
    }
    assert_eq!(variant("R20+Lite/4@32").unwrap().name, "vit_lite_r20_s4_32");
    // Tokens of four pixels each, as the ViT has them.
    assert_eq!(small("vit_lite_r20_s4_32").architecture.patches().unwrap().grid, [8, 8]);
}
