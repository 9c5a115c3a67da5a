//! A shaded grid: contexts down, concurrency across.

use std::fmt::Write as _;

use super::Style;
use crate::record::format_context;

/// One grid; `None` is a cell without a number, shown as `empty`.
pub(super) struct Grid<'a> {
    pub(super) title: &'a str,
    pub(super) contexts: &'a [u64],
    pub(super) concurrency: &'a [u32],
    /// Row by row: the text and where it lies between the best (0) and the worst (1).
    pub(super) cells: Vec<Option<(String, f64)>>,
    pub(super) empty: &'a str,
}

/// From good to bad; 256-colour codes that stay readable under black and under white text.
const SHADES: [u8; 6] = [29, 65, 101, 137, 131, 124];

impl Grid<'_> {
    pub(super) fn render(&self, style: Style) -> String {
        let longest = self.cells.iter().flatten().map(|(text, _)| text.chars().count()).max().unwrap_or(0);
        let width = longest.max(self.empty.chars().count()).max(6);
        let (open, close) = if style.colour { ("\u{1b}[1m", "\u{1b}[0m") } else { ("", "") };
        let mut out = format!("{open}{}{close}\n", self.title);
        // A narrow terminal gets the columns in several blocks.
        let fits = if style.width == 0 {
            self.concurrency.len()
        } else {
            (style.width.saturating_sub(9) / (width + 2)).max(1)
        };
        for first in (0..self.concurrency.len()).step_by(fits.max(1)) {
            let last = (first + fits).min(self.concurrency.len());
            let _ = write!(out, "{:>8} ", "context");
            for c in &self.concurrency[first..last] {
                let _ = write!(out, " {:>width$} ", format!("x{c}"));
            }
            out.push('\n');
            for (row, context) in self.contexts.iter().enumerate() {
                let _ = write!(out, "{:>8} ", format_context(*context));
                for column in first..last {
                    self.cell(&mut out, row * self.concurrency.len() + column, width, style);
                }
                out.push('\n');
            }
        }
        out
    }

    fn cell(&self, out: &mut String, index: usize, width: usize, style: Style) {
        let _ = match &self.cells[index] {
            None => write!(out, " {:>width$} ", self.empty),
            Some((text, place)) if style.colour => {
                #[expect(
                    clippy::cast_possible_truncation,
                    clippy::cast_sign_loss,
                    reason = "0 <= place <= 1"
                )]
                let shade = SHADES[((place.clamp(0.0, 1.0) * 5.0).round() as usize).min(5)];
                write!(out, "\u{1b}[48;5;{shade};38;5;231m {text:>width$} \u{1b}[0m")
            }
            Some((text, _)) => write!(out, " {text:>width$} "),
        };
    }
}

/// Where each value lies between the smallest (0) and the largest (1), on a logarithmic scale.
pub(super) fn places(values: &[Option<f64>]) -> Vec<Option<f64>> {
    let logs: Vec<Option<f64>> = values.iter().map(|v| v.filter(|v| *v > 0.0).map(f64::ln)).collect();
    let low = logs.iter().flatten().copied().fold(f64::INFINITY, f64::min);
    let high = logs.iter().flatten().copied().fold(f64::NEG_INFINITY, f64::max);
    logs.into_iter().map(|l| l.map(|l| if high > low { (l - low) / (high - low) } else { 0.0 })).collect()
}
