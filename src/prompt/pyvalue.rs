//! JSON as template values that print like Python's lists and dicts.

use std::fmt;
use std::sync::Arc;

use minijinja::value::{DynObject, Enumerator, Object, ObjectExt, ObjectRepr, Value};

use super::allowance::Allowance;
use super::python::repr;

/// A `list`, whose items are looked at as often as is allowed, and no more.
#[derive(Debug)]
struct PyList(Vec<Value>, Arc<Allowance>);

/// A `dict`: minijinja's own ordered map, but for the printing.
#[derive(Debug)]
struct PyDict(DynObject);

/// Consumes JSON; its depth is bounded by the parser.
pub(super) fn from_json(json: serde_json::Value, allowance: &Arc<Allowance>) -> Value {
    match json {
        serde_json::Value::Null => Value::from(()),
        serde_json::Value::Bool(bool) => Value::from(bool),
        serde_json::Value::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(number), _) => Value::from(number),
            (None, Some(number)) => Value::from(number),
            (None, None) => Value::from(number.as_f64().unwrap_or_default()),
        },
        serde_json::Value::String(text) => Value::from(text),
        serde_json::Value::Array(items) => {
            let items = items.into_iter().map(|item| from_json(item, allowance)).collect();
            Value::from_object(PyList(items, allowance.clone()))
        }
        serde_json::Value::Object(members) => {
            let pairs = members.into_iter().map(|(key, json)| (key, from_json(json, allowance)));
            dict(Value::from_pairs(pairs))
        }
    }
}

/// A `dict` of a map's members, in its order.
fn dict(map: Value) -> Value {
    match map.as_object() {
        Some(object) => Value::from_object(PyDict(object.clone())),
        None => map,
    }
}

impl Object for PyList {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.0.get(key.as_usize()?).filter(|_| self.1.look()).cloned()
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        if self.1.spent() { Enumerator::Empty } else { Enumerator::Seq(self.0.len()) }
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&repr(&Value::from_dyn_object(Arc::clone(self))))
    }
}

impl Object for PyDict {
    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.0.get_value(key)
    }

    fn get_value_by_str(self: &Arc<Self>, key: &str) -> Option<Value> {
        self.0.get_value_by_str(key)
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        self.mapped_enumerator(|this| this.0.try_iter().unwrap_or_else(|| Box::new(std::iter::empty())))
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        self.0.enumerator_len()
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&repr(&Value::from_dyn_object(Arc::clone(self))))
    }
}
