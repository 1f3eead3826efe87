//! Versions as connectors write them: `0.25.1rc1`, `0.30.0`, `v0.24`.

/// A release; candidates sort before their release.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    major: u16,
    minor: u16,
    patch: u16,
    /// `u16::MAX` for the release itself.
    candidate: u16,
}

impl Version {
    /// A release.
    #[must_use]
    pub const fn new(major: u16, minor: u16, patch: u16) -> Self {
        Self { major, minor, patch, candidate: u16::MAX }
    }

    /// The n-th candidate of this release.
    #[must_use]
    pub const fn rc(self, candidate: u16) -> Self {
        Self { candidate, ..self }
    }

    /// Reads `[v]major.minor[.patch][rcN]`; a local part after `+` is ignored.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.strip_prefix('v').unwrap_or(text).split('+').next()?;
        let (numbers, candidate) = match text.split_once("rc") {
            Some((numbers, n)) => (numbers, n.parse().ok()?),
            None => (text, u16::MAX),
        };
        let mut parts = numbers.split('.').map(|n| n.parse().ok());
        let (major, minor) = (parts.next()??, parts.next()??);
        let patch = parts.next().unwrap_or(Some(0))?;
        parts.next().is_none().then_some(Self { major, minor, patch, candidate })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_and_ordered() {
        let parse = |text| Version::parse(text).unwrap();
        assert_eq!(parse("v0.25.1rc1"), Version::new(0, 25, 1).rc(1));
        assert_eq!(parse("0.30"), Version::new(0, 30, 0));
        assert_eq!(parse("0.24.0+cu129"), Version::new(0, 24, 0));
        let ordered = ["0.9.2", "0.26.0rc1", "0.26.0rc2", "0.26.0", "0.30.0rc2", "1.0.0"].map(parse);
        assert!(ordered.is_sorted());
        for bad in ["", "main", "0", "0.x", "0.1.2.3", "0.1rc", "0.-1"] {
            assert_eq!(Version::parse(bad), None, "{bad}");
        }
    }
}
