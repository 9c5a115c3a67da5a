//! Laws of a simulated cell: both modes agree to the nanosecond, nothing is lost, time does not run backwards.

#![allow(clippy::unwrap_used, reason = "tests stop at the first surprise")]

use inferometer::engine::Mode;
use inferometer::profile::Profile;
use inferometer::shipped::Shipped;
use inferometer::simulate::{CellOutcome, CellRequest, Options, simulate_cell};
use inferometer::units::SimSpan;
use proptest::prelude::*;

fn reference() -> Profile {
    Shipped::reference().profile().unwrap()
}

fn run(profile: &Profile, request: &CellRequest, mode: Mode) -> CellOutcome {
    simulate_cell(profile, request, Options { mode, ..Options::default() }).unwrap()
}

fn cell() -> impl Strategy<Value = CellRequest> {
    (0_u64..40, 1_u32..20, 1_u64..400, 1_u64..40, any::<bool>()).prop_map(
        |(k, concurrency, max_tokens, tenths, first)| CellRequest {
            context_tokens: k * 1_000,
            concurrency,
            max_tokens,
            duration: SimSpan::from_millis(tenths * 100),
            first_at_context: first,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn fast_forward_equals_step_by_step(request in cell(), budget in 256_u64..9_000, seats in 1_u32..40, asynchronous: bool) {
        let mut profile = reference();
        profile.engine.max_num_batched_tokens = budget.max(u64::from(seats));
        profile.engine.max_num_seqs = seats;
        profile.engine.async_scheduling = asynchronous;
        let (slow, fast) = (run(&profile, &request, Mode::StepByStep), run(&profile, &request, Mode::FastForward));
        prop_assert_eq!(slow.samples, fast.samples);
        prop_assert_eq!(slow.window, fast.window);
        prop_assert_eq!(slow.summary, fast.summary);
    }

    #[test]
    fn requests_end_with_what_they_asked_for(request in cell()) {
        let outcome = run(&reference(), &request, Mode::FastForward);
        for sample in &outcome.samples {
            prop_assert!(sample.tokens <= request.max_tokens);
            prop_assert!(!sample.completed || sample.tokens == request.max_tokens);
            if let Some(first) = sample.first {
                prop_assert!(sample.posted < first && first <= sample.last);
            }
        }
        let launched = outcome.samples.iter().filter(|s| s.launch).count();
        prop_assert!(launched <= request.concurrency as usize);
        let completed = outcome.samples.iter().filter(|s| s.completed).count();
        prop_assert_eq!(outcome.summary.columns.completed, Some(completed as f64));
    }

    #[test]
    fn slower_steps_never_give_more_tokens(context in 1_u64..30, streams in 1_u32..32, percent in 1_u32..30) {
        let profile = reference();
        let request = CellRequest {
            context_tokens: context * 4_096,
            concurrency: streams,
            max_tokens: 100_000,
            duration: SimSpan::from_millis(2_000),
            first_at_context: false,
        };
        let tokens = |scale: f64| {
            let options = Options { decode_scale: scale, ..Options::default() };
            simulate_cell(&profile, &request, options).unwrap().summary.columns.output_tokens.unwrap()
        };
        prop_assert!(tokens(1.0 + f64::from(percent) / 100.0) <= tokens(1.0));
    }
}

#[test]
fn longer_windows_hold_more_tokens() {
    let profile = reference();
    let tokens = |seconds: u64| {
        let request = CellRequest {
            context_tokens: 16_384,
            concurrency: 16,
            max_tokens: 1_000_000,
            duration: SimSpan::from_millis(seconds * 1_000),
            first_at_context: false,
        };
        run(&profile, &request, Mode::FastForward).summary.columns.output_tokens.unwrap()
    };
    let (short, long) = (tokens(30), tokens(300));
    // Contexts grow, so ten times the window gives less than ten times the tokens.
    assert!(long > 8.0 * short && long < 10.0 * short, "{short} {long}");
}
