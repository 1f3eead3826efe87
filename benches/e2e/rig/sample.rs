//! Measurements of one cell.

use std::time::Duration;

use super::trouble::Troubles;

/// Measurements of one cell for one proxy.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sample {
    /// CPU time of the proxy in the window.
    pub(crate) cpu: Duration,
    /// Length of the window.
    pub(crate) wall: Duration,
    /// Whole answers in the window, or streams in all.
    pub(crate) requests: u64,
    /// Answers before, in and after the window: if there is one, the proxy works, however slow it
    /// is.
    pub(crate) answered: u64,
    /// Events in the window.
    pub(crate) chunks: u64,
    /// Memory that each open stream adds to the proxy, in bytes.
    pub(crate) stream_bytes: Option<f64>,
    /// CPU time of the proxy while streams were open and silent, and the length of that time.
    pub(crate) silent: Option<(Duration, Duration)>,
    /// Bad answers, also those before and after the window.
    pub(crate) troubles: Troubles,
}

impl Sample {
    /// CPU time of a request, in us.
    pub(crate) fn us_per_request(&self) -> Option<f64> {
        share(self.cpu.as_secs_f64() * 1e6, self.requests as f64)
    }

    /// CPU time of an event, in us.
    pub(crate) fn us_per_chunk(&self) -> Option<f64> {
        share(self.cpu.as_secs_f64() * 1e6, self.chunks as f64)
    }

    /// Requests in a second.
    pub(crate) fn requests_per_s(&self) -> Option<f64> {
        share(self.requests as f64, self.wall.as_secs_f64())
    }

    /// Requests in a second of CPU time.
    pub(crate) fn requests_per_cpu_s(&self) -> Option<f64> {
        share(self.requests as f64, self.cpu.as_secs_f64())
    }

    /// Events in a second.
    pub(crate) fn chunks_per_s(&self) -> Option<f64> {
        share(self.chunks as f64, self.wall.as_secs_f64())
    }

    /// Memory that an open stream takes, in KB.
    pub(crate) fn kb_per_stream(&self) -> Option<f64> {
        self.stream_bytes.map(|bytes| bytes / 1024.0)
    }

    /// CPU time in a second of silence, in ms.
    pub(crate) fn silent_ms_per_s(&self) -> Option<f64> {
        let (cpu, wall) = self.silent?;
        share(cpu.as_secs_f64() * 1e3, wall.as_secs_f64())
    }
}

fn share(of: f64, by: f64) -> Option<f64> {
    (by > 0.0).then(|| of / by)
}
