//! The KV cache of a model: which blocks a request holds in each group of layers, and what can be found.
//!
//! Knows sequences, groups and the pool; knows no queue, no budget and no time. The rules are those of
//! vLLM's cache manager: a request holds `ceil(tokens / block)` blocks of every attention group, a window
//! gives blocks back from below, a recurrent state holds the block of its last state (and, when states are
//! cached at block boundaries, the one it came from).

mod group;
mod insert;
mod lookup;
mod state;

use super::config::EngineConfig;
use super::content::{HashChain, Prompt, Stream};
use super::pool::{BlockId, BlockPool, Key, NULL};
use crate::units::{Blocks, Tokens};

pub(super) use group::{Group, GroupKind, Table};
pub(super) use lookup::Hit;

/// The tokens of a request and the blocks that hold them.
#[derive(Debug, Default)]
pub(super) struct Sequence {
    /// The prompt.
    pub(super) prompt: Prompt,
    /// Where its output comes from.
    pub(super) stream: Stream,
    /// Tokens generated and known.
    pub(super) output: Tokens,
    /// Position up to which another request's prompt was cached where a recurrent or windowed group could
    /// not follow; zero if none was seen.
    pub(super) junction: Tokens,
    chain: HashChain,
    tables: Vec<Table>,
    /// Largest length at which giving the next token a place changes nothing.
    quiet_to: Tokens,
    /// Length from which on something new can be cached.
    cache_from: Tokens,
}

impl Sequence {
    /// Makes the place of a former sequence that of a new one; its memory is used again.
    pub(super) fn restart(&mut self, prompt: Prompt, stream: Stream, groups: usize) {
        self.prompt = prompt;
        self.stream = stream;
        self.output = 0;
        self.junction = 0;
        self.chain.clear();
        self.tables.resize_with(groups, Table::default);
        self.tables.iter_mut().for_each(Table::clear);
        self.quiet_to = 0;
        self.cache_from = 0;
    }

    /// Prompt and known output.
    pub(super) fn len(&self) -> Tokens {
        self.prompt.len() + self.output
    }

    /// Largest length that fits in the blocks held without any change to the cache.
    pub(super) const fn quiet_to(&self) -> Tokens {
        self.quiet_to
    }
}

/// What is asked of [`KvCache::allocate`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Ask {
    /// Tokens computed before, hits not counted.
    pub(super) computed: Tokens,
    /// Tokens to compute now.
    pub(super) new: Tokens,
    /// Scheduled tokens whose results are not processed.
    pub(super) in_flight: Tokens,
    /// Whether the request waits (new or preempted).
    pub(super) waiting: bool,
    /// Whether other requests run.
    pub(super) others_run: bool,
    /// Whether the present length must fit as a whole.
    pub(super) whole: bool,
}

/// See the module.
#[derive(Debug)]
pub(super) struct KvCache {
    pool: BlockPool,
    groups: Vec<Group>,
    /// Groups with equal rules, looked up together; full attention first.
    alike: Vec<Vec<usize>>,
    caching: bool,
    partial_hits: bool,
    shared_hits: bool,
    /// Hashed unit, tokens.
    unit: Tokens,
    /// Hits are multiples of this.
    alignment: Tokens,
    scheduler_block: Tokens,
    retention: Option<Tokens>,
    max_model_len: Tokens,
    watermark: Blocks,
    /// States cached in this step: not usable before the step has run.
    fresh_states: Vec<Key>,
    /// Blocks that the step copies, source and destination: both stay until it is scheduled.
    copies: Vec<(BlockId, BlockId)>,
}

impl KvCache {
    pub(super) fn new(config: &EngineConfig) -> Self {
        let groups: Vec<Group> =
            config.kv_cache_groups.iter().enumerate().map(|(i, g)| Group::new(config, i, *g)).collect();
        let partial_hits = config.partial_hits();
        let unit = config.hash_block_size();
        let scheduler_block = config.scheduler_block_size();
        Self {
            pool: BlockPool::new(config.num_gpu_blocks, config.prefix_caching()),
            alike: lookup::alike(&groups),
            groups,
            caching: config.prefix_caching(),
            partial_hits,
            shared_hits: config.mamba_shared_hits,
            unit,
            alignment: if partial_hits { unit } else { scheduler_block },
            scheduler_block,
            retention: config.prefix_cache_retention_interval,
            max_model_len: config.max_model_len,
            watermark: config.watermark_blocks(),
            fresh_states: Vec::new(),
            copies: Vec::new(),
        }
    }

