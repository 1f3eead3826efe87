//! The OpenAPI document, made from rows of the table of routes.

use http::Method;
use serde_json::{Map, Value, json};

use super::{schemas, tag};
use crate::dialect::Api;
use crate::server::reply;
use crate::server::table::{Answer, Body, Key, Row};

/// Text at the head of the document.
const ABOUT: &str = "The routes of this gateway. What engines answer is as their release has it: their own \
                     /openapi.json describes it.";

/// The document about these rows, and about configured paths that one engine answers.
pub(in crate::server) fn openapi(rows: &[&Row], configured: &[String]) -> Value {
    let mut paths = Map::new();
    for row in rows {
        // OpenAPI has no name for several segments.
        let path = row.path.replace("{*", "{");
        let operations = paths.entry(path).or_insert_with(|| json!({}));
        for method in row.methods {
            operations[method.as_str().to_ascii_lowercase()] = operation(row, method);
        }
    }
    for path in configured {
        let summary = "Answered by one engine (server.passthrough).";
        let answer = || json!({ "summary": summary, "responses": { "default": { "description": "The engine's answer." } } });
        paths.entry(path.clone()).or_insert_with(|| json!({ "post": answer() }));
    }
    json!({
        "openapi": "3.1.0",
        "info": { "title": "pd-proxy", "version": env!("CARGO_PKG_VERSION"), "description": ABOUT },
        "paths": paths,
        "components": {
            "securitySchemes": {
                "bearer": { "type": "http", "scheme": "bearer" },
                "apiKey": { "type": "apiKey", "in": "header", "name": "X-API-Key" },
            },
            "responses": schemas::refusals(),
            "schemas": schemas::all(),
        },
    })
}

fn operation(row: &Row, method: &Method) -> Value {
    let mut operation = json!({
        "summary": row.summary,
        "operationId": operation_id(row.path, method),
        "tags": [tag(row)],
        "responses": answers(row),
    });
    let in_path =
        |name: &str| json!({ "name": name, "in": "path", "required": true, "schema": { "type": "string" } });
    let mut parameters: Vec<Value> = names(row.path).map(in_path).collect();
    parameters.extend(row.query.iter().map(|query| schemas::parameter(*query)));
    if !parameters.is_empty() {
        operation["parameters"] = parameters.into();
    }
    if let Some(kind) = kind(row.body).filter(|_| *method != Method::GET) {
        operation["requestBody"] = json!({ "content": { kind: { "schema": schemas::body(row.body) } } });
    }
    if row.key != Key::Open {
        operation["security"] = json!([{ "bearer": [] }, { "apiKey": [] }]);
    }
    operation
}

/// Answers of a route: a good one, and errors in the form of its API.
fn answers(row: &Row) -> Value {
    let good = match row.answer {
        Answer::EveryEngine => json!({
            "description": "Every engine did as it was told.",
            "content": { "application/json": { "schema": schemas::reference("EveryEngine") } },
        }),
        Answer::Generating(_) => json!({
            "description": "The answer, whole or as server-sent events.",
            "content": {
                "application/json": { "schema": { "type": "object" } },
                "text/event-stream": { "schema": { "type": "string" } },
            },
        }),
        _ => json!({ "description": "The answer." }),
    };
    let refusal = match reply::api_at(row.path) {
        Some(Api::Messages) => "MessagesError",
        _ => "Error",
    };
    json!({ "200": good, "default": { "$ref": format!("#/components/responses/{refusal}") } })
}

fn kind(body: Body) -> Option<&'static str> {
    match body {
        Body::Empty => None,
        Body::Json | Body::Any | Body::Members | Body::Move => Some("application/json"),
        Body::Form => Some("multipart/form-data"),
    }
}

/// The names in braces of a path.
fn names(path: &str) -> impl Iterator<Item = &str> {
    path.split('/')
        .filter_map(|segment| Some(segment.strip_prefix('{')?.strip_suffix('}')?.trim_start_matches('*')))
}

/// A name that tools make functions of: unique, since path and method together are.
fn operation_id(path: &str, method: &Method) -> String {
    let words = path.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    words.fold(method.as_str().to_ascii_lowercase(), |id, word| id + "_" + word)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::error::Kind;
    use crate::server::table::TABLE;

    fn all() -> Value {
        openapi(&TABLE.iter().collect::<Vec<_>>(), &["/v9/new".to_owned()])
    }

    #[test]
    fn every_method_of_every_row_is_an_operation_of_its_own() {
        let document = all();
        let mut ids = HashSet::new();
        for row in TABLE {
            for method in row.methods {
                let path = row.path.replace("{*", "{");
                let operation = &document["paths"][&path][method.as_str().to_ascii_lowercase()];
                assert_eq!(operation["summary"], row.summary, "{method} {path}");
                let id = operation["operationId"].as_str().unwrap();
                assert!(ids.insert(id.to_owned()), "{id} stands twice");
            }
        }
        assert!(document["paths"]["/v9/new"]["post"].is_object());
        let kept = &document["paths"]["/v1/responses/{id}"];
        assert_eq!(kept["get"]["parameters"][0]["name"], "id");
        let form = &document["paths"]["/v1/audio/transcriptions"]["post"]["requestBody"]["content"];
        assert!(form["multipart/form-data"].is_object());
        assert_eq!(document["paths"]["/health"]["get"].get("security"), None);
    }

    /// Adds what each `$ref` below a value points at.
    fn references<'a>(value: &'a Value, found: &mut Vec<&'a str>) {
        match value {
            Value::Object(members) => {
                found.extend(members.get("$ref").and_then(Value::as_str));
                members.values().for_each(|member| references(member, found));
            }
            Value::Array(items) => items.iter().for_each(|item| references(item, found)),
            _ => (),
        }
    }

    #[test]
    fn references_lead_to_components_and_errors_have_every_code() {
        let document = all();
        let mut found = Vec::new();
        references(&document, &mut found);
        assert!(found.len() > TABLE.len());
        for target in found {
            assert!(document.pointer(target.trim_start_matches('#')).is_some(), "{target}");
        }
        let codes = &document["components"]["schemas"]["ErrorObject"]["properties"]["code"]["enum"];
        assert_eq!(codes.as_array().map(Vec::len), Some(Kind::ALL.len()));
        let refused = |path: &str| document["paths"][path]["post"]["responses"]["default"]["$ref"].clone();
        assert_eq!(refused("/v1/messages"), "#/components/responses/MessagesError");
        assert_eq!(refused("/v1/completions"), "#/components/responses/Error");
    }
}
