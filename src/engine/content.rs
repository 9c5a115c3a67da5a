//! What prompts are made of, as far as equality of tokens goes.
//!
//! Tokens come from endless streams; two tokens are equal if stream and index are. A prompt is a list of
//! pieces of streams, so a block's hash costs the pieces in it, not its tokens.

use crate::units::Tokens;

/// An endless sequence of tokens that no other stream shares.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stream(u64);

impl Stream {
    const OUTPUT: u64 = 1 << 63;

    /// The text number `n`.
    ///
    /// # Panics
    /// If `n` is 2^63 or more.
    pub const fn text(n: u64) -> Self {
        assert!(n < Self::OUTPUT, "texts are numbered below 2^63");
        Self(n)
    }

    /// What request `id` generates.
    ///
    /// # Panics
    /// If `id` is 2^63 or more.
    pub const fn output_of(id: u64) -> Self {
        assert!(id < Self::OUTPUT, "requests are numbered below 2^63");
        Self(id | Self::OUTPUT)
    }

    const fn is_output(self) -> bool {
        self.0 & Self::OUTPUT != 0
    }
}

/// `len` tokens of a stream, from `offset` on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Segment {
    /// Which stream.
    pub stream: Stream,
    /// Index of the first token.
    pub offset: u64,
    /// Number of tokens.
    pub len: Tokens,
}

/// A prompt. The first piece is kept inline: most prompts have no other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Prompt {
    first: Segment,
    rest: Vec<Segment>,
    len: Tokens,
}

impl Prompt {
    /// The first `len` tokens of `stream`.
    pub fn of(stream: Stream, len: Tokens) -> Self {
        Self { first: Segment { stream, offset: 0, len }, rest: Vec::new(), len }
    }

    /// Appends `len` tokens of `stream` from `offset` on. Pieces that continue one another become one, so
    /// equal prompts have equal pieces.
    pub fn push(&mut self, stream: Stream, offset: u64, len: Tokens) {
        if len == 0 {
            return;
        }
        let new = Segment { stream, offset, len };
        if self.len == 0 {
            self.first = new;
        } else {
            let last = self.rest.last_mut().unwrap_or(&mut self.first);
            if last.stream == stream && last.offset + last.len == offset {
                last.len += len;
            } else {
                self.rest.push(new);
            }
        }
        self.len += len;
    }

    /// Appends the pieces of another prompt.
    pub fn extend(&mut self, other: &Self) {
        for s in other.segments() {
            self.push(s.stream, s.offset, s.len);
        }
    }

    /// Number of tokens.
    pub const fn len(&self) -> Tokens {
        self.len
    }

    /// Whether there are none.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The pieces, in order.
    pub fn segments(&self) -> impl Iterator<Item = Segment> {
        std::iter::once(self.first).filter(|s| s.len > 0).chain(self.rest.iter().copied())
    }

    /// Whether it quotes what a request generates.
    pub(super) fn quotes_output(&self) -> bool {
        self.segments().any(|s| s.stream.is_output())
    }

    fn segment(&self, index: usize) -> Option<Segment> {
        if index == 0 { Some(self.first) } else { self.rest.get(index - 1).copied() }
    }
}

/// A well mixed 64-bit digest.
pub(super) type Hash = u64;

/// The chained hashes of a sequence's full units: prompt, then output.
#[derive(Clone, Debug, Default)]
pub(super) struct HashChain {
    hashes: Vec<Hash>,
    /// Piece of the sequence at which the next unit begins; pieces after the prompt's are the output.
    piece: usize,
    /// Tokens of that piece which are hashed.
    used: Tokens,
}

impl HashChain {
    /// Forgets everything but the memory.
    pub(super) fn clear(&mut self) {
        self.hashes.clear();
        self.piece = 0;
        self.used = 0;
    }

    /// The hash of the first `units` units of `unit` tokens each.
    pub(super) fn prefix(&mut self, units: u64, unit: Tokens, prompt: &Prompt, output: Stream) -> Hash {
        let units = usize::try_from(units).expect("a sequence fits in memory");
        while self.hashes.len() < units {
            self.push_unit(unit, prompt, output);
        }
        self.hashes[units - 1]
    }

    fn push_unit(&mut self, unit: Tokens, prompt: &Prompt, output: Stream) {
        let mut hash = self.hashes.last().copied().unwrap_or(0x243f_6a88_85a3_08d3);
        let mut missing = unit;
        while missing > 0 {
            let endless = Segment { stream: output, offset: 0, len: Tokens::MAX };
            let piece = prompt.segment(self.piece).filter(|s| s.len > 0).unwrap_or(endless);
            let take = missing.min(piece.len - self.used);
            hash = mix(mix(mix(hash, piece.stream.0), piece.offset + self.used), take);
            missing -= take;
            self.used += take;
            if self.used == piece.len {
                self.piece += 1;
                self.used = 0;
            }
        }
        self.hashes.push(hash);
    }
}

/// Folds `value` into `hash`; for one `hash`, different values give different results.
pub(super) fn mix(hash: Hash, value: u64) -> Hash {
    let mut x = hash.rotate_left(17) ^ value.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    x = (x ^ (x >> 29)).wrapping_mul(0xa076_1d64_78bd_642f);
    x ^ (x >> 32)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash_of(prompt: &Prompt, units: u64, unit: Tokens) -> Hash {
        HashChain::default().prefix(units, unit, prompt, Stream::output_of(0))
    }

    #[test]
    fn a_hash_depends_on_the_tokens_and_not_on_how_they_were_pieced_together() {
        let whole = Prompt::of(Stream::text(7), 64);
        let mut pieces = Prompt::default();
        for i in 0..8 {
            pieces.push(Stream::text(7), 8 * i, 8);
        }
        assert_eq!(whole, pieces);
        for units in 1..=4 {
            assert_eq!(hash_of(&whole, units, 16), hash_of(&pieces, units, 16));
        }
        let mut other = Prompt::of(Stream::text(7), 16);
        other.push(Stream::text(8), 0, 48);
        assert_eq!(hash_of(&whole, 1, 16), hash_of(&other, 1, 16));
        assert_ne!(hash_of(&whole, 2, 16), hash_of(&other, 2, 16));
    }

    #[test]
    fn output_that_is_quoted_has_the_hash_it_had_when_it_was_generated() {
        let generated = Prompt::of(Stream::text(1), 20);
        let mut quoting = generated.clone();
        quoting.push(Stream::output_of(5), 0, 44);
        let mut chain = HashChain::default();
        assert_eq!(chain.prefix(4, 16, &generated, Stream::output_of(5)), hash_of(&quoting, 4, 16));
    }
}