    /// Free blocks.
    pub(super) const fn free_blocks(&self) -> Blocks {
        self.pool.free()
    }

    /// Number of groups of layers.
    pub(super) fn group_count(&self) -> usize {
        self.groups.len()
    }

    /// Whether blocks are only ever added while a request decodes: then many steps can be taken at once.
    pub(super) fn only_grows(&self) -> bool {
        self.groups.iter().all(|g| g.kind == GroupKind::Full)
    }

    /// Whether anything is ever looked up.
    pub(super) const fn caches(&self) -> bool {
        self.caching
    }

    /// Whether the step being scheduled has cached states, which nobody can use before it has run.
    pub(super) fn has_fresh_states(&self) -> bool {
        !self.fresh_states.is_empty()
    }

    /// To be called before each step is scheduled.
    pub(super) fn start_step(&mut self) {
        self.fresh_states.clear();
    }

    /// To be called after each step was scheduled: the copies it makes hold their blocks no longer.
    pub(super) fn end_step(&mut self) {
        let pairs = std::mem::take(&mut self.copies);
        self.pool.release(pairs.iter().flat_map(|(from, to)| [*from, *to]));
        self.copies = pairs;
        self.copies.clear();
    }

    /// Gives a sequence room for `ask.new` more tokens; false, and nothing taken, if there is none.
    pub(super) fn allocate(&mut self, seq: &mut Sequence, ask: Ask, hit: Option<&Hit>) -> bool {
        let local = ask.computed + hit.map_or(0, |h| h.tokens);
        let before = local.min(self.max_model_len);
        let watermark = if ask.waiting && ask.others_run { i64::from(self.watermark) } else { 0 };
        if ask.whole {
            let length = seq.len().min(self.max_model_len);
            if self.need(seq, length, hit, local, true) + watermark > i64::from(self.pool.free()) {
                return false;
            }
        }
        let length = (before + ask.new).min(self.max_model_len);
        self.give_back(seq, before.saturating_sub(ask.in_flight));
        if self.need(seq, length, hit, local, false) + watermark > i64::from(self.pool.free()) {
            return false;
        }
        if let Some(hit) = hit.filter(|h| !h.is_empty()) {
            self.adopt(seq, hit);
        }
        for (group, table) in self.groups.iter().zip(&mut seq.tables) {
            if group.kind == GroupKind::State {
                let copies = (&mut self.copies, &mut self.fresh_states);
                state::extend(group, table, &mut self.pool, length, copies);
            } else {
                Self::extend(group, table, &mut self.pool, length, &mut self.copies);
            }
        }
        self.cache(seq, (before + ask.new).min(seq.len()));
        self.note_quiet(seq);
        true
    }

    /// Blocks that `length` tokens need beyond those held, counting adopted blocks that are free now.
    fn need(&self, seq: &Sequence, length: Tokens, hit: Option<&Hit>, local: Tokens, admission: bool) -> i64 {
        let mut sum = 0;
        for (i, (group, table)) in self.groups.iter().zip(&seq.tables).enumerate() {
            let found = hit.map_or(&[][..], |h| &h.blocks[i]);
            sum += if group.kind == GroupKind::State {
                let last = found.last().map_or(0, |id| self.pool.key(*id));
                if last != 0 && self.fresh_states.contains(&last) {
                    return i64::from(self.pool.total()) + 1;
                }
                state::need(group, table, &self.pool, length, found, local)
            } else {
                self.need_of_attention(group, table, length, found, local, admission)
            };
        }
        sum
    }

    fn need_of_attention(
        &self,
        group: &Group,
        table: &Table,
        length: Tokens,
        found: &[BlockId],
        local: Tokens,
        admission: bool,
    ) -> i64 {
        let mut required = length.div_ceil(group.block);
        if admission {
            required = required.min(group.admission_cap);
        }
        let held = table.blocks.len() as u64;
        let below = group.below_window(local);
        let mut need = required.saturating_sub(below.max(held + found.len() as u64));
        let kept = usize::try_from(below.saturating_sub(held)).expect("a table fits in memory");
        need += found.iter().skip(kept).filter(|id| self.pool.is_free(**id)).count() as u64;
        if group.ends_inside(found, local) {
            need += 1;
        }
        need.cast_signed()
    }

