//! Decode costs from step times.

use super::observe::{DecodeObservation, Observations};
use super::solve::{inverse, minimise};
use crate::costs::NearAttention;
use crate::error::Result;
use crate::profile::{DecodeSpread, Profile};
use crate::simulate::{CellRequest, Options, simulate_cell};
use crate::units::SimSpan;

/// Spread of a batch's slope around the roofline `max(k, c B)`, natural logarithm. The public matrices whose
/// slopes can be read batch by batch show 0.05 (Ling) to 0.2 (Kimi, batch 4).
const SLOPE_LOG: f64 = 0.10;

/// Prior of the batch at which reading the KV cache turns from latency-bound to bandwidth-bound (k / c): about 3
/// to 5 on three public servers; only felt where a plan does not show it.
const CROSSOVER: (f64, f64) = (4.0, 0.5);

/// Prior of k as a share of the smallest base, per token: 2e-6 (5.5 ns of 2.94 ms), only felt where a plan has one
/// context.
const SLOPE_SHARE: (f64, f64) = (2e-6, 1.2);

/// Context at which sparse attention saturates where the configuration does not say: the `index_topk` of the
/// public sparse-attention models.
const DEFAULT_SPAN: u64 = 2_048;

/// How much steeper the first part of a batch's line must be than its last part to speak for saturation.
const SATURATION: f64 = 2.0;

/// A cell's step time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Target {
    batch: u32,
    /// Mean context over the window, tokens.
    context: f64,
    step_ms: f64,
}

/// The step time that `cell` should have under `profile` for the simulation to give the measured throughput.
pub(super) fn target(profile: &Profile, cell: &DecodeObservation) -> Result<Target> {
    let request = CellRequest {
        context_tokens: cell.context_tokens,
        concurrency: cell.concurrency,
        max_tokens: profile.matrix.max_tokens,
        duration: SimSpan::from_secs_f64(profile.matrix.duration_s),
        first_at_context: cell.first_at_context,
    };
    let outcome = simulate_cell(profile, &request, Options::default())?;
    let columns = outcome.summary.columns;
    let itl_s = columns.inter_token_ms.unwrap_or(1.0) * 1e-3;
    let opens = outcome.summary.window_opens_s;
    let context = mean_context(profile, cell, itl_s, opens);
    let predicted = columns.total_tok_s.unwrap_or(cell.total_tok_s);
    let now = profile.costs.decode.step_ms(f64::from(cell.concurrency), context);
    Ok(Target { batch: cell.concurrency, context, step_ms: now * predicted / cell.total_tok_s })
}

/// Prompt plus the mean number of generated tokens over the window.
fn mean_context(profile: &Profile, cell: &DecodeObservation, itl_s: f64, opens_s: f64) -> f64 {
    const POINTS: u32 = 32;
    let limit = profile.matrix.max_tokens as f64;
    let generated: f64 = (0..POINTS)
        .map(|i| {
            let at = opens_s + profile.matrix.duration_s * (f64::from(i) + 0.5) / f64::from(POINTS);
            (at / itl_s) % limit
        })
        .sum();
    profile.prompt_tokens(cell.context_tokens) as f64 + generated / f64::from(POINTS)
}

/// Fits the table to `targets`, or to steps of one token per stream where there are none yet. Returns what a reader
/// should know.
pub(super) fn fit(profile: &mut Profile, observed: &Observations, targets: Option<&[Target]>) -> Vec<String> {
    let crude: Vec<Target>;
    let targets = if let Some(targets) = targets {
        targets
    } else {
        crude = observed
            .decode
            .iter()
            .map(|cell| {
                let itl_s = f64::from(cell.concurrency) / cell.total_tok_s;
                let context = mean_context(profile, cell, itl_s, 4.0);
                Target { batch: cell.concurrency, context, step_ms: itl_s * 1e3 }
            })
            .collect();
        &crude
    };
    let noise = profile.uncertainty.noise;
    let model = Model::new(profile, targets, noise);
    let hyper = model.hyper();
    let costs = &mut profile.costs.decode;
    if let Some(span) = model.span {
        costs.near = Some(NearAttention { span_tokens: span, slope_ns: vec![0.0; costs.batch.len()] });
    }
    for (i, batch) in costs.batch.clone().into_iter().enumerate() {
        let line = model.line(batch, &hyper);
        costs.base_ms[i] = line.base_ms;
        costs.slope_ns[i] = line.slope_ns;
        if let Some(near) = &mut costs.near {
            near.slope_ns[i] = line.near_ns;
        }
        profile.uncertainty.decode[i] = line.spread;
    }
    profile.uncertainty.between_batches = roughness(&costs.batch, &costs.base_ms);
    model.notes()
}

