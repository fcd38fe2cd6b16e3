//! Options of a request by name: from the query, from fields of a form, or from members of a JSON object.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::str::FromStr;

use serde::de::{Deserialize, DeserializeSeed, Deserializer, Error, SeqAccess, Visitor};

use super::problem::Problem;

/// The longest text of an option.
pub const LONGEST: usize = 4096;
/// The most values of one option, and the most options.
pub const MOST: usize = 256;

/// The type of a value where it was given. Values of queries and forms are all texts; in JSON, `"3"` is not a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ScalarType {
    Text,
    JsonText,
    JsonNumber,
    JsonBool,
}

/// A value as text.
#[derive(Debug, Clone, PartialEq)]
struct Scalar {
    text: String,
    from: ScalarType,
}

/// Options by name. Later ones replace earlier ones of the same name from elsewhere.
#[derive(Debug, Default)]
pub struct Fields(Vec<(String, Vec<Scalar>)>);

impl Fields {
    /// The options of a query string.
    pub fn from_query(query: &str) -> Result<Self, Problem> {
        let mut fields = Self::default();
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            fields.add_text(&name, &value)?;
        }
        Ok(fields)
    }

    /// Adds a value to an option.
    pub fn add_text(&mut self, name: &str, value: &str) -> Result<(), Problem> {
        if name.len() > LONGEST || value.len() > LONGEST {
            return Err(Problem::option(format!("An option has more than {LONGEST} bytes.")));
        }
        let scalar = Scalar { text: value.into(), from: ScalarType::Text };
        let count = self.0.len();
        match self.0.iter_mut().find(|(known, _)| known == name) {
            Some((_, values)) if values.len() < MOST => values.push(scalar),
            None if count < MOST => self.0.push((name.into(), vec![scalar])),
            _ => return Err(Problem::option(format!("There are more than {MOST} options."))),
        }
        Ok(())
    }

    /// Adds a member of a JSON object; `null` is the same as no member.
    pub fn add_json(&mut self, name: String, value: JsonScalars) -> Result<(), Problem> {
        if self.0.len() >= MOST {
            return Err(Problem::option(format!("There are more than {MOST} options.")));
        }
        if !value.0.is_empty() {
            self.0.push((name, value.0));
        }
        Ok(())
    }

    /// Options of the body replace those of the query.
    pub fn replace_by(&mut self, body: Fields) {
        self.0.retain(|(name, _)| body.0.iter().all(|(other, _)| other != name));
        self.0.extend(body.0);
    }

    /// Refuses options that the route does not have.
    pub fn only(&self, known: &[&str]) -> Result<(), Problem> {
        match self.0.iter().find(|(name, _)| !known.contains(&name.as_str())) {
            None => Ok(()),
            Some((name, _)) => Err(Problem::option(format!(
                "There is no option `{}`; there are {}.",
                shortened(name),
                known.join(", ")
            ))),
        }
    }

    fn one(&self, name: &str) -> Result<Option<&Scalar>, Problem> {
        match self.0.iter().find(|(known, _)| known == name) {
            None => Ok(None),
            Some((_, values)) => match values.as_slice() {
                [value] => Ok(Some(value)),
                _ => Err(Problem::option(format!("`{name}` is given more than once."))),
            },
        }
    }

    pub fn text(&self, name: &str) -> Result<Option<&str>, Problem> {
        match self.one(name)? {
            None => Ok(None),
            Some(Scalar { text, from: ScalarType::Text | ScalarType::JsonText }) => Ok(Some(text)),
            Some(_) => Err(Problem::option(format!("`{name}` should be a text."))),
        }
    }

    /// A text that names a choice.
    pub fn parsed<T: FromStr>(&self, name: &str) -> Result<Option<T>, Problem>
    where
        T::Err: Display,
    {
        let parse = |text: &str| text.parse().map_err(|error| Problem::option(format!("`{name}`: {error}.")));
        self.text(name)?.map(parse).transpose()
    }

    pub fn integer(&self, name: &str, range: RangeInclusive<usize>) -> Result<Option<usize>, Problem> {
        self.number(name, range, "an integer")
    }

    pub fn float(&self, name: &str, range: RangeInclusive<f32>) -> Result<Option<f32>, Problem> {
        self.number(name, range, "a number")
    }

    fn number<T: FromStr + PartialOrd + Display>(
        &self,
        name: &str,
        range: RangeInclusive<T>,
        what: &str,
    ) -> Result<Option<T>, Problem> {
        let Some(Scalar { text, from }) = self.one(name)? else { return Ok(None) };
        let value = match from {
            ScalarType::Text | ScalarType::JsonNumber => text.parse().ok().filter(|value| range.contains(value)),
            ScalarType::JsonText | ScalarType::JsonBool => None,
        };
        let wrong = || {
            let (least, most, found) = (range.start(), range.end(), shortened(text));
            Problem::option(format!("`{name}` should be {what} from {least} to {most}, not `{found}`."))
        };
        value.map(Some).ok_or_else(wrong)
    }

    pub fn flag(&self, name: &str) -> Result<Option<bool>, Problem> {
        let Some(Scalar { text, from }) = self.one(name)? else { return Ok(None) };
        match (from, text.as_str()) {
            (ScalarType::Text | ScalarType::JsonBool, "true") | (ScalarType::Text, "1") => Ok(Some(true)),
            (ScalarType::Text | ScalarType::JsonBool, "false") | (ScalarType::Text, "0") => Ok(Some(false)),
            _ => Err(Problem::option(format!("`{name}` should be true or false."))),
        }
    }

    /// All values of an option that may be repeated, texts or integers.
    pub fn all(&self, name: &str) -> Result<Vec<&str>, Problem> {
        let values = self.0.iter().find(|(known, _)| known == name).map_or(&[][..], |(_, values)| values);
        let text = |value: &'_ Scalar| value.from != ScalarType::JsonBool;
        match values.iter().all(text) {
            true => Ok(values.iter().map(|value| value.text.as_str()).collect()),
            false => Err(Problem::option(format!("`{name}` should be texts or integers."))),
        }
    }
}

