//! The gateway's log, by request.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex};

use tracing::field::{Field, Visit};

/// The log lines of one request.
#[derive(Clone, Debug, Default)]
pub struct Entry {
    /// Lines of the access log.
    pub lines: u32,
    /// Failed prefill legs.
    pub prefills_failed: u32,
    /// Failed decode legs.
    pub decodes_failed: u32,
}

/// Collects it, by the request's id.
#[derive(Clone, Debug, Default)]
pub struct Journal(Arc<Mutex<HashMap<String, Entry>>>);

impl Journal {
    pub fn of(&self, id: &str) -> Entry {
        self.0.lock().unwrap().get(id).cloned().unwrap_or_default()
    }
}

#[derive(Default)]
struct Fields {
    id: String,
    role: String,
    has_route: bool,
}

impl Fields {
    fn set(&mut self, name: &str, text: String) {
        match name {
            "id" => self.id = text,
            "role" => self.role = text,
            "route" => self.has_route = true,
            _ => {}
        }
    }
}

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.set(field.name(), value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.set(field.name(), format!("{value:?}"));
    }
}

impl tracing::Subscriber for Journal {
    fn enabled(&self, of: &tracing::Metadata<'_>) -> bool {
        of.is_event() && of.target().starts_with("pd_proxy::relay")
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let mut all = self.0.lock().unwrap();
        let entry = all.entry(fields.id).or_default();
        let target = event.metadata().target();
        let access = target.ends_with("account") && fields.has_route;
        entry.lines += u32::from(access);
        entry.prefills_failed += u32::from(fields.role == "prefill");
        entry.decodes_failed += u32::from(fields.role == "decode");
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}
