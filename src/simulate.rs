//! The driver of traffic on the virtual clock.
//!
//! Joins a protocol's state machine to a simulated replica. It decides nothing: what a request or a timer means is
//! the protocol's affair, how long a step takes the cost model's.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

use crate::costs::StepCosts;
use crate::engine::{
    Engine, EngineConfig, EngineEvent, EventKind, FinishReason, KvCacheGroup, Mode, NewRequest, Prompt,
    Stream,
};
use crate::error::{Error, Result};
use crate::profile::Profile;
use crate::traffic::protocol::{
    Action, CellSpec, CellSummary, Input, RequestSample, SustainedDecode, Ticket, Timing,
};
use crate::units::{SimSpan, SimTime, Tokens};

/// A cell to simulate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CellRequest {
    /// Context of the label, tokens.
    pub context_tokens: u64,
    /// Streams.
    pub concurrency: u32,
    /// Output limit of a request, tokens.
    pub max_tokens: u64,
    /// Length of the window.
    pub duration: SimSpan,
    /// Whether it is the first cell at this context, so that its scout is cold.
    pub first_at_context: bool,
}

/// What a simulated cell gave.
#[derive(Clone, Debug)]
pub struct CellOutcome {
    /// The columns and what belongs to them.
    pub summary: CellSummary,
    /// The requests, without the scout.
    pub samples: Vec<RequestSample>,
    /// When the streams were launched.
    pub launched: SimTime,
    /// When the window opened and closed.
    pub window: (SimTime, SimTime),
    /// Everything the replica did, if asked for.
    pub events: Vec<EngineEvent>,
}

/// How a cell is simulated.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Factor on the cost of decode steps.
    pub decode_scale: f64,
    /// Step by step or in closed form.
    pub mode: Mode,
    /// Whether the replica's events are kept.
    pub keep_events: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { decode_scale: 1.0, mode: Mode::FastForward, keep_events: false }
    }
}

/// The content that every prompt of a cell shares.
const PROMPT: Stream = Stream::text(0);

/// Id of the request that primes the prefix cache before the protocol begins; tickets count up from zero.
pub const PRIMER: Ticket = 1 << 62;

/// Time between the primer's end and the cell's start: the pause between two cells of the reference tool.
const PAUSE: SimSpan = SimSpan::from_millis(2_000);

/// A cell that gets nowhere in this much simulated time is a fault of the program or of the profile.
const CELL_LIMIT: SimSpan = SimSpan::from_millis(1_000 * 3_600 * 24 * 30);

/// Simulates one cell of sustained decode.
///
/// # Errors
/// If the engine's options are contradictory or the cell never ends.
pub fn simulate_cell(profile: &Profile, request: &CellRequest, options: Options) -> Result<CellOutcome> {
    let mut driver = Driver::new(profile, request, options)?;
    if request.context_tokens > 0 && !request.first_at_context {
        driver.prime()?;
    }
    driver.run()
}

/// TTFT of a prompt of `context_tokens` that nothing is cached of, milliseconds.
///
/// # Errors
/// If the engine's options are contradictory.
pub fn simulate_prefill(profile: &Profile, context_tokens: u64) -> Result<f64> {
    let tokens = profile.prompt_tokens(context_tokens);
    let mut engine = engine(profile, tokens, 1, 1, Options::default())?;
    engine.submit(SimTime::ZERO, prompt(PRIMER, tokens, 1));
    let mut events = Vec::new();
    engine.advance(SimTime::from_nanos(u64::MAX / 4), &mut events);
    let first = events.iter().find(|e| matches!(e.kind, EventKind::Tokens { .. }));
    first
        .map(|e| e.at.since(SimTime::ZERO).as_millis_f64())
        .ok_or_else(|| Error::undetermined(format!("a prompt of {context_tokens} tokens is never scheduled")))
}

/// The replica that serves `streams` identical prompts.
fn engine(
    profile: &Profile,
    prompt: Tokens,
    output: Tokens,
    streams: u32,
    options: Options,
) -> Result<Engine<StepCosts>> {
    let config = engine_config(profile, prompt, output, streams);
    Engine::new(config, profile.front_end_costs(), profile.step_costs(options.decode_scale), options.mode)
}

