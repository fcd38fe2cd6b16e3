//! Properties that hold for every architecture.

mod support;

use support::{FAMILY, copy, fixture, open, recorded, scratch, write};
use vit::{Embed, Model, ModelOptions, Pool, VerifyOptions, verify};
use vit_models::vit::Vit;
use vit_models::weights::safetensors::Dtype;
use vit_models::weights::{self, Tensor, Weights};
use vit_models::{Changes, Checkpoint, Layout, OpenOptions, variant};

/// One output of a checkpoint for a batch of prepared images.
fn output(checkpoint: &Checkpoint, input: &[f32], name: &str) -> Vec<f32> {
    let architecture = &checkpoint.config.architecture;
    let each = architecture.channels() * architecture.image_size().iter().product::<usize>();
    let images: Vec<Vec<f32>> = input.chunks(each).map(<[f32]>::to_vec).collect();
    let options = ModelOptions::new().batch(images.len()).threads(1).output(name);
    let device = options.device.open().unwrap();
    let mut model = Model::new(checkpoint.clone(), device.as_ref(), &options).unwrap();
    model.run_prepared(&images).unwrap();
    model.output(name, images.len()).unwrap()
}

/// Those which Hugging Face's classes can express.
const TRANSFORMERS_HAS: [&str; 5] =
    ["tv_resnet_basic", "tv_resnet_bottleneck", "timm_convnext", "timm_swin", "timm_swinv2"];

#[test]
fn saved_and_opened_again_it_is_the_same_model() {
    for case in FAMILY.into_iter().chain(["timm_swinv2"]) {
        let (original, folder) = (open(case), scratch(&format!("family_{case}")));
        original.save(&folder, Layout::Timm, Dtype::F32).unwrap();
        let reopened = Checkpoint::open(&folder, OpenOptions::default()).unwrap();
        assert_eq!(reopened.report, [""; 0], "{case}");
        assert_eq!(reopened.config.architecture, original.config.architecture, "{case}");
        assert_eq!(reopened.config.preprocessing, original.config.preprocessing, "{case}");
        assert_eq!(reopened.weights.tensors, original.weights.tensors, "{case}");
        let input = &recorded(case).tensors["input"].data;
        assert_eq!(output(&reopened, input, "logits"), output(&original, input, "logits"), "{case}");
        let theirs = scratch(&format!("family_hf_{case}"));
        match original.save(&theirs, Layout::HuggingFace, Dtype::F32) {
            Ok(_) => {
                assert!(TRANSFORMERS_HAS.contains(&case), "{case}");
                let reopened = Checkpoint::open(&theirs, OpenOptions::default()).unwrap();
                assert_eq!(output(&reopened, input, "logits"), output(&original, input, "logits"), "{case}");
            }
            Err(error) => assert!(!TRANSFORMERS_HAS.contains(&case), "{case}: {error}"),
        }
    }
}

#[test]
fn another_number_of_classes_starts_a_new_head_and_keeps_the_rest() {
    for case in FAMILY.into_iter().chain(["timm_swinv2"]) {
        let (original, mut changed) = (open(case), open(case));
        changed.change(Changes { classes: Some(3), ..Changes::default() }).unwrap();
        assert!(changed.report.iter().any(|line| line.contains("3 classes")), "{case}: {:?}", changed.report);
        let input = &recorded(case).tensors["input"].data;
        assert_eq!(output(&changed, input, "features"), output(&original, input, "features"), "{case}");
        assert!(output(&changed, input, "logits").iter().all(|&logit| logit == 0.0), "{case}");
    }
}

#[test]
fn grey_images_give_what_they_gave_as_rgb() {
    for case in FAMILY
        .into_iter()
        .filter(|case| !case.starts_with("lenet") && !case.contains("bit") && !case.contains("hybrid"))
    {
        let (original, mut grey) = (open(case), open(case));
        grey.change(Changes { channels: Some(1), ..Changes::default() }).unwrap();
        let pixels: usize = original.config.architecture.image_size().iter().product();
        let one: Vec<f32> = (0..pixels).map(|i| (i as f32 * 0.37).sin()).collect();
        let rgb = [one.clone(), one.clone(), one.clone()].concat();
        let (found, expected) = (output(&grey, &one, "logits"), output(&original, &rgb, "logits"));
        let difference = support::difference(&expected, &found);
        assert!(difference < 2e-5, "{case}: {difference:e}");
    }
}

#[test]
fn other_image_sizes_resample_what_belongs_to_a_window() {
    for (case, size, resampled) in [
        ("timm_swin", [96, 128], false),
        ("timm_swin", [32, 64], true),
        ("timm_swinv2", [128, 96], false),
        ("timm_beit", [32, 56], true),
        ("timm_relpos", [32, 56], false),
        ("timm_coatnet", [96, 64], true),
        ("timm_hybrid", [96, 64], true),
        ("tv_resnet_basic", [97, 51], false),
        ("timm_efficientnet_tf", [51, 97], false),
        ("timm_bit", [33, 65], false),
    ] {
        let mut checkpoint = open(case);
        checkpoint.change(Changes { image_size: Some(size), ..Changes::default() }).unwrap();
        let noted = checkpoint.report.iter().any(|line| line.contains("resampled"));
        assert_eq!(noted, resampled, "{case} at {size:?}: {:?}", checkpoint.report);
        let logits = output(&checkpoint, &vec![0.5; 3 * size[0] * size[1]], "logits");
        assert!(logits.iter().all(|l| l.is_finite()) && logits.iter().any(|&l| l != 0.0), "{case}");
    }
}

