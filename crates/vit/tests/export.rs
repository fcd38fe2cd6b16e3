//! Exported models: the structure of their files, for every recorded model, and what belongs into them. `bench/onnx` compares
//! their outputs in ONNX Runtime and OpenVINO.

mod support;

use std::collections::{BTreeSet, HashSet};
use std::fs;
use std::path::Path;

use support::{fixture, scratch};
use vit::export::{ExportOptions, ExportPrecision, ExportTower, Exported, export};
use vit_graph::ops::{Op, Operation, Parameter};
use vit_graph::rewrite::eliminate_dead_code;
use vit_models::vit::Vit;
use vit_models::weights::Tensor;
use vit_models::{Checkpoint, Mode, OpenOptions, variants};

/// Recorded models with images as input.
const CASES: [&str; 48] = [
    "hf_clip",
    "hf_deit",
    "hf_deit_plain",
    "hf_dinov2",
    "hf_dinov2_registers",
    "hf_mae",
    "hf_siglip",
    "hf_vit",
    "jax_hybrid",
    "jax_vit",
    "jax_vit_gap",
    "lenet5",
    "lenet5_relu",
    "masked_patch",
    "open_clip",
    "timm_aimv2",
    "timm_beit",
    "timm_bit",
    "timm_bit_fixed",
    "timm_clip_vit",
    "timm_coatnet",
    "timm_coatnet_rw",
    "timm_convnext",
    "timm_deit_distilled",
    "timm_dinov3",
    "timm_efficientnet",
    "timm_efficientnet_tf",
    "timm_eva02",
    "timm_hybrid",
    "timm_parallel",
    "timm_relpos",
    "timm_rope_mixed",
    "timm_swin",
    "timm_swinv2",
    "timm_vit",
    "timm_vit_clip",
    "timm_vit_gap",
    "timm_vit_gap_notoken",
    "timm_vit_map",
    "timm_vit_modern",
    "timm_vit_rect",
    "train_bit",
    "train_coatnet",
    "train_convnext",
    "train_efficientnet",
    "train_resnet",
    "train_swin",
    "tv_vit",
];

/// A field of a Protocol Buffers message.
enum Field<'a> {
    Integer(u64),
    Bytes(&'a [u8]),
    Float(f32),
}

fn varint(bytes: &mut &[u8]) -> u64 {
    let mut value = 0;
    for shift in (0..).step_by(7) {
        let (&byte, rest) = bytes.split_first().expect("a whole varint");
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            break;
        }
    }
    value
}

/// The fields of a message.
fn fields(mut bytes: &[u8]) -> Vec<(u64, Field<'_>)> {
    let mut fields = Vec::new();
    while !bytes.is_empty() {
        let key = varint(&mut bytes);
        let value = match key & 7 {
            0 => Field::Integer(varint(&mut bytes)),
            2 => {
                let length = varint(&mut bytes) as usize;
                let (value, rest) = bytes.split_at(length);
                bytes = rest;
                Field::Bytes(value)
            }
            5 => {
                let (value, rest) = bytes.split_first_chunk().expect("a whole float");
                bytes = rest;
                Field::Float(f32::from_le_bytes(*value))
            }
            other => panic!("wire type {other}"),
        };
        fields.push((key >> 3, value));
    }
    fields
}

/// The messages, texts or bytes of a field.
fn all(message: &[u8], number: u64) -> Vec<&[u8]> {
    let of = |(n, field)| match field {
        Field::Bytes(bytes) if n == number => Some(bytes),
        _ => None,
    };
    fields(message).into_iter().filter_map(of).collect()
}

fn texts(message: &[u8], number: u64) -> Vec<String> {
    all(message, number).into_iter().map(|text| String::from_utf8(text.to_vec()).expect("UTF-8")).collect()
}

fn text(message: &[u8], number: u64) -> String {
    texts(message, number).concat()
}

fn integers(message: &[u8], number: u64) -> Vec<u64> {
    let of = |(n, field)| match field {
        Field::Integer(value) if n == number => Some(value),
        _ => None,
    };
    fields(message).into_iter().filter_map(of).collect()
}

