//! Times as people write them: `60s`, `1h30m`, `500ms`.

/// Units with their milliseconds. A unit that begins as another one stands before it.
const UNITS: [(&str, f64); 5] =
    [("ms", 1.0), ("s", 1_000.0), ("m", 60_000.0), ("h", 3_600_000.0), ("d", 86_400_000.0)];

/// Milliseconds of a time with units, as `1.5s` or `1h30m`; `None` if it is none, or a number
/// without a unit.
pub(crate) fn ms(text: &str) -> Option<f64> {
    let mut rest = text.trim();
    let mut total_ms = 0.0;
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let end = rest.find(|c: char| !(c.is_ascii_digit() || c == '.')).filter(|end| *end > 0)?;
        let (number, after) = rest.split_at(end);
        let (unit, unit_ms) = UNITS.iter().find(|(unit, _)| after.starts_with(unit))?;
        total_ms += number.parse::<f64>().ok()? * unit_ms;
        rest = after.get(unit.len()..)?;
    }
    Some(total_ms)
}

/// The value of a key in ms that is given as a time with units; a fraction of a millisecond stays
/// one, for the type check to judge. `None` if the text is no time.
pub(crate) fn value(text: &str) -> Option<toml::Value> {
    let ms = ms(text)?;
    // Times far beyond any bound saturate, and are refused as out of range.
    let is_whole = ms.fract() == 0.0;
    Some(if is_whole { toml::Value::Integer(ms as i64) } else { toml::Value::Float(ms) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units() {
        for (text, expected) in [
            ("500ms", Some(500.0)),
            ("60s", Some(60_000.0)),
            ("30m", Some(1_800_000.0)),
            ("1h30m", Some(5_400_000.0)),
            ("1.5s", Some(1_500.0)),
            ("2d", Some(172_800_000.0)),
            (" 5s ", Some(5_000.0)),
            ("0s", Some(0.0)),
            ("0.5ms", Some(0.5)),
            ("60", None),
            ("", None),
            ("s", None),
            ("-5s", None),
            ("5 s", None),
            ("5sec", None),
            ("1..5s", None),
            ("60S", None),
            ("5s3", None),
        ] {
            assert_eq!(ms(text), expected, "{text:?}");
        }
    }

    #[test]
    fn a_whole_number_of_milliseconds_is_an_integer() {
        assert_eq!(value("2s"), Some(toml::Value::Integer(2_000)));
        assert_eq!(value("0.5ms"), Some(toml::Value::Float(0.5)));
        assert_eq!(value("99999999999999999999d"), Some(toml::Value::Integer(i64::MAX)));
    }
}
