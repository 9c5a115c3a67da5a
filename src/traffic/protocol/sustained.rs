//! One cell of sustained decode: scout, launch, warm-up, window, cut.

use std::collections::BTreeMap;

use super::samples::{CellSummary, RequestSample, median_of};
use super::{Action, Input, Ticket, Timing};
use crate::record::{Columns, TotalSource};
use crate::units::{SimSpan, SimTime};

/// What a cell is asked to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CellSpec {
    /// Target context, tokens (the label's, not the prompt's real length); 0 means no scout.
    pub context_tokens: u64,
    /// Streams.
    pub concurrency: u32,
    /// Output limit of a request, tokens.
    pub max_tokens: u64,
    /// Length of the window.
    pub duration: SimSpan,
    /// Whether it is the first cell at this context: its scout is cold and stands between two idle waits.
    pub first_at_context: bool,
    /// How total tok/s is formed.
    pub total_source: TotalSource,
}

/// Half the span at the middle of the window over which the server's rate is read.
const RATE_HALF_SPAN: SimSpan = SimSpan::from_millis(2_500);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Fresh,
    /// The scout is under way.
    Scouting,
    /// Waiting until the streams may be launched.
    BeforeLaunch,
    /// Streams run; the monitor loop sleeps.
    Warmup,
    /// As `Warmup`, and a scrape was sent at this time.
    Scraping(SimTime),
    /// The window is open.
    Window,
    Done,
}

/// The state machine of a cell.
#[derive(Clone, Debug)]
pub struct SustainedDecode {
    spec: CellSpec,
    timing: Timing,
    state: State,
    started: SimTime,
    launched: SimTime,
    scout: Option<RequestSample>,
    /// Requests under way, by ticket.
    open: BTreeMap<Ticket, RequestSample>,
    /// Requests that ended, in the order of their ends.
    closed: Vec<RequestSample>,
    next_ticket: Ticket,
    tokens: u64,
    last_token_at: SimTime,
    streams_alive: u32,
    streams_with_text: u32,
    last_scrape: Option<SimTime>,
    stable_since: Option<SimTime>,
    window_from: SimTime,
    tokens_at_window: u64,
    /// (time, tokens) at the two edges of the middle of the window.
    rate_marks: Vec<(SimTime, u64)>,
    rate_timers: Vec<SimTime>,
    running_sum: u64,
    scrapes: u64,
    summary: CellSummary,
}

impl SustainedDecode {
    /// A cell that has not begun.
    pub fn new(spec: CellSpec, timing: Timing) -> Self {
        Self {
            spec,
            timing,
            state: State::Fresh,
            started: SimTime::ZERO,
            launched: SimTime::ZERO,
            scout: None,
            open: BTreeMap::new(),
            closed: Vec::new(),
            next_ticket: 0,
            tokens: 0,
            last_token_at: SimTime::ZERO,
            streams_alive: 0,
            streams_with_text: 0,
            last_scrape: None,
            stable_since: None,
            window_from: SimTime::ZERO,
            tokens_at_window: 0,
            rate_marks: Vec::new(),
            rate_timers: Vec::new(),
            running_sum: 0,
            scrapes: 0,
            summary: CellSummary::default(),
        }
    }

    /// Takes an input that happened at `now` and appends what is to be done.
    pub fn handle(&mut self, now: SimTime, input: Input, actions: &mut Vec<Action>) {
        match input {
            Input::Start => self.start(now, actions),
            Input::Timer => self.timer(now, actions),
            Input::Tokens { ticket, from, to, first_at, last_at } => {
                self.receive(ticket, from, to, first_at, last_at);
            }
            Input::Finished { ticket } => self.end(now, ticket, true, actions),
            Input::Failed { ticket } => self.end(now, ticket, false, actions),
            Input::Scraped { running, waiting } => self.scraped(now, running, waiting, actions),
            Input::ScrapedRun { count, running, waiting } => self.count_scrapes(count, running, waiting),
        }
    }

    /// What the cell measured; complete after [`Action::Done`].
    pub fn summary(&self) -> &CellSummary {
        &self.summary
    }

    /// The requests that ended or were cut, without the scout.
    pub fn samples(&self) -> &[RequestSample] {
        &self.closed
    }

    /// When the window opened and when it closed; zero before.
    pub fn window(&self) -> (SimTime, SimTime) {
        (self.window_from, self.window_from + self.spec.duration)
    }

    /// When the streams were launched.
    pub fn launched_at(&self) -> SimTime {
        self.launched
    }