    /// Takes the blocks of a hit into the tables.
    fn adopt(&mut self, seq: &mut Sequence, hit: &Hit) {
        for ((group, table), found) in self.groups.iter().zip(&mut seq.tables).zip(&hit.blocks) {
            let below = group.below_window(hit.tokens);
            let kept = &found[found.len().min(usize::try_from(below).expect("a table fits in memory"))..];
            self.pool.touch(kept);
            table.blocks.clear();
            table.blocks.resize(usize::try_from(below).expect("a table fits in memory"), NULL);
            table.blocks.extend_from_slice(kept);
            table.retired = below;
            table.cached = table.blocks.len() as u64;
            if group.ends_inside(kept, hit.tokens) {
                let index = hit.tokens / group.block;
                table.partial = Some((index, kept[kept.len() - 1]));
                table.cached = index;
            }
        }
    }

    fn extend(
        group: &Group,
        table: &mut Table,
        pool: &mut BlockPool,
        length: Tokens,
        copies: &mut Vec<(BlockId, BlockId)>,
    ) {
        if let Some((index, source)) = table.partial.take() {
            let copy = pool.take_one();
            table.replace(index, copy);
            copies.push((source, copy));
            pool.retain(copy);
        }
        let missing = length.div_ceil(group.block).saturating_sub(table.blocks.len() as u64);
        pool.take(missing, &mut table.blocks);
    }

    /// Gives blocks back that the next tokens do not read, `processed` tokens being computed for good.
    fn give_back(&mut self, seq: &mut Sequence, processed: Tokens) {
        for (group, table) in self.groups.iter().zip(&mut seq.tables) {
            match group.kind {
                GroupKind::Full => {}
                GroupKind::Window => {
                    let below = group.below_window(processed).min(table.blocks.len() as u64);
                    if below > table.retired {
                        let freed = table.retire(table.retired, below);
                        self.pool.release(freed.rev());
                    }
                }
                GroupKind::State => state::give_back(group, table, &mut self.pool, processed),
            }
        }
    }

    /// Frees everything a sequence holds.
    pub(super) fn free(&mut self, seq: &mut Sequence) {
        for table in &mut seq.tables {
            self.pool.release(table.blocks.iter().rev().copied());
            table.clear();
        }
        seq.quiet_to = 0;
        seq.cache_from = 0;
    }

    /// New blocks that `more` tokens beyond `length` need; for caches that only grow.
    pub(super) fn growth(&self, seq: &Sequence, length: Tokens, more: Tokens) -> u64 {
        self.groups
            .iter()
            .zip(&seq.tables)
            .map(|(g, t)| (length + more).div_ceil(g.block).saturating_sub(t.blocks.len() as u64))
            .sum()
    }

    /// Gives a decoding sequence room up to `length` tokens and caches its first `known`: what that many
    /// steps of one token do, for caches that only grow.
    pub(super) fn grow(&mut self, seq: &mut Sequence, length: Tokens, known: Tokens) {
        for (group, table) in self.groups.iter().zip(&mut seq.tables) {
            Self::extend(group, table, &mut self.pool, length, &mut self.copies);
        }
        self.cache(seq, known);
        self.note_quiet(seq);
    }

    fn note_quiet(&self, seq: &mut Sequence) {
        let (mut quiet, mut cache) = (Tokens::MAX, Tokens::MAX);
        for (group, table) in self.groups.iter().zip(&seq.tables) {
            quiet = quiet.min(table.blocks.len() as u64 * group.block).min(table.next_return(group));
            if table.partial.is_some() {
                quiet = 0;
            }
            if self.caching {
                cache = cache.min((table.cached + 1) * group.block);
            }
        }
        seq.cache_from = cache;
        seq.quiet_to = quiet.min(cache - 1);
    }

    /// Checks that blocks are conserved, given all sequences.
    ///
    /// # Panics
    /// If they are not.
    pub(super) fn check<'a>(&self, sequences: impl Iterator<Item = &'a Sequence>) {
        let mut referenced = std::collections::BTreeMap::new();
        for id in sequences.flat_map(|s| &s.tables).flat_map(|t| &t.blocks).filter(|id| **id != NULL) {
            *referenced.entry(*id).or_insert(0) += 1;
        }
        self.pool.check(&referenced);
    }
}
