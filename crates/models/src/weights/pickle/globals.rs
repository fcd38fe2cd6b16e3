//! The Python names that a checkpoint may mention, and what they mean here. Everything else is refused by name.

use crate::weights::WeightsError;
use crate::weights::element::Element;

/// A Python object that a tensor is described with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Global {
    OrderedDict,
    /// `_rebuild_tensor` and `_rebuild_tensor_v2`: storage, offset, size, stride.
    RebuildTensor,
    /// The same over an untyped storage, with the element type as an argument.
    RebuildTensorV3,
    /// A parameter around a tensor, with or without attributes.
    RebuildParameter,
    Size,
    Device,
    /// A storage; untyped without an element type.
    Storage(Option<Element>),
    Dtype(Element),
}

/// The meaning of a global, or its refusal.
pub(super) fn resolve(module: &str, name: &str) -> Result<Global, WeightsError> {
    let known = match (module, name) {
        ("collections", "OrderedDict") => Some(Global::OrderedDict),
        ("torch._utils", "_rebuild_tensor" | "_rebuild_tensor_v2") => Some(Global::RebuildTensor),
        ("torch._utils", "_rebuild_tensor_v3") => Some(Global::RebuildTensorV3),
        ("torch._utils", "_rebuild_parameter" | "_rebuild_parameter_with_state") => Some(Global::RebuildParameter),
        ("torch", "Size") => Some(Global::Size),
        ("torch", "device") => Some(Global::Device),
        ("torch" | "torch.storage", "UntypedStorage") => Some(Global::Storage(None)),
        ("torch" | "torch.cuda", name) => name
            .strip_suffix("Storage")
            .and_then(storage)
            .map(|element| Global::Storage(Some(element)))
            .or_else(|| dtype(name).map(Global::Dtype)),
        _ => None,
    };
    known.ok_or_else(|| WeightsError::RefusedGlobal { global: format!("{module}.{name}") })
}

fn storage(name: &str) -> Option<Element> {
    Some(match name {
        "Double" => Element::F64,
        "Float" => Element::F32,
        "Half" => Element::F16,
        "BFloat16" => Element::BF16,
        "Long" => Element::I64,
        "Int" => Element::I32,
        "Short" => Element::I16,
        "Char" => Element::I8,
        "Byte" => Element::U8,
        "Bool" => Element::Bool,
        _ => return None,
    })
}

fn dtype(name: &str) -> Option<Element> {
    Some(match name {
        "float64" => Element::F64,
        "float32" => Element::F32,
        "float16" => Element::F16,
        "bfloat16" => Element::BF16,
        "float8_e4m3fn" => Element::F8E4M3,
        "float8_e5m2" => Element::F8E5M2,
        "int64" => Element::I64,
        "int32" => Element::I32,
        "int16" => Element::I16,
        "int8" => Element::I8,
        "uint64" => Element::U64,
        "uint32" => Element::U32,
        "uint16" => Element::U16,
        "uint8" => Element::U8,
        "bool" => Element::Bool,
        _ => return None,
    })
}