/// How far the base of a batch lies from the line between its neighbours: root mean square over the inner entries of
/// the table. With no inner entry, the 10 % that the reference shows.
fn roughness(batch: &[u32], base: &[f64]) -> f64 {
    const UNKNOWN: f64 = 0.10;
    let errors: Vec<f64> = (1..batch.len().saturating_sub(1))
        .map(|i| {
            let (x0, x, x1) = (f64::from(batch[i - 1]), f64::from(batch[i]), f64::from(batch[i + 1]));
            let between = base[i - 1] + (base[i + 1] - base[i - 1]) * (x - x0) / (x1 - x0);
            // A gap half as wide errs a quarter as much where the table is smooth, half where it is not.
            0.5 * (between / base[i] - 1.0)
        })
        .collect();
    if errors.is_empty() {
        return UNKNOWN;
    }
    (errors.iter().map(|e| e * e).sum::<f64>() / errors.len() as f64).sqrt()
}

/// ln of the roofline `max(k, c B)` with a rounded corner, from ln k and ln c B: near the corner, where both limits
/// are close, neither is reached alone. The exponent is the shape that two public servers agree on best.
fn roofline(latency: f64, bandwidth: f64) -> f64 {
    const SHARPNESS: f64 = 4.0;
    let (low, high) = (latency.min(bandwidth), latency.max(bandwidth));
    high + (SHARPNESS * (low - high)).exp().ln_1p() / SHARPNESS
}

/// One batch's fitted line.
#[derive(Clone, Copy, Debug, Default)]
struct Line {
    base_ms: f64,
    slope_ns: f64,
    near_ns: f64,
    spread: DecodeSpread,
    loss: f64,
}

struct Model<'a> {
    targets: &'a [Target],
    noise: f64,
    span: Option<u64>,
    span_by_config: bool,
    /// Smallest step time, milliseconds: the scale of the slope's prior.
    scale_ms: f64,
}

impl<'a> Model<'a> {
    fn new(profile: &Profile, targets: &'a [Target], noise: f64) -> Self {
        let configured = profile.costs.decode.near.as_ref().map(|n| n.span_tokens);
        let span = configured.or_else(|| saturates(targets).then_some(DEFAULT_SPAN));
        let scale_ms = targets.iter().map(|t| t.step_ms).fold(f64::INFINITY, f64::min);
        Self { targets, noise, span, span_by_config: configured.is_some(), scale_ms }
    }

    /// Contexts at which a batch was seen.
    fn of(&self, batch: u32) -> impl Iterator<Item = &Target> {
        self.targets.iter().filter(move |t| t.batch == batch)
    }

    /// The logarithms of k, c and, with saturating attention, of the near part's k and c.
    fn hyper(&self) -> Vec<f64> {
        let k = (SLOPE_SHARE.0 * self.scale_ms * 1e6).ln();
        let c = k - CROSSOVER.0.ln();
        let starts: Vec<Vec<f64>> = [(0.0, 0.0), (1.0, 1.0), (-1.0, -1.0), (1.0, 2.5), (2.0, 0.0)]
            .iter()
            .map(|(dk, dc)| {
                let mut start = vec![k + dk, c + dc];
                if self.span.is_some() {
                    start.extend([k + dk + 2.0, c + dc + 2.0]);
                }
                start
            })
            .collect();
        minimise(|h| self.loss(h), &starts, 0.4, 600)
    }

    fn loss(&self, hyper: &[f64]) -> f64 {
        let batches = crate::record::distinct(self.targets.iter().map(|t| t.batch));
        let data: f64 = batches.iter().map(|b| self.line(*b, hyper).loss).sum();
        let ratio = |k: f64, c: f64| ((k - c - CROSSOVER.0.ln()) / CROSSOVER.1).powi(2);
        let mut prior = ratio(hyper[0], hyper[1]);
        let centre = (SLOPE_SHARE.0 * self.scale_ms * 1e6).ln();
        prior += ((hyper[0] - centre) / SLOPE_SHARE.1).powi(2);
        if hyper.len() > 2 {
            prior += ratio(hyper[2], hyper[3]);
            prior += ((hyper[2] - centre - 2.0) / (2.0 * SLOPE_SHARE.1)).powi(2);
        }
        data + prior
    }

