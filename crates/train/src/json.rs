//! Metrics as JSON, which has neither NaN nor infinity. In all files and outputs, a member that is not finite is left out
//! of its object, and the object's `not_finite` lists its name.

use serde::Serialize;
use serde_json::{Map, Value};

/// The member that lists those that are left out.
pub(crate) const NOT_FINITE: &str = "not_finite";

/// A value as JSON. `null` means a float that is not finite here, so an absent `Option` must not be serialised
/// (`skip_serializing_if`).
pub fn finite_json(value: impl Serialize) -> Value {
    let mut json = serde_json::json!(value);
    leave_out(&mut json);
    json
}

fn leave_out(json: &mut Value) {
    match json {
        Value::Array(items) => items.iter_mut().for_each(leave_out),
        Value::Object(map) => {
            map.values_mut().for_each(leave_out);
            let (missing, there): (Map<_, _>, Map<_, _>) =
                std::mem::take(map).into_iter().partition(|(_, v)| v.is_null());
            *map = there;
            if !missing.is_empty() {
                map.insert(NOT_FINITE.into(), missing.into_iter().map(|(name, _)| name).collect());
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_not_finite_is_named_and_never_null_or_text() {
        #[derive(Serialize)]
        struct Figures {
            loss: f64,
            top1: f64,
            rows: Vec<Row>,
        }
        #[derive(Serialize)]
        struct Row {
            value: f32,
        }
        let rows = vec![Row { value: 1.0 }, Row { value: f32::INFINITY }];
        let found = finite_json(Figures { loss: f64::NAN, top1: 0.5, rows });
        let expected = json!({
            "top1": 0.5,
            "rows": [{ "value": 1.0 }, { "not_finite": ["value"] }],
            "not_finite": ["loss"],
        });
        assert_eq!(found, expected);
    }
}