/// timm's `resize_rel_pos_bias_table` leaves the rows of the class token as they are.
#[test]
fn biases_of_the_class_token_do_not_depend_on_the_image_size() {
    let (before, mut after) = (open("timm_beit"), open("timm_beit"));
    after.change(Changes { image_size: Some([48, 24]), ..Changes::default() }).unwrap();
    let table = |checkpoint: &Checkpoint| {
        checkpoint.weights.tensors["blocks.1.attn.rel_pos.relative_position_bias_table"].clone()
    };
    let (before, after) = (table(&before), table(&after));
    assert_eq!((before.shape.as_slice(), after.shape.as_slice()), (&[48, 4][..], &[11 * 5 + 3, 4][..]));
    assert_eq!(before.data[45 * 4..], after.data[55 * 4..]);
}

/// Weights that do not fit say which tensor, what was found and what the model's options make of it.
#[test]
fn a_table_of_another_size_is_named() {
    let folder = copy("timm_beit", "table_of_another_size");
    let path = folder.join("model.safetensors");
    let mut weights = weights::read(&path).unwrap();
    let name = "blocks.0.attn.relative_position_bias_table";
    weights.tensors.insert(name.into(), Tensor::new(vec![40, 4], vec![0.5; 160]).unwrap());
    write(&path, &weights);
    let error = Checkpoint::open(&folder, OpenOptions::default()).unwrap_err().to_string();
    assert!(
        ["relative_position_bias_table", "[40, 4]", "[48, 4]", "`num_heads` 4, `img_size` 24x40"]
            .iter()
            .all(|part| error.contains(part)),
        "{error}"
    );
}

#[test]
fn a_change_that_fails_leaves_the_checkpoint_as_it_was() {
    let (before, mut checkpoint) = (open("lenet5"), open("lenet5"));
    let changes = Changes { image_size: Some([32, 32]), new_head: true, ..Changes::default() };
    let error = checkpoint.change(changes).unwrap_err();
    assert!(error.to_string().contains("fc1.weight"), "{error}");
    assert_eq!(checkpoint.config, before.config);
    assert_eq!(checkpoint.weights.tensors, before.weights.tensors);
    assert_eq!(checkpoint.weights.metadata, before.weights.metadata);
    assert_eq!(checkpoint.report, before.report);
}

#[test]
fn every_weight_matters() {
    for case in [
        "tv_resnet_basic",
        "timm_efficientnet_tf",
        "timm_swin",
        "timm_beit",
        "timm_coatnet",
        "timm_coatnet_rw",
        "lenet5",
    ] {
        let folder = copy(case, &format!("matters_{case}"));
        let path = folder.join("model.safetensors");
        let original = weights::read(&path).unwrap();
        for name in original.tensors.keys().filter(|name| !name.ends_with("num_batches_tracked")) {
            let mut spoilt = original.clone();
            spoilt.tensors.get_mut(name).unwrap().data.iter_mut().for_each(|v| *v = *v * 1.3 + 0.01);
            write(&path, &spoilt);
            assert!(
                !verify(&folder, &VerifyOptions::default()).unwrap().passes(),
                "{case}: nothing changed with {name}"
            );
        }
    }
}

#[test]
fn a_feature_map_takes_the_place_of_tokens() {
    let checkpoint = open("tv_resnet_bottleneck");
    let io = recorded("tv_resnet_bottleneck");
    let each = 3 * 64 * 64;
    let images: Vec<Vec<f32>> = io.tensors["input"].data.chunks(each).map(<[f32]>::to_vec).collect();
    let options = ModelOptions::new().batch(2);
    let embed = |pool| {
        let mut embed = Embed::new(checkpoint.clone(), pool, &options).unwrap();
        let found: Vec<Vec<f32>> = embed.run_prepared(&images).unwrap().into_iter().map(Result::unwrap).collect();
        (embed.shape(), found.concat())
    };
    let (shape, features) = embed(Pool::Features);
    assert_eq!(shape, [128]);
    assert!(support::difference(&features, &io.tensors["features"].data) < 2e-5);
    // A ResNet's features are the mean of its last feature map.
    let (shape, mean) = embed(Pool::Mean);
    assert_eq!(shape, [128]);
    assert!(support::difference(&mean, &features) < 1e-5);
    let (shape, patches) = embed(Pool::Patches);
    assert_eq!((shape, patches.len()), (vec![4, 128], 2 * 4 * 128));
    assert!(Embed::new(checkpoint.clone(), Pool::Class, &options).is_err());
}

