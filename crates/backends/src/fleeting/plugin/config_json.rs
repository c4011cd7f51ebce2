//! The operator's table as the JSON that plugins decode.

use serde_json::{Number, Value};

/// Beyond this, a float does not hold every whole number.
const EXACT: f64 = 9_007_199_254_740_992.0;

/// Whole floats are written without a fraction, which Go's decoder refuses for whole numbers. Null is an empty object.
pub(super) fn bytes(config: &Value) -> Vec<u8> {
    match whole(config) {
        Value::Null => b"{}".to_vec(),
        config => config.to_string().into_bytes(),
    }
}

fn whole(value: &Value) -> Value {
    match value {
        Value::Number(number) => Value::Number(whole_number(number)),
        Value::Array(items) => items.iter().map(whole).collect(),
        Value::Object(table) => {
            Value::Object(table.iter().map(|(key, value)| (key.clone(), whole(value))).collect())
        }
        other => other.clone(),
    }
}

fn whole_number(number: &Number) -> Number {
    let float =
        number.as_f64().filter(|float| number.is_f64() && float.fract() == 0.0 && float.abs() <= EXACT);
    // `{:.0}` prints all digits of a whole number, and no more.
    let written = float.and_then(|float| format!("{float:.0}").parse::<i64>().ok());
    written.map_or_else(|| number.clone(), Number::from)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn whole_floats_lose_their_fraction_at_any_depth() {
        let config = json!({ "a": 1.0, "b": [2.5, -3.0, { "c": 0.0 }], "d": "1.0", "e": 7, "g": true });
        let written = String::from_utf8(bytes(&config)).unwrap();
        assert_eq!(written, r#"{"a":1,"b":[2.5,-3,{"c":0}],"d":"1.0","e":7,"g":true}"#);
    }

    #[test]
    fn what_no_integer_can_hold_stays_as_it_is() {
        let written: Value = serde_json::from_slice(&bytes(&json!({ "a": 1e300 }))).unwrap();
        assert_eq!(written, json!({ "a": 1e300 }));
    }

    #[test]
    fn no_table_is_an_empty_object() {
        assert_eq!(bytes(&Value::Null), b"{}");
        assert_eq!(bytes(&json!({})), b"{}");
    }
}
