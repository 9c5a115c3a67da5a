//! CUDA graphs: the batch sizes that are captured, hence what a batch is padded to.

/// The batch that is executed for `batch` sequences: the next captured size, or `batch` itself above the largest.
///
/// vLLM captures 1, 2, 4, then multiples of 8 up to 256, then of 16 up to `min(2 * max_num_seqs, 512)`
/// (`vllm/config/compilation.py`, version 0.32).
pub fn padded_batch(batch: u32, max_num_seqs: u32) -> u32 {
    let largest = max_num_seqs.saturating_mul(2).min(512);
    let padded = match batch {
        0..=2 => batch,
        3..=4 => 4,
        5..=256 => batch.next_multiple_of(8),
        _ => batch.next_multiple_of(16),
    };
    if padded <= largest { padded } else { batch }
}

#[cfg(test)]
mod tests {
    use super::padded_batch;

    #[test]
    fn batches_are_padded_to_the_next_captured_size() {
        for (batch, padded) in [(1, 1), (3, 4), (5, 8), (8, 8), (9, 16), (250, 256), (257, 272), (513, 513)] {
            assert_eq!(padded_batch(batch, 1024), padded, "{batch}");
        }
        assert_eq!(padded_batch(9, 5), 9, "16 is not captured for ten sequences at most");
    }
}
