//! Where a chunk of a prompt ends when recurrent state is cached at block boundaries.
//!
//! State can only be kept where a chunk ends. So a chunk that does not finish the prompt ends on a multiple
//! of the block, and the one that would finish it is cut at the last boundary before the prompt's last
//! token: the state there is what a repeated prompt resumes from, and the rest (less than a block, or one
//! whole block when the prompt is a multiple of it) is computed in a step of its own.

use super::config::{EngineConfig, MambaCacheMode};
use super::request::Request;
use crate::units::Tokens;

#[derive(Debug)]
pub(super) struct AlignedSplit {
    block: Tokens,
    /// Granularity of hits inside a block, if there are such.
    unit: Option<Tokens>,
    /// Most tokens a chunk can have.
    largest_chunk: Tokens,
}

impl AlignedSplit {
    /// The rule, for engines to which it applies.
    pub(super) fn new(config: &EngineConfig) -> Option<Self> {
        let applies =
            config.has_mamba() && config.prefix_caching() && config.mamba_cache_mode == MambaCacheMode::Align;
        let threshold = match config.long_prefill_token_threshold {
            0 => Tokens::MAX,
            limit => limit,
        };
        applies.then(|| Self {
            block: config.block_size,
            unit: config.partial_hits().then(|| config.hash_block_size()),
            largest_chunk: config.token_budget().min(threshold),
        })
    }

    /// How many of the `new` tokens from `start` on the step computes.
    pub(super) fn clip(&self, request: &Request, start: Tokens, new: Tokens) -> Tokens {
        let prefill_end = request.prefill_end();
        if start >= prefill_end {
            return new;
        }
        let floor = |tokens: Tokens, unit: Tokens| tokens / unit * unit;
        let mut end = start + new;
        if end < prefill_end {
            let aligned = floor(end, self.block);
            // A block too wide for one chunk is crossed in several, none of which passes its end.
            if aligned > start || self.block <= self.largest_chunk {
                end = aligned;
            }
        }
        let planned = end;
        let mut stop_at = |position: Tokens| {
            if start < position && position < end {
                end = position;
            }
        };
        let last_boundary = floor(request.seq.len().saturating_sub(1), self.block);
        let prompt = request.seq.prompt.len();
        let junction = request.seq.junction;
        if junction > start && junction < planned {
            stop_at(start + floor(junction - start, self.block));
        }
        if !start.is_multiple_of(self.block) {
            stop_at(floor(start, self.block) + self.block);
        }
        stop_at(last_boundary);
        if let Some(unit) = self.unit {
            let tail = floor(prompt.saturating_sub(1), unit);
            if last_boundary < tail && tail < prompt {
                stop_at(tail);
            }
        }
        end.saturating_sub(start)
    }
}
