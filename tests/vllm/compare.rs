//! Drives the engine as the recorder drives vLLM, and finds the first step in which they differ.

use std::collections::BTreeMap;

use inferometer::engine::{Counts, EngineCore, EntryKind, FinishReason, Leap, NewRequest, Turn};

use super::recording::Line;
use super::workload::Workload;

/// How the engine goes through the steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    StepByStep,
    Leaping,
}

/// The engine's steps in the recording's form.
pub struct Replay<'a> {
    workload: &'a Workload,
    core: EngineCore,
    arrivals: Vec<(u64, usize)>,
    aborts: Vec<(u64, usize)>,
    requests: Vec<Option<NewRequest>>,
    step: u64,
    /// The step in which each batch was scheduled.
    steps_of_batches: BTreeMap<u64, u64>,
    last_batch: u64,
    pub leapt: u64,
}

impl<'a> Replay<'a> {
    pub fn new(workload: &'a Workload) -> Self {
        let config = workload.engine.config();
        let mut arrivals: Vec<(u64, usize)> =
            workload.requests.iter().enumerate().map(|(i, r)| (r.arrival_step, i)).collect();
        arrivals.sort_unstable();
        arrivals.reverse();
        let mut aborts: Vec<(u64, usize)> =
            workload.requests.iter().enumerate().filter_map(|(i, r)| Some((r.abort_step?, i))).collect();
        aborts.sort_unstable();
        aborts.reverse();
        Self {
            workload,
            core: EngineCore::new(&config).unwrap_or_else(|e| panic!("{}: {e}", workload.name)),
            arrivals,
            aborts,
            requests: workload.requests().into_iter().map(Some).collect(),
            step: 0,
            steps_of_batches: BTreeMap::new(),
            last_batch: 0,
            leapt: 0,
        }
    }

    /// The next line, or several where steps were taken at once; `None` at the end.
    pub fn next(&mut self, pace: Pace) -> Option<Vec<(Line, bool)>> {
        if !self.core.has_work() {
            self.step = self.step.max(self.arrivals.last()?.0);
        }
        let mut line = Line { step: self.step, ..Line::default() };
        while self.arrivals.last().is_some_and(|(step, _)| *step <= self.step) {
            let (_, i) = self.arrivals.pop().expect("just seen");
            self.core.add(self.requests[i].take().expect("a request arrives once"), i as u128);
            line.add.push(self.name(i as u64));
        }
        while self.aborts.last().is_some_and(|(step, _)| *step <= self.step) {
            let (_, i) = self.aborts.pop().expect("just seen");
            if self.core.abort(i as u64) {
                line.abort.push(self.name(i as u64));
            }
        }
        let quiet = line.add.is_empty() && line.abort.is_empty();
        if pace == Pace::Leaping && quiet {
            let next = self.arrivals.last().into_iter().chain(self.aborts.last()).map(|e| e.0).min();
            if let Some(leap) = self.core.leap(next.map_or(u64::MAX, |next| next - self.step)) {
                return Some(self.spell_out(&leap));
            }
        }
        let turn = self.core.turn();
        self.fill(&mut line, &turn);
        self.core.check();
        self.step += 1;
        Some(vec![(line, true)])
    }

    fn name(&self, id: u64) -> String {
        self.workload.requests[usize::try_from(id).expect("small")].id.clone()
    }

    fn fill(&mut self, line: &mut Line, turn: &Turn) {
        if let Some(s) = &turn.scheduled {
            self.last_batch = s.batch;
            self.steps_of_batches.insert(s.batch, self.step);
            let kind = |k| match k {
                EntryKind::New => "n",
                EntryKind::Running => "r",
                EntryKind::Resumed => "p",
            };
            line.sched = Some(
                s.shares
                    .iter()
                    .map(|e| (self.name(e.id), e.tokens, e.computed_before, kind(e.kind).to_owned()))
                    .collect(),
            );
            line.pre = s.preempted.iter().map(|id| self.name(*id)).collect();
            let (a, b) = (s.prefix.fresh, s.prefix.after_preemption);
            line.pc = [a.requests, a.queries, a.hits, b.requests, b.queries, b.hits];
            line.s = Some(counts(s.after));
        }
        if let Some(p) = &turn.processed {
            line.upd = self.steps_of_batches.get(&p.batch).copied();
            line.tok = p.tokens;
            line.u = Some(counts(p.after));
            line.fin = p.finished.iter().map(|(id, r, n)| (self.name(*id), reason(*r), *n)).collect();
        }
    }

