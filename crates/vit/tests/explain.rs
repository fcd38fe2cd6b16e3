//! Explanations of every recorded model: of all kinds, with and without class, distillation and register tokens,
//! rectangular, pooled in every way.

mod support;

use support::{CASES, FAMILY, open, recorded};
use vit::{Explain, ModelOptions, Precision};
use vit_insight::{Attention, ExplainOptions, Explanation, Inspector, Method, Sample, Subject, report, rollout};
use vit_models::vit::Vit;
use vit_models::weights::safetensors;
use vit_models::{Architecture, Changes, Checkpoint};

fn options(method: Option<Method>) -> ExplainOptions {
    ExplainOptions { method, top: 2, ..ExplainOptions::default() }
}

/// The recorded images of a model.
fn inputs(case: &str, checkpoint: &Checkpoint) -> Vec<Vec<f32>> {
    let architecture = &checkpoint.config.architecture;
    let each = architecture.channels() * architecture.image_size().iter().product::<usize>();
    recorded(case).tensors["input"].data.chunks(each).map(<[f32]>::to_vec).collect()
}

fn explain(
    checkpoint: &Checkpoint,
    method: Option<Method>,
    inputs: &[Vec<f32>],
) -> Result<Vec<Explanation>, vit::Error> {
    let model = ModelOptions::new().batch(inputs.len()).threads(1);
    let mut model = Explain::new(checkpoint.clone(), &options(method), &model)?;
    model.explain_prepared(&inputs.iter().map(Vec::as_slice).collect::<Vec<_>>())?.into_iter().collect()
}

fn refused(checkpoint: &Checkpoint, method: Method, inputs: &[Vec<f32>]) -> String {
    explain(checkpoint, Some(method), inputs).expect_err("it should be refused").to_string()
}

fn attends(architecture: &Architecture) -> bool {
    ["Vision Transformer", "Swin Transformer", "Swin Transformer V2", "CoAtNet"].contains(&architecture.kind())
}

/// Models with rotary positions.
const ROTARY: [&str; 3] = ["timm_eva02", "timm_dinov3", "timm_rope_mixed"];

const ATTENTION: Method = Method::Attention { layer: None, head: None };

#[test]
fn every_model_can_be_explained_by_every_method_that_suits_it() {
    for case in CASES.into_iter().chain(FAMILY).chain(["timm_swinv2"]).chain(ROTARY) {
        let checkpoint = open(case);
        let architecture = &checkpoint.config.architecture;
        let inputs = inputs(case, &checkpoint);
        let is_vit = architecture.downcast_ref::<Vit>().is_some();
        let has_attention = attends(architecture);
        let mut methods = vec![(None, if is_vit { 3 } else { 2 }), (Some(Method::GradCam), 2)];
        if is_vit {
            methods.extend([(Some(Method::Rollout), 1), (Some(Method::Gradient), 2)]);
        }
        if has_attention {
            methods.push((Some(ATTENTION), 1));
            methods.push((Some(Method::Attention { layer: Some(0), head: Some(0) }), 1));
        }
        for (method, maps) in methods {
            let found = explain(&checkpoint, method, &inputs).unwrap_or_else(|e| panic!("{case} {method:?}: {e}"));
            assert_eq!(found.len(), inputs.len());
            for explanation in found {
                assert_eq!(explanation.maps.len(), maps, "{case} {method:?}");
                assert!((explanation.probabilities.iter().sum::<f32>() - 1.0).abs() < 1e-5);
                for (subject, map) in &explanation.maps {
                    assert!(map.values().iter().all(|v| v.is_finite() && *v >= 0.0), "{case} {method:?} {subject}");
                }
                let some = explanation.maps.iter().any(|(_, map)| map.range()[1] > map.range()[0]);
                // A map of one cell is constant.
                let cells = explanation.maps[0].1.values().len();
                assert!(some || cells == 1, "{case} {method:?}: nothing but even maps");
            }
        }
        if !is_vit {
            let message = refused(&checkpoint, Method::Rollout, &inputs);
            assert!(message.contains("use gradcam"), "{case}: {message}");
        }
        if !has_attention {
            assert!(refused(&checkpoint, ATTENTION, &inputs).contains("no attention"), "{case}");
        }
    }
}

