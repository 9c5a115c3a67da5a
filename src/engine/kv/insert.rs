//! What enters the prefix cache when tokens have been scheduled.

use super::group::{Group, GroupKind};
use super::{KvCache, Sequence};
use crate::engine::content::mix;
use crate::engine::pool::{Key, NULL};
use crate::units::Tokens;

impl KvCache {
    /// Makes the full blocks of the first `length` tokens findable.
    pub(super) fn cache(&mut self, seq: &mut Sequence, length: Tokens) {
        if !self.caching {
            return;
        }
        let whole = self.groups.len() == 1 || self.partial_hits;
        let length = if whole { length } else { length / self.scheduler_block * self.scheduler_block };
        for index in 0..self.groups.len() {
            let group = self.groups[index];
            let before = seq.tables[index].cached;
            let full = length / group.block;
            for i in before..full {
                self.cache_block(&group, seq, index, i);
            }
            seq.tables[index].cached = before.max(full);
            match group.kind {
                GroupKind::Full if group.block != self.unit => {
                    self.cache_prompt_end(&group, seq, index, length)
                }
                GroupKind::State => self.cache_state_inside(&group, seq, index, length),
                GroupKind::Full | GroupKind::Window => {}
            }
        }
    }

    /// Caches what has become full since the last call, `length` tokens being computed and known.
    pub(in crate::engine) fn cache_known(&mut self, seq: &mut Sequence, length: Tokens) {
        if length >= seq.cache_from {
            self.cache(seq, length);
            self.note_quiet(seq);
        }
    }

    fn key(&self, group: &Group, seq: &mut Sequence, length: Tokens) -> Key {
        let hash = seq.chain.prefix(length / self.unit, self.unit, &seq.prompt, seq.stream);
        mix(hash, group.salt).max(1)
    }

    fn cache_block(&mut self, group: &Group, seq: &mut Sequence, index: usize, i: u64) {
        let Some(id) = seq.tables[index].get(i).filter(|id| *id != NULL) else { return };
        if self.keeps(group, seq, i) {
            let tokens = (i + 1) * group.block;
            let key = self.key(group, seq, tokens);
            self.pool.insert_full(id, key, tokens);
        }
        if group.kind == GroupKind::State && self.pool.key(id) != 0 {
            self.fresh_states.push(self.pool.key(id));
        }
    }

    /// Whether block `i` can ever serve a hit: sparse groups keep what a repeated prompt, a prompt that
    /// leaves it at a junction, or the retention interval needs.
    fn keeps(&self, group: &Group, seq: &Sequence, i: u64) -> bool {
        let tail = match group.kind {
            GroupKind::Full => return true,
            GroupKind::Window if !self.alignment.is_multiple_of(group.block) => return true,
            GroupKind::Window => group.blocks_for_hit(),
            GroupKind::State => 1,
        };
        let segment = match (self.retention, group.kind) {
            (None, GroupKind::State) => return true,
            (None, _) => self.alignment / group.block,
            (Some(interval), _) => interval / group.block,
        };
        if segment > 0 && (tail >= segment || i % segment >= segment - tail) {
            return true;
        }
        self.retention.is_some()
            && [seq.prompt.len().saturating_sub(1), seq.junction].into_iter().any(|boundary| {
                let end = boundary / self.alignment * self.alignment / group.block;
                i < end && i + tail >= end
            })
    }

    /// Full attention with blocks larger than the hashed unit: the last unit boundary of the prompt.
    fn cache_prompt_end(&mut self, group: &Group, seq: &mut Sequence, index: usize, length: Tokens) {
        let end = seq.prompt.len().saturating_sub(1) / self.unit * self.unit;
        if end == 0 || end > length || end.is_multiple_of(group.block) {
            return;
        }
        if let Some(id) = seq.tables[index].get(end / group.block).filter(|id| *id != NULL) {
            let key = self.key(group, seq, end);
            self.pool.insert_partial(id, key, end);
        }
    }

    /// A state inside a block, at the last unit boundary of the prompt: found until its owner goes on, which
    /// then leaves a copy behind.
    fn cache_state_inside(&mut self, group: &Group, seq: &mut Sequence, index: usize, length: Tokens) {
        let end = seq.prompt.len().saturating_sub(1) / self.unit * self.unit;
        let seen = self.shared_hits && length.is_multiple_of(group.block);
        if length == 0 || length != end || seen {
            return;
        }
        let i = length.div_ceil(group.block) - 1;
        let Some(id) = seq.tables[index].get(i).filter(|id| *id != NULL) else { return };
        let key = self.key(group, seq, length);
        self.pool.insert_partial(id, key, length);
        self.fresh_states.push(key);
        if !length.is_multiple_of(group.block) {
            seq.tables[index].partial = Some((i, id));
            seq.tables[index].cached = i;
        }
    }
}
