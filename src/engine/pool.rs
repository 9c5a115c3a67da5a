//! The pool of KV blocks: a free list in the order of eviction, reference counts, and which content is where.
//!
//! Knows block numbers and digests; knows no request and no group. Blocks that carry no findable content are
//! reused first (last in, first out); the others are evicted least recently freed first.

use std::collections::BTreeMap;
use std::hash::{BuildHasherDefault, Hasher};

use super::content::Hash;
use crate::units::Blocks;

/// A block's number.
pub(super) type BlockId = u32;

/// The block that stands for "nothing is kept here". It is never free and never evicted.
pub(super) const NULL: BlockId = 0;

/// What a block is found by: content and group, mixed. Zero means not found at all.
pub(super) type Key = Hash;

#[derive(Clone, Debug, Default)]
struct Block {
    prev: BlockId,
    next: BlockId,
    references: u32,
    key: Key,
    /// Tokens of the prefix that `key` stands for.
    key_tokens: u64,
}

/// The blocks under one key: in the order in which they came, the first serves hits.
#[derive(Debug)]
struct Holders {
    first: BlockId,
    others: Vec<BlockId>,
}

/// Keys are digests already.
#[derive(Default)]
struct Identity(u64);

impl Hasher for Identity {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, _: &[u8]) {
        unreachable!("keys are u64")
    }
    fn write_u64(&mut self, key: u64) {
        self.0 = key;
    }
}

#[expect(clippy::disallowed_types, reason = "looked up by key and never iterated, so its order is nobody's")]
type Index = std::collections::HashMap<Key, Holders, BuildHasherDefault<Identity>>;

/// See the module.
#[derive(Debug)]
pub(super) struct BlockPool {
    /// Block 0 is the null block; its links are the ends of the free list.
    blocks: Vec<Block>,
    free: Blocks,
    caching: bool,
    index: Index,
    /// Keys of a block beyond its first.
    more_keys: BTreeMap<BlockId, Vec<Key>>,
}

impl BlockPool {
    /// A pool of `count` blocks, the null block among them.
    pub(super) fn new(count: Blocks, caching: bool) -> Self {
        let blocks = (0..count)
            .map(|i| Block {
                prev: i.checked_sub(1).unwrap_or(count - 1),
                next: if i + 1 == count { NULL } else { i + 1 },
                ..Block::default()
            })
            .collect();
        Self { blocks, free: count - 1, caching, index: Index::default(), more_keys: BTreeMap::new() }
    }

    /// Blocks that are free, findable ones among them.
    pub(super) const fn free(&self) -> Blocks {
        self.free
    }

    /// Blocks of the pool, the null block among them.
    pub(super) fn total(&self) -> Blocks {
        Blocks::try_from(self.blocks.len()).expect("blocks are numbered in 32 bits")
    }

    fn at(&mut self, id: BlockId) -> &mut Block {
        &mut self.blocks[id as usize]
    }

    /// A block that holds the content, if there is one.
    pub(super) fn find(&self, key: Key) -> Option<BlockId> {
        self.index.get(&key).map(|holders| holders.first)
    }

    /// The first key of a block; zero if it has none.
    pub(super) fn key(&self, id: BlockId) -> Key {
        self.blocks[id as usize].key
    }

    /// Whether adopting the block takes it off the free list.
    pub(super) fn is_free(&self, id: BlockId) -> bool {
        id != NULL && self.blocks[id as usize].references == 0
    }

    /// Takes `count` blocks from the front of the free list into `into`, with one reference each.
    ///
    /// # Panics
    /// If fewer are free.
    pub(super) fn take(&mut self, count: u64, into: &mut Vec<BlockId>) {
        for _ in 0..count {
            into.push(self.take_one());
        }
    }

    /// Takes one block.
    ///
    /// # Panics
    /// If none is free.
    pub(super) fn take_one(&mut self) -> BlockId {
        let id = self.blocks[NULL as usize].next;
        assert!(id != NULL, "a block is taken only after a check that one is free");
        self.unlink(id);
        if self.caching {
            self.forget(id);
        }
        let block = self.at(id);
        debug_assert_eq!(block.references, 0);
        block.references = 1;
        id
    }

    /// Adds a reference to each block; free ones leave the free list.
    pub(super) fn touch(&mut self, ids: &[BlockId]) {
        for &id in ids.iter().filter(|id| **id != NULL) {
            if self.at(id).references == 0 {
                self.unlink(id);
            }
            self.at(id).references += 1;
        }
    }

    /// Adds a reference to a block that is in use.
    pub(super) fn retain(&mut self, id: BlockId) {
        self.at(id).references += 1;
    }