/// The beginning of a text for an error about it.
pub fn shortened(text: &str) -> String {
    match text.char_indices().nth(40) {
        None => text.into(),
        Some((end, _)) => format!("{}…", &text[..end]),
    }
}

/// A JSON scalar, `null`, or a list of scalars.
#[derive(Debug, Default)]
pub struct JsonScalars(Vec<Scalar>);

impl<'de> Deserialize<'de> for JsonScalars {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ScalarsVisitor { in_list: false })
    }
}

struct ScalarsVisitor {
    in_list: bool,
}

impl<'de> DeserializeSeed<'de> for ScalarsVisitor {
    type Value = JsonScalars;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<JsonScalars, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for ScalarsVisitor {
    type Value = JsonScalars;

    fn expecting(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.write_str("a text, a number, true, false or a list of them")
    }

    fn visit_unit<E: Error>(self) -> Result<JsonScalars, E> {
        Ok(JsonScalars::default())
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<JsonScalars, E> {
        Ok(one(value.to_string(), ScalarType::JsonBool))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<JsonScalars, E> {
        Ok(one(value.to_string(), ScalarType::JsonNumber))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<JsonScalars, E> {
        Ok(one(value.to_string(), ScalarType::JsonNumber))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<JsonScalars, E> {
        Ok(one(value.to_string(), ScalarType::JsonNumber))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<JsonScalars, E> {
        if value.len() > LONGEST {
            return Err(E::custom(format_args!("a text of more than {LONGEST} bytes")));
        }
        Ok(one(value.into(), ScalarType::JsonText))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<JsonScalars, A::Error> {
        let mut all = Vec::new();
        while let Some(JsonScalars(values)) = list.next_element_seed(ScalarsVisitor { in_list: true })? {
            if self.in_list || values.is_empty() || all.len() == MOST {
                return Err(A::Error::custom(format_args!("a list should have at most {MOST} texts or numbers")));
            }
            all.extend(values);
        }
        Ok(JsonScalars(all))
    }
}

fn one(text: String, from: ScalarType) -> JsonScalars {
    JsonScalars(vec![Scalar { text, from }])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read_by_type() {
        let mut fields =
            Fields::from_query("top=3&model=a%20b&threshold=0.5&class=1&class=cat&normalise=true").unwrap();
        assert_eq!(fields.integer("top", 1..=10).unwrap(), Some(3));
        assert_eq!(fields.float("threshold", 0.0..=1.0).unwrap(), Some(0.5));
        assert_eq!(fields.text("model").unwrap(), Some("a b"));
        assert_eq!(fields.all("class").unwrap(), ["1", "cat"]);
        assert_eq!(fields.flag("normalise").unwrap(), Some(true));
        assert!(fields.text("class").is_err());
        assert!(fields.only(&["top", "model", "threshold", "class"]).is_err());
        let mut body = Fields::default();
        body.add_json("top".into(), serde_json::from_str("7").unwrap()).unwrap();
        body.add_json("model".into(), serde_json::from_str("null").unwrap()).unwrap();
        fields.replace_by(body);
        assert_eq!(fields.integer("top", 1..=10).unwrap(), Some(7));
        assert_eq!(fields.text("model").unwrap(), Some("a b"));
    }

    #[test]
    fn json_types_are_kept() {
        let mut fields = Fields::default();
        for (name, json) in [("a", "\"3\""), ("b", "3.5"), ("c", "-1"), ("d", "[1, \"x\"]"), ("e", "true")] {
            fields.add_json(name.into(), serde_json::from_str(json).unwrap()).unwrap();
        }
        for name in ["a", "b", "c", "e"] {
            assert!(fields.integer(name, 0..=9).is_err(), "{name}");
        }
        assert_eq!(fields.all("d").unwrap(), ["1", "x"]);
        assert!(fields.text("b").is_err());
        for wrong in ["{}", "[[1]]", "[null]"] {
            assert!(serde_json::from_str::<JsonScalars>(wrong).is_err(), "{wrong}");
        }
    }
}
