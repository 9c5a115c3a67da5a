//! Nelder-Mead from several starting points, and a small symmetric solver.

use argmin::core::{CostFunction, Executor, State as _};
use argmin::solver::neldermead::NelderMead;

struct Problem<F>(F);

impl<F: Fn(&[f64]) -> f64> CostFunction for Problem<F> {
    type Param = Vec<f64>;
    type Output = f64;

    fn cost(&self, param: &Vec<f64>) -> std::result::Result<f64, argmin::core::Error> {
        let cost = (self.0)(param);
        // A point where the model cannot be evaluated is a bad point, not an end of the search.
        Ok(if cost.is_finite() { cost } else { f64::MAX })
    }
}

/// Minimises `cost` from each of `starts` with a simplex of edge `edge`; returns the best point. Fits of this kind
/// have local minima, which is why one start is not enough.
pub(super) fn minimise(
    cost: impl Fn(&[f64]) -> f64 + Copy,
    starts: &[Vec<f64>],
    edge: f64,
    iterations: u64,
) -> Vec<f64> {
    let mut best = (f64::INFINITY, starts.first().cloned().unwrap_or_default());
    for start in starts {
        let simplex: Vec<Vec<f64>> = std::iter::once(start.clone())
            .chain((0..start.len()).map(|i| {
                let mut corner = start.clone();
                corner[i] += edge;
                corner
            }))
            .collect();
        let Ok(solver) = NelderMead::new(simplex).with_sd_tolerance(1e-9) else { continue };
        let run = Executor::new(Problem(cost), solver).configure(|s| s.max_iters(iterations)).run();
        let Ok(result) = run else { continue };
        let (value, point) = (result.state().get_best_cost(), result.state().get_best_param());
        if let Some(point) = point.filter(|_| value < best.0) {
            best = (value, point.clone());
        }
    }
    best.1
}

/// The inverse of a symmetric positive definite matrix of order up to three, by Gauss-Jordan elimination.
/// `None` if it is singular.
#[expect(clippy::needless_range_loop, reason = "elimination reads two rows by index")]
pub(super) fn inverse(matrix: &[[f64; 3]; 3], order: usize) -> Option<[[f64; 3]; 3]> {
    let mut a = *matrix;
    let mut inv = [[0.0; 3]; 3];
    for i in 0..order {
        inv[i][i] = 1.0;
    }
    for i in 0..order {
        let pivot = a[i][i];
        if pivot.abs() < 1e-300 {
            return None;
        }
        for j in 0..order {
            a[i][j] /= pivot;
            inv[i][j] /= pivot;
        }
        for row in (0..order).filter(|r| *r != i) {
            let factor = a[row][i];
            for j in 0..order {
                a[row][j] -= factor * a[i][j];
                inv[row][j] -= factor * inv[i][j];
            }
        }
    }
    Some(inv)
}

/// Huber's loss of a standardised residual: quadratic up to `knee`, linear beyond, so that one spoilt cell does not
/// pull the others.
pub(super) fn huber(residual: f64, knee: f64) -> f64 {
    let r = residual.abs();
    if r <= knee { r * r } else { knee * (2.0 * r - knee) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_of_several_minima_is_found() {
        let cost = |x: &[f64]| (x[0] * x[0] - 4.0).powi(2) + x[0] + (x[1] - 1.0).powi(2);
        let best = minimise(cost, &[vec![3.0, 0.0], vec![-3.0, 0.0]], 0.5, 500);
        assert!((best[0] + 2.03).abs() < 0.01 && (best[1] - 1.0).abs() < 1e-3, "{best:?}");
    }

    #[test]
    fn an_inverse_times_its_matrix_is_one() {
        let m = [[4.0, 1.0, 0.5], [1.0, 3.0, 0.2], [0.5, 0.2, 2.0]];
        let inv = inverse(&m, 3).unwrap();
        for i in 0..3 {
            for j in 0..3 {
                let product: f64 = (0..3).map(|k| m[i][k] * inv[k][j]).sum();
                assert!((product - f64::from(u8::from(i == j))).abs() < 1e-12);
            }
        }
        assert!(inverse(&[[0.0; 3]; 3], 2).is_none());
    }
}
