//! What a pickle describes: values, containers, and tensors whose data are not read yet. Containers are in one arena and
//! refer to one another by index, so that deep nesting cannot overflow the stack and a cycle cannot leak.

use super::globals::Global;
use crate::weights::element::Element;

/// A value on the stack; containers and tensors are in the arena.
#[derive(Clone, Copy, Debug)]
pub(super) enum PickleValue<'a> {
    Int(i64),
    Str(&'a str),
    Global(Global),
    Node(usize),
    /// None, booleans, floats, bytes: no part of a tensor's description.
    Other,
}

/// A container or a description, in the arena.
#[derive(Debug)]
pub(super) enum PickleNode<'a> {
    Tuple(Box<[PickleValue<'a>]>),
    List(Vec<PickleValue<'a>>),
    Dict(Vec<(PickleValue<'a>, PickleValue<'a>)>),
    Storage(StorageRef<'a>),
    Tensor(Box<TensorRef<'a>>),
}

/// A storage that the pickle mentions.
#[derive(Clone, Copy, Debug)]
pub(super) struct StorageRef<'a> {
    pub key: &'a str,
    /// `None` for an untyped storage.
    pub element: Option<Element>,
    /// In elements.
    pub length: usize,
}

impl StorageRef<'_> {
    pub fn element_size(&self) -> usize {
        self.element.map_or(1, Element::size)
    }
}

/// A tensor that the pickle describes, not yet checked against its storage.
#[derive(Debug)]
pub(super) struct TensorRef<'a> {
    pub storage: StorageRef<'a>,
    pub element: Element,
    /// In elements, like the strides.
    pub offset: usize,
    pub shape: Vec<usize>,
    pub strides: Vec<usize>,
}

/// The result of a pickle.
#[derive(Debug)]
pub(super) struct Document<'a> {
    pub nodes: Vec<PickleNode<'a>>,
    pub top: PickleValue<'a>,
}

impl<'a> Document<'a> {
    /// The container or description behind a value, if it is one.
    pub fn node(&self, value: PickleValue<'a>) -> Option<&PickleNode<'a>> {
        match value {
            PickleValue::Node(at) => self.nodes.get(at),
            _ => None,
        }
    }
}
