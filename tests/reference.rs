//! What the shipped measurements prove: fits on a handful of cells against the cells that were held out.

#![allow(clippy::unwrap_used, reason = "tests stop at the first surprise")]

use inferometer::check::{Check, check};
use inferometer::fit::{fit, plan_by_rule};
use inferometer::matrix::PredictedStatus;
use inferometer::record::{DecodeCells, Measurement, Phase, Plan, Status, format_context};
use inferometer::shipped::Shipped;
use rand::seq::SliceRandom as _;
use rand::{RngExt as _, SeedableRng as _};

fn measurement(name: &str) -> Measurement {
    Shipped::named(name).unwrap().measurement().unwrap()
}

fn checked(name: &str) -> (Measurement, Check) {
    let m = measurement(name);
    let plan = m.plan.clone().unwrap();
    let profile = fit(&m, &plan).unwrap();
    let result = check(&m, &plan, &profile).unwrap();
    (m, result)
}

const REFERENCE: &str = "ling-3.0-tiny-h200-nvl";

#[test]
fn the_reference_matrix_from_eleven_cells() {
    let (m, result) = checked(REFERENCE);
    let plan = m.plan.clone().unwrap();
    let used = m.cells.iter().filter(|c| {
        c.phase == Phase::Decode
            && c.status == Status::Valid
            && plan.has_decode(c.context_tokens, c.concurrency)
    });
    assert!(used.count() <= 11 && plan.prefill.len() <= 4);
    let s = &result.summary;
    let held = |column: &str| s.held_out[column];
    println!("{s:#?}");
    assert_eq!(held("total_tok_s").n, 28);
    assert!(held("total_tok_s").mape <= 1.0 && held("total_tok_s").max_ape <= 4.0);
    assert!(held("output_tokens").mape <= 1.5);
    assert!(held("per_request_tok_s").mape <= 2.0);
    assert!(held("ttft_ms").median_ape <= 10.0 && held("ttft_ms").p90_ape <= 30.0);
    assert!(s.completed_exact.n >= 37 && s.completed_exact.of == 39);
    assert!(s.held_out_prefill["total_tok_s"].max_ape <= 10.0);
    assert!((0.8..=1.0).contains(&s.coverage_90["total_tok_s"]));
    assert!(s.half_width_90_percent["total_tok_s"] <= 5.0);
    assert_eq!((s.over_capacity.agree, s.over_capacity.of), (1, 1));
}

#[test]
fn three_other_servers() {
    for (name, mape, max) in [
        ("qwen3.5-397b-awq-4x-rtx-pro-6000", 1.3, 5.0),
        ("glm-5.1-dcp4-8x-rtx-pro-6000", 2.0, 5.0),
        ("kimi-k2.6-dcp1-8x-rtx-pro-6000", 2.5, 9.0),
    ] {
        let (_, result) = checked(name);
        let total = result.summary.held_out["total_tok_s"];
        println!("{name}: {total:?}");
        assert!(total.mape <= mape && total.max_ape <= max, "{name}: {total:?}");
        let over = result.summary.over_capacity;
        assert_eq!((over.agree, over.wrongly_predicted), (over.of, 0), "{name}");
        if name.starts_with("kimi") {
            assert_eq!(over.of, 18);
        }
        if name.starts_with("glm") {
            let skipped: Vec<_> =
                result.cells.iter().filter(|c| c.status.predicted == PredictedStatus::OverCapacity).collect();
            assert_eq!(skipped.len(), 14);
            assert!(skipped.iter().any(|c| c.notes.iter().any(|n| n.contains("would have held"))));
        }
    }
}

/// Everything that is not in the plan may be garbage: the fit does not look at it.
#[test]
fn held_out_measurements_do_not_matter() {
    let clean = measurement(REFERENCE);
    let plan = clean.plan.clone().unwrap();
    let mut spoilt = clean.clone();
    let mut rng = rand_chacha(7);
    for cell in &mut spoilt.cells {
        let warm =
            cell.phase == Phase::Decode && cell.concurrency == 1 && plan.has_warm_ttft(cell.context_tokens);
        let seen = match cell.phase {
            Phase::Prefill => plan.has_prefill(cell.context_tokens),
            Phase::Decode => plan.has_decode(cell.context_tokens, cell.concurrency),
        };
        if seen || cell.status == Status::OverCapacity {
            continue;
        }
        let mut noise = || Some(rng.random_range(1.0..1e5));
        let ttft = if warm { cell.columns.ttft_ms } else { noise() };
        cell.columns.total_tok_s = noise();
        cell.columns.ttft_ms = ttft;
        cell.columns.output_tokens = noise();
        cell.columns.measured_s = noise();
        cell.columns.completed = noise();
        cell.columns.inter_token_ms = noise();
        cell.columns.per_request_tok_s = noise();
    }
    let (a, b) = (fit(&clean, &plan).unwrap(), fit(&spoilt, &plan).unwrap());
    assert_eq!(a.to_toml(), b.to_toml());
}

