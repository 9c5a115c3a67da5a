//! A table of texts and its three forms.

use std::fmt::Write as _;

use super::{Format, Style};

/// Texts in rows; the first `labels` columns are names and stand to the left.
pub(super) struct Table {
    pub(super) header: Vec<String>,
    pub(super) rows: Vec<Vec<String>>,
    pub(super) labels: usize,
}

impl Table {
    pub(super) fn new(header: &[&str], labels: usize) -> Self {
        Self { header: header.iter().map(|h| (*h).to_owned()).collect(), rows: Vec::new(), labels }
    }

    pub(super) fn render(&self, format: Format, style: Style) -> String {
        match format {
            Format::Markdown => self.markdown(),
            Format::Csv => self.csv(),
            Format::Text | Format::Json => self.text(style),
        }
    }

    fn widths(&self) -> Vec<usize> {
        let mut widths: Vec<usize> = self.header.iter().map(|h| h.chars().count()).collect();
        for row in &self.rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count());
            }
        }
        widths
    }

    fn text(&self, style: Style) -> String {
        let widths = self.widths();
        let mut out = String::new();
        let mut line = |cells: &[String], strong: bool| {
            let mut text = String::new();
            for (i, cell) in cells.iter().enumerate() {
                let width = widths[i];
                let _ = if i < self.labels {
                    write!(text, "{cell:<width$}  ")
                } else {
                    write!(text, "{cell:>width$}  ")
                };
            }
            let text = text.trim_end();
            if strong && style.colour {
                let _ = writeln!(out, "\u{1b}[1m{text}\u{1b}[0m");
            } else {
                let _ = writeln!(out, "{text}");
            }
        };
        line(&self.header, true);
        self.rows.iter().for_each(|row| line(row, false));
        out
    }

    fn markdown(&self) -> String {
        let escape =
            |cells: &[String]| cells.iter().map(|c| c.replace('|', "\\|")).collect::<Vec<_>>().join(" | ");
        let rule: Vec<&str> =
            (0..self.header.len()).map(|i| if i < self.labels { "---" } else { "---:" }).collect();
        let mut out = format!("| {} |\n|{}|\n", escape(&self.header), rule.join("|"));
        for row in &self.rows {
            let _ = writeln!(out, "| {} |", escape(row));
        }
        out
    }

    fn csv(&self) -> String {
        let mut writer = csv::Writer::from_writer(Vec::new());
        let mut ok = writer.write_record(&self.header).is_ok();
        for row in &self.rows {
            ok &= writer.write_record(row).is_ok();
        }
        debug_assert!(ok, "rows are as long as the header");
        writer.into_inner().map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
    }
}
