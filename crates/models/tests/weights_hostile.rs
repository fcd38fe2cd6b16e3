//! Hostile files give an error or weights, never a panic or a hang, and never take more memory than a small multiple of
//! their length.

mod hostile;

use std::path::{Path, PathBuf};

use hostile::memory::measure;
use hostile::pickles::{self, state_dict, torch_legacy, torch_zip};
use hostile::{Member, Noise, npy, npy_header, safetensors, zip, zip64};
use vit_models::weights::{self, Weights, WeightsError, names, npz, pickle};

/// Reading may hold this many times the file's length, and this much more.
const FACTOR: usize = 80;
const CONSTANT: usize = 16 << 20;

fn fixture(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/weights").join(name);
    std::fs::read(path).unwrap()
}

type Reader = fn(&[u8]) -> Result<Weights, WeightsError>;

/// Reads the bytes with every reader, within the memory bound; returns the result of the detected format's.
fn read(bytes: &[u8]) -> Result<Weights, WeightsError> {
    let ways: [Reader; 4] =
        [weights::safetensors::from_bytes, npz::from_bytes, pickle::from_bytes, weights::from_bytes];
    let mut last = None;
    for way in ways {
        let (result, peak) = measure(|| way(bytes));
        assert!(peak <= bytes.len() * FACTOR + CONSTANT, "{peak} bytes held for a file of {}", bytes.len());
        last = Some(result);
    }
    let result = last.unwrap();
    if let Ok(weights) = &result {
        // Renaming must not panic on any shapes.
        let _ = names::canonical(weights.clone());
    }
    result
}

fn refused(name: &str, bytes: &[u8]) {
    match read(bytes) {
        Ok(weights) => panic!("{name} was read: {:?}", weights.tensors.keys()),
        Err(error) => println!("{name} ({} bytes): {error}", bytes.len()),
    }
}

