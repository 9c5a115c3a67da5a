//! Context lengths as people write them: "8K", "131072", "0".

use crate::error::{Error, Result};

/// Reads a context length: a whole number of tokens, or a number with the suffix K (1,024) or M (1,048,576).
/// "123K" is 125,952; fractions are cut ("1.5K" is 1,536). The suffix may be lower case.
///
/// # Errors
/// [`crate::error::ErrorKind::Usage`] that quotes the text and names the accepted units.
pub fn parse_context(text: &str) -> Result<u64> {
    let bad = |why: &str| {
        Error::usage(format!("context \"{text}\" {why}; write tokens (8192) or a number with K or M (8K)"))
    };
    let trimmed = text.trim();
    let (number, unit) = match trimmed.char_indices().last() {
        Some((i, 'k' | 'K')) => (&trimmed[..i], 1_024.0),
        Some((i, 'm' | 'M')) => (&trimmed[..i], 1_048_576.0),
        Some((_, c)) if c.is_ascii_digit() => (trimmed, 1.0),
        Some((i, c)) if trimmed[..i].parse::<f64>().is_ok() => {
            return Err(bad(&format!("has the unknown unit \"{c}\"")));
        }
        _ => return Err(bad("is not a number")),
    };
    let value: f64 = number.parse().map_err(|_| bad("is not a number"))?;
    if !value.is_finite() || value < 0.0 {
        return Err(bad("is not a number of tokens"));
    }
    let tokens = value * unit;
    if tokens > 1e9 {
        return Err(bad("is above a billion tokens"));
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked to lie in 0..=1e9")]
    Ok(tokens as u64)
}

/// Writes a context as the page does: whole multiples of 1,024 with K, others as they are.
pub fn format_context(tokens: u64) -> String {
    if tokens > 0 && tokens.is_multiple_of(1_024) {
        format!("{}K", tokens / 1_024)
    } else {
        tokens.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suffixes_are_binary() {
        for (text, tokens) in
            [("8K", 8_192), ("123k", 125_952), ("0", 0), ("70", 70), ("1.5K", 1_536), ("1M", 1_048_576)]
        {
            assert_eq!(parse_context(text).unwrap(), tokens, "{text}");
        }
        assert_eq!(format_context(125_952), "123K");
        assert_eq!(format_context(0), "0");
    }

    #[test]
    fn unknown_units_are_named() {
        for text in ["8Q", "", "-1", "K", "8KK", "nan", "inf", "9999999M"] {
            let message = parse_context(text).unwrap_err().to_string();
            assert!(message.contains("context") && message.contains("8K"), "{text}: {message}");
        }
        assert!(parse_context("8Q").unwrap_err().to_string().contains("unknown unit \"Q\""));
    }
}
