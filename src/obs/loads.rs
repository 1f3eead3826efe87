//! Gauges of roles' engines and loads, for autoscalers.

use metrics::gauge;

use super::{Meters, names};

/// Values of the gauges of one role.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LoadGauges {
    /// Predicted seconds for which all work that waits and runs takes one engine.
    pub work_s: f64,
    /// Load as a share of what the role just bears.
    pub saturation: f64,
    /// Engines that would bear the load.
    pub engines_needed: f64,
}

impl Meters {
    /// Shows the number of engines that may be chosen.
    pub fn instances(&self, role: &'static str, count: usize) {
        self.label.with(|| gauge!(names::INSTANCES, "role" => role).set(count as f64));
    }

    /// Shows the load of a role.
    pub fn role_load(&self, role: &'static str, load: LoadGauges) {
        self.label.with(|| {
            gauge!(names::WORK_SECONDS, "role" => role).set(load.work_s);
            gauge!(names::SATURATION, "role" => role).set(load.saturation);
            gauge!(names::ENGINES_NEEDED, "role" => role).set(load.engines_needed);
        });
    }
}