    /// Drops a reference of each block, in the order in which they shall be evicted.
    pub(super) fn release(&mut self, ids: impl Iterator<Item = BlockId>) {
        let mut front = NULL;
        for id in ids.filter(|id| *id != NULL) {
            let caching = self.caching;
            let block = self.at(id);
            block.references -= 1;
            if block.references > 0 {
                continue;
            }
            if caching && block.key != 0 {
                let last = self.blocks[NULL as usize].prev;
                self.link_after(last, id);
            } else {
                self.link_after(front, id);
                front = id;
            }
        }
    }

    fn link_after(&mut self, prev: BlockId, id: BlockId) {
        let next = self.at(prev).next;
        self.at(prev).next = id;
        self.at(next).prev = id;
        let block = self.at(id);
        block.prev = prev;
        block.next = next;
        self.free += 1;
    }

    fn unlink(&mut self, id: BlockId) {
        let Block { prev, next, .. } = self.blocks[id as usize];
        self.at(prev).next = next;
        self.at(next).prev = prev;
        self.free -= 1;
    }

    /// Makes a full block findable, under this key alone.
    pub(super) fn insert_full(&mut self, id: BlockId, key: Key, tokens: u64) {
        if self.key(id) != 0 {
            self.forget(id);
        }
        self.insert(id, key, tokens);
    }

    /// Makes a block findable by a prefix that ends inside it, besides what it is found by already.
    pub(super) fn insert_partial(&mut self, id: BlockId, key: Key, tokens: u64) {
        let block = &self.blocks[id as usize];
        if block.key != 0 && block.key_tokens < tokens && !self.holds(id, key) {
            self.forget(id);
        }
        self.insert(id, key, tokens);
    }

    /// Lets `to` be found in the place of `from`.
    pub(super) fn move_keys(&mut self, from: BlockId, to: BlockId) {
        let tokens = self.blocks[from as usize].key_tokens;
        let mut keys = vec![self.key(from)];
        keys.extend(self.more_keys.get(&from).into_iter().flatten());
        self.forget(from);
        for key in keys.into_iter().filter(|key| *key != 0) {
            self.insert(to, key, tokens);
        }
    }

    fn holds(&self, id: BlockId, key: Key) -> bool {
        self.index.get(&key).is_some_and(|h| h.first == id || h.others.contains(&id))
    }

    fn insert(&mut self, id: BlockId, key: Key, tokens: u64) {
        if self.holds(id, key) {
            return;
        }
        let block = self.at(id);
        if block.key == 0 {
            block.key = key;
            block.key_tokens = tokens;
        } else {
            self.more_keys.entry(id).or_default().push(key);
        }
        self.index
            .entry(key)
            .and_modify(|h| h.others.push(id))
            .or_insert_with(|| Holders { first: id, others: Vec::new() });
    }

    /// Makes a block's content unfindable.
    fn forget(&mut self, id: BlockId) {
        let key = std::mem::take(&mut self.at(id).key);
        if key == 0 {
            return;
        }
        self.drop_holder(key, id);
        for key in self.more_keys.remove(&id).unwrap_or_default() {
            self.drop_holder(key, id);
        }
    }

    fn drop_holder(&mut self, key: Key, id: BlockId) {
        let Some(holders) = self.index.get_mut(&key) else { return };
        if holders.first != id {
            holders.others.retain(|other| *other != id);
        } else if holders.others.is_empty() {
            self.index.remove(&key);
        } else {
            holders.first = holders.others.remove(0);
        }
    }

    /// Checks that every block is either free or referenced, and the free list whole.
    ///
    /// # Panics
    /// If not.
    pub(super) fn check(&self, referenced: &BTreeMap<BlockId, u32>) {
        let mut seen = 0;
        let (mut at, mut before) = (self.blocks[NULL as usize].next, NULL);
        while at != NULL {
            let block = &self.blocks[at as usize];
            assert_eq!(block.prev, before, "the free list is linked both ways");
            assert_eq!(block.references, 0, "a free block has no references");
            seen += 1;
            (before, at) = (at, block.next);
        }
        assert_eq!(seen, self.free, "the free list has as many blocks as it says");
        let used = self.blocks.iter().skip(1).filter(|b| b.references > 0).count();
        assert_eq!(used + seen as usize + 1, self.blocks.len(), "a block is free or referenced");
        for (id, count) in referenced {
            assert_eq!(self.blocks[*id as usize].references, *count, "references of block {id}");
        }
        assert_eq!(used, referenced.len(), "every referenced block belongs to a request");
    }
}
