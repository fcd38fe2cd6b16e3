//! The calls that a checkpoint makes. Each describes a tensor or a container; none does anything else.

use super::document::{PickleNode, PickleValue, StorageRef, TensorRef};
use super::globals::Global;
use super::machine::{Fault, Machine, MachineResult, broken};

/// Weights have at most five axes. A call is a few bytes long, so what it allocates must be bounded.
const MAX_AXES: usize = 8;

impl<'a> Machine<'a> {
    fn items(&self, value: PickleValue<'a>) -> Option<&[PickleValue<'a>]> {
        match value {
            PickleValue::Node(at) => match self.nodes.get(at)? {
                PickleNode::Tuple(items) => Some(items),
                PickleNode::List(items) => Some(items),
                _ => None,
            },
            _ => None,
        }
    }

    /// Calls one of the functions that a checkpoint may call.
    pub(super) fn call(&mut self, function: Global, arguments: PickleValue<'a>) -> MachineResult<PickleValue<'a>> {
        let Some(arguments) = self.items(arguments) else {
            return broken("a call without a tuple of arguments");
        };
        let node = match (function, arguments) {
            (Global::OrderedDict, []) => PickleNode::Dict(Vec::new()),
            (Global::OrderedDict, &[items]) => self.ordered_dict(items)?,
            (Global::RebuildTensor, [storage, offset, size, stride, ..]) => {
                self.tensor(*storage, *offset, *size, *stride, None)?
            }
            (Global::RebuildTensorV3, [storage, offset, size, stride, _, _, dtype, ..]) => {
                self.tensor(*storage, *offset, *size, *stride, Some(*dtype))?
            }
            (Global::RebuildParameter, [tensor, ..]) => return Ok(*tensor),
            (Global::Size, [size]) => return Ok(*size),
            (Global::Device, _) => return Ok(PickleValue::Other),
            _ => return broken("a call with other arguments than PyTorch gives"),
        };
        self.nodes.push(node);
        Ok(PickleValue::Node(self.nodes.len() - 1))
    }

    /// Python 2 passes a list of pairs.
    fn ordered_dict(&self, items: PickleValue<'a>) -> MachineResult<PickleNode<'a>> {
        let items = self.items(items).ok_or(Fault::Broken("an OrderedDict of something else"))?;
        items
            .iter()
            .map(|&item| match self.items(item) {
                Some(&[key, value]) => Ok((key, value)),
                _ => broken("an OrderedDict of something else than pairs"),
            })
            .collect::<MachineResult<_>>()
            .map(PickleNode::Dict)
    }

    fn tensor(
        &self,
        storage: PickleValue<'a>,
        offset: PickleValue<'a>,
        size: PickleValue<'a>,
        stride: PickleValue<'a>,
        dtype: Option<PickleValue<'a>>,
    ) -> MachineResult<PickleNode<'a>> {
        let storage = match storage {
            PickleValue::Node(at) => match self.nodes.get(at) {
                Some(&PickleNode::Storage(storage)) => storage,
                _ => return broken("a tensor without a storage"),
            },
            _ => return broken("a tensor without a storage"),
        };
        let element = match dtype {
            Some(PickleValue::Global(Global::Dtype(element))) => Some(element),
            Some(_) => None,
            None => storage.element,
        };
        let (Some(element), Some(offset), Some(shape), Some(strides)) =
            (element, length(offset), self.lengths(size), self.lengths(stride))
        else {
            return broken("a tensor whose type, offset, size or stride has another type");
        };
        Ok(PickleNode::Tensor(Box::new(TensorRef { storage, element, offset, shape, strides })))
    }

    fn lengths(&self, value: PickleValue<'a>) -> Option<Vec<usize>> {
        let items = self.items(value)?;
        if items.len() > MAX_AXES {
            return None;
        }
        items.iter().map(|&item| length(item)).collect()
    }

    /// The storage of a persistent id: ('storage', type, key, device, length), in old files followed by a view.
    pub(super) fn storage(&self, id: PickleValue<'a>) -> MachineResult<StorageRef<'a>> {
        let Some(&[PickleValue::Str("storage"), kind, PickleValue::Str(key), _, count, ref view @ ..]) = self.items(id)
        else {
            return broken("a persistent id that is not a storage (a whole model was saved?)");
        };
        let PickleValue::Global(Global::Storage(element)) = kind else {
            return broken("a storage of an unknown type");
        };
        if !matches!(view, [] | [PickleValue::Other]) {
            return broken("a view of a storage, from a PyTorch too old to be read");
        }
        let Some(length) = length(count) else {
            return broken("a storage without a length");
        };
        Ok(StorageRef { key, element, length })
    }
}

fn length(value: PickleValue) -> Option<usize> {
    match value {
        PickleValue::Int(value) => usize::try_from(value).ok(),
        _ => None,
    }
}