/// Small hostile files by name; the same bytes are in `tests/hostile/files`.
fn corpus() -> Vec<(&'static str, Vec<u8>)> {
    let f32s = [0u8; 16];
    let entry = |shape: &str, start: &str, end: &str| {
        format!(r#"{{"dtype":"F32","shape":[{shape}],"data_offsets":[{start},{end}]}}"#)
    };
    let one =
        |shape: &str, start: &str, end: &str| safetensors(&format!(r#"{{"a":{}}}"#, entry(shape, start, end)), &f32s);
    let two = |first: String, second: String| safetensors(&format!(r#"{{"a":{first},"b":{second}}}"#), &f32s);
    let call = |global: &str, argument: &str| {
        let mut out = format!("\x02c{global}\n(").into_bytes();
        out.insert(0, 0x80);
        pickles::text(&mut out, argument);
        out.extend(b"tR.");
        out
    };
    let array = |shape: &str| zip(&[Member::stored("a.npy", &npy(&npy_header(shape), &f32s))]);
    let lying = |change: fn(&mut Member)| {
        let mut member = Member::deflated("a.npy", &npy(&npy_header("4,"), &f32s));
        change(&mut member);
        zip(&[member])
    };
    let view = |length, offset, shape: &[i64], strides: &[i64]| {
        torch_zip(&state_dict(length, offset, shape, strides), &[("0", &f32s)])
    };

    let mut longest_header = u64::MAX.to_le_bytes().to_vec();
    longest_header.extend(b"{}");
    let mut long_header = 90_000_000u64.to_le_bytes().to_vec();
    long_header.extend(b"{}");
    let mut self_list = b"\x80\x02]q\x00h\x00a.".to_vec();
    self_list.extend([0; 8]);
    vec![
        ("overlap.safetensors", two(entry("2", "0", "8"), entry("3", "4", "16"))),
        ("hole.safetensors", two(entry("1", "0", "4"), entry("2", "8", "16"))),
        ("uncovered.safetensors", one("2", "0", "8")),
        ("past_the_end.safetensors", one("5", "0", "20")),
        ("backwards.safetensors", one("4", "16", "0")),
        ("negative_offset.safetensors", one("4", "-16", "0")),
        ("negative_shape.safetensors", one("-4", "0", "16")),
        ("fraction.safetensors", one("4.0", "0", "16")),
        ("offset_2_64.safetensors", one("4", "0", "18446744073709551615")),
        ("offset_2_64_plus.safetensors", one("4", "0", "18446744073709551632")),
        ("shape_overflow.safetensors", one("4294967296,4294967296,4", "0", "16")),
        ("shape_overflow_to_right.safetensors", one("4611686018427387905,4", "0", "16")),
        (
            "empty_axis_overflow.safetensors",
            safetensors(r#"{"a":{"dtype":"F32","shape":[0,4294967296,4294967296],"data_offsets":[0,0]}}"#, b""),
        ),
        ("other_shape.safetensors", one("3", "0", "16")),
        ("duplicate.safetensors", {
            let entry = entry("4", "0", "16");
            safetensors(&format!(r#"{{"a":{entry},"a":{entry}}}"#), &f32s)
        }),
        ("duplicate_metadata.safetensors", safetensors(r#"{"__metadata__":{},"__metadata__":{}}"#, b"")),
        ("metadata_of_numbers.safetensors", safetensors(r#"{"__metadata__":{"a":1}}"#, b"")),
        ("unknown_type.safetensors", safetensors(r#"{"a":{"dtype":"C64","shape":[2],"data_offsets":[0,16]}}"#, &f32s)),
        ("array_header.safetensors", safetensors("[]      ", b"")),
        ("nested_header.safetensors", safetensors(&format!("{{\"a\":{}", "[".repeat(3000)), b"")),
        ("not_utf8.safetensors", {
            let mut bytes = safetensors(r#"{"aa":{}}"#, b"");
            bytes[10] = 0xff;
            bytes
        }),
        ("header_2_64.safetensors", longest_header),
        ("header_past_end.safetensors", long_header),
        ("posix_system.pt", torch_zip(&call("posix\nsystem", "touch /tmp/hostile"), &[])),
        ("builtins_eval.pt", torch_zip(&call("builtins\neval", "exit()"), &[])),
        ("posix_system_legacy.pt", torch_legacy(&call("posix\nsystem", "touch /tmp/hostile"), &[], b"")),
        ("stack_global.pt", {
            let mut out = b"\x80\x04".to_vec();
            pickles::text(&mut out, "os");
            pickles::text(&mut out, "system");
            out.extend(b"\x93)R.");
            torch_zip(&out, &[])
        }),
        ("instance.pt", torch_zip(b"(Vls\nios\nsystem\n.", &[])),
        ("torch_load.pt", torch_zip(&call("torch\nload", "x"), &[])),
        ("storage_call.pt", torch_zip(&call("torch\nFloatStorage", "x"), &[])),
        ("self_list.pt", torch_zip(&self_list, &[])),
        ("self_dict.pt", torch_zip(b"\x80\x02}q\x00X\x05\x00\x00\x00modelh\x00s.", &[])),
        ("binunicode8.pt", torch_zip(b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\xffab.", &[])),
        ("long4.pt", torch_zip(b"\x80\x02\x8b\xff\xff\xff\xff1.", &[])),
        ("empty_stack.pt", torch_zip(b"\x80\x02.", &[])),
        ("pop_through_mark.pt", torch_zip(b"\x80\x02](K\x01(\x85a.", &[])),
        ("no_memo.pt", torch_zip(b"\x80\x02h\x07.", &[])),
        ("persistent_id.pt", torch_zip(b"\x80\x02X\x01\x00\x00\x00aQ.", &[])),
        ("no_storage.pt", torch_zip(&state_dict(4, 0, &[4], &[1]), &[])),
        ("stride_out.pt", view(4, 0, &[2, 2], &[3, 1])),
        ("stride_overflow.pt", view(4, 0, &[2, 2], &[i64::MAX, i64::MAX])),
        ("stride_negative.pt", view(4, 3, &[4], &[-1])),
        ("offset_out.pt", view(4, 1, &[4], &[1])),
        ("offset_overflow.pt", view(4, i64::MAX, &[4], &[1])),
        ("shape_negative.pt", view(4, 0, &[-4], &[1])),
        ("shape_overflow.pt", view(4, 0, &[i64::MAX, i64::MAX], &[0, 0])),
        ("shape_repeats.pt", view(4, 0, &[1 << 40], &[0])),
        ("strides_missing.pt", view(4, 0, &[2, 2], &[1])),
        ("storage_lies.pt", view(1 << 60, 0, &[4], &[1])),
        ("legacy_storage_lies.pt", {
            let mut storage = u64::MAX.to_le_bytes().to_vec();
            storage.extend(f32s);
            torch_legacy(&state_dict(4, 0, &[4], &[1]), &["0"], &storage)
        }),
        ("legacy_unknown_storage.pt", torch_legacy(&state_dict(4, 0, &[4], &[1]), &["1"], &f32s)),
        ("shape_huge.npz", array("1099511627776,")),
        ("shape_overflow.npz", array("4611686018427387905, 4")),
        ("shape_negative.npz", array("-4,")),
        ("shape_small.npz", array("3,")),
        (
            "objects.npz",
            zip(&[Member::stored(
                "a.npy",
                &npy("{'descr': '|O', 'fortran_order': False, 'shape': (1,)}", b"\x80\x02N."),
            )]),
        ),
        ("crc.npz", lying(|member| member.crc ^= 1)),
        ("size_more.npz", lying(|member| member.size += 1)),
        ("size_less.npz", lying(|member| member.size -= 1)),
        ("size_2_32.npz", lying(|member| member.size = u32::MAX - 1)),
        ("size_zip64_absent.npz", lying(|member| member.size = u32::MAX)),
        ("encryption.npz", lying(|member| member.method = 99)),
        ("truncated_deflate.npz", lying(|member| member.packed.truncate(member.packed.len() / 2))),
        ("twice.npz", zip(&[Member::stored("a.npy", b""), Member::stored("a.npy", b"")])),
        ("no_arrays.npz", zip(&[Member::stored("readme.txt", b"hello")])),
        ("zip_in_zip.npz", zip(&[Member::stored("a.npy", &zip(&[Member::stored("a.npy", &f32s)]))])),
        ("bomb.npz", zip(&[Member::deflated("a.npy", &npy(&npy_header("4194304,"), &vec![0; 16 << 20]))])),
        ("pickle_bomb.pt", zip(&[Member::deflated("a/data.pkl", &vec![b']'; 900_000])])),
    ]
}

#[test]
fn every_hostile_file_is_refused() {
    for (name, bytes) in corpus() {
        refused(name, &bytes);
    }
    assert!(!Path::new("/tmp/hostile").exists());
}

fn committed() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/hostile/files")
}

#[test]
fn committed_hostile_files_are_refused_by_name() {
    let mut count = 0;
    for entry in std::fs::read_dir(committed()).unwrap() {
        let path = entry.unwrap().path();
        let (result, _) = measure(|| weights::read(&path));
        let message = result.unwrap_err().to_string();
        assert!(message.contains(path.file_name().unwrap().to_str().unwrap()), "{message}");
        count += 1;
    }
    assert!(count >= 6);
}

/// Run by hand after a change of the corpus: `cargo test -p vit-models --test weights_hostile -- --ignored`.
#[test]
#[ignore = "writes the committed files"]
fn write_the_committed_files() {
    const KEPT: [&str; 8] = [
        "overlap.safetensors",
        "shape_overflow.safetensors",
        "header_2_64.safetensors",
        "posix_system.pt",
        "posix_system_legacy.pt",
        "stride_out.pt",
        "bomb.npz",
        "crc.npz",
    ];
    for (name, bytes) in corpus() {
        if KEPT.contains(&name) {
            std::fs::write(committed().join(name), bytes).unwrap();
        }
    }
}

#[test]
fn the_refusal_of_a_call_names_it() {
    for (name, global) in [
        ("posix_system.pt", "posix.system"),
        ("posix_system_legacy.pt", "posix.system"),
        ("builtins_eval.pt", "builtins.eval"),
        ("stack_global.pt", "os.system"),
        ("instance.pt", "os.system"),
        ("torch_load.pt", "torch.load"),
    ] {
        let bytes = corpus().into_iter().find(|(n, _)| *n == name).unwrap().1;
        let error = read(&bytes).unwrap_err();
        assert!(matches!(&error, WeightsError::RefusedGlobal { global: found } if found == global), "{name}: {error}");
    }
}

/// The builders make valid files, too; otherwise the corpus could be refused for other reasons.
#[test]
fn the_builders_make_valid_files() {
    let data: Vec<u8> = [1f32, 2., 3., 4.].iter().flat_map(|v| v.to_le_bytes()).collect();
    let array = || Member::stored("w.npy", &npy(&npy_header("4,"), &data));
    let pickle = state_dict(4, 0, &[4], &[1]);
    let mut storage = 4u64.to_le_bytes().to_vec();
    storage.extend(&data);
    let header = r#"{"w":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}"#;
    for bytes in [
        safetensors(header, &data),
        zip(&[array()]),
        zip64(&[array()]),
        zip(&[Member::deflated("w.npy", &npy(&npy_header("4,"), &data))]),
        torch_zip(&pickle, &[("0", &data)]),
        torch_legacy(&pickle, &["0"], &storage),
        zip(&[
            Member::stored("big/data.pkl", &pickle),
            Member::stored("big/byteorder", b"big"),
            Member::stored("big/data/0", &[1f32, 2., 3., 4.].map(f32::to_be_bytes).concat()),
        ]),
    ] {
        assert_eq!(read(&bytes).unwrap().tensors["w"].data, [1., 2., 3., 4.]);
    }
}

#[test]
fn pickles_that_grow_without_end_are_refused() {
    let million = |body: &[u8]| {
        let mut pickle = b"\x80\x02".to_vec();
        for _ in 0..1_000_000 {
            pickle.extend(body);
        }
        pickle.push(b'.');
        pickle
    };
    let bombs: [(&str, Vec<u8>); 9] = [
        ("marks", million(b"(")),
        ("nothings", million(b"N")),
        ("lists", million(b"]0")),
        ("nested tuples", {
            let mut p = million(b"\x85");
            p.insert(2, b'N');
            p
        }),
        ("doubling tuples", {
            let mut p = million(b"q\x00h\x00\x86");
            p.insert(2, b'N');
            p
        }),
        ("memo", {
            let mut p = million(b"\x94");
            p.insert(2, b'N');
            p
        }),
        ("nested dicts", million(b"}K\x01")),
        ("appends to one list", {
            let mut p = million(b"Na");
            p.insert(2, b']');
            p
        }),
        ("builds", {
            let mut p = million(b"Nb");
            p.insert(2, b'}');
            p
        }),
    ];
    for (name, pickle) in &bombs {
        refused(name, &torch_zip(pickle, &[]));
        refused(name, &torch_legacy(pickle, &[], b""));
    }
}

#[test]
fn one_tensor_under_many_names_is_bounded_by_the_file() {
    let data = vec![0u8; 400_000];
    let mut pickle = b"\x80\x02}".to_vec();
    pickles::text(&mut pickle, "first");
    pickles::tensor(&mut pickle, "0", 100_000, 0, &[100_000], &[1]);
    pickle.extend(b"q\x07s");
    for at in 0..2000 {
        pickles::text(&mut pickle, &format!("n{at}"));
        pickle.extend(b"h\x07s");
    }
    pickle.push(b'.');
    refused("shared storage", &torch_zip(&pickle, &[("0", &data)]));
}

#[test]
fn one_dict_with_many_references_is_searched_once() {
    // Searching it at every reference would take hours.
    let mut pickle = b"\x80\x02]q\x00(".to_vec();
    pickle.extend(b"NN".repeat(100_000));
    pickle.extend(b"e0}q\x01(");
    pickle.extend(b"NN".repeat(100_000));
    pickle.extend(b"u0}(");
    pickle.extend(b"Nh\x01".repeat(100_000));
    pickle.extend(b"u.");
    refused("often", &torch_zip(&pickle, &[]));
    let mut long = b"\x80\x02".to_vec();
    pickles::text(&mut long, &"x".repeat(1_000_000));
    long.extend(b"q\x01}(");
    for _ in 0..100_000 {
        long.extend(b"h\x01N");
    }
    long.extend(b"u.");
    refused("long key", &torch_zip(&long, &[]));
}

const REAL: [&str; 6] = [
    "torch_zip.pt",
    "torch_legacy.pt",
    "torch_float8.pt",
    "types.npz",
    "torch_expected.safetensors",
    "torch_nested.pt",
];

#[test]
fn a_real_file_cut_at_any_byte_is_refused() {
    for name in REAL {
        let bytes = fixture(name);
        assert!(read(&bytes).is_ok(), "{name}");
        for length in 0..bytes.len() {
            let cut = &bytes[..length];
            assert!(read(cut).is_err(), "{name} cut to {length} bytes was read");
        }
    }
}

#[test]
fn flipped_bits_never_panic_and_checksums_see_them() {
    for name in REAL {
        let bytes = fixture(name);
        let sound = read(&bytes).unwrap();
        let mut noise = Noise(0x9e37_79b9_7f4a_7c15);
        for _ in 0..4000 {
            let mut flipped = bytes.clone();
            flipped[noise.below(bytes.len())] ^= 1 << noise.below(8);
            let Ok(read) = read(&flipped) else { continue };
            if bytes.starts_with(b"PK") {
                // Checksums cover values, not names.
                for (name, tensor) in &read.tensors {
                    assert!(sound.tensors.get(name).is_none_or(|old| old == tensor), "{name}");
                }
            }
        }
    }
}

#[test]
fn files_with_many_changes_never_panic() {
    for name in REAL {
        let bytes = fixture(name);
        let mut noise = Noise(0xdead_beef_1234_5678);
        for _ in 0..3000 {
            let mut changed = bytes.clone();
            for _ in 0..1 + noise.below(8) {
                let at = noise.below(changed.len());
                match noise.below(4) {
                    0 => changed[at] = noise.below(256) as u8,
                    1 => changed[at] = [0, 0xff, 0x7f, 0x80][noise.below(4)],
                    2 => drop(changed.remove(at)),
                    _ => changed.insert(at, noise.below(256) as u8),
                }
            }
            let _ = read(&changed);
        }
    }
}

#[test]
fn changed_pickles_never_panic_behind_a_right_checksum() {
    // With the old checksum the archive would be refused before the pickle runs.
    let data = [0u8; 64];
    let pickle = state_dict(16, 0, &[2, 2, 2], &[1, 2, 4]);
    let mut noise = Noise(42);
    for _ in 0..20_000 {
        let mut changed = pickle.clone();
        for _ in 0..1 + noise.below(4) {
            let at = noise.below(changed.len());
            changed[at] = noise.below(256) as u8;
        }
        let _ = read(&torch_zip(&changed, &[("0", &data)]));
    }
}
