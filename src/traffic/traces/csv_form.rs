//! Traces as CSV: columns by name, in any order.
//!
//! Knows the headers of Azure, `BurstGPT` and the plain form. Knows no rule about rows.

use std::io::BufRead;

use csv::StringRecord;

use super::collect::{Collector, Row};
use super::{TimeUnit, Trace, TraceForm, TraceOptions, stamp};
use crate::error::{Error, Result};

/// Where the columns are.
struct Columns {
    form: TraceForm,
    time: Option<usize>,
    unit: TimeUnit,
    input: usize,
    output: usize,
    hashes: Option<usize>,
    session: Option<usize>,
    images: Option<usize>,
}

pub(super) fn read(name: &str, mut reader: impl BufRead, options: &TraceOptions) -> Result<Trace> {
    let delimiter = delimiter(name, &mut reader)?;
    let mut csv = csv::ReaderBuilder::new().delimiter(delimiter).trim(csv::Trim::All).from_reader(reader);
    let header = csv.headers().map_err(|e| broken(name, &e))?.clone();
    let mut columns = Columns::find(name, &header)?;
    if let (Some(unit), true) = (options.time_unit, columns.form != TraceForm::Azure) {
        columns.unit = unit;
    }
    let mut collector = Collector::new(name, columns.form, options);
    let mut times = Times::default();
    let mut images = 0_u64;
    let mut record = StringRecord::new();
    while csv.read_record(&mut record).map_err(|e| broken(name, &e))? {
        let line = record.position().map_or(0, csv::Position::line);
        let nanos = match columns.time {
            None => None,
            Some(at) if record[at].is_empty() => {
                return Err(Collector::wrong(
                    name,
                    line,
                    format!("{}: the arrival time is missing", &header[at]),
                ));
            }
            Some(at) => Some(times.read(&record[at], columns.form, columns.unit).map_err(|what| {
                Collector::wrong(name, line, format!("{}: {:?} is no {what}", &header[at], &record[at]))
            })?),
        };
        let tokens = |at: usize| -> Result<i64> {
            whole(&record[at]).ok_or_else(|| {
                Collector::wrong(
                    name,
                    line,
                    format!("{}: {:?} is no whole number of tokens", &header[at], &record[at]),
                )
            })
        };
        images += u64::from(columns.images.is_some_and(|at| whole(&record[at]).unwrap_or(0) > 0));
        collector.add(Row {
            line,
            nanos,
            input: tokens(columns.input)?,
            output: tokens(columns.output)?,
            hash_ids: columns.hashes.map_or(Ok(Vec::new()), |at| hash_list(name, line, &record[at]))?,
            session: columns.session.map(|at| &record[at]).filter(|s| !s.is_empty()).map(Into::into),
        })?;
    }
    times.note(&mut collector);
    if images > 0 {
        collector.note(format!("{images} requests carry images, which are ignored: only their tokens count"));
    }
    collector.finish(times.is_wall_clock())
}

/// What stands between the columns: a comma, or where the header has none, a tab or a semicolon.
fn delimiter(name: &str, reader: &mut impl BufRead) -> Result<u8> {
    let buffer = reader.fill_buf().map_err(|e| Error::input(name, format!("cannot read: {e}")))?;
    let header = buffer.trim_ascii_start().split(|b| *b == b'\n').next().unwrap_or_default();
    Ok([b',', b'\t', b';'].into_iter().find(|d| header.contains(d)).unwrap_or(b','))
}

/// What kinds of times were met.
#[derive(Default)]
pub(super) struct Times {
    zoned: u64,
    zoneless: u64,
    numbers: u64,
}

impl Times {
    /// A time as nanoseconds: a number in `unit`, or a stamp; Azure has stamps alone. The error says what was
    /// expected.
    pub(super) fn read(
        &mut self,
        text: &str,
        form: TraceForm,
        unit: TimeUnit,
    ) -> std::result::Result<i128, &'static str> {
        if form != TraceForm::Azure
            && self.zoned + self.zoneless == 0
            && let Some(nanos) = number_nanos(text, unit)
        {
            self.numbers += 1;
            return Ok(nanos);
        }
        if self.numbers > 0 {
            return Err("finite number");
        }
        let stamp = stamp::parse(text).ok_or(if form == TraceForm::Azure {
            "time such as 2023-11-16 18:15:46.68"
        } else {
            "finite number and no time such as 2023-11-16 18:15:46.68"
        })?;
        self.zoned += u64::from(stamp.zoned);
        self.zoneless += u64::from(!stamp.zoned);
        Ok(stamp.nanos)
    }

    /// Whether times count from 1970.
    pub(super) fn is_wall_clock(&self) -> bool {
        self.zoned + self.zoneless > 0
    }

    pub(super) fn note(&self, collector: &mut Collector<'_>) {
        if self.zoned > 0 && self.zoneless > 0 {
            let all = self.zoned + self.zoneless;
            collector.note(format!("{} of {all} times have no zone: read as UTC", self.zoneless));
        }
    }
}

