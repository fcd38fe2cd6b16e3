//! The pickle machine. It knows the opcodes that PyTorch's checkpoints are made of; calling is limited to the few
//! functions that describe a tensor, and those build descriptions, not tensors. Containers live in one arena and refer
//! to one another by number, so that a file can neither nest deeply enough to overflow the stack nor make a cycle that
//! leaks; the number of steps bounds memory and time.

use std::collections::BTreeMap;

use super::FORMAT;
use super::document::{Document, Node, Value};
use super::globals;
use crate::weights::WeightsError;

/// The largest real checkpoints take some hundred thousand steps.
const MOST_STEPS: usize = 1 << 22;
const MOST_STACK: usize = 1 << 18;
const MOST_MARKS: usize = 1 << 12;
/// No name is longer. A long text that is used as a key a million times would take hours to compare.
const LONGEST_NAME: usize = 1 << 12;

/// Runs the pickle that starts at `start`; gives what it describes and where it ends.
pub(super) fn run(input: &[u8], start: usize) -> Result<(Document<'_>, usize), WeightsError> {
    let mut machine =
        Machine { input, at: start, stack: Vec::new(), marks: Vec::new(), memo: BTreeMap::new(), nodes: Vec::new() };
    for _ in 0..MOST_STEPS {
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
    Err(WeightsError::damaged(FORMAT, format!("the pickle takes more than {MOST_STEPS} steps")))
}

/// Why a step failed: what it says about the pickle, to which the place is added, or an error that says all.
pub(super) enum Fault {
    Broken(&'static str),
    Refused(WeightsError),
}

pub(super) type Step<T> = Result<T, Fault>;

pub(super) fn broken<T>(what: &'static str) -> Step<T> {
    Err(Fault::Broken(what))
}

pub(super) struct Machine<'a> {
    input: &'a [u8],
    at: usize,
    stack: Vec<Value<'a>>,
    /// Where on the stack the open marks are.
    marks: Vec<usize>,
    /// A tree, because a hash table twice its size while it grows would be the largest thing here.
    memo: BTreeMap<u64, Value<'a>>,
    pub(super) nodes: Vec<Node<'a>>,
}

impl<'a> Machine<'a> {
    /// One opcode; gives the result once the pickle stops.
    fn step(&mut self) -> Step<Option<Value<'a>>> {
        match self.byte()? {
            b'.' => return self.pop().map(Some),
            // Protocol and frame lengths say nothing that is needed.
            0x80 => drop(self.take(1)?),
            0x95 => drop(self.take(8)?),

            b'(' => {
                if self.marks.len() == MOST_MARKS {
                    return broken("too many open marks");
                }
                self.marks.push(self.stack.len());
            }
            b'0' => {
                // As in Python, a mark counts as an item here.
                if self.marks.last() == Some(&self.stack.len()) {
                    self.marks.pop();
                } else {
                    self.pop()?;
                }
            }
            b'1' => drop(self.pop_mark()?),
            b'2' => {
                let top = self.pop()?;
                self.push(top)?;
                self.push(top)?;
            }

            b'N' | 0x88 | 0x89 => self.push(Value::Other)?,
            b'K' => {
                let value = self.unsigned(1)?;
                self.push(Value::Int(value as i64))?;
            }
            b'M' => {
                let value = self.unsigned(2)?;
                self.push(Value::Int(value as i64))?;
            }
            b'J' => {
                let value = self.unsigned(4)? as u32 as i32;
                self.push(Value::Int(value.into()))?;
            }
            b'I' | b'L' => {
                let line = self.line()?;
                let digits = line.strip_suffix('L').unwrap_or(line);
                let value = digits.parse().map_or(Value::Other, Value::Int);
                self.push(value)?;
            }
            0x8a => {
                let length = self.unsigned(1)?;
                self.long(length)?;
            }
            0x8b => {
                let length = self.unsigned(4)?;
                self.long(length)?;
            }
            b'G' => {
                self.take(8)?;
                self.push(Value::Other)?;
            }
            b'F' => {
                self.line()?;
                self.push(Value::Other)?;
            }

            0x8c => self.text(1)?,
            b'X' => self.text(4)?,
            0x8d => self.text(8)?,
            b'V' => {
                let line = self.line()?;
                self.push(name(line))?;
            }
            // Python 2 strings: names where they are text, else nothing of use.
            b'U' => self.bytes_or_text(1)?,
            b'T' => self.bytes_or_text(4)?,
            b'S' => {
                let line = self.line()?;
                let quoted = line.strip_prefix(['\'', '"']).unwrap_or(line);
                self.push(name(quoted.strip_suffix(['\'', '"']).unwrap_or(quoted)))?;
            }
            b'C' => self.skip_bytes(1)?,
            b'B' => self.skip_bytes(4)?,
            0x8e | 0x96 => self.skip_bytes(8)?,

            b')' => self.push_node(Node::Tuple(Box::new([])))?,
            b't' => {
                let items = self.pop_mark()?;
                self.push_node(Node::Tuple(items.into()))?;
            }
            0x85 => self.tuple(1)?,
            0x86 => self.tuple(2)?,
            0x87 => self.tuple(3)?,
            // Sets serve as lists: nothing here asks whether they hold something.
            b']' | 0x8f => self.push_node(Node::List(Vec::new()))?,
            b'l' | 0x91 => {
                let items = self.pop_mark()?;
                self.push_node(Node::List(items))?;
            }
            b'a' => {
                let item = self.pop()?;
                self.list()?.push(item);
            }
            b'e' | 0x90 => {
                let items = self.pop_mark()?;
                self.list()?.extend(items);
            }
            b'}' => self.push_node(Node::Dict(Vec::new()))?,
            b'd' => {
                let items = self.pop_mark()?;
                self.push_node(Node::Dict(pairs(&items)?))?;
            }
            b's' => {
                let value = self.pop()?;
                let key = self.pop()?;
                self.dict()?.push((key, value));
            }
            b'u' => {
                let items = self.pop_mark()?;
                let items = pairs(&items)?;
                self.dict()?.extend(items);
            }

            b'q' => self.put(1)?,
            b'r' => self.put(4)?,
            b'p' => {
                let key = self.decimal()?;
                self.remember(key)?;
            }
            0x94 => self.remember(self.memo.len() as u64)?,
            b'h' => self.get(1)?,
            b'j' => self.get(4)?,
            b'g' => {
                let key = self.decimal()?;
                self.recall(key)?;
            }

            b'c' => {
                let module = self.line()?;
                let name = self.line()?;
                self.global(module, name)?;
            }
            0x93 => {
                let (Value::Str(name), Value::Str(module)) = (self.pop()?, self.pop()?) else {
                    return broken("a global whose name is not text");
                };
                self.global(module, name)?;
            }
            // An object of a class that is named on the spot: a refusal should name it.
            b'i' => {
                let module = self.line()?;
                let name = self.line()?;
                self.global(module, name)?;
                return broken("an instance of a class");
            }
            b'R' | 0x81 => {
                let arguments = self.pop()?;
                let Value::Global(function) = self.pop()? else {
                    return broken("a call of something that is not a function");
                };
                let result = self.call(function, arguments)?;
                self.push(result)?;
            }
            // Attributes of a dict or parameter: hooks and versions, nothing of the tensor.
            b'b' => drop(self.pop()?),
            b'Q' => {
                let id = self.pop()?;
                let storage = self.storage(id)?;
                self.push_node(Node::Storage(storage))?;
            }
            _ => return broken("an opcode that checkpoints do not use"),
        }
        Ok(None)
    }

    fn take(&mut self, length: usize) -> Step<&'a [u8]> {
        let taken = self.at.checked_add(length).and_then(|end| self.input.get(self.at..end));
        match taken {
            Some(taken) => {
                self.at += length;
                Ok(taken)
            }
            None => broken("it breaks off"),
        }
    }

    fn byte(&mut self) -> Step<u8> {
        Ok(self.take(1)?[0])
    }

    /// A little-endian number of up to eight bytes.
    fn unsigned(&mut self, width: usize) -> Step<u64> {
        let bytes = self.take(width)?;
        Ok(bytes.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte)))
    }

    fn counted(&mut self, width: usize) -> Step<&'a [u8]> {
        match usize::try_from(self.unsigned(width)?) {
            Ok(length) => self.take(length),
            Err(_) => broken("a length beyond this machine's memory"),
        }
    }

    fn line(&mut self) -> Step<&'a str> {
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

    fn decimal(&mut self) -> Step<u64> {
        match self.line()?.parse() {
            Ok(value) => Ok(value),
            Err(_) => broken("a number of the memo that is none"),
        }
    }

    fn push(&mut self, value: Value<'a>) -> Step<()> {
        if self.stack.len() == MOST_STACK {
            return broken("the stack grows without end");
        }
        self.stack.push(value);
        Ok(())
    }

    /// An item above the last mark: what lies below belongs to whoever set the mark.
    fn pop(&mut self) -> Step<Value<'a>> {
        let floor = self.marks.last().copied().unwrap_or(0);
        if self.stack.len() <= floor {
            return broken("the stack is empty");
        }
        self.stack.pop().ok_or(Fault::Broken("the stack is empty"))
    }

    fn pop_mark(&mut self) -> Step<Vec<Value<'a>>> {
        match self.marks.pop() {
            Some(mark) if mark <= self.stack.len() => Ok(self.stack.split_off(mark)),
            _ => broken("no mark is open"),
        }
    }

    fn push_node(&mut self, node: Node<'a>) -> Step<()> {
        self.nodes.push(node);
        self.push(Value::Node(self.nodes.len() - 1))
    }

    fn text(&mut self, width: usize) -> Step<()> {
        match std::str::from_utf8(self.counted(width)?) {
            Ok(text) => self.push(name(text)),
            Err(_) => broken("a text that is not UTF-8"),
        }
    }

    fn bytes_or_text(&mut self, width: usize) -> Step<()> {
        let bytes = self.counted(width)?;
        self.push(std::str::from_utf8(bytes).map_or(Value::Other, name))
    }

    fn skip_bytes(&mut self, width: usize) -> Step<()> {
        self.counted(width)?;
        self.push(Value::Other)
    }

    /// A two's-complement number; one beyond 64 bits counts no elements and is not kept.
    fn long(&mut self, length: u64) -> Step<()> {
        let Ok(length) = usize::try_from(length) else {
            return broken("a length beyond this machine's memory");
        };
        let bytes = self.take(length)?;
        if bytes.len() > 8 {
            return self.push(Value::Other);
        }
        let negative = bytes.last().is_some_and(|&byte| byte & 0x80 != 0);
        let mut wide = if negative { [0xff; 8] } else { [0; 8] };
        wide[..bytes.len()].copy_from_slice(bytes);
        self.push(Value::Int(i64::from_le_bytes(wide)))
    }

    fn tuple(&mut self, length: usize) -> Step<()> {
        let mut items = Vec::with_capacity(length);
        for _ in 0..length {
            items.push(self.pop()?);
        }
        items.reverse();
        self.push_node(Node::Tuple(items.into()))
    }

    fn list(&mut self) -> Step<&mut Vec<Value<'a>>> {
        match self.top_node()? {
            Node::List(items) => Ok(items),
            _ => broken("appends to something that is not a list"),
        }
    }

    fn dict(&mut self) -> Step<&mut Vec<(Value<'a>, Value<'a>)>> {
        match self.top_node()? {
            Node::Dict(items) => Ok(items),
            _ => broken("sets items of something that is not a dict"),
        }
    }

    fn top_node(&mut self) -> Step<&mut Node<'a>> {
        match self.stack.last() {
            Some(&Value::Node(at)) => self.nodes.get_mut(at).ok_or(Fault::Broken("a value that does not exist")),
            _ => broken("changes something that is not a container"),
        }
    }

    fn put(&mut self, width: usize) -> Step<()> {
        let key = self.unsigned(width)?;
        self.remember(key)
    }

    fn remember(&mut self, key: u64) -> Step<()> {
        let Some(&top) = self.stack.last() else {
            return broken("the stack is empty");
        };
        self.memo.insert(key, top);
        Ok(())
    }

    fn get(&mut self, width: usize) -> Step<()> {
        let key = self.unsigned(width)?;
        self.recall(key)
    }

    fn recall(&mut self, key: u64) -> Step<()> {
        match self.memo.get(&key) {
            Some(&value) => self.push(value),
            None => broken("the memo has no such value"),
        }
    }

    fn global(&mut self, module: &'a str, name: &'a str) -> Step<()> {
        let global = globals::resolve(module, name).map_err(Fault::Refused)?;
        self.push(Value::Global(global))
    }
}

/// Key and value by turns.
fn pairs<'a>(items: &[Value<'a>]) -> Step<Vec<(Value<'a>, Value<'a>)>> {
    match items.as_chunks() {
        (pairs, []) => Ok(pairs.iter().map(|&[key, value]| (key, value)).collect()),
        _ => broken("a key without a value"),
    }
}

/// A text as far as it can be a name.
fn name(text: &str) -> Value<'_> {
    if text.len() > LONGEST_NAME {
        return Value::Other;
    }
    Value::Str(text)
}
