//! Synthetic traffic: arrivals, lengths, prefixes and sessions. Laws first, then moments within their sampling error.
#![allow(clippy::unwrap_used, clippy::float_cmp, reason = "tests of drawn numbers")]

use inferometer::rng::Streams;
use inferometer::traffic::arrivals::{Arrivals, RatePoint};
use inferometer::traffic::lengths::{Bin, Length, Lengths};
use inferometer::traffic::sessions::{PrefixGroups, SessionLaw};
use inferometer::units::SimTime;
use proptest::prelude::*;

fn times(law: &Arrivals, seed: u64, count: usize) -> Vec<SimTime> {
    law.times(Streams::new(seed).stream("arrivals")).unwrap().take(count).collect()
}

fn gaps(law: &Arrivals, seed: u64, count: usize) -> Vec<f64> {
    let times = times(law, seed, count);
    let start = std::iter::once(SimTime::ZERO).chain(times.iter().copied());
    start.zip(&times).map(|(a, b)| b.since(a).as_secs_f64()).collect()
}

fn moments(values: &[f64]) -> (f64, f64) {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    (mean, values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / (n - 1.0))
}

fn day(period_s: Option<f64>) -> Arrivals {
    let points = [(0.0, 2.0), (30.0, 10.0), (60.0, 2.0)].map(|(at_s, rate)| RatePoint { at_s, rate });
    Arrivals::Varying { points: points.to_vec(), period_s }
}

fn law() -> impl Strategy<Value = Arrivals> {
    prop_oneof![
        (0.01..500.0).prop_map(|rate| Arrivals::Constant { rate }),
        (0.01..500.0).prop_map(|rate| Arrivals::Poisson { rate }),
        (0.01..500.0, 0.1..20.0).prop_map(|(rate, burstiness)| Arrivals::Gamma { rate, burstiness }),
        (0.0..9.0, 0.1..9.0, 1.0..99.0).prop_map(|(a, b, t)| Arrivals::Varying {
            points: vec![RatePoint { at_s: 0.0, rate: a }, RatePoint { at_s: t, rate: b }],
            period_s: Some(2.0 * t),
        }),
    ]
}

fn length() -> impl Strategy<Value = Length> {
    prop_oneof![
        (1_u64..9999).prop_map(|tokens| Length::Fixed { tokens }),
        (1_u64..999, 0_u64..999).prop_map(|(min, more)| Length::Uniform { min, max: min + more }),
        (1.0..9999.0, 0.0..2.0).prop_map(|(median, sigma)| Length::LogNormal {
            median,
            sigma,
            min: 1,
            max: 20_000
        }),
        prop::collection::vec((0_u64..9, 1_u64..50, 0.1..5.0), 1..6).prop_map(|bins| {
            let mut min = 1;
            let bin = |(gap, width, weight): (u64, u64, f64)| {
                let bin = Bin { min: min + gap, max: min + gap + width, weight };
                min = bin.max + 1;
                bin
            };
            Length::Histogram { bins: bins.into_iter().map(bin).collect() }
        }),
    ]
}

proptest! {
    #[test]
    fn arrivals_ascend_and_repeat_with_their_seed(law in law(), seed: u64) {
        let first = times(&law, seed, 200);
        prop_assert!(first.windows(2).all(|w| w[0] <= w[1]));
        prop_assert_eq!(&first, &times(&law, seed, 200));
    }

    #[test]
    fn lengths_stay_within_their_law(length in length(), seed: u64) {
        length.validate("length").unwrap();
        let mut stream = Streams::new(seed).stream("lengths");
        for _ in 0..100 {
            let tokens = length.sample(&mut stream);
            prop_assert!((1..=length.longest()).contains(&tokens));
        }
    }

    #[test]
    fn the_mean_is_the_mean_of_what_is_drawn(length in length(), seed in 0_u64..50) {
        let mut stream = Streams::new(seed).stream("lengths");
        let drawn: Vec<f64> = (0..4000).map(|_| length.sample(&mut stream) as f64).collect();
        let (mean, variance) = moments(&drawn);
        // Half a token of rounding, and five standard errors.
        let allowed = 0.51 + 5.0 * (variance / 4000.0).sqrt();
        prop_assert!((mean - length.mean()).abs() <= allowed, "{} {} {}", mean, length.mean(), allowed);
    }

    #[test]
    fn changing_the_prompt_does_not_move_the_output(a in length(), b in length(), output in length(), seed: u64) {
        let outputs = |prompt: &Length| {
            let lengths = Lengths { prompt: prompt.clone(), output: output.clone(), correlation: 0.3 };
            let mut stream = Streams::new(seed).stream("lengths");
            (0..50).map(|_| lengths.sample(&mut stream).1).collect::<Vec<_>>()
        };
        prop_assert_eq!(outputs(&a), outputs(&b));
    }

    #[test]
    fn a_session_extends_its_own_prefix(seed: u64, id: u64, turns in 1_u64..12) {
        let law = SessionLaw {
            turns: Length::Fixed { tokens: turns },
            turn: Length::Uniform { min: 1, max: 300 },
            output: Length::Uniform { min: 1, max: 100 },
            max_context: None,
        };
        let groups = PrefixGroups { groups: 3, tokens: Length::Uniform { min: 50, max: 90 }, skew: 1.0 };
        let streams = Streams::new(seed);
        let prefix = groups.drawer(streams).unwrap().draw(&mut streams.stream("prefix"));
        let mut session = law.start(streams, id, Some(prefix));
        let sent: Vec<_> = std::iter::from_fn(|| session.next_turn()).collect();
        prop_assert_eq!(sent.len() as u64, turns);
        for pair in sent.windows(2) {
            prop_assert_eq!(pair[0].content.common_prefix(&pair[1].content), pair[0].prompt_tokens);
            prop_assert!(pair[1].prompt_tokens > pair[0].prompt_tokens + pair[0].output_tokens);
            prop_assert!(!pair[0].last);
        }
        prop_assert!(sent[sent.len() - 1].last);
        let other = law.start(streams, id.wrapping_add(1), Some(prefix)).next_turn().unwrap();
        prop_assert_eq!(other.content.common_prefix(&sent[0].content), prefix.tokens);
    }
}