impl Columns {
    fn find(name: &str, header: &StringRecord) -> Result<Self> {
        let plain: Vec<String> =
            header.iter().map(|h| h.trim_start_matches('\u{feff}').trim().to_lowercase()).collect();
        let at = |names: &[&str]| names.iter().find_map(|n| plain.iter().position(|h| h == n));
        let missing =
            |column: &str| Error::input(format!("{name}:1"), format!("the column {column:?} is missing"));
        if plain.iter().any(|h| h == "contexttokens" || h == "generatedtokens") {
            return Ok(Self {
                form: TraceForm::Azure,
                time: Some(at(&["timestamp"]).ok_or_else(|| missing("TIMESTAMP"))?),
                unit: TimeUnit::Seconds,
                input: at(&["contexttokens"]).ok_or_else(|| missing("ContextTokens"))?,
                output: at(&["generatedtokens"]).ok_or_else(|| missing("GeneratedTokens"))?,
                hashes: None,
                session: None,
                images: at(&["numimages"]),
            });
        }
        if plain.iter().any(|h| h == "request tokens" || h == "response tokens") {
            return Ok(Self {
                form: TraceForm::BurstGpt,
                time: Some(at(&["timestamp"]).ok_or_else(|| missing("Timestamp"))?),
                unit: TimeUnit::Seconds,
                input: at(&["request tokens"]).ok_or_else(|| missing("Request tokens"))?,
                output: at(&["response tokens"]).ok_or_else(|| missing("Response tokens"))?,
                hashes: None,
                session: at(&["session id"]),
                images: None,
            });
        }
        let input = at(&["prompt_tokens", "input_tokens", "input_length", "prompt_len"]);
        let output = at(&["output_tokens", "completion_tokens", "output_length", "output_len"]);
        let (Some(input), Some(output)) = (input, output) else {
            return Err(unknown(name, header, input.is_some(), output.is_some()));
        };
        let seconds = at(&["arrival_s", "arrival", "arrival_time", "timestamp_s", "timestamp"]);
        let millis = at(&["arrival_ms", "timestamp_ms"]);
        Ok(Self {
            form: TraceForm::Plain,
            time: seconds.or(millis),
            unit: if seconds.is_some() { TimeUnit::Seconds } else { TimeUnit::Milliseconds },
            input,
            output,
            hashes: at(&["hash_ids"]),
            session: at(&["session_id", "session"]),
            images: None,
        })
    }
}

/// The columns are those of no known form.
fn unknown(name: &str, header: &StringRecord, input: bool, output: bool) -> Error {
    let message = match (input, output) {
        (true, false) => "the column \"output_tokens\" is missing".to_owned(),
        (false, true) => "the column \"prompt_tokens\" is missing".to_owned(),
        _ => format!(
            "columns not recognised: {}; expected a header of Azure (TIMESTAMP, ContextTokens, GeneratedTokens), \
             BurstGPT (Timestamp, Request tokens, Response tokens) or plain (arrival_s, prompt_tokens, output_tokens)",
            header.iter().collect::<Vec<_>>().join(", ")
        ),
    };
    Error::input(format!("{name}:1"), message)
}

fn broken(name: &str, error: &csv::Error) -> Error {
    let line = error.position().map_or(0, csv::Position::line);
    match error.kind() {
        csv::ErrorKind::UnequalLengths { expected_len, len, .. } => {
            Collector::wrong(name, line, format!("{len} fields where the header has {expected_len}"))
        }
        _ => Collector::wrong(name, line, format!("cannot read: {error}")),
    }
}

/// A time as nanoseconds. Decimal digits are kept exactly, as far as nanoseconds go.
pub(super) fn number_nanos(text: &str, unit: TimeUnit) -> Option<i128> {
    let scale = match unit {
        TimeUnit::Seconds => 9,
        TimeUnit::Milliseconds => 6,
    };
    let (negative, digits) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let plain = |t: &str| t.bytes().all(|b| b.is_ascii_digit());
    if plain(whole) && plain(fraction) && !(whole.is_empty() && fraction.is_empty()) && whole.len() <= 18 {
        let kept: String = format!("{fraction:0<scale$}").chars().take(scale).collect();
        let nanos: i128 = format!("{whole}{kept}").parse().ok()?;
        return Some(if negative { -nanos } else { nanos });
    }
    // Exponents and the like.
    let value: f64 = text.parse().ok()?;
    let nanos = value * 10_f64.powi(i32::try_from(scale).ok()?);
    #[expect(clippy::cast_possible_truncation, reason = "checked to be finite and below a millennium")]
    (nanos.is_finite() && nanos.abs() < 3e19).then(|| nanos.round() as i128)
}

/// A whole number, also written `5.0`.
fn whole(text: &str) -> Option<i64> {
    let digits = text
        .split_once('.')
        .map_or(Some(text), |(whole, zeros)| zeros.bytes().all(|b| b == b'0').then_some(whole))?;
    digits.parse().ok()
}

/// Hash ids in one field, with spaces, semicolons or commas between, with or without brackets.
fn hash_list(name: &str, line: u64, text: &str) -> Result<Vec<u64>> {
    text.trim_matches(['[', ']'])
        .split([' ', ';', ',', '|'])
        .filter(|t| !t.is_empty())
        .map(|t| {
            t.parse().map_err(|_| Collector::wrong(name, line, format!("hash_ids: {t:?} is no hash id")))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimal_times_are_exact() {
        assert_eq!(number_nanos("19440110.0", TimeUnit::Seconds), Some(19_440_110_000_000_000));
        assert_eq!(number_nanos("0.123456789", TimeUnit::Seconds), Some(123_456_789));
        assert_eq!(number_nanos("-1.5", TimeUnit::Milliseconds), Some(-1_500_000));
        assert_eq!(number_nanos("1e3", TimeUnit::Seconds), Some(1_000_000_000_000));
        for text in ["", ".", "NaN", "inf", "1.2.3", "5 s"] {
            assert_eq!(number_nanos(text, TimeUnit::Seconds), None, "{text}");
        }
    }

    #[test]
    fn whole_numbers_may_have_empty_fractions() {
        assert_eq!(
            [whole("5"), whole("5.0"), whole("-1"), whole("5.5"), whole("x")],
            [Some(5), Some(5), Some(-1), None, None]
        );
    }
}
