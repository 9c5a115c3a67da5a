//! The reference benchmark's protocols as state machines: inputs with a time in, actions out.
//!
//! The rules are those of llm-inference-bench 0.4.18 to 0.4.29: a *scout* request that primes the prefix
//! cache (its TTFT is the prefill row), then *sustained decode*: C streams that restart what finishes,
//! readiness polling, three stable seconds, a fixed window. Which requests a median includes and what is
//! counted from launch and what from the opening of the window is decided here, once, for predictions and
//! measurements alike.

mod samples;
mod sustained;
mod timing;

pub use samples::{CellSummary, RequestSample, median};
pub use sustained::{CellSpec, SustainedDecode};
pub use timing::Timing;

use crate::units::SimTime;

/// A request of a protocol. Tickets count up from zero in the order of posting.
pub type Ticket = u64;

/// What a protocol is told. Every input comes with the time at which it happened.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Input {
    /// The cell begins.
    Start,
    /// A wake-up that was asked for.
    Timer,
    /// Tokens of a request, `from..=to` counted from one, the first and the last of them received at these
    /// times.
    Tokens {
        /// Which request.
        ticket: Ticket,
        /// Number of the first token of the run.
        from: u64,
        /// Number of the last token of the run.
        to: u64,
        /// When the first one arrived.
        first_at: SimTime,
        /// When the last one arrived.
        last_at: SimTime,
    },
    /// A request ended as it should.
    Finished {
        /// Which request.
        ticket: Ticket,
    },
    /// A request ended in an error; its stream ends with it.
    Failed {
        /// Which request.
        ticket: Ticket,
    },
    /// The answer to [`Action::Scrape`].
    Scraped {
        /// `vllm:num_requests_running`.
        running: u32,
        /// `vllm:num_requests_waiting`.
        waiting: u32,
    },
    /// Scrapes inside the window that saw the same numbers. A live driver reports them one by one.
    ScrapedRun {
        /// How many scrapes.
        count: u64,
        /// Requests running at each of them.
        running: u32,
        /// Requests waiting at each of them.
        waiting: u32,
    },
}

/// What a protocol wants done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Send a request now.
    Post {
        /// Its ticket.
        ticket: Ticket,
        /// Output limit, tokens.
        max_tokens: u64,
        /// Whether it is the first on a connection of its own (new client, nothing reused).
        launch: bool,
    },
    /// Drop a request's connection.
    Cancel {
        /// Which request.
        ticket: Ticket,
    },
    /// Read `/metrics` and answer with [`Input::Scraped`].
    Scrape,
    /// Read `/metrics` at `first` and every `period` after it, up to `until`, and answer with
    /// [`Input::ScrapedRun`].
    ScrapeSeries {
        /// Time of the first scrape.
        first: SimTime,
        /// Time between scrapes.
        period: crate::units::SimSpan,
        /// No scrape after this.
        until: SimTime,
    },
    /// Send [`Input::Timer`] at this time.
    WakeAt(SimTime),
    /// The cell is over; the summary can be read.
    Done,
}
