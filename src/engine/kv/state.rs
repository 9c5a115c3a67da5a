//! Recurrent state that is cached at block boundaries.
//!
//! The table is indexed by position like that of attention, but holds only the block of the present state,
//! the one it was computed from (until the step that did so is processed) and nothing in between.

use super::group::{Group, Table};
use crate::engine::pool::{BlockId, BlockPool, Key, NULL};
use crate::units::Tokens;

/// Blocks needed for `length` tokens, adopted free ones among them.
pub(super) fn need(
    group: &Group,
    table: &Table,
    pool: &BlockPool,
    length: Tokens,
    found: &[BlockId],
    local: Tokens,
) -> i64 {
    let held = (found.len() + table.blocks.len()) as u64;
    let mut new = length.div_ceil(group.block).cast_signed() - held.cast_signed();
    let copies = group.ends_inside(found, local) || table.partial.is_some();
    if copies {
        new = new.max(0) + 1;
    }
    new.min(1 + i64::from(copies)) + found.iter().filter(|id| pool.is_free(**id)).count() as i64
}

/// Gives the sequence a block for the state after `length` tokens.
pub(super) fn extend(
    group: &Group,
    table: &mut Table,
    pool: &mut BlockPool,
    length: Tokens,
    (copies, fresh): (&mut Vec<(BlockId, BlockId)>, &mut Vec<Key>),
) {
    let required = length.div_ceil(group.block);
    let held = table.blocks.len() as u64;
    let partial = table.partial.take();
    if required <= held && partial.is_none() {
        table.started = true;
        return;
    }
    if held > 0 {
        table.last_state = Some(held - 1);
    }
    let gap = usize::try_from(required - 1).expect("a table fits in memory");
    if table.blocks.len() < gap {
        table.blocks.resize(gap, NULL);
    }
    if let Some((index, source)) = partial {
        let copy = pool.take_one();
        if table.started {
            // The request goes on in its block; what can be found moves to the copy.
            pool.move_keys(source, copy);
            pool.retain(source);
            if pool.key(copy) != 0 {
                fresh.push(pool.key(copy));
            }
        } else {
            table.replace(index, copy);
            pool.retain(copy);
        }
        copies.push((source, copy));
    }
    pool.take(required.saturating_sub(table.blocks.len() as u64), &mut table.blocks);
    table.started = true;
}

/// Gives back the states from which nothing continues.
pub(super) fn give_back(group: &Group, table: &mut Table, pool: &mut BlockPool, processed: Tokens) {
    let below = group.below_window(processed).min(table.blocks.len() as u64);
    if below > table.retired {
        let freed = table.retire(table.retired, below);
        pool.release(freed.rev());
    }
    let current = processed.div_ceil(group.block).saturating_sub(1);
    if let Some(index) = table.held_state().filter(|index| *index < current) {
        let freed = table.replace(index, NULL);
        pool.release(std::iter::once(freed));
    }
}
