//! Reading a Hugging Face `config.json`: where the language model's fields are, and what they are called.
//!
//! Knows names, nesting and types of fields. Knows nothing of what a field means for memory or time, and
//! never invents a value: a field that is needed and absent is an error that names it.

use serde_json::{Map, Value};

use crate::error::{Error, Result};

/// Keys under which a composite model keeps its language model, in the order in which they are tried.
/// A composite's own sizes, if it has any, are those of another part (a vision tower).
const LANGUAGE_PARTS: &[&str] = &[
    "text_config",
    "llm_config",
    "language_config",
    "language_model_config",
    "language_model",
    "text_model_config",
    "thinker_config",
    "lm_config",
    "decoder",
];

/// The language model's part of a `config.json`, with the levels above it.
#[derive(Clone, Debug)]
pub(super) struct Config<'a> {
    /// How errors name the file.
    file: String,
    /// From the root to the language model.
    levels: Vec<(&'a str, &'a Map<String, Value>)>,
}

impl<'a> Config<'a> {
    /// Descends from the root of `value` to the part that holds the language model.
    ///
    /// # Errors
    /// When the root is not an object.
    pub(super) fn new(file: &str, value: &'a Value) -> Result<Self> {
        let root = value.as_object().ok_or_else(|| {
            Error::input(file, "a model's config.json is an object; this is another kind of value")
        })?;
        let mut levels = vec![("", root)];
        let mut here = root;
        while let Some((key, part)) =
            LANGUAGE_PARTS.iter().find_map(|k| here.get(*k).and_then(Value::as_object).map(|o| (*k, o)))
        {
            levels.push((key, part));
            here = part;
        }
        Ok(Self { file: file.to_owned(), levels })
    }

    /// The object that holds the language model.
    fn here(&self) -> &'a Map<String, Value> {
        self.levels[self.levels.len() - 1].1
    }

    /// The object at the root.
    pub(super) fn root(&self) -> &'a Map<String, Value> {
        self.levels[0].1
    }

    /// A field of the language model under the first of its names that is present and not null.
    pub(super) fn get(&self, names: &[&str]) -> Option<&'a Value> {
        names.iter().find_map(|n| self.here().get(*n)).filter(|v| !v.is_null())
    }

    /// Like [`Config::get`], but looks upwards too: for the few fields that composites keep at the top.
    pub(super) fn get_up(&self, names: &[&str]) -> Option<&'a Value> {
        self.levels
            .iter()
            .rev()
            .find_map(|(_, map)| names.iter().find_map(|n| map.get(*n)).filter(|v| !v.is_null()))
    }

    /// An error about `field`.
    pub(super) fn wrong(&self, field: &str, message: impl std::fmt::Display) -> Error {
        let mut path: Vec<&str> = self.levels.iter().skip(1).map(|(k, _)| *k).collect();
        path.push(field);
        Error::input(format!("{}: {}", self.file, path.join(".")), message)
    }

    /// An error about a field that is needed and absent.
    pub(super) fn missing(&self, names: &[&str]) -> Error {
        let parts: Vec<&str> =
            self.here().iter().filter(|(_, v)| v.is_object()).map(|(k, _)| k.as_str()).collect();
        let hint = if parts.is_empty() {
            String::new()
        } else {
            format!(
                "; it holds the objects {}, none of which is known as a language model ({})",
                parts.join(", "),
                LANGUAGE_PARTS.join(", ")
            )
        };
        let others = if names.len() > 1 {
            format!(" (also known as {})", names[1..].join(", "))
        } else {
            String::new()
        };
        self.wrong(names[0], format!("the key is missing{others}{hint}"))
    }

    /// A whole number, if the field is there.
    pub(super) fn int(&self, names: &[&str]) -> Result<Option<u64>> {
        self.get(names).map(|v| self.as_int(names[0], v)).transpose()
    }

    /// A whole number that must be there and positive.
    pub(super) fn need(&self, names: &[&str]) -> Result<u64> {
        let value = self.int(names)?.ok_or_else(|| self.missing(names))?;
        if value == 0 { Err(self.wrong(names[0], "must be positive, is 0")) } else { Ok(value) }
    }

    /// A number at least zero, if the field is there.
    pub(super) fn float(&self, names: &[&str]) -> Result<Option<f64>> {
        self.get(names)
            .map(|v| {
                v.as_f64()
                    .filter(|x| *x >= 0.0)
                    .ok_or_else(|| self.wrong(names[0], format!("{v} is no number >= 0")))
            })
            .transpose()
    }

    /// A flag; absent is false.
    pub(super) fn flag(&self, names: &[&str]) -> bool {
        self.get(names).and_then(Value::as_bool).unwrap_or(false)
    }

    /// A text, if the field is there.
    pub(super) fn text(&self, names: &[&str]) -> Option<&'a str> {
        self.get(names).and_then(Value::as_str)
    }

    /// A list, if the field is one.
    pub(super) fn list(&self, names: &[&str]) -> Option<&'a Vec<Value>> {
        self.get(names).and_then(Value::as_array)
    }

    /// An object inside the language model, read like a config of its own.
    pub(super) fn part(&self, name: &'a str) -> Option<Self> {
        let map = self.get(&[name])?.as_object()?;
        let mut levels = self.levels.clone();
        levels.push((name, map));
        Some(Self { file: self.file.clone(), levels })
    }

    /// The model type of the language model, lower case; empty if unknown.
    pub(super) fn model_type(&self) -> String {
        self.text(&["model_type"]).unwrap_or_default().to_lowercase()
    }

    /// A value as a whole number: floats without a fraction are accepted, as some files write `5.0`.
    pub(super) fn as_int(&self, field: &str, value: &Value) -> Result<u64> {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "checked to be a whole number below 2^53"
        )]
        let whole = |x: f64| (x >= 0.0 && x.fract() == 0.0 && x < 9e15).then_some(x as u64);
        value
            .as_u64()
            .or_else(|| value.as_f64().and_then(whole))
            .ok_or_else(|| self.wrong(field, format!("{value} is no whole number >= 0")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_language_model_is_found_below_other_parts() {
        let value = serde_json::json!({"hidden_size": 1, "thinker_config": {"text_config": {"hidden_size": 7}},
                                       "dtype": "bfloat16"});
        let config = Config::new("c", &value).unwrap();
        assert_eq!(config.need(&["hidden_size"]).unwrap(), 7);
        assert_eq!(config.get_up(&["torch_dtype", "dtype"]).and_then(Value::as_str), Some("bfloat16"));
    }

    #[test]
    fn a_missing_key_is_named_with_what_is_there() {
        let value = serde_json::json!({"decoder_stuff": {"num_hidden_layers": 3}});
        let error =
            Config::new("c.json", &value).unwrap().need(&["num_hidden_layers", "n_layer"]).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("num_hidden_layers") && text.contains("decoder_stuff"), "{text}");
    }
}