    fn start(&mut self, now: SimTime, actions: &mut Vec<Action>) {
        self.started = now;
        if self.spec.context_tokens == 0 {
            self.launch(now, actions);
        } else if self.spec.first_at_context {
            self.state = State::Scouting;
            actions.push(Action::WakeAt(now + self.timing.idle_wait));
        } else {
            self.post_scout(now, actions);
        }
    }

    fn post_scout(&mut self, now: SimTime, actions: &mut Vec<Action>) {
        self.state = State::Scouting;
        let ticket = self.take_ticket();
        self.scout = Some(RequestSample {
            stream: 0,
            launch: true,
            posted: now,
            first: None,
            last: now,
            tokens: 0,
            completed: false,
        });
        actions.push(Action::Post { ticket, max_tokens: 1, launch: true });
    }

    fn launch(&mut self, now: SimTime, actions: &mut Vec<Action>) {
        self.state = State::Warmup;
        self.launched = now;
        // The scout is not one of the streams; tickets below this one are its.
        for stream in 0..self.spec.concurrency {
            self.post(now, stream, true, actions);
        }
        self.streams_alive = self.spec.concurrency;
        actions.push(Action::WakeAt(now + self.timing.loop_sleep));
    }

    fn post(&mut self, now: SimTime, stream: u32, launch: bool, actions: &mut Vec<Action>) {
        let ticket = self.take_ticket();
        let sample = RequestSample {
            stream,
            launch,
            posted: now,
            first: None,
            last: now,
            tokens: 0,
            completed: false,
        };
        self.open.insert(ticket, sample);
        actions.push(Action::Post { ticket, max_tokens: self.spec.max_tokens, launch });
    }

    fn take_ticket(&mut self) -> Ticket {
        self.next_ticket += 1;
        self.next_ticket - 1
    }

    fn receive(&mut self, ticket: Ticket, from: u64, to: u64, first_at: SimTime, last_at: SimTime) {
        let Some(sample) = self.open.get_mut(&ticket) else {
            if let Some(scout) = self.scout.as_mut().filter(|s| s.first.is_none()) {
                scout.first = Some(first_at);
            }
            return;
        };
        if sample.first.is_none() {
            sample.first = Some(first_at);
            if sample.launch {
                self.streams_with_text += 1;
            }
        }
        sample.tokens = to;
        sample.last = last_at;
        self.tokens += to + 1 - from;
        self.last_token_at = self.last_token_at.max(last_at);
    }

    fn end(&mut self, now: SimTime, ticket: Ticket, completed: bool, actions: &mut Vec<Action>) {
        if let Some(mut sample) = self.open.remove(&ticket) {
            sample.completed = completed;
            self.closed.push(sample);
            if completed {
                self.post(now, sample.stream, false, actions);
            } else {
                self.summary.failed += 1;
                self.streams_alive -= 1;
            }
        } else if self.state == State::Scouting {
            self.scout_ended(now, completed, actions);
        }
    }

    fn scout_ended(&mut self, now: SimTime, completed: bool, actions: &mut Vec<Action>) {
        self.state = State::BeforeLaunch;
        let scout = self.scout.as_mut().filter(|_| completed);
        self.summary.scout_ttft_ms = scout.and_then(|s| s.ttft_ms());
        // The scout is awaited in a polling loop; a cold one is followed by an idle wait.
        let posted = self.scout.map_or(now, |s| s.posted);
        let noticed = self.timing.noticed(posted, now);
        let at = if self.spec.first_at_context { noticed + self.timing.idle_wait } else { noticed };
        actions.push(Action::WakeAt(at));
    }

    fn timer(&mut self, now: SimTime, actions: &mut Vec<Action>) {
        match self.state {
            State::Scouting if self.scout.is_none() => self.post_scout(now, actions),
            State::BeforeLaunch => self.launch(now, actions),
            State::Warmup => self.turn(now, actions),
            State::Window => self.window_timer(now, actions),
            State::Fresh | State::Scouting | State::Scraping(_) | State::Done => {}
        }
    }

    /// One turn of the monitor loop, after its sleep.
    fn turn(&mut self, now: SimTime, actions: &mut Vec<Action>) {
        let due = self.last_scrape.is_none_or(|last| now.since(last) > self.timing.scrape_after);
        if due {
            self.last_scrape = Some(now);
            self.state = State::Scraping(now);
            actions.push(Action::Scrape);
        } else {
            actions.push(Action::WakeAt(now + self.timing.loop_work + self.timing.loop_sleep));
        }
    }

