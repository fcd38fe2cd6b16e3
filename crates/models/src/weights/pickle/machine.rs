//! The pickle machine. It executes the opcodes of PyTorch's checkpoints; calls are limited to the few functions that
//! describe a tensor, and return descriptions, not tensors. Limits on steps, stack and marks bound memory and time.

use std::collections::BTreeMap;

use super::FORMAT;
use super::document::{Document, PickleNode, PickleValue};
use super::globals;
use super::opcodes::*;
use crate::weights::WeightsError;

/// The largest real checkpoints take some hundred thousand steps.
const MAX_STEPS: usize = 1 << 22;
const MAX_STACK: usize = 1 << 18;
const MAX_MARKS: usize = 1 << 12;
/// No name is longer. Without a limit, a file with one long key a million times would take hours to compare.
const LONGEST_NAME: usize = 1 << 12;

/// Runs the pickle that starts at `start`; returns what it describes and where it ends.
pub(super) fn run(input: &[u8], start: usize) -> Result<(Document<'_>, usize), WeightsError> {
    let mut machine =
        Machine { input, at: start, stack: Vec::new(), marks: Vec::new(), memo: BTreeMap::new(), nodes: Vec::new() };
    for _ in 0..MAX_STEPS {
        let at = machine.at;
        let step = machine.step().map_err(|fault| match fault {
            Fault::Refused(error) => error,
            Fault::Broken(what) => WeightsError::damaged(FORMAT, format!("pickle, byte {at}: {what}")),
        })?;
        if let Some(top) = step {
            let end = machine.at;
            let nodes = machine.nodes;
            return Ok((Document { nodes, top }, end));
        }
    }
    Err(WeightsError::damaged(FORMAT, format!("the pickle takes more than {MAX_STEPS} steps")))
}

/// Why a step failed.
pub(super) enum Fault {
    /// The pickle breaks a rule; the byte's position is added.
    Broken(&'static str),
    Refused(WeightsError),
}

pub(super) type MachineResult<T> = Result<T, Fault>;

pub(super) fn broken<T>(what: &'static str) -> MachineResult<T> {
    Err(Fault::Broken(what))
}

pub(super) struct Machine<'a> {
    input: &'a [u8],
    at: usize,
    stack: Vec<PickleValue<'a>>,
    /// The stack's length at each open mark.
    marks: Vec<usize>,
    /// A tree: a hash table would take twice its size while it grows, more than all else here.
    memo: BTreeMap<u64, PickleValue<'a>>,
    pub(super) nodes: Vec<PickleNode<'a>>,
}