/// An input or output: its name, element type, and extents, of which a named one is 0.
#[derive(Debug, PartialEq)]
struct Port {
    name: String,
    element: u64,
    shape: Vec<u64>,
}

fn port(message: &[u8]) -> Port {
    let tensor = all(all(message, 2)[0], 1)[0];
    let extents = all(all(tensor, 2)[0], 1);
    let extent = |extent: &&[u8]| match &texts(extent, 2)[..] {
        [] => integers(extent, 1)[0],
        [name] => {
            assert_eq!(name, "batch");
            0
        }
        many => panic!("{many:?}"),
    };
    Port { name: text(message, 1), element: integers(tensor, 1)[0], shape: extents.iter().map(extent).collect() }
}

/// A file that was read back, after checks that hold for every model.
struct File {
    operators: Vec<String>,
    input: Port,
    output: Port,
    metadata: Vec<(String, String)>,
    /// Element types of the tensors.
    elements: BTreeSet<u64>,
    bytes: usize,
}

impl File {
    fn read(path: &Path) -> File {
        let bytes = fs::read(path).unwrap();
        let graph = all(&bytes, 7)[0];
        assert_eq!(integers(&bytes, 1), [8], "the version of the format");
        assert_eq!(integers(all(&bytes, 8)[0], 2), [17], "the operator set");
        let [input, output] = [11, 12].map(|number| {
            let ports = all(graph, number);
            assert_eq!(ports.len(), 1);
            port(ports[0])
        });
        // Every value has one name, is made before it is used, and is used.
        let (mut known, mut used) = (HashSet::from([input.name.clone()]), HashSet::from([output.name.clone()]));
        let mut elements = BTreeSet::new();
        for tensor in all(graph, 5) {
            let (name, element) = (text(tensor, 8), integers(tensor, 2)[0]);
            let size = match element {
                1 => 4,
                7 => 8,
                10 => 2,
                other => panic!("{name} has elements of type {other}"),
            };
            let shape = integers(tensor, 1);
            assert_eq!(all(tensor, 9)[0].len() as u64, size * shape.iter().product::<u64>(), "{name}");
            elements.insert(element);
            assert!(known.insert(name.clone()), "{name} twice");
        }
        let mut operators = Vec::new();
        for node in all(graph, 1) {
            for input in texts(node, 1) {
                assert!(known.contains(&input), "{} of {input}", text(node, 3));
                used.insert(input);
            }
            for output in texts(node, 2) {
                assert!(known.insert(output.clone()), "{output} twice");
            }
            assert_eq!(texts(node, 7), [""; 0], "operators of the standard alone");
            for attribute in all(node, 5) {
                let kind = integers(attribute, 20)[0];
                let floats = fields(attribute).iter().filter(|(_, f)| matches!(f, Field::Float(v) if *v > 0.0)).count();
                assert_eq!(floats, usize::from(kind == 1), "{}", text(attribute, 1));
            }
            operators.push(text(node, 4));
        }
        let unused: Vec<&String> = all(graph, 5)
            .into_iter()
            .map(|tensor| known.get(&text(tensor, 8)).expect("known"))
            .filter(|name| !used.contains(*name))
            .collect();
        assert_eq!(unused, [""; 0]);
        assert!(known.contains(&output.name));
        let metadata = all(&bytes, 14).into_iter().map(|entry| (text(entry, 1), text(entry, 2))).collect();
        File { operators, input, output, metadata, elements, bytes: bytes.len() }
    }

    fn count(&self, operator: &str) -> usize {
        self.operators.iter().filter(|found| *found == operator).count()
    }

    fn says(&self, name: &str) -> Option<&str> {
        self.metadata.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }
}

fn open(case: &str) -> Checkpoint {
    if case == "cifar10" {
        return Checkpoint::open(Path::new(case), OpenOptions::default()).unwrap();
    }
    // Recorded training steps have the weights of the first step and of the last.
    let weights = fixture(case).join("model.safetensors");
    let weights = weights.exists().then_some(weights.as_path());
    Checkpoint::open(&fixture(case), OpenOptions { weights, ..OpenOptions::default() }).unwrap()
}