    /// The lines of turns that were taken at once. Free blocks are known after the last only.
    fn spell_out(&mut self, leap: &Leap) -> Vec<(Line, bool)> {
        self.leapt += leap.turns;
        let depth = u64::from(self.workload.engine.async_scheduling);
        let after = counts(leap.after);
        let mut lines = Vec::new();
        for turn in 0..leap.turns {
            self.last_batch += 1;
            self.steps_of_batches.insert(self.last_batch, self.step);
            let share = |(id, computed): &(u64, u64)| (self.name(*id), 1, computed + turn, "r".to_owned());
            let line = Line {
                step: self.step,
                sched: Some(leap.requests.iter().map(share).collect()),
                s: Some(after),
                upd: self.steps_of_batches.get(&(self.last_batch - depth)).copied(),
                tok: leap.requests.len() as u64,
                u: Some(after),
                ..Line::default()
            };
            lines.push((line, turn + 1 == leap.turns));
            self.step += 1;
        }
        self.core.check();
        lines
    }
}

fn counts(c: Counts) -> [u64; 3] {
    [c.running as u64, c.waiting as u64, u64::from(c.free_blocks)]
}

fn reason(r: FinishReason) -> String {
    match r {
        FinishReason::Stop => "stop",
        FinishReason::Length => "length",
        FinishReason::Abort => "abort",
        FinishReason::Refused => "refused",
    }
    .to_owned()
}

/// Compares every step; the steps that were leapt over, or the first difference, told side by side.
pub fn compare(workload: &Workload, recorded: &[Line], pace: Pace) -> Result<u64, String> {
    let mut replay = Replay::new(workload);
    let mut at = 0;
    let mut before: Option<Line> = None;
    while let Some(lines) = replay.next(pace) {
        for (mut ours, counts_known) in lines {
            let Some(theirs) = recorded.get(at) else {
                return Err(format!(
                    "{}: vLLM has no step {at}; the engine has\n{}",
                    workload.name,
                    show(&ours)
                ));
            };
            let mut theirs = theirs.clone();
            theirs.blocks = serde_json::Value::Null;
            if !counts_known {
                for (our, their) in [(&mut ours.s, &theirs.s), (&mut ours.u, &theirs.u)] {
                    if let (Some(our), Some(their)) = (our, their) {
                        our[2] = their[2];
                    }
                }
            }
            if ours != theirs {
                return Err(side_by_side(workload, pace, before.as_ref(), &ours, &theirs));
            }
            before = Some(theirs);
            at += 1;
        }
    }
    if at < recorded.len() {
        return Err(format!(
            "{}: the engine is done after {at} steps; vLLM goes on with\n{}",
            workload.name,
            show(&recorded[at])
        ));
    }
    Ok(replay.leapt)
}

fn side_by_side(w: &Workload, pace: Pace, before: Option<&Line>, ours: &Line, theirs: &Line) -> String {
    let state = before.map_or("the start".to_owned(), show);
    let mut text =
        format!("{} ({pace:?}), step {}: the decisions differ\nbefore: {state}\n", w.name, theirs.step);
    let (ours, theirs) = (fields(ours), fields(theirs));
    for (name, their) in &theirs {
        let our = &ours[name];
        if our == their {
            text += &format!("   {name:6} {our}\n");
        } else {
            text += &format!("!! {name:6} engine {our}\n{:10}vLLM   {their}\n", "");
        }
    }
    text
}

fn fields(line: &Line) -> BTreeMap<&'static str, String> {
    BTreeMap::from([
        ("step", line.step.to_string()),
        ("add", format!("{:?}", line.add)),
        ("abort", format!("{:?}", line.abort)),
        ("sched", format!("{:?}", line.sched)),
        ("pre", format!("{:?}", line.pre)),
        ("pc", format!("{:?}", line.pc)),
        ("s", format!("{:?}", line.s)),
        ("upd", format!("{:?}", line.upd)),
        ("tok", line.tok.to_string()),
        ("fin", format!("{:?}", line.fin)),
        ("u", format!("{:?}", line.u)),
    ])
}

fn show(line: &Line) -> String {
    format!("{line:?}")
}