impl<'a> Machine<'a> {
    /// Executes one opcode; returns the result once the pickle stops.
    fn step(&mut self) -> MachineResult<Option<PickleValue<'a>>> {
        let opcode = self.byte()?;
        if opcode == STOP {
            return self.pop().map(Some);
        }
        let known = self.stack_opcode(opcode)?
            || self.scalar_opcode(opcode)?
            || self.string_opcode(opcode)?
            || self.container_opcode(opcode)?
            || self.memo_opcode(opcode)?
            || self.object_opcode(opcode)?;
        if known { Ok(None) } else { broken("an opcode that checkpoints do not use") }
    }

    fn stack_opcode(&mut self, opcode: u8) -> MachineResult<bool> {
        match opcode {
            // Protocol and frame length are not needed.
            PROTO => drop(self.take(1)?),
            FRAME => drop(self.take(8)?),
            MARK if self.marks.len() == MAX_MARKS => return broken("too many open marks"),
            MARK => self.marks.push(self.stack.len()),
            // As in Python, a mark counts as an item here.
            POP if self.marks.last() == Some(&self.stack.len()) => drop(self.marks.pop()),
            POP => drop(self.pop()?),
            POP_MARK => drop(self.pop_mark()?),
            DUP => {
                let top = self.pop()?;
                self.push(top)?;
                self.push(top)?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn scalar_opcode(&mut self, opcode: u8) -> MachineResult<bool> {
        let value = match opcode {
            NONE | NEWTRUE | NEWFALSE => PickleValue::Other,
            BININT1 => PickleValue::Int(self.unsigned(1)? as i64),
            BININT2 => PickleValue::Int(self.unsigned(2)? as i64),
            BININT => PickleValue::Int((self.unsigned(4)? as u32 as i32).into()),
            INT | LONG => {
                let line = self.line()?;
                line.strip_suffix('L').unwrap_or(line).parse().map_or(PickleValue::Other, PickleValue::Int)
            }
            LONG1 => self.long(1)?,
            LONG4 => self.long(4)?,
            BINFLOAT => {
                self.take(8)?;
                PickleValue::Other
            }
            FLOAT => {
                self.line()?;
                PickleValue::Other
            }
            _ => return Ok(false),
        };
        self.push(value)?;
        Ok(true)
    }

    fn string_opcode(&mut self, opcode: u8) -> MachineResult<bool> {
        let value = match opcode {
            SHORT_BINUNICODE => self.text(1)?,
            BINUNICODE => self.text(4)?,
            BINUNICODE8 => self.text(8)?,
            UNICODE => name(self.line()?),
            // Python 2's strings are bytes, and names only if they are UTF-8.
            SHORT_BINSTRING => self.bytes_or_text(1)?,
            BINSTRING => self.bytes_or_text(4)?,
            STRING => {
                let line = self.line()?;
                let quoted = line.strip_prefix(['\'', '"']).unwrap_or(line);
                name(quoted.strip_suffix(['\'', '"']).unwrap_or(quoted))
            }
            SHORT_BINBYTES => self.skipped_bytes(1)?,
            BINBYTES => self.skipped_bytes(4)?,
            BINBYTES8 | BYTEARRAY8 => self.skipped_bytes(8)?,
            _ => return Ok(false),
        };
        self.push(value)?;
        Ok(true)
    }

    /// Sets are read as lists: their members are never looked up.
    fn container_opcode(&mut self, opcode: u8) -> MachineResult<bool> {
        match opcode {
            EMPTY_TUPLE => self.push_node(PickleNode::Tuple(Box::new([])))?,
            TUPLE => {
                let items = self.pop_mark()?;
                self.push_node(PickleNode::Tuple(items.into()))?;
            }
            TUPLE1 => self.tuple(1)?,
            TUPLE2 => self.tuple(2)?,
            TUPLE3 => self.tuple(3)?,
            EMPTY_LIST | EMPTY_SET => self.push_node(PickleNode::List(Vec::new()))?,
            LIST | FROZENSET => {
                let items = self.pop_mark()?;
                self.push_node(PickleNode::List(items))?;
            }
            APPEND => {
                let item = self.pop()?;
                self.list()?.push(item);
            }
            APPENDS | ADDITEMS => {
                let items = self.pop_mark()?;
                self.list()?.extend(items);
            }
            EMPTY_DICT => self.push_node(PickleNode::Dict(Vec::new()))?,
            DICT => {
                let items = self.pop_mark()?;
                self.push_node(PickleNode::Dict(pairs(&items)?))?;
            }
            SETITEM => {
                let value = self.pop()?;
                let key = self.pop()?;
                self.dict()?.push((key, value));
            }
            SETITEMS => {
                let items = pairs(&self.pop_mark()?)?;
                self.dict()?.extend(items);
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn memo_opcode(&mut self, opcode: u8) -> MachineResult<bool> {
        let key = match opcode {
            BINPUT | BINGET => self.unsigned(1)?,
            LONG_BINPUT | LONG_BINGET => self.unsigned(4)?,
            PUT | GET => self.decimal()?,
            MEMOIZE => self.memo.len() as u64,
            _ => return Ok(false),
        };
        match opcode {
            BINGET | LONG_BINGET | GET => self.recall(key)?,
            _ => self.remember(key)?,
        }
        Ok(true)
    }

    fn object_opcode(&mut self, opcode: u8) -> MachineResult<bool> {
        match opcode {
            GLOBAL => {
                let (module, name) = (self.line()?, self.line()?);
                self.global(module, name)?;
            }
            STACK_GLOBAL => {
                let (PickleValue::Str(name), PickleValue::Str(module)) = (self.pop()?, self.pop()?) else {
                    return broken("a global whose name is not text");
                };
                self.global(module, name)?;
            }
            // Resolved only so that the refusal names the class.
            INST => {
                let (module, name) = (self.line()?, self.line()?);
                self.global(module, name)?;
                return broken("an instance of a class");
            }
            REDUCE | NEWOBJ => {
                let arguments = self.pop()?;
                let PickleValue::Global(function) = self.pop()? else {
                    return broken("a call of something that is not a function");
                };
                let result = self.call(function, arguments)?;
                self.push(result)?;
            }
            // Attributes of a dict or parameter, such as hooks; none describes a tensor.
            BUILD => drop(self.pop()?),
            BINPERSID => {
                let id = self.pop()?;
                let storage = self.storage(id)?;
                self.push_node(PickleNode::Storage(storage))?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn take(&mut self, length: usize) -> MachineResult<&'a [u8]> {
        let taken = self.at.checked_add(length).and_then(|end| self.input.get(self.at..end));
        match taken {
            Some(taken) => {
                self.at += length;
                Ok(taken)
            }
            None => broken("it breaks off"),
        }
    }

    fn byte(&mut self) -> MachineResult<u8> {
        Ok(self.take(1)?[0])
    }

    /// A little-endian integer of up to eight bytes.
    fn unsigned(&mut self, width: usize) -> MachineResult<u64> {
        let bytes = self.take(width)?;
        Ok(bytes.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte)))
    }

    fn counted(&mut self, width: usize) -> MachineResult<&'a [u8]> {
        match usize::try_from(self.unsigned(width)?) {
            Ok(length) => self.take(length),
            Err(_) => broken("a length beyond this machine's memory"),
        }
    }

    fn line(&mut self) -> MachineResult<&'a str> {
        let rest = &self.input[self.at..];
        let Some(end) = rest.iter().position(|&byte| byte == b'\n') else {
            return broken("a line without an end");
        };
        self.at += end + 1;
        match std::str::from_utf8(&rest[..end]) {
            Ok(line) => Ok(line),
            Err(_) => broken("a line that is not text"),
        }
    }

    fn decimal(&mut self) -> MachineResult<u64> {
        match self.line()?.parse() {
            Ok(value) => Ok(value),
            Err(_) => broken("a key of the memo that is not a number"),
        }
    }

    fn push(&mut self, value: PickleValue<'a>) -> MachineResult<()> {
        if self.stack.len() == MAX_STACK {
            return broken("the stack grows without end");
        }
        self.stack.push(value);
        Ok(())
    }

    /// An item above the last mark; those below it cannot be popped before the mark.
    fn pop(&mut self) -> MachineResult<PickleValue<'a>> {
        let floor = self.marks.last().copied().unwrap_or(0);
        if self.stack.len() <= floor {
            return broken("the stack is empty");
        }
        self.stack.pop().ok_or(Fault::Broken("the stack is empty"))
    }

    fn pop_mark(&mut self) -> MachineResult<Vec<PickleValue<'a>>> {
        match self.marks.pop() {
            Some(mark) if mark <= self.stack.len() => Ok(self.stack.split_off(mark)),
            _ => broken("no mark is open"),
        }
    }

    fn push_node(&mut self, node: PickleNode<'a>) -> MachineResult<()> {
        self.nodes.push(node);
        self.push(PickleValue::Node(self.nodes.len() - 1))
    }

    fn text(&mut self, width: usize) -> MachineResult<PickleValue<'a>> {
        match std::str::from_utf8(self.counted(width)?) {
            Ok(text) => Ok(name(text)),
            Err(_) => broken("a text that is not UTF-8"),
        }
    }

    fn bytes_or_text(&mut self, width: usize) -> MachineResult<PickleValue<'a>> {
        Ok(std::str::from_utf8(self.counted(width)?).map_or(PickleValue::Other, name))
    }

    fn skipped_bytes(&mut self, width: usize) -> MachineResult<PickleValue<'a>> {
        self.counted(width)?;
        Ok(PickleValue::Other)
    }

    /// A two's-complement integer after its length; one beyond 64 bits is not kept, since no length or offset has as many.
    fn long(&mut self, width: usize) -> MachineResult<PickleValue<'a>> {
        let bytes = self.counted(width)?;
        if bytes.len() > 8 {
            return Ok(PickleValue::Other);
        }
        let negative = bytes.last().is_some_and(|&byte| byte & 0x80 != 0);
        let mut wide = if negative { [0xff; 8] } else { [0; 8] };
        wide[..bytes.len()].copy_from_slice(bytes);
        Ok(PickleValue::Int(i64::from_le_bytes(wide)))
    }

    fn tuple(&mut self, length: usize) -> MachineResult<()> {
        let mut items = Vec::with_capacity(length);
        for _ in 0..length {
            items.push(self.pop()?);
        }
        items.reverse();
        self.push_node(PickleNode::Tuple(items.into()))
    }

    fn list(&mut self) -> MachineResult<&mut Vec<PickleValue<'a>>> {
        match self.top_node()? {
            PickleNode::List(items) => Ok(items),
            _ => broken("appends to something that is not a list"),
        }
    }

    fn dict(&mut self) -> MachineResult<&mut Vec<(PickleValue<'a>, PickleValue<'a>)>> {
        match self.top_node()? {
            PickleNode::Dict(items) => Ok(items),
            _ => broken("sets items of something that is not a dict"),
        }
    }

    fn top_node(&mut self) -> MachineResult<&mut PickleNode<'a>> {
        match self.stack.last() {
            Some(&PickleValue::Node(at)) => self.nodes.get_mut(at).ok_or(Fault::Broken("a value that does not exist")),
            _ => broken("changes something that is not a container"),
        }
    }

    fn remember(&mut self, key: u64) -> MachineResult<()> {
        let Some(&top) = self.stack.last() else {
            return broken("the stack is empty");
        };
        self.memo.insert(key, top);
        Ok(())
    }

    fn recall(&mut self, key: u64) -> MachineResult<()> {
        match self.memo.get(&key) {
            Some(&value) => self.push(value),
            None => broken("the memo has no such value"),
        }
    }

    fn global(&mut self, module: &'a str, name: &'a str) -> MachineResult<()> {
        let global = globals::resolve(module, name).map_err(Fault::Refused)?;
        self.push(PickleValue::Global(global))
    }
}

/// Alternating keys and values.
fn pairs<'a>(items: &[PickleValue<'a>]) -> MachineResult<Vec<(PickleValue<'a>, PickleValue<'a>)>> {
    match items.as_chunks() {
        (pairs, []) => Ok(pairs.iter().map(|&[key, value]| (key, value)).collect()),
        _ => broken("a key without a value"),
    }
}

/// A string, unless it is too long for a name.
fn name(text: &str) -> PickleValue<'_> {
    if text.len() > LONGEST_NAME {
        return PickleValue::Other;
    }
    PickleValue::Str(text)
}
