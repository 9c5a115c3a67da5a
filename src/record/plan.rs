//! `plan.toml`: which cells may be used to fit.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::parse_context;
use crate::error::{Error, Result};

/// The cells that a fit may look at. Everything else is held out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// Decode cells, by context.
    #[serde(default)]
    pub decode: Vec<DecodeCells>,
    /// Contexts of the prefill rows.
    #[serde(default)]
    pub prefill: Vec<String>,
    /// Contexts whose single-request TTFT (the decode cell with one stream) may be used.
    #[serde(default)]
    pub warm_ttft: Vec<String>,
}

/// Decode cells of one context.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DecodeCells {
    /// The context ("8K").
    pub context: String,
    /// The concurrencies.
    pub concurrency: Vec<u32>,
}

impl Plan {
    /// Reads `plan.toml`; `path` is only named in messages.
    ///
    /// # Errors
    /// [`crate::error::ErrorKind::Input`] with the file and the field.
    pub fn parse(path: &Path, text: &str) -> Result<Self> {
        let plan: Self =
            toml::from_str(text).map_err(|e| Error::input(path.display(), e.to_string().trim_end()))?;
        for cells in &plan.decode {
            parse_context(&cells.context)
                .map_err(|e| Error::input(path.display(), format!("decode: {e}")))?;
            if let Some(c) = cells.concurrency.iter().find(|c| **c == 0) {
                return Err(Error::input(
                    path.display(),
                    format!("decode.concurrency: {c} streams measure nothing"),
                ));
            }
        }
        for (field, contexts) in [("prefill", &plan.prefill), ("warm_ttft", &plan.warm_ttft)] {
            for context in contexts {
                parse_context(context).map_err(|e| Error::input(path.display(), format!("{field}: {e}")))?;
            }
        }
        Ok(plan)
    }

    /// The text of `plan.toml`.
    pub fn to_toml(&self) -> String {
        toml::to_string(self).unwrap_or_default()
    }

    /// Whether the decode cell may be used.
    pub fn has_decode(&self, context_tokens: u64, concurrency: u32) -> bool {
        self.decode.iter().any(|d| is(&d.context, context_tokens) && d.concurrency.contains(&concurrency))
    }

    /// Whether the prefill row may be used.
    pub fn has_prefill(&self, context_tokens: u64) -> bool {
        self.prefill.iter().any(|c| is(c, context_tokens))
    }

    /// Whether the single-request TTFT of this context may be used.
    pub fn has_warm_ttft(&self, context_tokens: u64) -> bool {
        self.warm_ttft.iter().any(|c| is(c, context_tokens))
    }

    /// The decode cells as (context tokens, concurrency).
    pub fn decode_cells(&self) -> Vec<(u64, u32)> {
        self.decode
            .iter()
            .flat_map(|d| d.concurrency.iter().filter_map(|c| Some((parse_context(&d.context).ok()?, *c))))
            .collect()
    }
}

/// Texts were validated when the plan was read; one made in code that does not parse names no context.
fn is(text: &str, tokens: u64) -> bool {
    parse_context(text).is_ok_and(|t| t == tokens)
}