    /// The maximum a posteriori line of one batch by Gauss-Newton on (base, ln slope, ln near).
    fn line(&self, batch: u32, hyper: &[f64]) -> Line {
        let b = f64::from(batch).ln();
        let centre =
            [roofline(hyper[0], hyper[1] + b), hyper.get(2).map_or(0.0, |k| roofline(*k, hyper[3] + b))];
        let span = self.span.map(|s| s as f64);
        let order = if span.is_some() { 3 } else { 2 };
        let kv = |x: &[f64; 3], t: &Target| {
            let near = span.map_or(0.0, |s| x[2].exp() * t.context.min(s));
            1e-6 * (x[1].exp() * t.context + near)
        };
        let mut x = [0.0, centre[0], centre[1]];
        let n = self.of(batch).count().max(1) as f64;
        x[0] = self.of(batch).map(|t| t.step_ms - kv(&x, t)).sum::<f64>() / n;
        let mut covariance = [[0.0; 3]; 3];
        for _ in 0..12 {
            let mut hessian = [[0.0; 3]; 3];
            let mut gradient = [0.0; 3];
            for t in self.of(batch) {
                let weight = (self.noise * t.step_ms).powi(-2);
                let near = span.map_or(0.0, |s| 1e-6 * x[2].exp() * t.context.min(s));
                let row = [1.0, 1e-6 * x[1].exp() * t.context, near];
                let residual = t.step_ms - x[0] - kv(&x, t);
                for i in 0..order {
                    gradient[i] += weight * row[i] * residual;
                    for j in 0..order {
                        hessian[i][j] += weight * row[i] * row[j];
                    }
                }
            }
            for i in 1..order {
                hessian[i][i] += SLOPE_LOG.powi(-2);
                gradient[i] += (centre[i - 1] - x[i]) * SLOPE_LOG.powi(-2);
            }
            let Some(inv) = inverse(&hessian, order) else { break };
            covariance = inv;
            for i in 0..order {
                let step: f64 = (0..order).map(|j| inv[i][j] * gradient[j]).sum();
                x[i] += if i == 0 { step } else { step.clamp(-0.5, 0.5) };
            }
        }
        self.finish(batch, x, &centre[..order - 1], &covariance, &kv)
    }

    fn finish(
        &self,
        batch: u32,
        x: [f64; 3],
        centre: &[f64],
        covariance: &[[f64; 3]; 3],
        kv: &dyn Fn(&[f64; 3], &Target) -> f64,
    ) -> Line {
        let mut loss: f64 =
            self.of(batch).map(|t| ((t.step_ms - x[0] - kv(&x, t)) / (self.noise * t.step_ms)).powi(2)).sum();
        loss += centre.iter().enumerate().map(|(i, m)| ((x[i + 1] - m) / SLOPE_LOG).powi(2)).sum::<f64>();
        // A base that the slope's prior pushes below a tenth of the step is no base.
        let floor = self.of(batch).map(|t| 0.1 * t.step_ms).fold(f64::INFINITY, f64::min);
        if x[0] < floor {
            loss += ((floor - x[0]) / (0.1 * floor)).powi(2);
        }
        let slope = x[1].exp();
        let (var_base, var_log) = (covariance[0][0].max(0.0), covariance[1][1].max(0.0));
        let both = (var_base * var_log).sqrt();
        Line {
            base_ms: x[0].max(floor.min(1e9)),
            slope_ns: slope,
            near_ns: if centre.len() > 1 { x[2].exp() } else { 0.0 },
            spread: DecodeSpread {
                base_ms: var_base.sqrt(),
                slope_ns: slope * var_log.sqrt(),
                correlation: if both > 0.0 { (covariance[0][1] / both).clamp(-1.0, 1.0) } else { 0.0 },
            },
            loss,
        }
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        let batches = crate::record::distinct(self.targets.iter().map(|t| t.batch));
        let levers: Vec<u32> = batches.iter().copied().filter(|b| self.of(*b).count() > 1).collect();
        let longest = self.targets.iter().map(|t| t.context).fold(0.0, f64::max);
        if levers.is_empty() {
            notes.push(
                "no batch was seen at two contexts, so the cost of context is a prior (k = 2e-6 of a step per token, \
                 within a factor of 7); a decode cell with one stream at the longest context would determine it"
                    .to_owned(),
            );
        } else if levers.iter().all(|b| f64::from(*b) < 2.0 * CROSSOVER.0) && batches.len() > 1 {
            notes.push(format!(
                "no large batch was seen at two contexts, so its cost of context is a prior (bandwidth-bound from batch \
                 {} on); a decode cell with many streams near {longest:.0} tokens would determine it",
                CROSSOVER.0
            ));
        }
        if let Some(span) = self.span.filter(|_| !self.span_by_config) {
            notes.push(format!(
                "throughput falls with context and then stays: attention that saturates at {span} tokens (assumed)"
            ));
        }
        notes
    }
}

/// Whether some batch seen at three contexts or more has a line that flattens.
fn saturates(targets: &[Target]) -> bool {
    crate::record::distinct(targets.iter().map(|t| t.batch)).into_iter().any(|batch| {
        let mut seen: Vec<&Target> = targets.iter().filter(|t| t.batch == batch).collect();
        seen.sort_by(|a, b| a.context.total_cmp(&b.context));
        let [first, .., last] = seen[..] else { return false };
        if seen.len() < 3 {
            return false;
        }
        let middle = seen[seen.len() / 2];
        let slope = |a: &Target, b: &Target| (b.step_ms - a.step_ms) / (b.context - a.context).max(1.0);
        let early = slope(first, middle);
        early > SATURATION * slope(middle, last).max(0.0) && middle.step_ms > 1.03 * first.step_ms
    })
}