/// A checkpoint exported, and the file read back.
fn written(checkpoint: Checkpoint, name: &str, options: ExportOptions) -> (Exported, File) {
    let folder = scratch(&format!("export_{name}_{:?}_{:?}_{}", options.precision, options.tower, options.preprocess));
    let path = folder.join("model.onnx");
    let exported = export(checkpoint, &path, options).unwrap_or_else(|error| panic!("{name}: {error}"));
    assert_eq!(exported.beside, None);
    let file = File::read(&path);
    assert_eq!(file.operators.len(), exported.nodes, "{name}");
    (exported, file)
}

fn exported(case: &str, options: ExportOptions) -> (Exported, File) {
    written(open(case), case, options)
}

/// A recorded model with other options, and initial weights.
fn changed(case: &str, change: fn(&mut Vit)) -> Checkpoint {
    let mut checkpoint = open(case);
    change(checkpoint.config.architecture.downcast_mut().unwrap());
    let values = |parameter: Parameter| {
        let mut data = vec![0.0; parameter.shape.elements()];
        parameter.init.fill(0, &parameter.name, &mut data);
        (parameter.name, Tensor { shape: parameter.shape.to_vec(), data })
    };
    checkpoint.weights.tensors = checkpoint.config.architecture.parameters().unwrap().into_iter().map(values).collect();
    checkpoint
}

/// Attention that no recorded model has: differential, and with keys and values that heads share.
fn unrecorded() -> [Checkpoint; 2] {
    let shared = |vit: &mut Vit| {
        vit.qkv.separate = true;
        vit.key_value_heads = vec![1; vit.depth];
    };
    [changed("timm_vit", |vit| vit.differential = true), changed("timm_dinov3", shared)]
}

#[test]
fn every_recorded_model_is_exported() {
    for case in CASES {
        let (exported, file) = exported(case, ExportOptions::default());
        let model = open(case).config.architecture;
        let ([height, width], channels) = (model.image_size(), model.channels());
        let shape = [0, channels, height, width].map(|extent| extent as u64).to_vec();
        assert_eq!(file.input, Port { name: "pixel_values".into(), element: 1, shape }, "{case}");
        assert_eq!((file.output.name.as_str(), file.output.element), (exported.output, 1), "{case}");
        let classes = model.classes() as u64;
        assert_eq!(exported.output, if classes > 0 { "logits" } else { "embedding" }, "{case}");
        assert_eq!((file.output.shape[0], file.output.shape.len()), (0, 2), "{case}");
        assert!(classes == 0 || file.output.shape[1] == classes, "{case}");
        assert!(file.elements.is_subset(&BTreeSet::from([1, 7])), "{case}: {:?}", file.elements);
    }
}

/// The operations of a model's inference that do not depend on parameters alone.
fn operations(model: &vit_models::Architecture) -> BTreeSet<&'static str> {
    let mut graph = model.build(1, Mode::Inference).unwrap();
    graph.retain_outputs(|name| ["logits", "features", "image_embeds"].contains(&name));
    let graph = eliminate_dead_code(&graph).unwrap();
    let constant = vit_graph::analysis::constant_nodes(&graph);
    let nodes =
        graph.nodes().iter().enumerate().filter(|(id, node)| !constant[*id] && !matches!(node.op, Op::Input(_)));
    nodes.map(|(_, node)| node.op.name()).collect()
}

#[test]
fn attention_of_other_kinds_is_exported() {
    let [differential, shared] = unrecorded();
    let (_, file) = written(differential, "differential", ExportOptions::default());
    assert_eq!((file.count("Sub"), file.count("Softmax")), (3, 6));
    let (_, file) = written(shared, "shared", ExportOptions::default());
    assert!(file.count("Expand") >= 4, "{}", file.count("Expand"));
}