/// The engine's options for a cell.
///
/// * A question beyond `max_model_len` is a what-if, as if the server had been started with a larger one.
/// * The pool is the server's if the cell could exhaust it; otherwise, or if its size is unknown, it is as large as
///   the cell needs.
/// * With such a pool, and attention over the whole context alone, a block may be as long as what a repeated prompt
///   hits: identical prompts then hit exactly as much, and no more blocks than needed are counted.
fn engine_config(profile: &Profile, prompt: Tokens, output: Tokens, streams: u32) -> EngineConfig {
    let mut config = profile.engine.clone();
    config.max_model_len = config.max_model_len.max(prompt + output + 1);
    let block = config.block_size;
    let whole = profile.pages(prompt + output);
    let shared = (prompt - 1) / block;
    let needed = u64::from(streams) * whole.saturating_sub(shared) + shared + 2;
    let blocks = |n: u64| u32::try_from(n.clamp(2, u64::from(u32::MAX))).unwrap_or(u32::MAX);
    if let Some(pool) = profile.pool_blocks().filter(|pool| needed > *pool) {
        config.num_gpu_blocks = blocks(pool);
        return config;
    }
    if config.kv_cache_groups == [KvCacheGroup::FullAttention] && shared > 0 {
        config.block_size = shared * block;
    }
    config.num_gpu_blocks = blocks((u64::from(streams) + 2) * (whole + 3) + 2);
    config
}

fn prompt(id: Ticket, tokens: u64, max_tokens: u64) -> NewRequest {
    NewRequest { id, prompt: Prompt::of(PROMPT, tokens), max_tokens, stop_after: None, priority: 0 }
}

/// Scrapes at equal distances whose answers are counted in runs.
#[derive(Clone, Copy, Debug)]
struct Series {
    next: SimTime,
    period: SimSpan,
    until: SimTime,
}

struct Driver {
    engine: Engine<StepCosts>,
    protocol: SustainedDecode,
    prompt_tokens: u64,
    launch_delay: SimSpan,
    now: SimTime,
    timers: BinaryHeap<Reverse<SimTime>>,
    series: Option<Series>,
    running: BTreeSet<Ticket>,
    waiting: BTreeSet<Ticket>,
    /// Requests whose events no longer concern the protocol.
    dropped: BTreeSet<Ticket>,
    keep_events: bool,
    kept: Vec<EngineEvent>,
    done: bool,
}

impl Driver {
    fn new(profile: &Profile, request: &CellRequest, options: Options) -> Result<Self> {
        let spec = CellSpec {
            context_tokens: request.context_tokens,
            concurrency: request.concurrency,
            max_tokens: request.max_tokens,
            duration: request.duration,
            first_at_context: request.first_at_context,
            total_source: profile.matrix.total_tok_s,
        };
        let prompt_tokens = profile.prompt_tokens(request.context_tokens);
        Ok(Self {
            engine: engine(profile, prompt_tokens, request.max_tokens, request.concurrency, options)?,
            protocol: SustainedDecode::new(spec, Timing::default()),
            prompt_tokens,
            launch_delay: SimSpan::from_secs_f64(profile.front_end.launch_delay_ms * 1e-3),
            now: SimTime::ZERO,
            timers: BinaryHeap::new(),
            series: None,
            running: BTreeSet::new(),
            waiting: BTreeSet::new(),
            dropped: BTreeSet::new(),
            keep_events: options.keep_events,
            kept: Vec::new(),
            done: false,
        })
    }

    /// Lets a request of an earlier cell fill the prefix cache.
    fn prime(&mut self) -> Result<()> {
        self.engine.submit(self.now, prompt(PRIMER, self.prompt_tokens, 1));
        let mut events = Vec::new();
        let limit = self.now + CELL_LIMIT;
        let end = self.engine.advance(limit, &mut events);
        if end >= limit {
            return Err(Error::undetermined(format!(
                "a prompt of {} tokens is never finished by this engine",
                self.prompt_tokens
            )));
        }
        self.now = end + PAUSE;
        Ok(())
    }