fn rand_chacha(seed: u64) -> rand::rngs::ChaCha8Rng {
    rand::rngs::ChaCha8Rng::seed_from_u64(seed)
}

/// Each batch size once, three more at other contexts, drawn by seed.
fn random_plan(m: &Measurement, seed: u64) -> Plan {
    let mut rng = rand_chacha(seed);
    let mut chosen: Vec<(u64, u32)> = Vec::new();
    let valid = |c: u64, n: u32| m.decode(c, n).is_some_and(|cell| cell.status == Status::Valid);
    for n in m.concurrencies() {
        let contexts: Vec<u64> = m.contexts().into_iter().filter(|c| valid(*c, n)).collect();
        chosen.push((contexts[rng.random_range(0..contexts.len())], n));
    }
    let mut rest: Vec<(u64, u32)> = m
        .contexts()
        .into_iter()
        .flat_map(|c| m.concurrencies().into_iter().map(move |n| (c, n)))
        .filter(|(c, n)| valid(*c, *n) && !chosen.contains(&(*c, *n)))
        .filter(|(c, n)| chosen.iter().any(|(cc, nn)| nn == n && cc != c))
        .collect();
    rest.shuffle(&mut rng);
    chosen.extend(rest.into_iter().take(3));
    let shipped = m.plan.clone().unwrap();
    Plan {
        decode: chosen
            .into_iter()
            .map(|(c, n)| DecodeCells { context: format_context(c), concurrency: vec![n] })
            .collect(),
        ..shipped
    }
}

#[test]
fn five_other_plans_of_eleven_cells() {
    let m = measurement(REFERENCE);
    let mut all = Vec::new();
    for seed in 0..5 {
        let plan = random_plan(&m, seed);
        assert_eq!(plan.decode_cells().len(), 11);
        let profile = fit(&m, &plan).unwrap();
        let total = check(&m, &plan, &profile).unwrap().summary.held_out["total_tok_s"];
        println!(
            "seed {seed}: MAPE {:.2} %, largest {:.2} %: {:?}",
            total.mape,
            total.max_ape,
            plan.decode_cells()
        );
        all.push(total.mape);
    }
    let mean = all.iter().sum::<f64>() / all.len() as f64;
    println!("mean of five: {mean:.2} %");
    assert!(mean <= 1.6, "{mean}");
}

#[test]
fn the_rule_chooses_the_shipped_plan() {
    let m = measurement(REFERENCE);
    assert_eq!(plan_by_rule(&m), m.plan.clone().unwrap());
}

#[test]
fn shipped_profiles_are_what_fit_makes_of_their_measurements() {
    for shipped in inferometer::shipped::SHIPPED {
        let m = shipped.measurement().unwrap();
        let made = fit(&m, m.plan.as_ref().unwrap()).unwrap();
        let kept = shipped.profile().unwrap();
        assert_eq!(kept.notes, made.notes, "{}: run `inferometer fit` again", shipped.name);
        let near = |a: &[f64], b: &[f64]| a.iter().zip(b).all(|(a, b)| (a - b).abs() <= 1e-6 * b.abs());
        assert!(near(&kept.costs.decode.base_ms, &made.costs.decode.base_ms), "{}", shipped.name);
        assert!(near(&kept.costs.decode.slope_ns, &made.costs.decode.slope_ns), "{}", shipped.name);
    }
}

/// Plans that determine little still give what they can and name what they cannot.
#[test]
fn poor_plans_name_what_they_do_not_determine() {
    let m = measurement(REFERENCE);
    let one = DecodeCells { context: "8K".to_owned(), concurrency: vec![1, 64] };
    let plan = Plan { decode: vec![one], prefill: Vec::new(), warm_ttft: Vec::new() };
    let profile = fit(&m, &plan).unwrap();
    let text = profile.notes.join("\n");
    for word in ["cost of context is a prior", "no prefill row", "no TTFT is predicted"] {
        assert!(text.contains(word), "{word}: {text}");
    }
    let result = check(&m, &plan, &profile).unwrap();
    let cell = result.cells.iter().find(|c| c.context_tokens == 65_536 && c.concurrency == 8).unwrap();
    assert!(cell.predicted.ttft_ms.is_none() && cell.predicted.total_tok_s.is_some());
    let total = cell.predicted.total_tok_s.unwrap();
    let good = fit(&m, m.plan.as_ref().unwrap()).unwrap();
    let sharp = check(&m, m.plan.as_ref().unwrap(), &good).unwrap();
    let sharp = sharp.cells.iter().find(|c| c.context_tokens == 65_536 && c.concurrency == 8).unwrap();
    let sharp = sharp.predicted.total_tok_s.unwrap();
    assert!(total.high - total.low > 3.0 * (sharp.high - sharp.low), "{total:?} {sharp:?}");
    let nothing = Plan::default();
    let error = fit(&m, &nothing).unwrap_err();
    assert_eq!(error.kind().exit_code(), 4);
}
