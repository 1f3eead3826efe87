//! Release numbers of vLLM and of its connectors: `0.33.0rc1`, `v0.24`, `0.23.0.post1`.

/// A release number, ordered as PEP 440 orders releases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Release {
    numbers: [u16; 3],
    stage: Stage,
}

/// The suffix after the numbers of a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// A development build, an alpha, a beta or a suffix that PEP 440 does not have.
    Other,
    /// The n-th release candidate, `rcN`.
    Candidate(u16),
    /// The release itself.
    Final,
    /// The n-th build after the release, `.postN`.
    Post(u16),
}

impl Release {
    /// Makes a final release of its three numbers.
    #[must_use]
    pub const fn new(major: u16, minor: u16, patch: u16) -> Self {
        Self { numbers: [major, minor, patch], stage: Stage::Final }
    }

    /// Makes the n-th candidate of this release.
    #[must_use]
    pub const fn rc(self, candidate: u16) -> Self {
        Self { stage: Stage::Candidate(candidate), ..self }
    }

    /// Reads `[v]major.minor[.patch]` and what follows; a local part after `+` is ignored. Returns
    /// `None` where a text does not begin with two numbers.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        let public = text.strip_prefix('v').unwrap_or(text).split('+').next()?;
        let (major, rest) = leading_number(public)?;
        let (minor, rest) = leading_number(rest.strip_prefix('.')?)?;
        let third = rest.strip_prefix('.').and_then(leading_number);
        let (patch, suffix) = third.unwrap_or((0, rest));
        Some(Self { numbers: [major, minor, patch], stage: stage(suffix) })
    }

    /// Returns major, minor and patch number.
    #[must_use]
    pub const fn numbers(self) -> [u16; 3] {
        self.numbers
    }

    /// Returns the kind of its suffix.
    #[must_use]
    pub const fn stage(self) -> Stage {
        self.stage
    }
}

/// Splits a text after the decimal number it begins with. Returns `None` where that is missing or
/// above 65535.
fn leading_number(text: &str) -> Option<(u16, &str)> {
    let rest = text.trim_start_matches(|c: char| c.is_ascii_digit());
    let digits = &text[..text.len() - rest.len()];
    Some((digits.parse().ok()?, rest))
}

fn stage(suffix: &str) -> Stage {
    let number_after = |prefix| match leading_number(suffix.strip_prefix(prefix)?)? {
        (number, "") => Some(number),
        _ => None,
    };
    if suffix.is_empty() {
        Stage::Final
    } else if let Some(candidate) = number_after("rc") {
        Stage::Candidate(candidate)
    } else {
        number_after(".post").map_or(Stage::Other, Stage::Post)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> ([u16; 3], Stage) {
        let release = Release::parse(text).unwrap();
        (release.numbers(), release.stage())
    }

    #[test]
    fn published_version_strings_are_read() {
        for (text, numbers, stage) in [
            ("0.32.0", [0, 32, 0], Stage::Final),
            ("v0.24", [0, 24, 0], Stage::Final),
            (" 0.9.2\n", [0, 9, 2], Stage::Final),
            ("0.24.0+cu129", [0, 24, 0], Stage::Final),
            ("0.33.0rc1", [0, 33, 0], Stage::Candidate(1)),
            ("0.23.0.post1", [0, 23, 0], Stage::Post(1)),
            ("0.23.0.post1+cpu", [0, 23, 0], Stage::Post(1)),
            ("0.11.0rc1.dev12+gabc", [0, 11, 0], Stage::Other),
            ("0.27.1.dev12+g123abc", [0, 27, 1], Stage::Other),
            ("0.32.0-gaudi", [0, 32, 0], Stage::Other),
            ("0.9.0.1", [0, 9, 0], Stage::Other),
            ("0.1rc", [0, 1, 0], Stage::Other),
            ("0.32.x", [0, 32, 0], Stage::Other),
        ] {
            assert_eq!(read(text), (numbers, stage), "{text:?}");
        }
    }

    #[test]
    fn texts_without_two_numbers_are_no_releases() {
        for text in ["", "dev", "main", "latest", "0", "0.x", "0.-1", "v", "x.1", "0.99999.0"] {
            assert_eq!(Release::parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn candidates_sort_before_their_release_and_posts_after_it() {
        let ordered =
            ["0.9.2", "0.26.0.dev3", "0.26.0rc1", "0.26.0rc2", "0.26.0", "0.26.0.post1", "0.26.1", "1.0.0"];
        assert!(ordered.map(Release::parse).is_sorted());
    }
}
