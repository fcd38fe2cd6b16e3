//! Reads the arguments of a constructor by name, and refuses those that were not read.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::LazyLock;

use serde_json::{Map, Value};
use vit_graph::ops::Activation;

/// A whole number.
pub(crate) fn whole(value: &Value) -> Option<usize> {
    value.as_u64().and_then(|n| usize::try_from(n).ok())
}

/// Height and width, or one number for both.
pub(crate) fn pair(value: &Value) -> Option<[usize; 2]> {
    match value.as_array().map(Vec::as_slice) {
        Some([h, w]) => whole(h).zip(whole(w)).map(|(h, w)| [h, w]),
        Some([one]) => whole(one).map(|n| [n, n]),
        Some(_) => None,
        None => whole(value).map(|n| [n, n]),
    }
}

/// The arguments of a constructor, in a JSON object. Each method reads one: `None` where it is absent or null, an error
/// where it is of another type.
pub struct Arguments<'a> {
    map: &'a Map<String, Value>,
    /// Named in error messages.
    library: &'a str,
    read: RefCell<BTreeSet<String>>,
}

impl<'a> Arguments<'a> {
    /// The arguments in `map`, of a constructor of this library.
    pub fn new(library: &'a str, map: &'a Map<String, Value>) -> Self {
        Arguments { map, library, read: RefCell::default() }
    }

    /// A value of any type.
    pub fn get(&self, name: &str) -> Option<&'a Value> {
        self.read.borrow_mut().insert(name.to_string());
        self.map.get(name).filter(|v| !v.is_null())
    }

    /// Whether the argument is given, also as null.
    pub fn has(&self, name: &str) -> bool {
        self.map.contains_key(name)
    }

    fn wrong(&self, name: &str, expected: &str) -> String {
        format!("{}'s option `{name}` should be {expected}, not {}", self.library, self.map[name])
    }

    /// A whole number.
    pub fn count(&self, name: &str) -> Result<Option<usize>, String> {
        self.get(name).map(|v| whole(v).ok_or_else(|| self.wrong(name, "a whole number"))).transpose()
    }

    /// A number.
    pub fn number(&self, name: &str) -> Result<Option<f64>, String> {
        self.get(name).map(|v| v.as_f64().ok_or_else(|| self.wrong(name, "a number"))).transpose()
    }

    /// True or false.
    pub fn flag(&self, name: &str) -> Result<Option<bool>, String> {
        self.get(name).map(|v| v.as_bool().ok_or_else(|| self.wrong(name, "true or false"))).transpose()
    }

    /// A string.
    pub fn text(&self, name: &str) -> Result<Option<&'a str>, String> {
        self.get(name).map(|v| v.as_str().ok_or_else(|| self.wrong(name, "a string"))).transpose()
    }

    /// A nested object.
    pub fn object(&self, name: &str) -> Result<Option<&'a Map<String, Value>>, String> {
        self.get(name).map(|v| v.as_object().ok_or_else(|| self.wrong(name, "an object"))).transpose()
    }

    /// A list of whole numbers.
    pub fn counts(&self, name: &str) -> Result<Option<Vec<usize>>, String> {
        self.get(name)
            .map(|v| {
                let all = v.as_array().and_then(|a| a.iter().map(whole).collect::<Option<Vec<_>>>());
                all.ok_or_else(|| self.wrong(name, "a list of whole numbers"))
            })
            .transpose()
    }

    /// A class and the arguments bound to it: its name alone, or `{name: {arguments}}`.
    pub fn class(&self, name: &str) -> Result<Option<(&'a str, Arguments<'a>)>, String> {
        static NONE: LazyLock<Map<String, Value>> = LazyLock::new(Map::new);
        let Some(value) = self.get(name) else { return Ok(None) };
        let bound = match value {
            Value::String(class) => Some((class.as_str(), &*NONE)),
            Value::Object(map) if map.len() == 1 => {
                map.iter().next().and_then(|(c, b)| Some((c.as_str(), b.as_object()?)))
            }
            _ => None,
        };
        let (class, bound) = bound.ok_or_else(|| self.wrong(name, "a class or one class with its arguments"))?;
        Ok(Some((class, Arguments::new(self.library, bound))))
    }

    /// Height and width, or one number for both.
    pub fn pair(&self, name: &str) -> Result<Option<[usize; 2]>, String> {
        let read = |v: &Value| pair(v).ok_or_else(|| self.wrong(name, "a size or [height, width]"));
        self.get(name).map(read).transpose()
    }

    /// A rate of dropout, from 0 to below 1.
    pub fn rate(&self, name: &str) -> Result<Option<f32>, String> {
        match self.number(name)? {
            Some(rate) if !(0.0..1.0).contains(&rate) => Err(self.wrong(name, "from 0 to below 1")),
            rate => Ok(rate.map(|r| r as f32)),
        }
    }

    /// An activation, by any library's name.
    pub fn activation(&self, name: &str) -> Result<Option<Activation>, String> {
        self.text(name)?
            .map(|text| match text {
                "gelu" | "gelu_erf" | "nn.GELU" | "GELU" => Ok(Activation::Gelu),
                "gelu_tanh" | "gelu_new" | "gelu_pytorch_tanh" | "gelu_fast" => Ok(Activation::GeluTanh),
                "quick_gelu" | "QuickGELU" => Ok(Activation::QuickGelu),
                "relu" | "ReLU" => Ok(Activation::Relu),
                "silu" | "swish" | "SiLU" => Ok(Activation::Silu),
                "tanh" | "Tanh" => Ok(Activation::Tanh),
                "sigmoid" | "Sigmoid" => Ok(Activation::Sigmoid),
                _ => Err(self.wrong(name, "gelu, gelu_tanh, quick_gelu, relu, silu, tanh or sigmoid")),
            })
            .transpose()
    }

    /// Refuses arguments that were not read; those in `ignored` do not change what a model computes.
    pub fn finish(&self, ignored: &[&str]) -> Result<(), String> {
        let read = self.read.borrow();
        let unknown: Vec<&str> = self
            .map
            .iter()
            .filter(|(name, value)| !value.is_null() && !read.contains(*name) && !ignored.contains(&name.as_str()))
            .map(|(name, _)| name.as_str())
            .collect();
        if unknown.is_empty() {
            return Ok(());
        }
        Err(format!(
            "{}'s option{} `{}` cannot be used here yet",
            self.library,
            if unknown.len() > 1 { "s" } else { "" },
            unknown.join("`, `")
        ))
    }
}
