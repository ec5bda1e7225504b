//! JSON with one text for each value: keys stand in the order of their bytes, whatever order the map keeps them in (another
//! crate of a build may turn on serde_json's `preserve_order`).

use alloc::collections::BTreeMap;
use alloc::string::{String, ToString};

use serde_json::Value;

/// The shortest text: what a digest is taken over.
pub fn compact(value: &Value) -> String {
    let mut text = String::new();
    write(value, None, &mut text);
    text
}

/// The text for files and people: two blanks a level, lists of numbers or short texts on one line, a newline
/// at the end.
pub fn pretty(value: &Value) -> String {
    let mut text = String::new();
    write(value, Some(0), &mut text);
    text.push('\n');
    text
}

fn write(value: &Value, level: Option<usize>, text: &mut String) {
    match value {
        Value::Object(map) => {
            let ordered: BTreeMap<&String, &Value> = map.iter().collect();
            let inner = level.map(|level| level + 1);
            text.push('{');
            for (index, (key, value)) in ordered.iter().enumerate() {
                separate(index, inner, text);
                text.push_str(&Value::from(key.as_str()).to_string());
                text.push_str(if level.is_some() { ": " } else { ":" });
                write(value, inner, text);
            }
            close(ordered.is_empty(), level, '}', text);
        }
        Value::Array(items) => {
            // Texts are rows, one a rank: a line each.
            let one_line =
                items.iter().all(|item| !matches!(item, Value::Object(_) | Value::Array(_) | Value::String(_)));
            let inner = level.filter(|_| !one_line).map(|level| level + 1);
            text.push('[');
            for (index, item) in items.iter().enumerate() {
                if one_line && level.is_some() && index > 0 {
                    text.push_str(", ");
                } else {
                    separate(index, inner, text);
                }
                write(item, inner, text);
            }
            close(items.is_empty() || one_line, level, ']', text);
        }
        scalar => text.push_str(&scalar.to_string()),
    }
}

fn separate(index: usize, level: Option<usize>, text: &mut String) {
    if index > 0 {
        text.push(',');
    }
    if let Some(level) = level {
        new_line(level, text);
    }
}

fn close(on_one_line: bool, level: Option<usize>, bracket: char, text: &mut String) {
    if let (false, Some(level)) = (on_one_line, level) {
        new_line(level, text);
    }
    text.push(bracket);
}

fn new_line(level: usize, text: &mut String) {
    text.push('\n');
    (0..level).for_each(|_| text.push_str("  "));
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn one_value_has_one_text() {
        let value: Value =
            serde_json::from_str(r#"{"b":[1,2],"a":{"z":"x\n","y":[]},"c":["r","s"],"d":{}}"#).unwrap();
        assert_eq!(compact(&value), r#"{"a":{"y":[],"z":"x\n"},"b":[1,2],"c":["r","s"],"d":{}}"#);
        let expected = "{\n  \"a\": {\n    \"y\": [],\n    \"z\": \"x\\n\"\n  },\n  \"b\": [1, 2],\n  \"c\": [\n    \"r\",\n    \"s\"\n  ],\n  \"d\": {}\n}\n";
        assert_eq!(pretty(&value), expected);
        for text in [compact(&value), pretty(&value)] {
            assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), value);
        }
        assert_eq!(compact(&json!([[1], [2]])), "[[1],[2]]");
    }
}
