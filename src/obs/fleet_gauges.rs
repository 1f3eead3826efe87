//! Gauges of named fleets, which go when their fleet goes.
//!
//! A recorder can't forget one series, and the last value of a gauge says nothing of a fleet that
//! has left. So the gauges of each fleet are in a recorder of their own, which is dropped at its
//! end. Counters stay: what was counted remains true.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use metrics_exporter_prometheus::PrometheusRecorder;

use super::{instances, names, recorder};

/// Gauges by the name of their fleet. Gateways of one process share those of the same name.
static ALL: Mutex<BTreeMap<Arc<str>, Weak<PrometheusRecorder>>> = Mutex::new(BTreeMap::new());

/// Keeps the gauges of a fleet as long as it is served; the default keeps none.
#[derive(Debug, Default)]
pub(super) struct FleetGauges(Mutex<Option<Arc<PrometheusRecorder>>>);

impl FleetGauges {
    /// Gauges of the fleet with this name.
    pub(super) fn of(fleet: &Arc<str>) -> FleetGauges {
        let mut all = all();
        all.retain(|_, gauges| gauges.strong_count() > 0);
        let found = all.get(fleet).and_then(Weak::upgrade);
        let gauges = found.or_else(|| {
            let gauges = Arc::new(recorder()?);
            metrics::with_local_recorder(&*gauges, names::describe);
            Some(gauges)
        });
        gauges.iter().for_each(|gauges| drop(all.insert(fleet.clone(), Arc::downgrade(gauges))));
        FleetGauges(Mutex::new(gauges))
    }

    /// Recorder in which they are made; it is gone after [`FleetGauges::end`].
    pub(super) fn recorder(&self) -> Weak<PrometheusRecorder> {
        self.lock().as_ref().map(Arc::downgrade).unwrap_or_default()
    }

    /// Ends them: they are shown no longer.
    pub(super) fn end(&self) {
        self.lock().take();
    }

    fn lock(&self) -> MutexGuard<'_, Option<Arc<PrometheusRecorder>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The text `others` of other series, with the gauges of all fleets.
pub(super) fn render_with(others: String) -> String {
    let fleets: Vec<_> = all().values().filter_map(Weak::upgrade).collect();
    if fleets.is_empty() {
        return others;
    }
    let texts = fleets.iter().map(|gauges| gauges.handle().render());
    instances::merged(std::iter::once(others).chain(texts))
}

fn all() -> MutexGuard<'static, BTreeMap<Arc<str>, Weak<PrometheusRecorder>>> {
    ALL.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use metrics::gauge;

    use super::*;
    use crate::obs::FleetLabel;

    #[test]
    fn gauges_of_a_fleet_end_with_the_last_that_keeps_them() {
        let name: Arc<str> = "fleet-gauges-end".into();
        let keeps = FleetGauges::of(&name);
        let others = metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder();
        let label = FleetLabel::of(&name, &keeps);
        let show = || label.beside(&others, || gauge!("load", "role" => "decode").set(3.0));
        let shown = || render_with("# TYPE load gauge\nload 1\n\n".to_owned());
        show();
        let sample = "load{role=\"decode\",fleet=\"fleet-gauges-end\"} 3\n";
        assert!(shown().contains(&format!("load 1\n{sample}")), "{}", shown());
        assert_eq!(shown().matches("# TYPE load gauge").count(), 1, "{}", shown());
        let again = FleetGauges::of(&name);
        keeps.end();
        assert!(shown().contains(sample), "another gateway serves it");
        again.end();
        assert!(!shown().contains(sample), "{}", shown());
        show();
        assert!(!shown().contains(sample), "it is shown after its end: {}", shown());
        assert!(!others.handle().render().contains("load"), "{}", others.handle().render());
    }
}