    fn run(mut self) -> Result<CellOutcome> {
        let limit = self.now + CELL_LIMIT;
        self.feed(self.now, Input::Start);
        let mut events = Vec::new();
        while !self.done {
            let until = self.timers.peek().map_or(limit, |Reverse(at)| *at);
            if until >= limit && self.engine.next_event_time().is_none() {
                return Err(Error::undetermined("the cell came to a stop before its window closed"));
            }
            events.clear();
            let reached = self.engine.advance(until, &mut events);
            for event in &events {
                self.take(event);
            }
            self.scrapes_up_to(reached);
            self.now = reached;
            while !self.done && self.timers.peek().is_some_and(|Reverse(at)| *at <= self.now) {
                self.timers.pop();
                self.feed(self.now, Input::Timer);
            }
        }
        Ok(CellOutcome {
            summary: self.protocol.summary().clone(),
            samples: self.protocol.samples().to_vec(),
            launched: self.protocol.launched_at(),
            window: self.protocol.window(),
            events: self.kept,
        })
    }

    fn take(&mut self, event: &EngineEvent) {
        if self.keep_events {
            self.kept.push(*event);
        }
        self.scrapes_up_to(event.at);
        match event.kind {
            EventKind::Queued | EventKind::Preempted => {
                self.running.remove(&event.request);
                self.waiting.insert(event.request);
            }
            EventKind::Scheduled { .. } => {
                self.waiting.remove(&event.request);
                self.running.insert(event.request);
            }
            EventKind::Finished { .. } => {
                self.waiting.remove(&event.request);
                self.running.remove(&event.request);
            }
            EventKind::Tokens { .. } => {}
        }
        let ticket = event.request;
        if ticket == PRIMER || self.dropped.contains(&ticket) {
            return;
        }
        match event.kind {
            EventKind::Tokens { first_index, count, first_at, last_at } => {
                let (from, to) = (first_index + 1, first_index + count);
                self.feed(last_at, Input::Tokens { ticket, from, to, first_at, last_at });
            }
            EventKind::Finished { reason: FinishReason::Refused | FinishReason::Abort } => {
                self.feed(event.at, Input::Failed { ticket });
            }
            EventKind::Finished { .. } => self.feed(event.at, Input::Finished { ticket }),
            EventKind::Queued | EventKind::Scheduled { .. } | EventKind::Preempted => {}
        }
    }

    /// Answers the scrapes of the series before `at`, which all saw what the gauges show now.
    fn scrapes_up_to(&mut self, at: SimTime) {
        let Some(series) = self.series.as_mut() else { return };
        let last = at.min(series.until);
        if series.next > last {
            return;
        }
        let count = last.since(series.next).as_nanos() / series.period.as_nanos() + 1;
        series.next += SimSpan::from_nanos(series.period.as_nanos() * count);
        let (running, waiting) = self.gauges();
        self.feed(at, Input::ScrapedRun { count, running, waiting });
    }

    /// Requests that run and that wait, as a scrape shows them.
    fn gauges(&self) -> (u32, u32) {
        let count = |set: &BTreeSet<Ticket>| u32::try_from(set.len()).unwrap_or(u32::MAX);
        (count(&self.running), count(&self.waiting))
    }

    fn feed(&mut self, now: SimTime, input: Input) {
        let mut actions = Vec::new();
        self.protocol.handle(now, input, &mut actions);
        for action in actions {
            match action {
                Action::Post { ticket, max_tokens, launch } => {
                    let delay = if launch { self.launch_delay } else { SimSpan::ZERO };
                    self.engine.submit(now + delay, prompt(ticket, self.prompt_tokens, max_tokens));
                }
                Action::Cancel { ticket } => {
                    self.dropped.insert(ticket);
                    self.engine.cancel(now, ticket);
                }
                Action::Scrape => {
                    let (running, waiting) = self.gauges();
                    self.feed(now, Input::Scraped { running, waiting });
                }
                Action::ScrapeSeries { first, period, until } => {
                    self.series = Some(Series { next: first, period, until });
                }
                Action::WakeAt(at) => self.timers.push(Reverse(at)),
                Action::Done => self.done = true,
            }
        }
    }
}