#[test]
fn rollout_is_that_of_the_attention_recorded_from_timm() {
    for (case, depth, prefix) in [("timm_vit", 3, 1), ("timm_vit_modern", 2, 5)] {
        let (checkpoint, io) = (open(case), recorded(case));
        let inputs = inputs(case, &checkpoint);
        let found = explain(&checkpoint, Some(Method::Rollout), &inputs).unwrap();
        for (image, explanation) in found.iter().enumerate() {
            let layer = |i: usize| {
                let tensor = &io.tensors[&format!("attention_{i}")];
                let [heads, tokens] = [tensor.shape[1], tensor.shape[2]];
                let each = heads * tokens * tokens;
                Attention::new(heads, tokens, &tensor.data[image * each..(image + 1) * each]).unwrap()
            };
            let layers: Vec<Attention> = (0..depth).map(layer).collect();
            let tokens = layers[0].tokens();
            let flow = rollout(&layers).unwrap();
            let vit: &Vit = checkpoint.config.architecture.downcast_ref().unwrap();
            // The tokens that are pooled: the class token, or all patches equally.
            let expected: Vec<f32> = if vit.pooling == vit_models::vit::Pooling::Token {
                flow[prefix..tokens].to_vec()
            } else {
                let rows = (tokens - prefix) as f32;
                (prefix..tokens)
                    .map(|key| (prefix..tokens).map(|q| flow[q * tokens + key]).sum::<f32>() / rows)
                    .collect()
            };
            let (subject, map) = &explanation.maps[0];
            assert_eq!(*subject, Subject::Answer);
            for (f, e) in map.values().iter().zip(&expected) {
                assert!((f - e).abs() < 1e-5, "{case}: {f}, from the recording {e}");
            }
        }
    }
}

#[test]
fn grad_cam_of_pooled_features_is_the_heads_own_map() {
    // Before a mean and one linear layer, the gradient of a channel is its weight over the number of pixels (CAM, Zhou et
    // al., 2016).
    let case = "tv_resnet_bottleneck";
    let checkpoint = open(case);
    let inputs = inputs(case, &checkpoint);
    let found = explain(&checkpoint, Some(Method::GradCam), &inputs).unwrap();
    let options = ModelOptions::new().batch(inputs.len()).threads(1).output("feature_map");
    let device = options.device.open().unwrap();
    let mut model = vit::Model::new(checkpoint.clone(), device.as_ref(), &options).unwrap();
    model.run_prepared(&inputs).unwrap();
    let features = model.output("feature_map", inputs.len()).unwrap();
    let head = &checkpoint.weights.tensors["fc.weight"];
    let (channels, each) = (head.shape[1], features.len() / inputs.len());
    for (explanation, features) in found.iter().zip(features.chunks(each)) {
        let places = (each / channels) as f32;
        for (subject, map) in &explanation.maps {
            let Subject::Class(class) = subject else { panic!("{subject}") };
            let weights = &head.data[class * channels..][..channels];
            for (found, place) in map.values().iter().zip(features.chunks(channels)) {
                let sum: f32 = place.iter().zip(weights).map(|(f, w)| f * w).sum();
                let expected = (sum / places).max(0.0);
                assert!((found - expected).abs() < 1e-5, "{found}, not {expected}");
            }
        }
    }
}

#[test]
fn class_maps_without_a_class_token_start_from_what_each_token_adds() {
    // Recorded with JAX in f64 and explicit attention; the contributions of the last tokens were checked to sum to the logit.
    for case in ["timm_vit_gap", "timm_vit_gap_notoken"] {
        let checkpoint = open(case);
        let inputs = inputs(case, &checkpoint);
        let recorded = safetensors::read(&support::fixture(case).join("class_maps.safetensors")).unwrap();
        let maps = &recorded.tensors["maps"];
        let [images, classes, places] = maps.shape[..] else { panic!("{:?}", maps.shape) };
        let options = ExplainOptions { classes: (0..classes).collect(), ..options(Some(Method::Gradient)) };
        let model = ModelOptions::new().batch(images).threads(1);
        let mut model = Explain::new(checkpoint, &options, &model).unwrap();
        let found = model.explain_prepared(&inputs.iter().map(Vec::as_slice).collect::<Vec<_>>()).unwrap();
        for (explanation, expected) in found.iter().flatten().zip(maps.data.chunks(classes * places)) {
            assert_eq!(explanation.maps.len(), classes);
            for (class, ((subject, map), expected)) in explanation.maps.iter().zip(expected.chunks(places)).enumerate()
            {
                assert_eq!(*subject, Subject::Class(class));
                let difference = support::difference(map.values(), expected);
                assert!(difference < 1e-6, "{case}, class {class}: {difference}");
            }
            let ranges: Vec<_> = explanation.maps.iter().filter_map(|(_, map)| map.range_by_mean()).collect();
            assert!(ranges.iter().any(|[low, high]| *low < 0.2 && *high > 1.4), "{case}: nearly even, {ranges:?}");
        }
    }
}

