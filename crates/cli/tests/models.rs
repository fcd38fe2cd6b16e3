//! `vit models` and `vit info`.

mod support;

use support::{model, vit};

#[test]
fn models_are_listed_and_filtered() {
    let all = vit(["models", "--json"]).code(0).json();
    let base = vit(["models", "BASE", "--json"]).code(0).json();
    let (all, base) = (all.as_array().unwrap(), base.as_array().unwrap());
    assert!(base.len() > 3 && base.len() < all.len());
    assert!(base.iter().all(|m| m["name"].as_str().unwrap().contains("base")));
    assert!(all.iter().all(|m| m["parameters"].is_u64() && m["flops"].is_u64()));
    let table = vit(["models", "base"]).code(0);
    // One heading for the table and one per family.
    let families: std::collections::BTreeSet<&str> = base.iter().map(|m| m["family"].as_str().unwrap()).collect();
    assert_eq!(table.out.lines().count(), base.len() + 1 + families.len());
    assert!(families.iter().all(|family| table.out.lines().any(|l| l == *family)), "{}", table.out);
    let every = vit(["models"]).code(0);
    assert!(every.out.lines().all(|l| l.chars().count() <= 80), "{}", every.out);
    let named = |line: &str, family: &str| line.strip_prefix(family).is_some_and(|rest| rest.starts_with("  "));
    assert!(families.iter().all(|family| every.out.lines().any(|line| named(line, family))), "{}", every.out);
    assert!(vit(["models", "no such thing"]).code(1).err.contains("`vit models` lists them all"));
}

#[test]
fn heads_and_licences_of_published_weights_are_listed() {
    let models = vit(["models", "--json"]).code(0).json();
    let find = |name: &str| models.as_array().unwrap().iter().find(|m| m["name"] == name).unwrap().clone();
    for (name, head, licence) in [
        ("vit_base_patch14_dinov2", "none", Some("apache-2.0")),
        ("vit_large_patch14_clip_quickgelu_224", "embedding of 768", Some("apple-ascl")),
        ("vit_medium_patch16_gap_240", "11821 classes", Some("apache-2.0")),
        ("vit_base_patch16_xp_224", "1000 classes", None),
    ] {
        let found = find(name);
        assert_eq!((found["head"].as_str(), found["licence"].as_str()), (Some(head), licence), "{name}");
    }
}

#[test]
fn the_figures_of_vit_base_are_the_published_ones() {
    for name in ["vit_base_patch16_224", "B/16"] {
        let info = vit(["info", name, "--json"]).code(0).json();
        assert_eq!(info["parameters"].as_u64(), Some(86_567_656));
        let flops = info["flops"].as_u64().unwrap() as f64;
        assert!((flops / 35.1e9 - 1.0).abs() < 0.01, "{flops}");
        assert_eq!(info["model"], "vit_base_patch16_224");
        assert!(info.get("layers").is_none());
    }
    assert!(vit(["info", "B/16"]).code(0).out.contains("86,567,656"));
}

#[test]
fn every_family_has_its_figures() {
    // Parameters as timm counts them, FLOPs as PyTorch does; see the tables in the tests of vit-models.
    for (name, parameters, flops) in [
        ("resnet50", 25_557_032, 8_178_368_512u64),
        ("ResNet-50", 25_557_032, 8_178_368_512),
        ("resnetv2_50x1_bit", 25_549_352, 8_178_368_512),
        ("tf_efficientnet_b0.ns_jft_in1k", 5_288_548, 771_629_504),
        ("convnext_atto", 3_695_520, 1_094_664_960),
        ("swin_tiny_patch4_window7_224", 28_288_354, 8_981_133_312),
        ("coatnet_0_rw_224", 27_435_562, 8_812_601_856),
        ("R50+B/16", 98_659_112, 43_070_717_952),
    ] {
        let info = vit(["info", name, "--json"]).code(0).json();
        assert_eq!((info["parameters"].as_u64(), info["flops"].as_u64()), (Some(parameters), Some(flops)), "{name}");
    }
}

#[test]
fn layers_add_up_and_a_batch_takes_memory() {
    let one = vit(["info", "vit_tiny_patch16_224", "--layers", "--json"]).code(0).json();
    let eight = vit(["info", "vit_tiny_patch16_224", "--batch", "8", "--json"]).code(0).json();
    let sum = |field: &str| one["layers"].as_array().unwrap().iter().map(|l| l[field].as_u64().unwrap()).sum::<u64>();
    assert_eq!(Some(sum("parameters")), one["parameters"].as_u64());
    assert_eq!(Some(sum("flops")), one["flops"].as_u64());
    assert_eq!(one["flops"], eight["flops"]);
    assert!(eight["activation_bytes"].as_u64() > one["activation_bytes"].as_u64());
}

#[test]
fn a_folder_its_config_and_its_weights_are_all_a_model() {
    let folder = model("timm_vit");
    for path in [folder.clone(), folder.join("config.json"), folder.join("model.safetensors")] {
        let info = vit(["info".as_ref(), path.as_os_str(), "--json".as_ref()]).code(0).json();
        assert_eq!((&info["classes"], &info["image_size"]), (&11.into(), &serde_json::json!([32, 32])));
    }
}

#[test]
fn what_is_no_model_is_explained() {
    let misspelt = vit(["info", "vit_bse_patch16_224"]).code(1);
    assert!(misspelt.err.contains("did you mean vit_base_patch16_224"), "{}", misspelt.err);
    let size = vit(["info", "B/16", "--image-size", "7"]).code(1);
    assert!(size.err.contains("7x7") && size.err.contains("--image-size"), "{}", size.err);
    let empty = tempfile::tempdir().unwrap();
    let folder = vit(["info".as_ref(), empty.path().as_os_str()]).code(1);
    assert!(folder.err.contains("there are no weights here"), "{}", folder.err);
}
