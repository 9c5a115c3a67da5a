//! Wall-clock stamps of traces, to whole nanoseconds.
//!
//! Knows the calendar. Knows no machine's clock and no machine's time zone: a stamp without a zone is UTC, as only
//! differences matter.

/// A stamp: nanoseconds since 1970 in UTC, and whether the text named a zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    pub(super) nanos: i128,
    pub(super) zoned: bool,
}

/// Parses `YYYY-MM-DD hh:mm:ss` with `T` or space between, an optional fraction of any length, and an optional
/// zone (`Z`, `+hh:mm`, `+hhmm`, `+hh`).
pub(super) fn parse(text: &str) -> Option<Stamp> {
    let text = text.trim();
    let (date, time) = text.split_at_checked(10)?;
    let time = time.strip_prefix([' ', 'T', 't'])?.trim_start();
    let mut parts = date.split('-');
    let (year, month, day) =
        (digits(parts.next()?, 4)?, digits(parts.next()?, 2)?, digits(parts.next()?, 2)?);
    if parts.next().is_some() || !(1..=12).contains(&month) || day < 1 || day > days_in(year, month) {
        return None;
    }
    let (clock, zone) = match time.find(['Z', 'z', '+', '-']) {
        Some(at) => time.split_at(at),
        None => (time, ""),
    };
    let offset_s = zone_seconds(zone)?;
    let (whole, fraction) = match clock.split_once('.') {
        Some((whole, fraction)) => (whole, fraction_nanos(fraction)?),
        None => (clock.trim_end(), 0),
    };
    let mut parts = whole.split(':');
    let (hour, minute, second) =
        (digits(parts.next()?, 2)?, digits(parts.next()?, 2)?, digits(parts.next()?, 2)?);
    if parts.next().is_some() || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let seconds = days_since_1970(year, month, day) * 86_400 + hour * 3600 + minute * 60 + second - offset_s;
    Some(Stamp { nanos: i128::from(seconds) * 1_000_000_000 + i128::from(fraction), zoned: !zone.is_empty() })
}

/// A number of exactly `count` digits.
fn digits(text: &str, count: usize) -> Option<i64> {
    (text.len() == count && text.bytes().all(|b| b.is_ascii_digit())).then(|| text.parse().ok()).flatten()
}

/// Digits after the point as nanoseconds; those beyond the ninth are cut.
fn fraction_nanos(text: &str) -> Option<i64> {
    let text = text.trim_end();
    if text.is_empty() || !text.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    format!("{text:0<9}").get(..9)?.parse().ok()
}

/// Seconds east of UTC.
fn zone_seconds(zone: &str) -> Option<i64> {
    let zone = zone.trim();
    if zone.is_empty() || zone.eq_ignore_ascii_case("z") {
        return Some(0);
    }
    let sign = if zone.starts_with('-') { -1 } else { 1 };
    let rest = zone.get(1..)?;
    let (hours, minutes) = match (rest.split_once(':'), rest.len()) {
        (Some((h, m)), _) => (digits(h, 2)?, digits(m, 2)?),
        (None, 4) => (digits(&rest[..2], 2)?, digits(&rest[2..], 2)?),
        (None, _) => (digits(rest, 2)?, 0),
    };
    (hours <= 15 && minutes <= 59).then_some(sign * (hours * 3600 + minutes * 60))
}

fn is_leap(year: i64) -> bool {
    year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)
}

fn days_in(year: i64, month: i64) -> i64 {
    match month {
        2 if is_leap(year) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Days from 1970-01-01 in the Gregorian calendar.
fn days_since_1970(year: i64, month: i64, day: i64) -> i64 {
    // Years counted from March, so that the leap day is the last of its year.
    let y = if month <= 2 { year - 1 } else { year };
    let m = (month + 9) % 12;
    let days =
        365 * y + y.div_euclid(4) - y.div_euclid(100) + y.div_euclid(400) + (153 * m + 2) / 5 + day - 1;
    days - 719_468
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn nanos(text: &str) -> i128 {
        parse(text).unwrap().nanos
    }

    proptest! {
        #[test]
        fn days_follow_one_another(year in 1600_i64..2500, month in 1_i64..=12) {
            let last = days_in(year, month);
            let (y, m) = if month == 12 { (year + 1, 1) } else { (year, month + 1) };
            prop_assert_eq!(days_since_1970(year, month, last) + 1, days_since_1970(y, m, 1));
        }
    }

    #[test]
    fn known_instants() {
        assert_eq!(nanos("1970-01-01 00:00:00"), 0);
        assert_eq!(nanos("2024-02-29T12:00:00.269Z"), 1_709_208_000_269_000_000);
        assert_eq!(nanos("2023-11-16 18:15:46.6805900"), 1_700_158_546_680_590_000);
        assert_eq!(nanos("2024-05-12 08:00:20.500+08:00"), nanos("2024-05-12 00:00:20.5"));
        assert_eq!(nanos("2024-05-12 00:00:00-0130"), nanos("2024-05-12 01:30:00"));
        assert_eq!(nanos("2024-05-12 00:00:00.1234567891"), nanos("2024-05-12 00:00:00.123456789"));
        assert!(parse("2024-05-12 00:00:00+00:00").unwrap().zoned);
        assert!(!parse("2024-05-12 00:00:00").unwrap().zoned);
    }

    #[test]
    fn what_is_no_stamp_is_refused() {
        for text in [
            "",
            "5",
            "2024-05-12",
            "2023-02-29 00:00:00",
            "2024-13-01 00:00:00",
            "2024-05-12 24:00:00",
            "2024-05-12 00:60:00",
            "2024-05-12 00:00:00.",
            "2024-05-12 00:00:00+99:00",
            "2024-05-12 00:00:00.5x",
            "12/05/2024 00:00",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