#[test]
fn constant_arrivals_do_not_drift() {
    let law = Arrivals::Constant { rate: 3.0 };
    let last = law.times(Streams::new(1).stream("a")).unwrap().nth(2_999_999).unwrap();
    assert_eq!(last.as_nanos(), 1_000_000_000_000_000);
}

#[test]
fn gaps_have_their_moments() {
    let count = 100_000;
    for (law, squared_variation) in [
        (Arrivals::Poisson { rate: 7.0 }, 1.0),
        (Arrivals::Gamma { rate: 7.0, burstiness: 0.25 }, 4.0),
        (Arrivals::Gamma { rate: 7.0, burstiness: 4.0 }, 0.25),
        (Arrivals::Constant { rate: 7.0 }, 0.0),
    ] {
        let (mean, variance) = moments(&gaps(&law, 11, count));
        let standard_error = (squared_variation / count as f64).sqrt() / 7.0;
        assert!((mean - 1.0 / 7.0).abs() <= 4.0 * standard_error + 1e-8, "{law:?}: {mean}");
        assert!(
            (variance * 49.0 - squared_variation).abs() <= 0.1 * squared_variation + 1e-9,
            "{law:?}: {variance}"
        );
    }
}

#[test]
fn varying_arrivals_follow_their_rate() {
    let law = day(Some(90.0));
    // Two trapezia of 180, and 30 seconds at the last rate.
    assert!((law.mean_rate() - 420.0 / 90.0).abs() < 1e-12);
    let times = times(&law, 5, 200_000);
    let span = times[times.len() - 1].as_secs_f64();
    assert!((times.len() as f64 / span / law.mean_rate() - 1.0).abs() < 0.02);
    let mut counts = [0.0; 9];
    for time in &times {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "one of nine bins")]
        let bin = (time.as_secs_f64() % 90.0 / 10.0) as usize;
        counts[bin] += 1.0 / (span / 90.0);
    }
    for (bin, expected) in
        [33.333, 60.0, 86.667, 86.667, 60.0, 33.333, 20.0, 20.0, 20.0].into_iter().enumerate()
    {
        assert!((counts[bin] / expected - 1.0_f64).abs() < 0.05, "{bin}: {} for {expected}", counts[bin]);
    }
    // Without a period the last rate holds.
    let held = self::times(&day(None), 5, 100_000);
    let late: Vec<f64> = held.windows(2).skip(1000).map(|w| w[1].since(w[0]).as_secs_f64()).collect();
    assert!((moments(&late).0 - 0.5).abs() < 0.01);
}

#[test]
fn prompt_and_output_are_correlated_as_asked() {
    let law = Length::LogNormal { median: 900.0, sigma: 0.8, min: 1, max: 100_000 };
    for asked in [-0.9, 0.0, 0.6, 1.0] {
        let lengths = Lengths { prompt: law.clone(), output: law.clone(), correlation: asked };
        let mut stream = Streams::new(3).stream("lengths");
        #[expect(clippy::cast_precision_loss, reason = "lengths are small")]
        let logs: Vec<(f64, f64)> = (0..40_000)
            .map(|_| lengths.sample(&mut stream))
            .map(|(p, o)| ((p as f64).ln(), (o as f64).ln()))
            .collect();
        let (p, o): (Vec<f64>, Vec<f64>) = logs.iter().copied().unzip();
        let ((mean_p, var_p), (mean_o, var_o)) = (moments(&p), moments(&o));
        let covariance = logs.iter().map(|(a, b)| (a - mean_p) * (b - mean_o)).sum::<f64>() / 39_999.0;
        let found = covariance / (var_p * var_o).sqrt();
        assert!((found - asked).abs() < 0.02, "{found} for {asked}");
    }
}

