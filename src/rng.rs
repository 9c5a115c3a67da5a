//! Named random streams from one seed.
//!
//! Knows names and a seed. Knows no distribution. A stream depends on the seed and its own name alone, so drawing
//! more from one stream, or adding a stream, never moves another; the same seed gives the same numbers on every
//! machine (`ChaCha` with 12 rounds is specified to the bit).

use rand::SeedableRng;
use rand::rngs::ChaCha12Rng;

/// A random stream.
pub type Stream = ChaCha12Rng;

/// The source of streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Streams {
    seed: u64,
}

impl Streams {
    /// Streams of `seed`.
    pub const fn new(seed: u64) -> Self {
        Self { seed }
    }

    /// The seed.
    pub const fn seed(self) -> u64 {
        self.seed
    }

    /// The stream `name`, from its start.
    pub fn stream(self, name: &str) -> Stream {
        self.numbered(name, 0)
    }

    /// The `index`-th of the streams `name`: one for each session, replica or request.
    pub fn numbered(self, name: &str, index: u64) -> Stream {
        let mut key = [0; 32];
        let name = name_hash(name.as_bytes());
        key[..8].copy_from_slice(&self.seed.to_le_bytes());
        key[8..24].copy_from_slice(&name.to_le_bytes());
        key[24..].copy_from_slice(&index.to_le_bytes());
        Stream::from_seed(key)
    }
}

/// FNV-1a with 128 bits: names are few, and the cipher does the rest.
fn name_hash(name: &[u8]) -> u128 {
    const OFFSET: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    name.iter().fold(OFFSET, |h, b| (h ^ u128::from(*b)).wrapping_mul(PRIME))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rand::Rng;

    use super::*;

    fn draw(mut stream: Stream, count: usize) -> Vec<u64> {
        (0..count).map(|_| stream.next_u64()).collect()
    }

    proptest! {
        #[test]
        fn a_stream_depends_on_its_seed_and_name_alone(seed: u64, a in "[a-z]{1,9}", b in "[a-z]{1,9}", others in 0_usize..50) {
            let streams = Streams::new(seed);
            let alone = draw(streams.stream(&a), 20);
            let _ = draw(streams.stream(&b), others);
            prop_assert_eq!(&alone, &draw(streams.stream(&a), 20));
            prop_assert_eq!(a == b, alone == draw(streams.stream(&b), 20));
            prop_assert_ne!(&alone, &draw(streams.numbered(&a, 1), 20));
            prop_assert_ne!(&alone, &draw(Streams::new(seed ^ 1).stream(&a), 20));
        }
    }

    #[test]
    fn numbers_are_the_same_on_every_machine() {
        assert_eq!(draw(Streams::new(42).stream("arrivals"), 2), PINNED);
    }

    const PINNED: [u64; 2] = [2_361_286_381_824_935_805, 16_477_009_653_168_460_194];
}