#[test]
fn big_transfer_files_are_read_by_their_own_names() {
    let case = "timm_bit_fixed";
    let ours = weights::read(&fixture(case).join("model.safetensors")).unwrap();
    let mut theirs = Weights::default();
    for (name, tensor) in &ours.tensors {
        let parts: Vec<&str> = name.split('.').collect();
        let kind = |norm: bool| match (*parts.last().unwrap(), norm) {
            ("weight", false) => "kernel",
            ("weight", true) => "gamma",
            (_, true) => "beta",
            (other, _) => other,
        };
        let renamed = match parts[..] {
            ["stem", ..] => "root_block/standardized_conv2d/kernel".to_string(),
            ["norm", _] => format!("group_norm/{}", kind(true)),
            ["head", "fc", _] => format!("head/conv2d/{}", kind(false)),
            ["stages", stage, "blocks", block, layer, ..] => {
                let (stage, block): (usize, usize) = (stage.parse().unwrap(), block.parse().unwrap());
                let unit = format!("block{}/unit{:02}", stage + 1, block + 1);
                let letter = |n: &str| match n {
                    "1" => "a",
                    "2" => "b",
                    _ => "c",
                };
                match (layer.strip_prefix("conv"), layer.strip_prefix("norm")) {
                    (Some(n), _) => format!("{unit}/{}/standardized_conv2d/kernel", letter(n)),
                    (_, Some(n)) => format!("{unit}/{}/group_norm/{}", letter(n), kind(true)),
                    _ => format!("{unit}/a/proj/standardized_conv2d/kernel"),
                }
            }
            _ => panic!("{name}"),
        };
        theirs.tensors.insert(format!("resnet/{renamed}"), height_width_in_out(tensor));
    }
    let folder = copy(case, "big_transfer");
    write(&folder.join("model.safetensors"), &theirs);
    assert!(verify(&folder, &VerifyOptions::default()).unwrap().passes());
}

/// Filters `[out, in, height, width]` as Google stores them.
fn height_width_in_out(tensor: &Tensor) -> Tensor {
    let [out, channels, height, width] = tensor.shape[..] else { return tensor.clone() };
    let at = |i: usize| {
        let (o, c, pixel) = (i % out, i / out % channels, i / (out * channels));
        tensor.data[(o * channels + c) * height * width + pixel]
    };
    Tensor { shape: vec![height, width, channels, out], data: (0..tensor.data.len()).map(at).collect() }
}

#[test]
fn swins_own_names_are_understood() {
    let folder = copy("timm_swin", "original_swin");
    let path = folder.join("model.safetensors");
    let mut theirs = Weights::default();
    for (name, tensor) in weights::read(&path).unwrap().tensors {
        let name = name.replace("head.fc.", "head.");
        let name = name
            .replace("layers.1.downsample", "layers.0.downsample")
            .replace("layers.2.downsample", "layers.1.downsample");
        theirs.tensors.insert(name, tensor);
    }
    let index = Tensor::new(vec![2], vec![0.0; 2]).unwrap();
    theirs.tensors.insert("layers.0.blocks.0.attn.relative_position_index".into(), index.clone());
    theirs.tensors.insert("layers.0.blocks.1.attn_mask".into(), index);
    write(&path, &theirs);
    assert!(verify(&folder, &VerifyOptions::default()).unwrap().passes());
}

#[test]
fn weights_alone_say_what_they_are_unless_two_models_share_them() {
    let folder = scratch("weights_alone");
    let path = folder.join("model.safetensors");
    std::fs::copy(fixture("lenet5").join("model.safetensors"), &path).unwrap();
    let error = Checkpoint::open(&path, OpenOptions::default()).unwrap_err().to_string();
    assert!(error.contains("lenet5 as well as lenet5_relu"), "{error}");

    let squeezed = variant("swin_tiny_patch4_window7_224").unwrap();
    let graph = squeezed.architecture.build(1, vit_models::Mode::Inference).unwrap();
    let mut zeros = Weights::default();
    for (_, p) in graph.parameters() {
        zeros.tensors.insert(p.name.clone(), Tensor { shape: p.shape.to_vec(), data: vec![0.0; p.shape.elements()] });
    }
    let found = vit_models::guess(&zeros, weights::Scheme::Timm).unwrap();
    assert_eq!(found.name.as_deref(), Some("swin_tiny_patch4_window7_224"));

    // The stages of a hybrid are guessed from shapes, with the epsilons of the library that wrote them.
    for (case, file) in [("timm_hybrid", "model.safetensors"), ("jax_hybrid", "model.npz")] {
        let path = folder.join(file);
        std::fs::copy(fixture(case).join(file), &path).unwrap();
        let found = Checkpoint::open(&path, OpenOptions::default()).unwrap();
        let (mut found, expected) = (found.config.architecture, open(case).config.architecture);
        // Only the number of heads does not follow from shapes.
        found.downcast_mut::<Vit>().unwrap().heads = expected.downcast_ref::<Vit>().unwrap().heads;
        assert_eq!(found, expected, "{case}");
    }
}
