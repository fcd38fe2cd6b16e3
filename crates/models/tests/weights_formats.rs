//! Files of every format are read with the values that their own library reads, and written weights are read back bit by
//! bit.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use vit_models::weights::safetensors::{self, Dtype};
use vit_models::weights::{self, Tensor, Weights, npz, pickle};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/weights").join(name)
}

fn read(name: &str) -> Weights {
    weights::read(&fixture(name)).unwrap()
}

/// An empty folder for one test.
fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

#[test]
fn torch_files_are_read_as_by_torch() {
    let expected = read("torch_expected.safetensors");
    assert_eq!(expected.tensors.len(), 13);
    for file in ["torch_zip.pt", "torch_legacy.pt", "torch_nested.pt"] {
        assert_eq!(read(file).tensors, expected.tensors, "{file}");
    }
}

#[test]
fn fp8_and_unsigned_integers_are_read_from_untyped_storages() {
    let weights = read("torch_float8.pt");
    assert_eq!(weights.tensors["e4m3"].data, [1., -2., 448., 0.0625]);
    assert_eq!(weights.tensors["e5m2"].data, [1., -57344.]);
    assert_eq!(weights.tensors["u16"].data, [1., 65535.]);
}

#[test]
fn a_training_checkpoint_with_its_arguments_is_refused_by_name() {
    let error = weights::read(&fixture("torch_namespace.pt")).unwrap_err();
    let message = error.to_string();
    assert!(message.contains("torch_namespace.pt"), "{message}");
    assert!(message.contains("argparse.Namespace"), "{message}");
    assert!(message.contains("nothing was executed"), "{message}");
}

#[test]
fn npz_types_and_orders_are_converted() {
    let weights = read("types.npz");
    assert_eq!(weights.tensors["f2"].data, [1.5, -2.]);
    assert_eq!(weights.tensors["f8"].data, [1.5]);
    assert_eq!(weights.tensors["i1"].data, [-3.]);
    assert_eq!(weights.tensors["i8"].data, [5.]);
    assert_eq!(weights.tensors["big"].data, [1.5, 2.5]);
    assert_eq!(weights.tensors["scalar"], Tensor::new(vec![], vec![7.]).unwrap());
    let fortran = &weights.tensors["fortran"];
    assert_eq!(fortran.shape, [2, 3, 4]);
    assert_eq!(fortran.data, (0..24).map(|v| v as f32).collect::<Vec<_>>());
}

#[test]
fn each_reader_accepts_its_own_format_only() {
    let bytes = |name: &str| std::fs::read(fixture(name)).unwrap();
    assert!(pickle::from_bytes(&bytes("torch_zip.pt")).is_ok());
    assert!(pickle::from_bytes(&bytes("torch_legacy.pt")).is_ok());
    assert!(npz::from_bytes(&bytes("types.npz")).is_ok());
    assert!(safetensors::from_bytes(&bytes("torch_expected.safetensors")).is_ok());
    assert!(npz::from_bytes(&bytes("torch_zip.pt")).is_err());
    assert!(pickle::from_bytes(&bytes("types.npz")).is_err());
}

#[test]
fn a_file_of_another_format_is_named_with_a_way_out() {
    let folder = folder("other_kinds");
    for (content, expected) in [
        (&b"version https://git-lfs.github.com/spec/v1\n"[..], "git lfs pull"),
        (b"", "empty"),
        (b"\x93NUMPY\x01\x00", "numpy.savez"),
        (b"\x80\x04\x95rest", "pickle"),
        (b"<!DOCTYPE html>", "web page"),
    ] {
        let path = folder.join("weights.bin");
        std::fs::write(&path, content).unwrap();
        let message = weights::read(&path).unwrap_err().to_string();
        assert!(message.contains(expected), "{message}");
        assert!(message.contains("weights.bin"), "{message}");
    }
    let message = weights::read(&folder.join("absent")).unwrap_err().to_string();
    assert!(message.contains("absent"), "{message}");
}

