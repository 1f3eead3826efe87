//! `[log]`: what is logged.

use serde::{Deserialize, Serialize};

use super::values::{Level, LogFormat};

/// `[log]`: what is logged, and in which form.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Log {
    /// The least severe level that is logged.
    pub level: Level,
    /// One line of text or one JSON object per event.
    pub format: LogFormat,
    /// With `log.level = "debug"`, of this share of the requests each step is logged; 0 to 1.
    pub sample_ratio: f64,
}

impl Default for Log {
    fn default() -> Self {
        Self { level: Level::default(), format: LogFormat::default(), sample_ratio: 1.0 }
    }
}
