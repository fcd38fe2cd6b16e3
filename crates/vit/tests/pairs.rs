//! Image-text models: recorded embeddings and ids, gradients of both towers, zero-shot classifiers, and checkpoints.

mod support;

use support::{copy, fixture, open, recorded, scratch, write};
use vit::text::zero_shot;
use vit::{DeviceOptions, Embed, Error, Image, Model, ModelOptions, Pool, TextEmbed, VerifyOptions, verify};
use vit_data::tokenise::Tokeniser;
use vit_graph::autodiff::gradients;
use vit_graph::ops::{Binary, Input, Reduce};
use vit_graph::reference::{self, Array, Bindings};
use vit_graph::{DType, Type, Value};
use vit_models::clip::PairExtents;
use vit_models::weights::safetensors::Dtype;
use vit_models::weights::{self, Tensor};
use vit_models::{Checkpoint, Layout, Mode, OpenOptions, ProblemType};

/// Verifies a folder on one thread and two; exactly these arrays must have been compared.
fn agrees(case: &str, arrays: &[&str]) {
    for threads in [1, 2] {
        let options = VerifyOptions { device: DeviceOptions::new().threads(threads), ..VerifyOptions::default() };
        let verification = verify(&fixture(case), &options).unwrap();
        for array in &verification.arrays {
            assert!(array.passes(), "{case} on {threads} threads: {array:?}");
        }
        let mut compared: Vec<&str> = verification.arrays.iter().map(|a| a.name.as_str()).collect();
        compared.sort_unstable();
        assert_eq!(compared, arrays, "{case}");
    }
}

const ARRAYS: [&str; 6] =
    ["image_embeds", "image_tokens", "input_ids", "logits_per_image", "text_embeds", "text_tokens"];

#[test]
fn hf_clip() {
    agrees("hf_clip", &ARRAYS);
}

#[test]
fn hf_siglip() {
    let mut arrays = [&ARRAYS[..], &["probs", "text_embeds_masked"]].concat();
    arrays.sort_unstable();
    agrees("hf_siglip", &arrays);
}

#[test]
fn open_clip() {
    let without_texts: Vec<&str> = ARRAYS.into_iter().filter(|name| *name != "input_ids").collect();
    agrees("open_clip", &without_texts);
}

#[test]
fn clip_bpe() {
    agrees("clip_bpe", &["ids"]);
}

/// Every parameter of both towers has a gradient, which is that of finite differences in the reference interpreter.
#[test]
fn gradients_reach_both_towers() {
    for case in ["hf_clip", "hf_siglip", "open_clip"] {
        let checkpoint = open(case);
        let clip = checkpoint.image_text().unwrap();
        let (images, texts) = (2, 3);
        let mut graph = clip.build_pairs(PairExtents { images, texts, masked: false }, Mode::Inference).unwrap();
        let logits = graph.output("logits_per_image").unwrap();
        let mix = Input { name: "mix".into(), ty: Type::new(DType::F32, [images, texts]) };
        let mix = graph.value(mix, &[]).unwrap();
        let mixed = graph.value(Binary::Mul, &[logits, mix]).unwrap();
        let loss = graph.value(Reduce::sum([0, 1]), &[mixed]).unwrap();
        graph.retain_outputs(|_| false);
        graph.set_output("loss", loss).unwrap();
        let parameters: Vec<(String, Value)> =
            graph.parameters().map(|(node, p)| (p.name.clone(), Value { node, output: 0 })).collect();
        let values: Vec<Value> = parameters.iter().map(|(_, value)| *value).collect();
        for ((name, _), gradient) in parameters.iter().zip(gradients(&mut graph, loss, &values).unwrap()) {
            graph.set_output(&format!("grad.{name}"), gradient).unwrap();
        }
        let io = recorded(case);
        let ids: Vec<i32> =
            io.tensors["input_ids"].data[..texts * clip.text.context].iter().map(|v| *v as i32).collect();
        let each = io.tensors["input"].data.len() / io.tensors["input"].shape[0];
        let ends = clip.text.ends(&ids);
        let run = |changed: Option<(&str, usize, f64)>| {
            let mut bindings = Bindings::new();
            for (_, input) in graph.inputs() {
                let data: Vec<f64> = match input.name.as_str() {
                    "image" => io.tensors["input"].data[..images * each].iter().map(|v| f64::from(*v)).collect(),
                    "ids" => ids.iter().map(|id| f64::from(*id)).collect(),
                    "ends" => ends.iter().map(|end| f64::from(*end)).collect(),
                    _ => (0..images * texts).map(|i| (1.0 + i as f64).sin()).collect(),
                };
                bindings = bindings.with(&input.name, Array::new(input.ty.shape.clone(), data));
            }
            for (_, parameter) in graph.parameters() {
                let tensor = &checkpoint.weights.tensors[&parameter.name];
                let mut data: Vec<f64> = tensor.data.iter().map(|v| f64::from(*v)).collect();
                if let Some((name, index, by)) = changed.filter(|(name, ..)| *name == parameter.name) {
                    assert!(index < data.len(), "{name}");
                    data[index] += by;
                }
                bindings = bindings.with(&parameter.name, Array::new(parameter.shape.clone(), data));
            }
            reference::run(&graph, &bindings).unwrap()
        };
        let found = run(None);
        for (name, _) in &parameters {
            let gradient = found[&format!("grad.{name}")].data();
            let (index, largest) = (gradient.iter().enumerate())
                .map(|(i, g)| (i, g.abs()))
                .fold((0, 0.0), |best, next| if next.1 > best.1 { next } else { best });
            assert!(largest > 0.0, "{case}: {name} has no gradient");
            // Finite differences are slow: a few parameters of each kind.
            if name.contains("blocks.1") || name.contains("fc1") {
                continue;
            }
            let step = 1e-5;
            let difference =
                run(Some((name, index, step)))["loss"].data()[0] - run(Some((name, index, -step)))["loss"].data()[0];
            let expected = difference / (2.0 * step);
            let error = (gradient[index] - expected).abs() / expected.abs().max(1e-3);
            assert!(error < 1e-4, "{case}: {name}[{index}] {} is not {expected}", gradient[index]);
        }
    }
}