#[test]
fn shards_are_read_through_their_index() {
    let folder = folder("shards");
    let none = BTreeMap::new();
    let one: [(&str, &[usize], &[f32]); 1] = [("a", &[2], &[1., 2.])];
    let two: [(&str, &[usize], &[f32]); 1] = [("b", &[1], &[3.])];
    safetensors::write(&folder.join("1.safetensors"), one, Dtype::F32, &none).unwrap();
    safetensors::write(&folder.join("2.safetensors"), two, Dtype::F32, &none).unwrap();
    let index = folder.join("model.safetensors.index.json");
    let write_index = |map: &str| {
        let text = format!(r#"{{"metadata": {{"total_size": 12}}, "weight_map": {map}}}"#);
        std::fs::write(&index, text).unwrap();
    };

    write_index(r#"{"a": "1.safetensors", "b": "2.safetensors"}"#);
    let weights = weights::read(&index).unwrap();
    assert_eq!(weights.tensors["a"].data, [1., 2.]);
    assert_eq!(weights.tensors["b"].data, [3.]);

    write_index(r#"{"a": "2.safetensors"}"#);
    let message = weights::read(&index).unwrap_err().to_string();
    assert!(message.contains("2.safetensors") && message.contains("`a`"), "{message}");

    for outside in ["../1.safetensors", "/etc/passwd", "..", "", "c:\\\\x"] {
        write_index(&format!(r#"{{"a": "{outside}"}}"#));
        let message = weights::read(&index).unwrap_err().to_string();
        assert!(message.contains("plain file name"), "{message}");
    }
}

#[test]
fn a_failed_write_leaves_the_old_file_and_nothing_beside() {
    let folder = folder("failed_write");
    let path = folder.join("model.safetensors");
    std::fs::write(&path, b"old").unwrap();
    let large: [(&str, &[usize], &[f32]); 1] = [("head.weight", &[1], &[1e6])];
    let error = safetensors::write(&path, large, Dtype::F16, &BTreeMap::new()).unwrap_err();
    assert!(error.to_string().contains("head.weight"), "{error}");
    assert_eq!(std::fs::read(&path).unwrap(), b"old");
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 1);
}

#[test]
fn writing_is_deterministic_and_marked_as_pytorch() {
    let weights = read("torch_expected.safetensors");
    let none = BTreeMap::new();
    let forward = safetensors::to_bytes(weights.iter(), Dtype::F32, &none).unwrap();
    let mut reversed: Vec<_> = weights.iter().collect();
    reversed.reverse();
    assert_eq!(forward, safetensors::to_bytes(reversed, Dtype::F32, &none).unwrap());
    let metadata = safetensors::from_bytes(&forward).unwrap().metadata;
    assert_eq!(metadata["format"], "pt");
    let header = u64::from_le_bytes(forward[..8].try_into().unwrap());
    assert_eq!(header % 8, 0);
}

#[test]
fn wrong_input_to_the_writer_is_an_error() {
    let none = BTreeMap::new();
    let bad = |tensors: Vec<(&str, &[usize], &[f32])>| {
        safetensors::to_bytes(tensors, Dtype::F32, &none).unwrap_err().to_string()
    };
    assert!(bad(vec![("a", &[3], &[1.])]).contains("`a`"));
    assert!(bad(vec![("a", &[1], &[1.]), ("a", &[1], &[1.])]).contains("two tensors"));
    assert!(bad(vec![("__metadata__", &[1], &[1.])]).contains("reserved"));
    assert!(Tensor::new(vec![usize::MAX, 2], vec![]).is_err());
}

fn any_tensor() -> impl Strategy<Value = Tensor> {
    prop::collection::vec(0usize..4, 0..4).prop_flat_map(|shape| {
        let count: usize = shape.iter().product();
        prop::collection::vec(any::<u32>().prop_map(f32::from_bits), count)
            .prop_map(move |data| Tensor::new(shape.clone(), data).unwrap())
    })
}

fn any_weights() -> impl Strategy<Value = Weights> {
    (
        prop::collection::btree_map("\\PC{1,12}", any_tensor(), 0..6),
        prop::collection::btree_map("[a-e]{1,3}", "\\PC{0,9}", 0..4),
    )
        .prop_map(|(tensors, metadata)| Weights { tensors, metadata })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn written_weights_are_read_back(weights in any_weights()) {
        let bytes = safetensors::to_bytes(weights.iter(), Dtype::F32, &weights.metadata).unwrap();
        let back = weights::from_bytes(&bytes).unwrap();
        prop_assert_eq!(back.tensors.len(), weights.tensors.len());
        for (name, tensor) in &weights.tensors {
            let bits = |tensor: &Tensor| tensor.data.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
            prop_assert_eq!(&back.tensors[name].shape, &tensor.shape);
            prop_assert_eq!(bits(&back.tensors[name]), bits(tensor));
        }
        let mut metadata = weights.metadata.clone();
        metadata.entry("format".into()).or_insert_with(|| "pt".into());
        prop_assert_eq!(back.metadata, metadata);
    }

    #[test]
    fn half_precision_is_rounded_once(values in prop::collection::vec(-6e4f32..6e4, 1..20)) {
        let tensors: [(&str, &[usize], &[f32]); 1] = [("x", &[values.len()], &values)];
        let none = BTreeMap::new();
        let read = |dtype| {
            let bytes = safetensors::to_bytes(tensors, dtype, &none).unwrap();
            safetensors::from_bytes(&bytes).unwrap().tensors["x"].data.clone()
        };
        for ((&value, f16), bf16) in values.iter().zip(read(Dtype::F16)).zip(read(Dtype::BF16)) {
            prop_assert_eq!(f16, half::f16::from_f32(value).to_f32());
            prop_assert_eq!(bf16, half::bf16::from_f32(value).to_f32());
        }
    }
}
