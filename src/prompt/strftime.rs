//! `strftime_now` for the dates that templates print.

/// A civil date; the engine's own time zone is taken to be the gateway's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Today {
    /// Year of the Gregorian calendar.
    pub year: u16,
    /// 1 to 12.
    pub month: u8,
    /// 1 to 31.
    pub day: u8,
}

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const WEEKDAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

impl Today {
    /// The date `days` after 1970-01-01 (negative: before), as the caller's clock counts them.
    pub fn from_unix_days(days: i64) -> Self {
        // Days are counted from 0000-03-01, so that a leap day is the last of its year.
        let shifted = days + 719_468;
        let era = shifted.div_euclid(146_097);
        let of_era = shifted.rem_euclid(146_097);
        let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
        let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let month_from_march = (5 * of_year + 2) / 153;
        let day = of_year - (153 * month_from_march + 2) / 5 + 1;
        let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
        let year = year_of_era + era * 400 + i64::from(month <= 2);
        let small = |n: i64| u8::try_from(n).unwrap_or(1);
        Self { year: u16::try_from(year).unwrap_or(1970), month: small(month), day: small(day) }
    }

    /// `datetime.strftime` in the C locale; `None` for what is not a date (hours would be stale at
    /// once) or not known.
    pub fn format(self, format: &str) -> Option<String> {
        let mut out = String::new();
        let mut chars = format.chars();
        while let Some(char) = chars.next() {
            if char != '%' {
                out.push(char);
                continue;
            }
            match chars.next()? {
                '-' => out.push_str(&self.unpadded(chars.next()?)?),
                code => out.push_str(&self.field(code)?),
            }
        }
        Some(out)
    }

    fn field(self, code: char) -> Option<String> {
        Some(match code {
            '%' => "%".to_owned(),
            'Y' => format!("{:04}", self.year),
            'y' => format!("{:02}", self.year % 100),
            'm' => format!("{:02}", self.month),
            'd' => format!("{:02}", self.day),
            'e' => format!("{:2}", self.day),
            'B' => self.month_name()?.to_owned(),
            'b' | 'h' => self.month_name()?.get(..3)?.to_owned(),
            'A' => self.weekday()?.to_owned(),
            'a' => self.weekday()?.get(..3)?.to_owned(),
            'F' => format!("{:04}-{:02}-{:02}", self.year, self.month, self.day),
            _ => return None,
        })
    }

    fn unpadded(self, code: char) -> Option<String> {
        match code {
            'd' => Some(self.day.to_string()),
            'm' => Some(self.month.to_string()),
            _ => None,
        }
    }

    fn month_name(self) -> Option<&'static str> {
        MONTHS.get(usize::from(self.month).checked_sub(1)?).copied()
    }

    /// Zeller's rule: the year begins in March.
    fn weekday(self) -> Option<&'static str> {
        let month = usize::from(self.month);
        let year = usize::from(self.year).checked_sub(usize::from(month < 3))?;
        let shift = [0, 3, 2, 5, 0, 3, 5, 1, 4, 6, 2, 4].get(month.checked_sub(1)?)?;
        WEEKDAYS.get((year + year / 4 - year / 100 + year / 400 + shift + usize::from(self.day)) % 7).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_since_1970_become_dates() {
        let date = |year, month, day| Today { year, month, day };
        for (days, expect) in [
            (0, date(1970, 1, 1)),
            (-1, date(1969, 12, 31)),
            (11_016, date(2000, 2, 29)),
            (11_017, date(2000, 3, 1)),
            (20_453, date(2025, 12, 31)),
            (20_454, date(2026, 1, 1)),
        ] {
            assert_eq!(Today::from_unix_days(days), expect, "{days}");
        }
    }

    #[test]
    fn dates_print_as_in_python() {
        let today = Today { year: 2024, month: 7, day: 6 };
        for (format, expect) in [
            ("%d %b %Y", Some("06 Jul 2024")),
            ("%Y-%m-%d", Some("2024-07-06")),
            ("%A, %B %-d, %y 100%%", Some("Saturday, July 6, 24 100%")),
            ("%H:%M", None),
            ("%", None),
            ("%-", None),
        ] {
            assert_eq!(today.format(format).as_deref(), expect, "{format}");
        }
    }
}
