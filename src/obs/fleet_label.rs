//! The label `fleet`, which every series of a fleet has where there are several.

use std::sync::{Arc, OnceLock, Weak};

use metrics::{
    Counter, Gauge, Histogram, Key, KeyName, Label, Metadata, Recorder, SharedString, Unit, counter,
};
use metrics_exporter_prometheus::PrometheusRecorder;

use super::fleet_gauges::FleetGauges;
use super::{Meters, names};

/// Name of the label.
const LABEL: &str = "fleet";

/// The process-wide recorder, which labelled series are made in.
pub(super) static GLOBAL: OnceLock<Arc<PrometheusRecorder>> = OnceLock::new();

/// Name of the fleet that series are labelled with; the default is none, and adds no label. Values
/// are bounded, as the configuration names them.
#[derive(Clone, Debug, Default)]
pub struct FleetLabel(Option<NamedFleet>);

#[derive(Clone, Debug)]
struct NamedFleet {
    name: Arc<str>,
    /// Recorder of its gauges, until it leaves.
    gauges: Weak<PrometheusRecorder>,
}

impl FleetLabel {
    /// The label of this fleet, whose gauges these are.
    pub(super) fn of(fleet: &Arc<str>, gauges: &FleetGauges) -> FleetLabel {
        FleetLabel(Some(NamedFleet { name: fleet.clone(), gauges: gauges.recorder() }))
    }

    /// Name of the fleet, where there are several.
    pub fn name(&self) -> Option<&str> {
        self.0.as_ref().map(|fleet| &*fleet.name)
    }

    /// Runs `make`, which creates handles or counts once; its series have the label. Gauges are
    /// those of the fleet, and nothing once it has left.
    pub fn with<T>(&self, make: impl FnOnce() -> T) -> T {
        match GLOBAL.get().filter(|_| self.0.is_some()) {
            Some(recorder) => self.beside(recorder, make),
            None => make(),
        }
    }

    /// The same, with counters and histograms in this recorder.
    pub(super) fn beside<T>(&self, recorder: &PrometheusRecorder, make: impl FnOnce() -> T) -> T {
        let gauges = self.0.as_ref().and_then(|fleet| fleet.gauges.upgrade());
        self.among(recorder, gauges.as_deref(), make)
    }

    /// The same, with all series in this recorder.
    pub(super) fn within<T>(&self, recorder: &PrometheusRecorder, make: impl FnOnce() -> T) -> T {
        self.among(recorder, Some(recorder), make)
    }

    fn among<T>(
        &self,
        recorder: &PrometheusRecorder,
        gauges: Option<&PrometheusRecorder>,
        make: impl FnOnce() -> T,
    ) -> T {
        match &self.0 {
            Some(fleet) => {
                let labelled = Labelled { recorder, gauges, fleet: SharedString::from(fleet.name.clone()) };
                metrics::with_local_recorder(&labelled, make)
            }
            None => metrics::with_local_recorder(recorder, make),
        }
    }
}

impl Meters {
    /// Shows no gauges of this fleet any longer, which has left.
    pub fn end_gauges(&self) {
        self.gauges.end();
    }

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
    /// Recorder of gauges; `None` makes such as nobody reads.
    gauges: Option<&'a PrometheusRecorder>,
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
        self.gauges.map_or_else(Gauge::noop, |gauges| gauges.register_gauge(&self.key(key), metadata))
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
        let name: Arc<str> = "chat".into();
        FleetLabel::of(&name, &FleetGauges::default()).within(&recorder, count);
        FleetLabel::default().within(&recorder, count);
        let text = recorder.handle().render();
        assert!(text.contains("legs{role=\"prefill\",fleet=\"chat\"} 1"), "{text}");
        assert!(text.contains("legs{role=\"prefill\"} 1"), "{text}");
    }
}