#[test]
fn a_histogram_gives_back_what_was_observed() {
    let law = Length::LogNormal { median: 700.0, sigma: 1.0, min: 1, max: 50_000 };
    let mut stream = Streams::new(9).stream("observed");
    let observed: Vec<u64> = (0..20_000).map(|_| law.sample(&mut stream)).collect();
    let histogram = Length::from_observed(observed.iter().copied()).unwrap();
    histogram.validate("observed").unwrap();
    let mean = observed.iter().map(|l| *l as f64).sum::<f64>() / 20_000.0;
    assert!((histogram.mean() / mean - 1.0).abs() < 0.01, "{} {mean}", histogram.mean());
    assert_eq!(histogram.longest(), observed.iter().copied().max().unwrap());
    assert!(Length::from_observed([0]).is_err());
}

#[test]
fn popular_prefixes_come_more_often() {
    let groups = PrefixGroups { groups: 4, tokens: Length::Fixed { tokens: 100 }, skew: 1.0 };
    let streams = Streams::new(2);
    let drawer = groups.drawer(streams).unwrap();
    let mut stream = streams.stream("prefix");
    let mut counts = std::collections::BTreeMap::new();
    for _ in 0..10_000 {
        *counts.entry(drawer.draw(&mut stream).id).or_insert(0.0) += 1.0;
    }
    let found: Vec<f64> = counts.values().map(|c| c / 10_000.0).collect();
    for (found, weight) in found.iter().zip([12.0, 6.0, 4.0, 3.0]) {
        assert!((found - weight / 25.0).abs() < 0.02, "{found} for {weight}/25");
    }
}

#[test]
fn a_session_ends_at_its_context() {
    let law = SessionLaw {
        turns: Length::Fixed { tokens: 100 },
        turn: Length::Fixed { tokens: 300 },
        output: Length::Fixed { tokens: 100 },
        max_context: Some(1_000),
    };
    let mut session = law.start(Streams::new(0), 0, None);
    let sent: Vec<u64> = std::iter::from_fn(|| session.next_turn()).map(|t| t.prompt_tokens).collect();
    assert_eq!(sent, [300, 700]);
}

#[test]
fn laws_without_meaning_are_refused_by_name() {
    let field = |result: inferometer::error::Result<()>| result.unwrap_err().to_string();
    let point = |at_s, rate| RatePoint { at_s, rate };
    for (law, expected) in [
        (Arrivals::Poisson { rate: -1.0 }, "arrivals.rate"),
        (Arrivals::Constant { rate: f64::NAN }, "arrivals.rate"),
        (Arrivals::Gamma { rate: 1.0, burstiness: 0.0 }, "arrivals.burstiness"),
        (Arrivals::Varying { points: vec![], period_s: None }, "arrivals.points"),
        (Arrivals::Varying { points: vec![point(1.0, 1.0)], period_s: None }, "points[0].at_s"),
        (
            Arrivals::Varying { points: vec![point(0.0, 1.0), point(0.0, 2.0)], period_s: None },
            "points[1].at_s",
        ),
        (Arrivals::Varying { points: vec![point(0.0, 1.0), point(9.0, 0.0)], period_s: None }, "period_s"),
        (Arrivals::Varying { points: vec![point(0.0, 0.0)], period_s: Some(5.0) }, "every rate is 0"),
        (
            Arrivals::Varying { points: vec![point(0.0, 1.0), point(9.0, 1.0)], period_s: Some(5.0) },
            "period_s",
        ),
    ] {
        let message = field(law.validate());
        assert!(message.contains(expected), "{message}");
    }
    for (length, expected) in [
        (Length::Fixed { tokens: 0 }, "x.tokens"),
        (Length::Uniform { min: 0, max: 5 }, "x.min"),
        (Length::Uniform { min: 6, max: 5 }, "x.max"),
        (Length::LogNormal { median: 0.0, sigma: 1.0, min: 1, max: 5 }, "x.median"),
        (Length::LogNormal { median: 1.0, sigma: -1.0, min: 1, max: 5 }, "x.sigma"),
        (Length::Histogram { bins: vec![] }, "x.bins"),
        (Length::Histogram { bins: vec![Bin { min: 1, max: 5, weight: -1.0 }] }, "bins[0].weight"),
        (
            Length::Histogram {
                bins: vec![Bin { min: 1, max: 5, weight: 1.0 }, Bin { min: 5, max: 6, weight: 1.0 }],
            },
            "bins[1].min",
        ),
    ] {
        let message = field(length.validate("x"));
        assert!(message.contains(expected), "{message}");
    }
    let fixed = Length::Fixed { tokens: 1 };
    let lengths = Lengths { prompt: fixed.clone(), output: fixed, correlation: 1.5 };
    assert!(field(lengths.validate()).contains("correlation"));
}
