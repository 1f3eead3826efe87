//! The label `fleet`, which every series of a fleet has where there are several.

use std::sync::{Arc, OnceLock};

use metrics::{
    Counter, Gauge, Histogram, Key, KeyName, Label, Metadata, Recorder, SharedString, Unit, counter,
};
use metrics_exporter_prometheus::PrometheusRecorder;

use super::{Meters, names};

/// Name of the label.
const LABEL: &str = "fleet";

/// The process-wide recorder, which labelled series are made in.
pub(super) static GLOBAL: OnceLock<Arc<PrometheusRecorder>> = OnceLock::new();

/// Name of the fleet that series are labelled with; the default is none, and adds no label. Values
/// are bounded, as the configuration names them.
#[derive(Clone, Debug, Default)]
pub struct FleetLabel(Option<Arc<str>>);

impl FleetLabel {
    /// The label of this fleet.
    pub fn of(fleet: &Arc<str>) -> FleetLabel {
        FleetLabel(Some(fleet.clone()))
    }

    /// Name of the fleet, where there are several.
    pub fn name(&self) -> Option<&str> {
        self.0.as_deref()
    }

    /// Runs `make`, which creates handles or counts once; its series have the label.
    pub fn with<T>(&self, make: impl FnOnce() -> T) -> T {
        match (&self.0, GLOBAL.get()) {
            (Some(_), Some(recorder)) => self.within(recorder, make),
            _ => make(),
        }
    }

    /// The same in this recorder.
    pub(super) fn within<T>(&self, recorder: &PrometheusRecorder, make: impl FnOnce() -> T) -> T {
        match &self.0 {
            Some(fleet) => {
                let labelled = Labelled { recorder, fleet: SharedString::from(fleet.clone()) };
                metrics::with_local_recorder(&labelled, make)
            }
            None => metrics::with_local_recorder(recorder, make),
        }
    }
}

impl Meters {
    /// Counts a request that another fleet, `to`, is asked for.
    pub fn fell_back(&self, to: &str, reason: &'static str) {
        let to = to.to_owned();
        self.label.with(|| counter!(names::FALLBACKS, "to" => to, "reason" => reason).increment(1));
    }

    /// Counts a request for this fleet that several could have had.
    pub fn shared_out(&self, by: &'static str) {
        self.label.with(|| counter!(names::SHARED_OUT, "by" => by).increment(1));
    }
}

/// A recorder that adds the label to each key.
struct Labelled<'a> {
    recorder: &'a PrometheusRecorder,
    fleet: SharedString,
}

impl Labelled<'_> {
    fn key(&self, key: &Key) -> Key {
        key.with_extra_labels(vec![Label::new(LABEL, self.fleet.clone())])
    }
}

impl Recorder for Labelled<'_> {
    fn describe_counter(&self, name: KeyName, unit: Option<Unit>, text: SharedString) {
        self.recorder.describe_counter(name, unit, text);
    }

    fn describe_gauge(&self, name: KeyName, unit: Option<Unit>, text: SharedString) {
        self.recorder.describe_gauge(name, unit, text);
    }

    fn describe_histogram(&self, name: KeyName, unit: Option<Unit>, text: SharedString) {
        self.recorder.describe_histogram(name, unit, text);
    }

    fn register_counter(&self, key: &Key, metadata: &Metadata<'_>) -> Counter {
        self.recorder.register_counter(&self.key(key), metadata)
    }

    fn register_gauge(&self, key: &Key, metadata: &Metadata<'_>) -> Gauge {
        self.recorder.register_gauge(&self.key(key), metadata)
    }

    fn register_histogram(&self, key: &Key, metadata: &Metadata<'_>) -> Histogram {
        self.recorder.register_histogram(&self.key(key), metadata)
    }
}

#[cfg(test)]
mod tests {
    use metrics_exporter_prometheus::PrometheusBuilder;

    use super::*;

    #[test]
    fn series_of_a_fleet_have_its_name_beside_their_own_labels() {
        let recorder = PrometheusBuilder::new().build_recorder();
        let count = || counter!("legs", "role" => "prefill").increment(1);
        FleetLabel::of(&"chat".into()).within(&recorder, count);
        FleetLabel::default().within(&recorder, count);
        let text = recorder.handle().render();
        assert!(text.contains("legs{role=\"prefill\",fleet=\"chat\"} 1"), "{text}");
        assert!(text.contains("legs{role=\"prefill\"} 1"), "{text}");
    }
}
