//! Series of engines, which join and leave, under new names each time if they are scaled.
//!
//! A recorder can't forget one series, so each instance has a recorder of its own. That one is
//! dropped [`LINGER`] after its last handle. Until then its counts are still scraped, and an
//! instance that returns counts on.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use metrics_exporter_prometheus::PrometheusRecorder;

use super::FleetLabel;

/// Time for which series outlive their instance: as far as the alerts look back
/// (`config/prometheus/alerts.yml`).
const LINGER: Duration = Duration::from_secs(3600);

/// Instances by name. There are as many as the fleet has had within [`LINGER`].
#[derive(Debug)]
pub(super) struct Instances(Mutex<BTreeMap<String, Entry>>);

#[derive(Debug)]
struct Entry {
    recorder: Arc<PrometheusRecorder>,
    /// Fleet whose engine it is, or was last.
    label: FleetLabel,
    /// Time at which it was first seen without handles.
    left: Option<Instant>,
}

/// Recorder of one instance's series. Each owner of handles of these series holds it.
#[derive(Clone, Debug)]
pub(super) struct Series(Option<LabelledSeries>);

#[derive(Clone, Debug)]
struct LabelledSeries {
    recorder: Arc<PrometheusRecorder>,
    label: FleetLabel,
}

impl Series {
    /// An empty value, for a process without a recorder.
    pub(super) fn none() -> Series {
        Series(None)
    }

    /// Runs `make` with this recorder, to create handles or to count once.
    pub(super) fn with<T>(&self, make: impl FnOnce() -> T) -> T {
        match &self.0 {
            Some(LabelledSeries { recorder, label }) => label.within(recorder, make),
            None => make(),
        }
    }
}

impl Instances {
    /// An empty list of instances.
    pub(super) const fn new() -> Instances {
        Instances(Mutex::new(BTreeMap::new()))
    }

    /// The series of an instance, for all its roles, with the label of its fleet, or with that of
    /// its last one; `make` creates the recorder of a new one.
    pub(super) fn series(
        &self,
        name: &str,
        label: Option<&FleetLabel>,
        make: impl FnOnce() -> Option<PrometheusRecorder>,
    ) -> Series {
        let mut all = self.lock();
        if let Some(found) = all.get_mut(name) {
            found.left = None;
            found.label = label.unwrap_or(&found.label).clone();
            return Series(Some(LabelledSeries {
                recorder: found.recorder.clone(),
                label: found.label.clone(),
            }));
        }
        let Some(recorder) = make().map(Arc::new) else { return Series::none() };
        let label = label.cloned().unwrap_or_default();
        let series = LabelledSeries { recorder: recorder.clone(), label: label.clone() };
        all.insert(name.to_owned(), Entry { recorder, label, left: None });
        Series(Some(series))
    }

    /// Renders the metrics of all instances as one text, each family once.
    pub(super) fn render(&self) -> String {
        let recorders: Vec<_> = self.lock().values().map(|it| it.recorder.handle()).collect();
        merged(recorders.iter().map(|it| it.render()))
    }

    /// Folds samples into buckets, and drops instances that left more than [`LINGER`] ago.
    pub(super) fn upkeep(&self, now: Instant) {
        self.lock().retain(|_, it| {
            let written = Arc::strong_count(&it.recorder) > 1;
            // The samples of instances that left were folded when they were first seen to be gone.
            if written || it.left.is_none() {
                it.recorder.handle().run_upkeep();
            }
            written || now.saturating_duration_since(*it.left.get_or_insert(now)) < LINGER
        });
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Entry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Merges texts in Prometheus' format: a family may have one head only, followed by all its
/// samples.
pub(super) fn merged(texts: impl Iterator<Item = String>) -> String {
    let mut families: BTreeMap<String, [String; 2]> = BTreeMap::new();
    for text in texts {
        let mut family = String::new();
        for line in text.lines().filter(|line| !line.is_empty()) {
            let is_head = line.starts_with("# ");
            if is_head {
                line.split(' ').nth(2).unwrap_or_default().clone_into(&mut family);
            }
            let [head, samples] = families.entry(family.clone()).or_default();
            if !is_head {
                samples.extend([line, "\n"]);
            } else if !head.contains(line) {
                head.extend([line, "\n"]);
            }
        }
    }
    families.into_values().map(|[head, samples]| head + &samples + "\n").collect()
}

#[cfg(test)]
mod tests {
    use metrics::{counter, describe_counter, gauge};
    use metrics_exporter_prometheus::PrometheusBuilder;

    use super::*;

    fn series(instances: &Instances, name: &str) -> Series {
        instances.series(name, None, || {
            let recorder = PrometheusBuilder::new().build_recorder();
            metrics::with_local_recorder(&recorder, || describe_counter!("trips", "Rests"));
            Some(recorder)
        })
    }

    fn count(series: &Series, name: &str) {
        series.with(|| {
            counter!("trips", "engine" => name.to_owned()).increment(1);
            gauge!("state", "engine" => name.to_owned()).set(2.0);
        });
    }

    #[test]
    fn each_family_is_told_once() {
        let instances = Instances::new();
        for name in ["a", "b", "a"] {
            count(&series(&instances, name), name);
        }
        let expected = "# TYPE state gauge\nstate{engine=\"a\"} 2\nstate{engine=\"b\"} 2\n\n\
                        # HELP trips Rests\n# TYPE trips counter\n\
                        trips{engine=\"a\"} 2\ntrips{engine=\"b\"} 1\n\n";
        assert_eq!(instances.render(), expected);
    }

    #[test]
    fn departed_instance_is_forgotten_and_returned_one_counts_on() {
        let instances = Instances::new();
        let (stays, leaves) = (series(&instances, "a"), series(&instances, "b"));
        count(&stays, "a");
        count(&leaves, "b");
        let start = Instant::now();
        instances.upkeep(start + 2 * LINGER);
        assert!(instances.render().contains("trips{engine=\"b\"} 1\n"), "it is in use");
        drop(leaves);
        let left = start + 3 * LINGER;
        instances.upkeep(left);
        instances.upkeep(left + LINGER / 2);
        let back = series(&instances, "b");
        count(&back, "b");
        instances.upkeep(left + 2 * LINGER);
        drop(back);
        instances.upkeep(left + 3 * LINGER);
        assert!(instances.render().contains("trips{engine=\"b\"} 2\n"), "nothing is lost at once");
        instances.upkeep(left + 4 * LINGER);
        let text = instances.render();
        assert!(!text.contains("\"b\"") && text.contains("trips{engine=\"a\"} 1\n"), "{text}");
    }
}
