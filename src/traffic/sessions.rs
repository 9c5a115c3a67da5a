//! Prompts that share their start: groups with a common prefix, and sessions whose turns extend one another.
//!
//! Knows lengths and identities of content. Knows no arrival and no engine.

use rand_distr::{Distribution, StandardUniform};
use serde::{Deserialize, Serialize};

use super::content::{Content, ContentId, Segment};
use super::lengths::Length;
use crate::error::{Error, Result};
use crate::rng::{Stream, Streams};
use crate::units::Tokens;

/// Prefixes that requests or sessions start with: system prompts, shared documents.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PrefixGroups {
    /// How many different prefixes there are.
    pub groups: u64,
    /// How long each is.
    pub tokens: Length,
    /// Popularity: group k is chosen in proportion to k^-skew (Zipf); 0 chooses all alike.
    #[serde(default)]
    pub skew: f64,
}

/// Ready to draw from.
#[derive(Clone, Debug)]
pub struct PrefixDrawer {
    /// Cumulated popularity, the last entry 1.
    cumulated: Vec<f64>,
    tokens: Vec<Tokens>,
}

/// More groups than this are no groups.
const MOST_GROUPS: u64 = 1 << 24;

impl PrefixGroups {
    /// Checks the law and draws the length of every prefix, each from a stream of its own.
    ///
    /// # Errors
    /// An input error that names the field and its value.
    pub fn drawer(&self, streams: Streams) -> Result<PrefixDrawer> {
        if !(1..=MOST_GROUPS).contains(&self.groups) {
            return Err(Error::input(
                "prefix.groups",
                format!("must lie between 1 and {MOST_GROUPS}, is {}", self.groups),
            ));
        }
        if !(self.skew.is_finite() && self.skew >= 0.0) {
            return Err(Error::input("prefix.skew", format!("must be a number >= 0, is {}", self.skew)));
        }
        self.tokens.validate("prefix.tokens")?;
        let mut sum = 0.0;
        let mut cumulated: Vec<f64> = (1..=self.groups)
            .map(|k| {
                sum += (k as f64).powf(-self.skew);
                sum
            })
            .collect();
        for value in &mut cumulated {
            *value /= sum;
        }
        let tokens = (0..self.groups).map(|g| self.tokens.sample(&mut streams.numbered("prefix-length", g)));
        Ok(PrefixDrawer { cumulated, tokens: tokens.collect() })
    }
}

impl PrefixDrawer {
    /// The prefix of one request or session.
    pub fn draw(&self, stream: &mut Stream) -> Segment {
        let share: f64 = StandardUniform.sample(stream);
        let group = self.cumulated.partition_point(|c| *c <= share).min(self.cumulated.len() - 1);
        Segment { id: ContentId::Prefix(group as u64), tokens: self.tokens[group] }
    }
}

/// A law of sessions: every turn's prompt is the whole conversation so far and something new.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SessionLaw {
    /// Turns of a session.
    pub turns: Length,
    /// New prompt tokens of a turn.
    pub turn: Length,
    /// Answer tokens of a turn.
    pub output: Length,
    /// The context at which a session ends, whatever turns it has left; a turn that would exceed it is not sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_context: Option<Tokens>,
}

/// One session under way.
#[derive(Debug)]
pub struct Session {
    id: u64,
    law: SessionLaw,
    stream: Stream,
    turns_left: Tokens,
    parts: u32,
    context: Content,
    context_tokens: Tokens,
}

/// A turn to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Turn {
    /// The prompt.
    pub content: Content,
    /// Its tokens.
    pub prompt_tokens: Tokens,
    /// Tokens of the answer.
    pub output_tokens: Tokens,
    /// Whether it is the session's last.
    pub last: bool,
}

impl SessionLaw {
    /// Refuses laws without meaning.
    ///
    /// # Errors
    /// An input error that names the field and its value.
    pub fn validate(&self) -> Result<()> {
        self.turns.validate("session.turns")?;
        self.turn.validate("session.turn")?;
        self.output.validate("session.output")
    }

    /// Starts session `id`, after `prefix` if it has one. A session depends on its id alone.
    pub fn start(&self, streams: Streams, id: u64, prefix: Option<Segment>) -> Session {
        let mut stream = streams.numbered("session", id);
        let turns_left = self.turns.sample(&mut stream);
        let context = Content::new(prefix);
        let context_tokens = context.tokens();
        Session { id, law: self.clone(), stream, turns_left, parts: 0, context, context_tokens }
    }
}

impl Session {
    /// The next turn, on the assumption that the answers so far came whole; `None` when the session is over.
    pub fn next_turn(&mut self) -> Option<Turn> {
        if self.turns_left == 0 {
            return None;
        }
        let new = self.law.turn.sample(&mut self.stream);
        let output_tokens = self.law.output.sample(&mut self.stream);
        let needed = self.context_tokens + new + output_tokens;
        if self.law.max_context.is_some_and(|most| needed > most) {
            self.turns_left = 0;
            return None;
        }
        self.turns_left -= 1;
        self.extend(new);
        let turn = Turn {
            content: self.context.clone(),
            prompt_tokens: self.context_tokens,
            output_tokens,
            last: self.turns_left == 0,
        };
        self.extend(output_tokens);
        Some(turn)
    }

    fn extend(&mut self, tokens: Tokens) {
        self.context.push(Segment { id: ContentId::Turn { session: self.id, part: self.parts }, tokens });
        self.context_tokens += tokens;
        self.parts += 1;
    }
}