/// What no exported model has is not translated by accident.
#[test]
fn the_exported_models_have_the_operations_of_all() {
    let checkpoints = CASES.iter().map(|case| open(case)).chain(unrecorded());
    let exported: BTreeSet<&str> = checkpoints.flat_map(|c| operations(&c.config.architecture)).collect();
    for variant in variants() {
        let others: Vec<&str> = operations(&variant.architecture).difference(&exported).copied().collect();
        assert_eq!(others, [""; 0], "{}", variant.name);
    }
}

#[test]
fn images_are_transposed_only_where_operators_disagree() {
    for (case, transpositions) in [
        // Channels first throughout.
        ("tv_resnet_bottleneck", 0),
        ("timm_efficientnet", 0),
        ("timm_bit", 0),
        ("lenet5", 0),
    ] {
        assert_eq!(exported(case, ExportOptions::default()).1.count("Transpose"), transpositions, "{case}");
    }
    // After the patch embedding, and query, key, value and result of each block, of which the last has one query.
    let (_, vit) = exported("timm_vit", ExportOptions::default());
    assert_eq!((vit.count("Transpose"), vit.count("Split"), vit.count("Softmax")), (1 + 4 + 4 + 2, 0, 3));
    assert_eq!(vit.count("LayerNormalization"), 7);
}

#[test]
fn halves_take_half_the_space() {
    let (_, whole) = exported("cifar10", ExportOptions::default());
    let (_, half) = exported("cifar10", ExportOptions { precision: ExportPrecision::F16, ..ExportOptions::default() });
    assert_eq!(half.elements, BTreeSet::from([7, 10]));
    assert!(half.bytes < whole.bytes * 11 / 20, "{} of {}", half.bytes, whole.bytes);
    assert_eq!((half.input.element, half.output.element), (1, 1));
}

#[test]
fn images_of_bytes_are_prepared_in_the_graph() {
    let (exported, file) = exported("cifar10", ExportOptions { preprocess: true, ..ExportOptions::default() });
    assert_eq!(exported.input, "pixels");
    assert_eq!(file.input, Port { name: "pixels".into(), element: 2, shape: vec![0, 32, 32, 3] });
    assert_eq!(file.operators[..4], ["Transpose", "Cast", "Mul", "Add"]);
    assert_eq!(file.says("normalises"), Some("true"));
}

#[test]
fn text_towers_are_exported() {
    for case in ["hf_clip", "hf_siglip", "open_clip"] {
        let tower = open(case).image_text().unwrap().text.clone();
        let (exported, file) = exported(case, ExportOptions { tower: ExportTower::Text, ..ExportOptions::default() });
        assert_eq!((exported.input, exported.output), ("input_ids", "embedding"));
        assert_eq!(
            file.input,
            Port { name: "input_ids".into(), element: 7, shape: vec![0, tower.context as u64] },
            "{case}"
        );
        assert_eq!(file.output.shape, [0, tower.embed_dim as u64], "{case}");
        assert_eq!(file.count("ArgMax"), usize::from(tower.pooling.reads_ids()), "{case}");
    }
    let path = scratch("export_without_text").join("model.onnx");
    let options = ExportOptions { tower: ExportTower::Text, ..ExportOptions::default() };
    let error = export(open("timm_vit"), &path, options).unwrap_err().to_string();
    assert_eq!(error, "this model has no text tower");
    assert!(!path.exists());
}

#[test]
fn the_file_says_what_the_classes_are_and_how_images_are_prepared() {
    let (_, file) = exported("cifar10", ExportOptions::default());
    let labels = r#"["airplane","automobile","bird","cat","deer","dog","frog","horse","ship","truck"]"#;
    assert_eq!(file.says("labels"), Some(labels));
    assert_eq!(file.says("image_size"), Some("[32,32]"));
    assert_eq!(file.says("mean"), Some("[0.486,0.476,0.441]"));
    assert_eq!(file.says("normalises"), Some("false"));
    let config = serde_json::from_str(file.says("config").unwrap()).unwrap();
    let read = vit_models::config::parse(&config, None).unwrap();
    assert_eq!(read.architecture, open("cifar10").config.architecture);
}
