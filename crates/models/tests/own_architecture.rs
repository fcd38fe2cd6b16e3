//! An architecture of a library user: built, named, saved and opened again.

use serde_json::{Map, Value, json};
use vit_graph::Tensor;
use vit_graph::device::{Initial, Parameters};
use vit_models::config::Arguments;
use vit_models::layers::{Building, Conv, channels_last, head};
use vit_models::weights::safetensors::Dtype;
use vit_models::weights::{self, Weights};
use vit_models::{
    Changes, Checkpoint, Config, Configured, Layout, Mode, Network, OpenOptions, Preprocess, ProblemType, Variant,
    network_fields, register, variant,
};

/// One convolution, and the mean of its feature map.
#[derive(Debug, Clone, PartialEq)]
struct OneLayer {
    image_size: [usize; 2],
    channels: usize,
    classes: usize,
    filters: usize,
}

const SMALL: OneLayer = OneLayer { image_size: [8, 8], channels: 3, classes: 4, filters: 6 };

impl Network for OneLayer {
    network_fields!();

    fn kind(&self) -> &'static str {
        "one layer"
    }

    fn forward(&self, image: &Tensor, _: &Building) {
        let x = Conv { bias: true, ..Conv::new(self.filters, 3) }.apply(&channels_last(image), "conv").relu();
        x.tap("feature_map");
        head(&x.mean([1, 2]), self.classes, "head");
    }

    fn heads(&self) -> &'static [&'static str] {
        &["head"]
    }

    fn first_filters(&self) -> String {
        "conv.weight".into()
    }

    fn variants() -> Vec<Variant> {
        vec![Variant {
            name: "one_layer".into(),
            paper_name: None,
            family: "own",
            architecture: SMALL.into(),
            preprocessing: Preprocess { image_size: SMALL.image_size, ..Preprocess::imagenet() },
        }]
    }
}

impl Configured for OneLayer {
    fn constructor(&self) -> (&'static str, Map<String, Value>) {
        let mut args = Map::new();
        args.insert("filters".into(), json!(self.filters));
        args.insert("classes".into(), json!(self.classes));
        args.insert("channels".into(), json!(self.channels));
        ("own.OneLayer", args)
    }

    fn configure(&mut self, args: &Arguments) -> Result<(), String> {
        self.filters = args.count("filters")?.unwrap_or(self.filters);
        self.classes = args.count("classes")?.unwrap_or(self.classes);
        self.channels = args.count("channels")?.unwrap_or(self.channels);
        args.finish(&[])
    }

    fn classes() -> Vec<(&'static str, Self, Preprocess)> {
        vec![("own.OneLayer", SMALL, Preprocess::imagenet())]
    }
}

#[test]
fn an_own_architecture_is_named_saved_and_opened_again() {
    register::<OneLayer>();
    let found = variant("one_layer").unwrap();
    let mut model = SMALL.clone();
    model.filters = 9;
    let mut weights = Weights::default();
    let graph = model.build(1, Mode::Inference).unwrap();
    for (_, parameter) in graph.parameters() {
        let data = Initial { seed: 1 }.take(parameter).unwrap().into_owned();
        weights.insert(&parameter.name, weights::Tensor::new(parameter.shape.to_vec(), data).unwrap()).unwrap();
    }
    let config = Config {
        name: None,
        architecture: model.clone().into(),
        preprocessing: found.preprocessing,
        labels: (0..4).map(|i| format!("c{i}")).collect(),
        problem_type: ProblemType::default(),
    };
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("own_architecture");
    let scheme = weights::Scheme::Timm;
    let saved = Checkpoint { config, weights, scheme, source: folder.clone(), report: vec![], tokenizer: None };
    saved.save(&folder, Layout::Timm, Dtype::F32).unwrap();

    let mut opened = Checkpoint::open(&folder, OpenOptions::default()).unwrap();
    assert_eq!(opened.config, saved.config);
    assert_eq!(opened.config.architecture.downcast_ref(), Some(&model));
    assert_eq!(opened.weights.tensors, saved.weights.tensors);
    opened.change(Changes { channels: Some(1), classes: Some(2), ..Changes::default() }).unwrap();
    assert_eq!(opened.weights.tensors["conv.weight"].shape, [9, 1, 3, 3]);
    assert_eq!(opened.weights.tensors["head.weight"].shape, [2, 9]);
}
