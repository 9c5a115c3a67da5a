//! A group of layers and the blocks that one request holds in it.

use crate::engine::config::{EngineConfig, KvCacheGroup, MambaCacheMode};
use crate::engine::pool::{BlockId, NULL};
use crate::units::Tokens;

/// How a group uses blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) enum GroupKind {
    /// Every block stays until the request ends (recurrent states that are not cached are one such block).
    Full,
    /// Blocks below the window are given back.
    Window,
    /// Recurrent state cached at block boundaries: the last one or two blocks stay.
    State,
}

/// A group's rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) struct Group {
    pub(super) kind: GroupKind,
    /// Tokens a block.
    pub(super) block: Tokens,
    /// Tokens attended to; 0 for all.
    pub(super) window: Tokens,
    /// Most blocks one request is counted for at admission.
    pub(super) admission_cap: u64,
    /// Distinguishes the group's keys.
    pub(super) salt: u64,
}

impl Group {
    pub(super) fn new(config: &EngineConfig, index: usize, group: KvCacheGroup) -> Self {
        let block = config.group_block_size(group);
        let salt = index as u64 + 1;
        let plain = Self { kind: GroupKind::Full, block, window: 0, admission_cap: u64::MAX, salt };
        match group {
            KvCacheGroup::SlidingWindow { sliding_window, .. } => {
                let in_flight = config.max_num_batched_tokens * config.concurrent_batches() as u64;
                let resident = (sliding_window - 1 + in_flight).min(config.max_model_len);
                let admission_cap = resident.div_ceil(block) + 1;
                Self { kind: GroupKind::Window, window: sliding_window, admission_cap, ..plain }
            }
            KvCacheGroup::Mamba
                if config.prefix_caching() && config.mamba_cache_mode == MambaCacheMode::Align =>
            {
                Self { kind: GroupKind::State, ..plain }
            }
            KvCacheGroup::FullAttention | KvCacheGroup::Mamba => plain,
        }
    }

    /// Whole blocks that the token after `computed` tokens does not read.
    pub(super) fn below_window(&self, computed: Tokens) -> u64 {
        match self.kind {
            GroupKind::Full => 0,
            GroupKind::Window => (computed + 1).saturating_sub(self.window) / self.block,
            GroupKind::State => computed.saturating_sub(1) / self.block,
        }
    }

    /// Blocks in a row that a hit needs before its end.
    pub(super) fn blocks_for_hit(&self) -> u64 {
        (self.window - 1).div_ceil(self.block)
    }

    /// Whether a hit of `tokens` ends inside the last block found.
    pub(super) fn ends_inside(&self, found: &[BlockId], tokens: Tokens) -> bool {
        !found.is_empty() && !tokens.is_multiple_of(self.block)
    }
}

/// The blocks of one request in one group.
#[derive(Debug, Default)]
pub(in crate::engine) struct Table {
    pub(super) blocks: Vec<BlockId>,
    /// Leading blocks that have been offered to the cache.
    pub(super) cached: u64,
    /// Leading blocks that have been given back.
    pub(super) retired: u64,
    /// A block shared up to a position inside it: index and number. Its next user takes a copy.
    pub(super) partial: Option<(u64, BlockId)>,
    /// State groups: index of the block that held the state before the present one.
    pub(super) last_state: Option<u64>,
    /// State groups: whether blocks of its own were given.
    pub(super) started: bool,
}

impl Table {
    pub(super) fn clear(&mut self) {
        self.blocks.clear();
        self.cached = 0;
        self.retired = 0;
        self.partial = None;
        self.last_state = None;
        self.started = false;
    }

    pub(super) fn get(&self, index: u64) -> Option<BlockId> {
        self.blocks.get(usize::try_from(index).ok()?).copied()
    }

    pub(super) fn replace(&mut self, index: u64, id: BlockId) -> BlockId {
        let index = usize::try_from(index).expect("a table fits in memory");
        std::mem::replace(&mut self.blocks[index], id)
    }

    /// Takes the blocks in `from..to` out, front to back.
    pub(super) fn retire(&mut self, from: u64, to: u64) -> impl DoubleEndedIterator<Item = BlockId> {
        self.retired = to;
        let range = usize::try_from(from).expect("a table fits")..usize::try_from(to).expect("a table fits");
        self.blocks[range].iter_mut().map(|id| std::mem::replace(id, NULL))
    }

    /// Largest length up to which no block is given back.
    pub(super) fn next_return(&self, group: &Group) -> Tokens {
        match group.kind {
            GroupKind::Full => Tokens::MAX,
            GroupKind::Window => group.window - 1 + (self.retired + 1) * group.block,
            GroupKind::State => {
                let next = self.retired.min(self.held_state().unwrap_or(u64::MAX));
                (next + 1) * group.block + 1
            }
        }
    }

    /// The index of the former state's block, if it is still held.
    pub(super) fn held_state(&self) -> Option<u64> {
        self.last_state.filter(|index| self.get(*index).is_some_and(|id| id != NULL))
    }
}