#[test]
fn chosen_classes_get_maps_in_the_order_given() {
    for case in ["timm_vit", "timm_vit_map", "timm_swin"] {
        let checkpoint = open(case);
        let inputs = inputs(case, &checkpoint);
        let explain = |classes: &[usize], method| {
            let options = ExplainOptions { classes: classes.to_vec(), ..options(method) };
            let mut model = Explain::new(checkpoint.clone(), &options, &ModelOptions::default())?;
            let found = model.explain_prepared(&[&inputs[0]])?.remove(0)?;
            Ok::<_, vit::Error>((model.maps(), found))
        };
        let count = checkpoint.config.architecture.classes();
        let (_, all) = explain(&(0..count).collect::<Vec<_>>(), None).unwrap();
        let (names, two) = explain(&[5, 2], None).unwrap();
        assert_eq!(names[names.len() - 2..], ["class 5", "class 2"], "{case}");
        let own = |found: &Explanation, class| {
            found.maps.iter().find(|(s, _)| *s == Subject::Class(class)).unwrap().1.clone()
        };
        let classes: Vec<&Subject> = two.maps.iter().map(|(subject, _)| subject).collect();
        assert_eq!(classes[classes.len() - 2..], [&Subject::Class(5), &Subject::Class(2)], "{case}");
        for class in [5, 2] {
            let difference = support::difference(own(&all, class).values(), own(&two, class).values());
            assert!(difference < 1e-5, "{case}: {difference}");
        }
        let error = explain(&[count], None).err().unwrap().to_string();
        assert_eq!(error, format!("there is no class {count}; there are 0 to {}", count - 1));
        let error = explain(&[1], Some(ATTENTION)).err().unwrap().to_string();
        assert!(error.contains("gradient or gradcam"), "{error}");
    }
}

#[test]
fn a_classs_map_is_about_that_class() {
    let checkpoint = open("timm_vit");
    let inputs = inputs("timm_vit", &checkpoint);
    for explanation in explain(&checkpoint, Some(Method::Gradient), &inputs).unwrap() {
        let [(first, one), (second, two)] = explanation.maps.as_slice() else { panic!() };
        let (Subject::Class(first), Subject::Class(second)) = (first, second) else { panic!() };
        assert!(explanation.logits[*first] >= explanation.logits[*second]);
        assert_ne!(one.values(), two.values());
    }
}

#[test]
fn batches_do_not_change_maps() {
    let checkpoint = open("timm_vit_modern");
    let inputs = inputs("timm_vit_modern", &checkpoint);
    let together = explain(&checkpoint, None, &inputs).unwrap();
    for (input, together) in inputs.iter().zip(&together) {
        let alone = &explain(&checkpoint, None, std::slice::from_ref(input)).unwrap()[0];
        for ((a, one), (b, other)) in alone.maps.iter().zip(&together.maps) {
            assert_eq!(a, b);
            let difference = support::difference(one.values(), other.values());
            assert!(difference < 1e-5, "{a}: {difference}");
        }
    }
}

#[test]
fn what_cannot_be_shown_is_said_with_a_way_out() {
    let checkpoint = open("timm_vit");
    let inputs = inputs("timm_vit", &checkpoint);
    let layer = refused(&checkpoint, Method::Attention { layer: Some(9), head: None }, &inputs);
    assert_eq!(layer, "there is no layer 9; there are 0 (blocks.0.attn) to 2 (blocks.2.attn)");
    let head = refused(&checkpoint, Method::Attention { layer: None, head: Some(99) }, &inputs);
    assert!(head.starts_with("there is no head 99 in blocks.2.attn; there are 0 to "), "{head}");

    let mut headless = checkpoint.clone();
    headless.change(Changes { classes: Some(0), ..Changes::default() }).unwrap();
    assert_eq!(explain(&headless, None, &inputs).unwrap()[0].maps.len(), 1, "rollout needs no head");
    assert!(refused(&headless, Method::Gradient, &inputs).contains("no classification head"));

    let int8 = ModelOptions::new().precision(Precision::Int8);
    let error = Explain::new(checkpoint, &options(None), &int8).err().unwrap().to_string();
    assert!(error.contains("int8 has no gradients"), "{error}");
}

