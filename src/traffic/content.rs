//! What a prompt is made of, as far as prefix caching can tell: pieces of content with an identity and a length.
//!
//! Knows identity and length. Knows no text, no tokenizer and no engine.

/// The identity of a piece of content. Two pieces are the same tokens exactly if their identities are equal and
/// they start alike; pieces of unequal length share the shorter one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ContentId {
    /// A block of a recorded trace, by its hash.
    Shared(u64),
    /// A prefix that a group of requests starts with.
    Prefix(u64),
    /// A part of a session: questions and answers in turn.
    Turn {
        /// The session.
        session: u64,
        /// The part, from zero.
        part: u32,
    },
    /// Content that no other request has; the number is the request's.
    Own(u64),
}

/// A piece of a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Which content.
    pub id: ContentId,
    /// How many tokens of it, from its start.
    pub tokens: u64,
}

/// A prompt as a sequence of pieces.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Content {
    segments: Vec<Segment>,
}

impl Content {
    /// The pieces in order; empty ones are left out.
    pub fn new(segments: impl IntoIterator<Item = Segment>) -> Self {
        Self { segments: segments.into_iter().filter(|s| s.tokens > 0).collect() }
    }

    /// Content that nothing shares.
    pub fn own(request: u64, tokens: u64) -> Self {
        Self::new([Segment { id: ContentId::Own(request), tokens }])
    }

    /// The pieces.
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// Tokens in all.
    pub fn tokens(&self) -> u64 {
        self.segments.iter().map(|s| s.tokens).sum()
    }

    /// Appends a piece.
    pub fn push(&mut self, segment: Segment) {
        if segment.tokens > 0 {
            self.segments.push(segment);
        }
    }

    /// Tokens that two prompts have in common from their start.
    pub fn common_prefix(&self, other: &Self) -> u64 {
        let mut common = 0;
        for (a, b) in self.segments.iter().zip(&other.segments) {
            if a.id != b.id {
                break;
            }
            common += a.tokens.min(b.tokens);
            if a.tokens != b.tokens {
                break;
            }
        }
        common
    }

    /// A key for each whole block of `block_tokens` tokens that covers the block's content and everything before
    /// it: equal keys stand for equal prefixes. Deterministic over runs and machines.
    ///
    /// # Panics
    /// If `block_tokens` is zero.
    pub fn block_keys(&self, block_tokens: u64) -> Vec<u64> {
        assert!(block_tokens > 0, "a block holds tokens");
        let mut keys = Vec::new();
        let mut key = FNV_OFFSET;
        let mut room = block_tokens;
        for segment in &self.segments {
            let (kind, id) = match segment.id {
                ContentId::Shared(id) => (0, id),
                ContentId::Own(id) => (1, id),
                ContentId::Prefix(id) => (2, id),
                ContentId::Turn { session, part } => (3 + u64::from(part), session),
            };
            let mut at = 0;
            while at < segment.tokens {
                let taken = room.min(segment.tokens - at);
                for word in [kind, id, at, taken] {
                    key = mix(key, word);
                }
                at += taken;
                room -= taken;
                if room == 0 {
                    keys.push(key);
                    room = block_tokens;
                }
            }
        }
        keys
    }
}

const FNV_OFFSET: u64 = 0xcbf2_9ce4_8422_2325;

/// One word into a running key: a multiply-xorshift step (the finaliser of `SplitMix64`), so that keys of
/// different contents collide only by chance.
fn mix(key: u64, word: u64) -> u64 {
    let mut x = key.rotate_left(23) ^ word.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Tokens of a prompt of `prompt_tokens` that a cache of whole blocks can give at most: the last token is always
/// computed.
pub fn largest_hit(prompt_tokens: u64, block_tokens: u64) -> u64 {
    prompt_tokens.saturating_sub(1) / block_tokens * block_tokens
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn content(pieces: &[(u64, u64)]) -> Content {
        Content::new(
            pieces.iter().map(|(id, tokens)| Segment { id: ContentId::Shared(*id), tokens: *tokens }),
        )
    }

    proptest! {
        #[test]
        fn keys_agree_exactly_over_the_common_prefix(
            a in prop::collection::vec((0_u64..3, 1_u64..40), 0..8),
            b in prop::collection::vec((0_u64..3, 1_u64..40), 0..8),
            block in 1_u64..20,
        ) {
            let (a, b) = (content(&a), content(&b));
            let (left, right) = (a.block_keys(block), b.block_keys(block));
            let equal = left.iter().zip(&right).take_while(|(x, y)| x == y).count() as u64;
            prop_assert_eq!(left.len() as u64, a.tokens() / block);
            // Pieces of unequal length may be the same tokens cut differently; keys then differ too early, never
            // too late.
            prop_assert!(equal * block <= a.common_prefix(&b));
            prop_assert_eq!(a.common_prefix(&b), b.common_prefix(&a));
        }

        #[test]
        fn equal_prefixes_have_equal_keys(
            a in prop::collection::vec((0_u64..9, 1_u64..40), 1..8), more in 1_u64..99, block in 1_u64..20,
        ) {
            let (short, mut long) = (content(&a), content(&a));
            long.push(Segment { id: ContentId::Own(7), tokens: more });
            let keys = short.block_keys(block);
            prop_assert_eq!(&long.block_keys(block)[..keys.len()], &keys[..]);
            prop_assert_eq!(short.common_prefix(&long), short.tokens());
        }
    }

    #[test]
    fn own_content_is_never_shared() {
        assert_eq!(Content::own(1, 100).common_prefix(&Content::own(2, 100)), 0);
        assert_ne!(Content::own(1, 16).block_keys(16), Content::own(2, 16).block_keys(16));
        assert_ne!(content(&[(1, 16)]).block_keys(16), Content::own(1, 16).block_keys(16));
    }

    #[test]
    fn the_last_token_is_always_computed() {
        assert_eq!([largest_hit(1024, 16), largest_hit(1024, 512), largest_hit(0, 16)], [1008, 512, 0]);
    }
}
