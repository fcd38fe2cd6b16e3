//! Pickles written opcode by opcode, in the two containers that PyTorch has for them.

use super::{Member, zip};

/// A checkpoint in the zip format.
pub fn torch_zip(pickle: &[u8], storages: &[(&str, &[u8])]) -> Vec<u8> {
    let mut members = vec![Member::stored("a/data.pkl", pickle), Member::stored("a/byteorder", b"little")];
    for (key, bytes) in storages {
        members.push(Member::stored(&format!("a/data/{key}"), bytes));
    }
    zip(&members)
}

/// A checkpoint in the legacy format.
pub fn torch_legacy(pickle: &[u8], keys: &[&str], storages: &[u8]) -> Vec<u8> {
    let mut bytes = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.".to_vec();
    bytes.extend(b"\x80\x02M\xe9\x03.");
    bytes.extend(b"\x80\x02}.");
    bytes.extend(pickle);
    bytes.extend(b"\x80\x02](");
    for key in keys {
        text(&mut bytes, key);
    }
    bytes.extend(b"e.");
    bytes.extend(storages);
    bytes
}

pub fn text(out: &mut Vec<u8>, text: &str) {
    out.push(b'X');
    out.extend((text.len() as u32).to_le_bytes());
    out.extend(text.as_bytes());
}

pub fn int(out: &mut Vec<u8>, value: i64) {
    out.extend(b"\x8a\x08");
    out.extend(value.to_le_bytes());
}

/// Pushes a float tensor with this storage, offset, shape and strides.
pub fn tensor(out: &mut Vec<u8>, key: &str, length: i64, offset: i64, shape: &[i64], strides: &[i64]) {
    out.extend(b"ctorch._utils\n_rebuild_tensor_v2\n((");
    text(out, "storage");
    out.extend(b"ctorch\nFloatStorage\n");
    text(out, key);
    text(out, "cpu");
    int(out, length);
    out.extend(b"tQ");
    int(out, offset);
    for axes in [shape, strides] {
        out.push(b'(');
        for &axis in axes {
            int(out, axis);
        }
        out.push(b't');
    }
    out.extend(b"\x89ccollections\nOrderedDict\n)RtR");
}

/// A state dict of that one tensor, named `w`.
pub fn state_dict(length: i64, offset: i64, shape: &[i64], strides: &[i64]) -> Vec<u8> {
    let mut out = b"\x80\x02}".to_vec();
    text(&mut out, "w");
    tensor(&mut out, "0", length, offset, shape, strides);
    out.extend(b"s.");
    out
}
