//! What a prediction costs, as ratios within one run: a window of 3,000 s against one of 30 s in cells where nothing
//! completes, and the whole matrix against one cell.

#![allow(
    missing_docs,
    clippy::unwrap_used,
    reason = "criterion's macros; a bench stops at the first surprise"
)]

use criterion::{Criterion, criterion_group, criterion_main};
use inferometer::engine::Mode;
use inferometer::matrix::{MatrixSpec, predict};
use inferometer::shipped::Shipped;
use inferometer::simulate::{CellRequest, Options, simulate_cell};
use inferometer::units::SimSpan;

fn cells(c: &mut Criterion) {
    let profile = Shipped::reference().profile().unwrap();
    let mut group = c.benchmark_group("completion-free cell");
    for seconds in [30, 3_000] {
        let request = CellRequest {
            context_tokens: 65_536,
            concurrency: 64,
            max_tokens: 1_000_000,
            duration: SimSpan::from_millis(seconds * 1_000),
            first_at_context: false,
        };
        group.bench_function(format!("{seconds} s"), |b| {
            b.iter(|| simulate_cell(&profile, &request, Options::default()).unwrap());
        });
    }
    group.finish();
}

fn modes(c: &mut Criterion) {
    let profile = Shipped::reference().profile().unwrap();
    let request = CellRequest {
        context_tokens: 8_192,
        concurrency: 16,
        max_tokens: 4_096,
        duration: SimSpan::from_millis(30_000),
        first_at_context: false,
    };
    let mut group = c.benchmark_group("cell of 8K x 16");
    for (name, mode) in [("fast-forward", Mode::FastForward), ("step by step", Mode::StepByStep)] {
        group.bench_function(name, |b| {
            b.iter(|| simulate_cell(&profile, &request, Options { mode, ..Options::default() }).unwrap());
        });
    }
    group.finish();
}

fn matrix(c: &mut Criterion) {
    let profile = Shipped::reference().profile().unwrap();
    let spec = MatrixSpec::of(&profile);
    c.bench_function("reference matrix", |b| b.iter(|| predict(&profile, &spec).unwrap()));
}

criterion_group!(benches, cells, modes, matrix);
criterion_main!(benches);