    fn scraped(&mut self, now: SimTime, running: u32, waiting: u32, actions: &mut Vec<Action>) {
        match self.state {
            State::Scraping(sent) => {
                if self.opens(sent, running, waiting) {
                    // The window counts from before the scrape, its tokens from after it: the tool's own bias.
                    self.open_window(sent, actions);
                    self.count_scrapes(1, running, waiting);
                } else {
                    self.state = State::Warmup;
                    actions
                        .push(Action::WakeAt(now.max(sent + self.timing.loop_work) + self.timing.loop_sleep));
                }
            }
            State::Window => self.count_scrapes(1, running, waiting),
            _ => {}
        }
    }

    /// Whether the scrape sent at `sent` opens the window.
    fn opens(&mut self, sent: SimTime, running: u32, waiting: u32) -> bool {
        let c = self.spec.concurrency;
        let age = sent.since(self.started);
        let enough = running >= c
            || (self.spec.max_tokens <= 512
                && self.closed.iter().filter(|s| s.completed).count() >= c as usize);
        let ready = age >= self.timing.ready_after && waiting == 0 && enough && self.streams_with_text >= c;
        let since = *self.stable_since.get_or_insert(sent);
        if !ready {
            self.stable_since = None;
        }
        if ready && sent.since(since) >= self.timing.stable_for {
            return true;
        }
        self.summary.warmup_timed_out = age >= Timing::warmup_limit(self.spec.context_tokens);
        self.summary.warmup_timed_out
    }

    fn open_window(&mut self, from: SimTime, actions: &mut Vec<Action>) {
        self.state = State::Window;
        self.window_from = from;
        self.tokens_at_window = self.tokens;
        let until = from + self.spec.duration;
        let period = self.timing.scrape_period();
        actions.push(Action::ScrapeSeries { first: from + period, period, until });
        if self.spec.total_source == TotalSource::ServerRateMedian {
            let half = SimSpan::from_nanos(self.spec.duration.as_nanos() / 2);
            let span = half.min(RATE_HALF_SPAN);
            self.rate_timers = vec![from + (half - span), from + (half + span)];
            actions.extend(self.rate_timers.iter().map(|at| Action::WakeAt(*at)));
        }
        actions.push(Action::WakeAt(until));
    }

    fn window_timer(&mut self, now: SimTime, actions: &mut Vec<Action>) {
        if self.rate_timers.contains(&now) {
            self.rate_marks.push((now, self.tokens));
        }
        if now < self.window_from + self.spec.duration {
            return;
        }
        self.state = State::Done;
        let cut = std::mem::take(&mut self.open);
        for (ticket, sample) in cut {
            actions.push(Action::Cancel { ticket });
            if sample.first.is_some() {
                self.closed.push(sample);
            }
        }
        self.summarise(now);
        actions.push(Action::Done);
    }

    fn count_scrapes(&mut self, count: u64, running: u32, waiting: u32) {
        self.scrapes += count;
        self.running_sum += count * u64::from(running);
        if count > 0 {
            self.summary.max_running = self.summary.max_running.max(running);
            self.summary.saw_waiting |= waiting > 0;
        }
    }

    fn summarise(&mut self, now: SimTime) {
        let all = || self.closed.iter();
        let ttft =
            |launch: bool| median_of(all().filter(move |s| s.launch == launch), RequestSample::ttft_ms);
        let output = self.tokens - self.tokens_at_window;
        let span = self.last_token_at.max(self.window_from).since(self.window_from).as_secs_f64();
        let mut total = (span > 0.0).then(|| output as f64 / span);
        if let [(t0, n0), (t1, n1)] = self.rate_marks[..] {
            total = Some((n1 - n0) as f64 / t1.since(t0).as_secs_f64());
        }
        let completed = all().filter(|s| s.completed).count();
        self.summary.nearest_finish_s =
            all().filter(|s| s.completed).map(|s| now.since(s.last).as_secs_f64()).min_by(f64::total_cmp);
        self.summary.launch_ttft_ms = ttft(true);
        self.summary.restart_ttft_ms = ttft(false);
        self.summary.samples = all().filter(|s| s.first.is_some()).count();
        self.summary.window_opens_s = self.window_from.since(self.launched).as_secs_f64();
        self.summary.columns = Columns {
            total_tok_s: total,
            per_request_tok_s: median_of(all(), |s| Some(1e3 / s.itl_ms()?)),
            ttft_ms: median_of(all(), RequestSample::ttft_ms),
            inter_token_ms: median_of(all(), RequestSample::itl_ms),
            avg_active: (self.scrapes > 0)
                .then(|| (self.running_sum as f64 / self.scrapes as f64 * 10.0).round() / 10.0),
            completed: Some(completed as f64),
            output_tokens: Some(output as f64),
            measured_s: Some(span),
        };
    }
}