fn images() -> Vec<Image> {
    (0..2u8)
        .map(|i| Image::from_rgb(40, 32, (0..40 * 32 * 3).map(|p| (p % 251) as u8 ^ (i * 85)).collect()).unwrap())
        .collect()
}

fn cosine(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

#[test]
fn a_zero_shot_classifier_gives_the_logits_of_the_pairs() {
    for (case, kind) in [("hf_clip", ProblemType::SingleLabel), ("hf_siglip", ProblemType::MultiLabel)] {
        let labels = ["a cat".to_string(), "two dogs".to_string(), "a red car".to_string()];
        let options = ModelOptions::new().batch(2);
        let mut texts = TextEmbed::new(&open(case), &options).unwrap().normalised();
        let mut image_tower = Embed::new(open(case), Pool::Features, &options).unwrap().normalised();
        let (texts, embedded) = (texts.embed(&labels).unwrap(), image_tower.embed(&images()).unwrap());
        let weights = open(case).weights.tensors;
        let scale = weights["logit_scale"].data[0].exp();
        let bias = weights.get("logit_bias").map_or(0.0, |bias| bias.data[0]);

        let classifier = zero_shot(open(case), &labels, &[], false, &options).unwrap();
        assert_eq!((classifier.config.problem_type, &classifier.config.labels[..]), (kind, &labels[..]));
        let device = options.device.open().unwrap();
        let mut model = Model::new(classifier, device.as_ref(), &options).unwrap();
        for (image, predictions) in embedded.iter().zip(model.classify_batch(&images()).unwrap()) {
            for prediction in predictions {
                let expected = scale * cosine(image, &texts[prediction.class]) + bias;
                assert!((prediction.logit - expected).abs() < 2e-5, "{case}: {prediction:?} is not {expected}");
            }
        }
    }
}

#[test]
fn templates_are_averaged_at_length_1() {
    let options = ModelOptions::new().batch(3);
    let mut tower = TextEmbed::new(&open("hf_clip"), &options).unwrap().normalised();
    let all = tower.embed(&["a photo of a cat", "a red cat", "cat"]).unwrap();
    let sum: Vec<f32> = (0..tower.embed_dim()).map(|i| all[0][i] + all[1][i]).collect();
    let length = cosine(&sum, &sum).sqrt();
    let templates = ["a photo of a {}".to_string(), "a red {}".to_string()];
    let found = tower.classes(&["cat".to_string()], &templates).unwrap().remove(0);
    for (found, sum) in found.iter().zip(sum) {
        assert!((found - sum / length).abs() < 1e-6);
    }
    assert_eq!(tower.classes(&["cat".to_string()], &[]).unwrap()[0], all[2]);
    assert_eq!(vit::text::imagenet_templates().len(), 80);
    assert!(vit::text::imagenet_templates().iter().all(|template| template.matches("{}").count() == 1));
}

#[test]
fn texts_that_do_not_suit_are_refused() {
    let options = ModelOptions::new();
    let refusal = |result: Result<Vec<Vec<f32>>, Error>| result.unwrap_err().to_string();
    let mut tower = TextEmbed::new(&open("hf_clip"), &options).unwrap();
    let long = "a very long caption about a red car that was parked in the street for years";
    let refused = refusal(tower.embed(&[long]));
    assert!(refused.contains("tokens, and the model reads at most 16"), "{refused}");
    assert_eq!(refusal(tower.classes(&[], &[])), "there are no labels");
    let template = ["a photo".to_string()];
    let refused = refusal(tower.classes(&["cat".to_string()], &template));
    assert_eq!(refused, "the template `a photo` has no {} where the label goes");
    let mut tower = TextEmbed::new(&open("hf_clip"), &options).unwrap().truncating(true);
    assert_eq!(tower.embed(&[long]).unwrap()[0].len(), tower.embed_dim());

    let refused = |case| TextEmbed::new(&open(case), &options).err().unwrap().to_string();
    assert_eq!(refused("timm_vit"), "this model has no text tower");
    let missing = refused("open_clip");
    assert!(missing.contains("open_clip: there is no tokenizer.json") && missing.contains("90 tokens"), "{missing}");
}

#[test]
fn image_text_models_are_saved_with_their_tokeniser() {
    for case in ["hf_clip", "hf_siglip", "open_clip"] {
        let folder = scratch(&format!("saved_{case}"));
        let checkpoint = open(case);
        checkpoint.save(&folder, Layout::Timm, Dtype::F32).unwrap();
        let again = Checkpoint::open(&folder, OpenOptions::default()).unwrap();
        assert_eq!(again.config, checkpoint.config, "{case}");
        assert_eq!(again.weights.tensors, checkpoint.weights.tensors, "{case}");
        assert_eq!(again.tokenizer, checkpoint.tokenizer, "{case}");
        assert_eq!(again.fingerprint(), checkpoint.fingerprint());
    }
}

/// Bright images are cats, dark ones dogs.
#[cfg(feature = "train")]
struct Shades(Vec<String>);

#[cfg(feature = "train")]
impl vit::data::Samples for Shades {
    fn len(&self) -> usize {
        16
    }

    fn classes(&self) -> &[String] {
        &self.0
    }

    fn labels(&self, index: usize) -> &[u32] {
        [&[0][..], &[1]][index % 2]
    }

    fn name(&self, index: usize) -> String {
        index.to_string()
    }

    fn image(&self, index: usize) -> Result<Image, vit::data::ImageError> {
        let shade = if index.is_multiple_of(2) { 200 } else { 20 } + index as u8;
        Ok(Image::from_rgb(32, 32, vec![shade; 3 * 32 * 32]).unwrap())
    }
}

#[cfg(feature = "train")]
#[test]
fn pairs_train_both_towers_or_the_text_tower_alone() {
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;

    use vit::data::Samples;
    use vit_train::{
        Existing, Launch, ModelChoice, Observer, Processes, Recipe, RunFolder, RunSettings, Setup, ShardedState,
        TrainerOptions, columns, train,
    };

    struct Unobserved;
    impl Observer for Unobserved {}

    let samples: Arc<dyn Samples> = Arc::new(Shades(vec!["cat".into(), "dog".into()]));
    let template = "a {}".to_string();
    let lit = "model.freeze=[\"*\", \"!text.*\", \"!logit_*\"]";
    for (case, frozen_image) in [("hf_clip", false), ("hf_clip", true), ("hf_siglip", false)] {
        let mut recipe = Recipe::named("clip").unwrap();
        let short = ["batch=8", "length=40 steps", "evaluate_every=20 steps", "schedule.rate=3e-3", "data.crop=centre"];
        recipe.set_all(short.into_iter().chain(frozen_image.then_some(lit))).unwrap();
        let settings = RunSettings {
            model: case.into(),
            data: "shades".into(),
            validation: None,
            template: Some(template.clone()),
            validation_fraction: 0.25,
            fraction: 1.0,
            max_unreadable: 0.05,
            skip_non_finite: false,
            precision: "f32".into(),
        };
        let options = TrainerOptions {
            threads: 2,
            cache_bytes: 0,
            save_every: std::time::Duration::MAX,
            recompute: false,
            processes: Processes::default(),
            sharded: ShardedState::None,
        };
        let choice = ModelChoice::ImageText(&fixture(case));
        let mut setup = Setup::of_samples(samples.clone(), choice, None, settings, recipe).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let config = setup.to_toml(&Launch::default());
        let run = RunFolder::create(folder.path().join("run"), &config, Existing::Refuse).unwrap();
        let device = DeviceOptions::new().threads(2).open().unwrap();
        train(device.as_ref(), &mut setup, &run, None, &options, &mut Unobserved, &AtomicBool::new(false)).unwrap();
        let rows = run.rows().unwrap();
        for column in [columns::TRAIN_LOSS, columns::VAL_LOSS] {
            let losses: Vec<f64> = rows.iter().filter_map(|row| row.get(column)).collect();
            assert!(losses.len() >= 2 && losses.last() < losses.first(), "{case}: {column} {losses:?}");
        }

        // The checkpoint has the model's own tokeniser.
        let (before, trained) = (open(case), Checkpoint::open(run.last().path(), OpenOptions::default()).unwrap());
        assert!(before.tokenizer.is_some() && trained.tokenizer == before.tokenizer, "{case}");
        let changed = |name: &str| trained.weights.tensors[name] != before.weights.tensors[name];
        assert!(changed("text.blocks.0.attn.qkv.weight") && changed("logit_scale"), "{case}");
        assert_eq!(changed("blocks.0.attn.qkv.weight"), !frozen_image, "{case}");
        let options = ModelOptions::new();
        let classifier =
            zero_shot(trained, samples.classes(), std::slice::from_ref(&template), false, &options).unwrap();
        let mut model = Model::new(classifier, device.as_ref(), &options).unwrap();
        for index in 0..2 {
            let best = model.classify(&samples.image(index).unwrap()).unwrap().remove(0);
            assert_eq!(best.class, index, "{case}, frozen image tower: {frozen_image}");
        }
    }
}

/// The head of an image tower is the projection, which a classifier replaces.
#[test]
fn the_image_tower_alone_is_a_vision_transformer() {
    for case in ["hf_clip", "hf_siglip", "open_clip"] {
        let io = recorded(case);
        let tower = open(case).into_image_tower().unwrap();
        let output = if tower.config.architecture.classes() > 0 { "logits" } else { "features" };
        let input = &io.tensors["input"];
        let options = ModelOptions::new().batch(input.shape[0]).output(output);
        let device = options.device.open().unwrap();
        let mut model = Model::new(tower, device.as_ref(), &options).unwrap();
        let images: Vec<Vec<f32>> = input.data.chunks(input.data.len() / input.shape[0]).map(<[f32]>::to_vec).collect();
        model.run_prepared(&images).unwrap();
        let found = model.output(output, images.len()).unwrap();
        let expected = &io.tensors["image_embeds"];
        for (found, expected) in found.chunks(expected.shape[1]).zip(expected.data.chunks(expected.shape[1])) {
            let length = cosine(found, found).sqrt();
            let scaled: Vec<f32> = found.iter().map(|v| v / length).collect();
            assert!(support::difference(&scaled, expected) < 2e-5, "{case}");
        }
    }
}

#[test]
fn a_missing_tensor_of_the_text_tower_is_named() {
    let folder = copy("hf_clip", "without_a_text_tensor");
    let path = folder.join("model.safetensors");
    let mut weights = weights::read(&path).unwrap();
    weights.tensors.remove("text_projection.weight");
    let other = Tensor::new(vec![604, 8], vec![0.0; 604 * 8]).unwrap();
    weights.tensors.insert("text_model.embeddings.token_embedding.weight".into(), other);
    write(&path, &weights);
    let error = Checkpoint::open(&folder, OpenOptions::default()).unwrap_err().to_string();
    assert!(error.contains("`text_projection.weight` is missing, expected [32, 40]"), "{error}");
    assert!(
        error.contains("`text_model.embeddings.token_embedding.weight` has shape [604, 8], expected [604, 40]"),
        "{error}"
    );
}

/// As in OpenCLIP, whose classes have other defaults with a Hugging Face tokeniser and without.
#[test]
fn texts_of_an_open_clip_folder_are_cleaned_as_its_configuration_says() {
    let folder = copy("open_clip", "cleaning");
    std::fs::copy(fixture("hf_clip").join("tokenizer.json"), folder.join("tokenizer.json")).unwrap();
    let path = folder.join("open_clip_config.json");
    let config: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    let name = ("hf_tokenizer_name", serde_json::json!("timm/ViT-B-16-SigLIP"));
    let canonicalize = ("tokenizer_kwargs", serde_json::json!({ "clean": "canonicalize" }));
    for (options, expected, same) in [
        (vec![], "lower", false),
        (vec![name.clone()], "whitespace", false),
        (vec![name, canonicalize.clone()], "canonicalize", true),
        (vec![canonicalize], "canonicalize", true),
    ] {
        let mut config = config.clone();
        let text = config.pointer_mut("/model_cfg/text_cfg").unwrap().as_object_mut().unwrap();
        text.extend(options.into_iter().map(|(key, value)| (key.to_string(), value)));
        std::fs::write(&path, config.to_string()).unwrap();
        let checkpoint = Checkpoint::open(&folder, OpenOptions::default()).unwrap();
        assert_eq!(checkpoint.tokenizer.as_ref().unwrap().config["open_clip_clean"], expected);
        let tokeniser = vit::text::tokeniser_of(&checkpoint).unwrap();
        let ids = |text: &str| tokeniser.encode(text).unwrap().ids;
        assert_eq!(ids("a. cat") == ids("a cat"), same, "{expected}");
        // It stays with the model.
        let saved = scratch("cleaning_saved");
        checkpoint.save(&saved, Layout::Timm, Dtype::F32).unwrap();
        assert_eq!(Checkpoint::open(&saved, OpenOptions::default()).unwrap().tokenizer, checkpoint.tokenizer);
    }
}

/// Every recording of `bench/parity --clip`, in the folder that `VIT_RECORDINGS` names: models, and texts with their ids.
#[test]
#[ignore = "run by bench/parity --clip"]
fn recordings_of_image_text_models() {
    let folder = std::path::PathBuf::from(std::env::var_os("VIT_RECORDINGS").unwrap());
    let mut cases: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    cases.retain(|case| case.join("io.safetensors").is_file());
    cases.sort();
    assert!(!cases.is_empty(), "no recordings");
    let mut wrong = Vec::new();
    for case in &cases {
        let name = case.file_name().unwrap().to_string_lossy().into_owned();
        match verify(case, &VerifyOptions::default()) {
            Ok(verification) => {
                let worst = verification.arrays.iter().filter_map(|a| a.difference).fold(0.0, f64::max);
                println!("{name}: {} arrays differ by at most {worst:.1e}", verification.arrays.len());
                if !verification.passes() {
                    wrong.push(name);
                }
            }
            Err(error) => {
                println!("{name}: {error}");
                wrong.push(name);
            }
        }
    }
    let texts = std::fs::read_to_string(folder.join("texts/texts.json")).unwrap();
    let texts: Vec<serde_json::Value> = serde_json::from_str(&texts).unwrap();
    let json = std::fs::read_to_string(folder.join("texts/tokenizer.json")).unwrap();
    let config = std::fs::read_to_string(folder.join("texts/tokenizer_config.json")).unwrap();
    let transformers = Tokeniser::from_json(&json, &serde_json::from_str(&config).unwrap(), 77).unwrap();
    for (library, tokeniser) in [("open_clip", Tokeniser::clip(77)), ("transformers", transformers)] {
        let differs = |recorded: &&serde_json::Value| {
            let found = tokeniser.encode(recorded["text"].as_str().unwrap()).unwrap().ids;
            let expected: Vec<i32> = serde_json::from_value(recorded[library].clone()).unwrap();
            found != expected
        };
        let different: Vec<_> = texts.iter().filter(differs).collect();
        println!("{library}: {} of {} texts have other ids", different.len(), texts.len());
        for recorded in different.iter().take(10) {
            println!("  {:?}", recorded["text"].as_str().unwrap());
        }
        if !different.is_empty() {
            wrong.push(library.into());
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join(", "));
}
