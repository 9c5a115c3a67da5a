//! The longest prefix of a sequence at which every group can resume.

use super::group::{Group, GroupKind};
use super::{KvCache, Sequence};
use crate::engine::content::mix;
use crate::engine::pool::{BlockId, NULL};
use crate::units::Tokens;

/// What a look-up found. Its memory is used again by the next one.
#[derive(Debug, Default)]
pub(in crate::engine) struct Hit {
    /// Tokens that need not be computed.
    pub(in crate::engine) tokens: Tokens,
    /// Where another prompt went on that some group could not follow; zero if nowhere.
    pub(in crate::engine) junction: Tokens,
    /// The blocks of each group; the null block where none is needed.
    pub(super) blocks: Vec<Vec<BlockId>>,
}

impl Hit {
    fn clear(&mut self, groups: usize) {
        self.tokens = 0;
        self.junction = 0;
        self.blocks.resize_with(groups, Vec::new);
        self.blocks.iter_mut().for_each(Vec::clear);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.blocks.iter().all(Vec::is_empty)
    }
}

/// Groups with the same rules, full attention before the others.
pub(super) fn alike(groups: &[Group]) -> Vec<Vec<usize>> {
    let mut sets: Vec<Vec<usize>> = Vec::new();
    for (i, group) in groups.iter().enumerate() {
        let same = |set: &&mut Vec<usize>| Group { salt: group.salt, ..groups[set[0]] } == *group;
        match sets.iter_mut().find(same) {
            Some(set) => set.push(i),
            None => sets.push(vec![i]),
        }
    }
    sets.sort_by_key(|set| groups[set[0]].kind != GroupKind::Full);
    sets
}

impl KvCache {
    /// Looks `seq` up, at most up to the token before its last (the last is computed to sample from).
    pub(in crate::engine) fn look_up(&self, seq: &mut Sequence, hit: &mut Hit) {
        hit.clear(self.groups.len());
        if !self.caching {
            return;
        }
        let mut length = seq.len().saturating_sub(1);
        let mut longest = 0;
        let mut full_length = None;
        loop {
            let mut current = length;
            for set in &self.alike {
                let kind = self.groups[set[0]].kind;
                if let (GroupKind::Full, Some(known)) = (kind, full_length) {
                    current = current.min(known);
                    continue;
                }
                set.iter().for_each(|i| hit.blocks[*i].clear());
                current = match kind {
                    GroupKind::Full => self.find_full(seq, set, current, hit),
                    GroupKind::Window => self.find_window(seq, set, current, hit),
                    GroupKind::State => self.find_state(seq, set, current, hit),
                };
                if kind == GroupKind::Full {
                    full_length = Some(current);
                }
                longest = longest.max(current);
            }
            let settled = current >= length;
            length = current;
            let one_pass = self.alike.len() == 1
                || self.alike.len() == 2 && self.groups[self.alike[0][0]].kind == GroupKind::Full;
            if settled || one_pass {
                break;
            }
        }
        for i in self.alike.iter().flatten().filter(|i| self.groups[**i].kind == GroupKind::Full) {
            let blocks = usize::try_from(length.div_ceil(self.groups[*i].block)).expect("a table fits");
            hit.blocks[*i].truncate(blocks);
        }
        hit.tokens = length;
        hit.junction = if self.groups.len() > 1 && longest > length { longest } else { 0 };
    }

    /// Looks for blocks of all groups of `set` whose content is the sequence up to `length`, and puts them
    /// into the hit at `index`, with null blocks below where there is nothing.
    fn find(&self, seq: &mut Sequence, set: &[usize], length: Tokens, hit: &mut Hit, index: usize) -> bool {
        let hash = seq.chain.prefix(length / self.unit, self.unit, &seq.prompt, seq.stream);
        for (n, &i) in set.iter().enumerate() {
            let Some(id) = self.pool.find(mix(hash, self.groups[i].salt).max(1)) else {
                set[..n].iter().for_each(|i| hit.blocks[*i][index] = NULL);
                return false;
            };
            let blocks = &mut hit.blocks[i];
            if blocks.len() <= index {
                blocks.resize(index + 1, NULL);
            }
            blocks[index] = id;
        }
        true
    }

    fn find_full(&self, seq: &mut Sequence, set: &[usize], max: Tokens, hit: &mut Hit) -> Tokens {
        let block = self.groups[set[0]].block;
        let (mut length, mut count) = (0, 0);
        while length + block <= max && self.find(seq, set, length + block, hit, count) {
            length += block;
            count += 1;
        }
        if self.alignment < block && block.is_multiple_of(self.alignment) {
            let top = (length + block - self.alignment).min(max / self.alignment * self.alignment);
            let mut end = top;
            while end > length {
                if self.find(seq, set, end, hit, count) {
                    length = end;
                    break;
                }
                end -= self.alignment;
            }
        }
        length -= length % self.alignment;
        let blocks = usize::try_from(length.div_ceil(block)).expect("a table fits");
        set.iter().for_each(|i| hit.blocks[*i].truncate(blocks));
        length
    }

    fn find_window(&self, seq: &mut Sequence, set: &[usize], max: Tokens, hit: &mut Hit) -> Tokens {
        let group = self.groups[set[0]];
        let needed = usize::try_from(group.blocks_for_hit()).expect("a window fits");
        let aligned = |blocks: usize| (blocks as u64 * group.block).is_multiple_of(self.alignment);
        let count = usize::try_from(max / group.block).expect("a table fits");
        set.iter().for_each(|i| hit.blocks[*i].resize(count, NULL));
        let (mut in_a_row, mut keep) = (0, None);
        for i in (0..count).rev() {
            if in_a_row == 0 && !aligned(i + 1) {
                continue;
            }
            if !self.find(seq, set, (i as u64 + 1) * group.block, hit, i) {
                in_a_row = 0;
                continue;
            }
            in_a_row += 1;
            if in_a_row >= needed {
                keep = Some(i + in_a_row);
                break;
            }
        }
        let mut keep = keep.unwrap_or(in_a_row);
        while !aligned(keep) {
            keep -= 1;
        }
        set.iter().for_each(|i| hit.blocks[*i].truncate(keep));
        keep as u64 * group.block
    }

    fn find_state(&self, seq: &mut Sequence, set: &[usize], max: Tokens, hit: &mut Hit) -> Tokens {
        let block = self.groups[set[0]].block;
        let fine = self.alignment < block && block.is_multiple_of(self.alignment);
        let step = if fine { self.alignment } else { block };
        let mut end = max / step * step;
        while end > 0 {
            let index = usize::try_from(end.div_ceil(block) - 1).expect("a table fits");
            if (fine || end.is_multiple_of(self.alignment)) && self.find(seq, set, end, hit, index) {
                set.iter().for_each(|i| hit.blocks[*i].truncate(index + 1));
                return end;
            }
            end -= step;
        }
        set.iter().for_each(|i| hit.blocks[*i].clear());
        0
    }
}