#[test]
fn every_model_can_be_inspected_with_and_without_images() {
    let device = vit::DeviceOptions::new().device(vit::DeviceChoice::Cpu).threads(1).open().unwrap();
    for case in CASES.into_iter().chain(FAMILY).chain(["timm_swinv2"]).chain(ROTARY) {
        let checkpoint = open(case);
        let inputs = inputs(case, &checkpoint);
        let [height, width] = checkpoint.config.architecture.image_size();
        let seen = vit_data::Image::from_rgb(width, height, vec![100; width * height * 3]).unwrap();
        for images in [0, inputs.len()] {
            let mut inspector = Inspector::new(&checkpoint.config, &checkpoint.weights, device.as_ref(), 2).unwrap();
            for group in inputs[..images].chunks(2) {
                let sample = |input| Sample { name: "a.jpg", seen: &seen, input, shown: true, label: Some(1) };
                inspector.add(&group.iter().map(|input| sample(input.as_slice())).collect::<Vec<_>>()).unwrap();
            }
            let inspection = inspector.finish().unwrap_or_else(|e| panic!("{case}: {e}"));
            let names: Vec<&str> = inspection.figures.iter().map(|figure| figure.name).collect();
            assert!(names.contains(&"filters") && names.contains(&"receptive_field"), "{case}: {names:?}");
            let attends = attends(&checkpoint.config.architecture);
            assert_eq!(names.contains(&"attention_distance"), attends && images > 0, "{case}: {names:?}");
            let relative = ["timm_beit", "timm_relpos", "timm_swin", "timm_swinv2", "timm_coatnet", "timm_coatnet_rw"];
            assert_eq!(names.contains(&"relative"), relative.contains(&case), "{case}: {names:?}");
            assert_eq!(names.contains(&"rotary"), ROTARY.contains(&case), "{case}: {names:?}");
            for figure in &inspection.figures {
                figure.scene.assert_readable();
            }
            let files = vec![vec![]; inspection.figures.len()];
            let page = report("title", "", &[], &inspection, &files);
            assert!(
                !page.contains("http:")
                    || page.matches("http:").count() == page.matches("http://www.w3.org/2000/svg").count()
            );
        }
    }
}

#[test]
fn what_nobody_asks_for_costs_nothing() {
    use vit_graph::memory::MemoryPlan;
    use vit_graph::rewrite::eliminate_dead_code;
    let architecture = open("timm_vit").config.architecture;
    let planned = |asked: Option<&str>| {
        let mut graph = architecture.build(1, vit_models::Mode::Inference).unwrap();
        asked.iter().for_each(|tap| graph.request(tap).unwrap());
        graph.retain_outputs(|name| name == "logits" || Some(name) == asked);
        let graph = eliminate_dead_code(&graph).unwrap();
        let plan = MemoryPlan::new(&graph, |_| 0, |_| false);
        let written = graph.taps().iter().filter(|(name, _)| name.ends_with(".weights"));
        let written = written.filter(|(_, value)| plan.range(&graph, **value).is_some()).count();
        (graph.nodes().len(), written, plan.arena_bytes)
    };
    let (nodes, written, bytes) = planned(None);
    assert_eq!(written, 0, "attention weights are not even written");
    let (same, one, more) = planned(Some("blocks.1.attn.weights"));
    assert_eq!((same, one), (nodes, 1), "the same operations, and one of them writes its weights too");
    assert!(more > bytes, "{more} bytes with weights, {bytes} without");
    assert_eq!(planned(Some("blocks.1.attn")).0, nodes);
}

#[test]
fn the_last_attention_can_be_asked_for_alone() {
    let checkpoint = open("timm_vit");
    let inputs = inputs("timm_vit", &checkpoint);
    let options = ModelOptions::new().batch(inputs.len()).threads(1).output("blocks.2.attn.weights");
    let device = options.device.open().unwrap();
    let mut model = vit::Model::new(checkpoint.clone(), device.as_ref(), &options).unwrap();
    model.run_prepared(&inputs).unwrap();
    let found = model.output("blocks.2.attn.weights", inputs.len()).unwrap();
    let difference = support::difference(&found, &recorded("timm_vit").tensors["attention_2"].data);
    assert!(difference < 1e-5, "{difference}");

    let unknown = ModelOptions::new().output("blocks.9.attn");
    let error = vit::Model::new(checkpoint, device.as_ref(), &unknown).err().unwrap().to_string();
    assert!(error.contains("no output `blocks.9.attn`") && error.contains("blocks.2.attn.weights"), "{error}");
}
