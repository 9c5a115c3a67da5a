//! What is known of the KV cache, and what follows for a cell.

use serde::{Deserialize, Serialize};

use crate::record::format_context;

/// What is known of the KV cache, in tokens. All of it may be missing.
///
/// A benchmark's skip rule compares `concurrency x (context + max_tokens)` with a budget. The budget may be far
/// from what the server can hold: it may be given by hand, it ignores that identical prompts share blocks, and for
/// hybrid models blocks x block size overstates the cache. Both are kept apart here.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct KvCapacity {
    /// What the server reports.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server_tokens: Option<u64>,
    /// The budget of the benchmark's skip rule.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skip_rule_tokens: Option<u64>,
    /// The largest demand that was run; the budget is at least this.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ran_tokens: Option<u64>,
    /// The smallest demand that was skipped; the budget is below this.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skipped_tokens: Option<u64>,
}

/// What a cell's demand means for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Capacity {
    /// The cell runs.
    Fits,
    /// The rule skips it.
    Skipped {
        /// Tokens asked for by the rule.
        demand: u64,
        /// The budget, or the smallest demand known to exceed it.
        budget: u64,
        /// Whether the server's own KV cache would have held the cell.
        server_holds: Option<bool>,
    },
    /// The budget lies somewhere between two demands that were tried, and this one is between them.
    Undetermined {
        /// Tokens asked for by the rule.
        demand: u64,
        /// The largest demand known to run.
        ran: u64,
        /// The smallest demand known to be skipped.
        skipped: Option<u64>,
    },
}

impl KvCapacity {
    /// The budget of the skip rule, if one number is known: the rule's own, else the server's capacity.
    pub fn budget(&self) -> Option<u64> {
        self.skip_rule_tokens.or(self.server_tokens)
    }

    /// What the skip rule says of a cell: skipped iff `concurrency x (context + max_tokens) > budget`. A cell without
    /// context is never skipped.
    pub fn judge(&self, context_tokens: u64, concurrency: u32, max_tokens: u64) -> Capacity {
        let demand = u64::from(concurrency).saturating_mul(context_tokens.saturating_add(max_tokens));
        if context_tokens == 0 {
            return Capacity::Fits;
        }
        if let Some(budget) = self.budget() {
            if demand <= budget {
                return Capacity::Fits;
            }
            let server_holds = self.server_tokens.map(|server| demand <= server);
            return Capacity::Skipped { demand, budget, server_holds };
        }
        match (self.ran_tokens, self.skipped_tokens) {
            (_, Some(skipped)) if demand >= skipped => {
                Capacity::Skipped { demand, budget: skipped, server_holds: None }
            }
            (Some(ran), _) if demand <= ran => Capacity::Fits,
            (None, None) => Capacity::Fits,
            (ran, skipped) => Capacity::Undetermined { demand, ran: ran.unwrap_or(0), skipped },
        }
    }
}

impl Capacity {
    /// The sentence that explains a cell which does not simply fit.
    pub fn note(&self, context_tokens: u64, concurrency: u32) -> Option<String> {
        let cell = format!("{} x {concurrency}", format_context(context_tokens));
        match *self {
            Self::Fits => None,
            Self::Skipped { demand, budget, server_holds } => {
                let real = match server_holds {
                    Some(true) => "; the server's real KV cache would have held it",
                    Some(false) => "; the server's KV cache cannot hold it without queueing",
                    None => "",
                };
                Some(format!("{cell} needs {demand} KV tokens, the rule's budget is {budget}{real}"))
            }
            Self::Undetermined { demand, ran, skipped } => {
                let upper = skipped.map_or_else(
                    || "no cell over capacity is known".to_owned(),
                    |s| format!("{s} are known to exceed it"),
                );
                Some(format!("{cell} needs {demand} KV tokens: {ran} are known to fit, {upper}"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rule_uses_the_label_and_the_output_limit() {
        let kv = KvCapacity {
            server_tokens: Some(1_360_384),
            skip_rule_tokens: Some(340_096),
            ..KvCapacity::default()
        };
        assert_eq!(kv.judge(16_384, 16, 2_048), Capacity::Fits);
        assert_eq!(kv.judge(0, 1_000, 2_048), Capacity::Fits);
        let skipped = kv.judge(16_384, 32, 2_048);
        assert_eq!(skipped, Capacity::Skipped { demand: 589_824, budget: 340_096, server_holds: Some(true) });
        assert!(skipped.note(16_384, 32).unwrap().contains("would have held it"));
    }

    #[test]
    fn between_two_tried_demands_nothing_is_known() {
        let kv = KvCapacity { ran_tokens: Some(100), skipped_tokens: Some(200), ..KvCapacity::default() };
        assert_eq!(kv.judge(90, 1, 10), Capacity::Fits);
        assert!(matches!(
            kv.judge(140, 1, 10),
            Capacity::Undetermined { demand: 150, ran: 100, skipped: Some(200) }
        ));
        assert!(matches!(kv.judge(190, 1, 10), Capacity::Skipped { demand: 200, .. }));
        assert_eq!(KvCapacity::default().judge(1_000_000, 1_000, 10), Capacity::Fits);
    }
}
