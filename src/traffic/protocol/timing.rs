//! The constants of the protocol.

use crate::units::{SimSpan, SimTime};

/// The reference benchmark's loop times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// Sleep of the monitor and scout loops.
    pub loop_sleep: SimSpan,
    /// Work of one turn of a loop besides its sleep (scrape, redraw).
    pub loop_work: SimSpan,
    /// A scrape is due when more than this has passed since the last one.
    pub scrape_after: SimSpan,
    /// The server must be idle this long before and after a cold scout.
    pub idle_wait: SimSpan,
    /// No cell is ready before this much time since its start.
    pub ready_after: SimSpan,
    /// Every scrape must be ready for this long before the window opens.
    pub stable_for: SimSpan,
}

impl Default for Timing {
    /// 0.5 s sleep, 15 ms of work, 1 s between scrapes and of idleness, 2 s minimum, 3 s stable. The sleeps are
    /// the tool's; the work is what puts its scrapes at 0.50, 1.53, 2.56, ... s.
    fn default() -> Self {
        Self {
            loop_sleep: SimSpan::from_millis(500),
            loop_work: SimSpan::from_millis(15),
            scrape_after: SimSpan::from_millis(1_000),
            idle_wait: SimSpan::from_millis(1_000),
            ready_after: SimSpan::from_millis(2_000),
            stable_for: SimSpan::from_millis(3_000),
        }
    }
}

impl Timing {
    /// How long after its start a cell's window opens at the latest, ready or not.
    pub fn warmup_limit(context_tokens: u64) -> SimSpan {
        SimSpan::from_millis(match context_tokens {
            131_072.. => 180_000,
            65_536.. => 120_000,
            _ => 60_000,
        })
    }

    /// The time between scrapes while the loop sleeps its full time.
    pub fn scrape_period(&self) -> SimSpan {
        let turn = (self.loop_sleep + self.loop_work).as_nanos();
        let turns = self.scrape_after.as_nanos() / turn + 1;
        SimSpan::from_nanos(turn * turns)
    }

    /// When a loop that polls every `loop_sleep` since `start` notices something that happened at `at`.
    pub fn noticed(&self, start: SimTime, at: SimTime) -> SimTime {
        let turn = (self.loop_sleep + self.loop_work).as_nanos();
        let turns = at.since(start).as_nanos().div_ceil(turn).max(1);
        start + SimSpan::from_nanos(turn * turns)
    }
}
