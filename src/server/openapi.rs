//! `/openapi.json` and `/docs`: what the table of routes says, for tools and for people.
//!
//! The form of bodies and answers is the engines' affair, and differs between their releases:
//! their own `/openapi.json` has it.

use std::fmt::Write as _;

use axum::body::Body as HttpBody;
use http::{HeaderValue, Method, Response, StatusCode, header};
use serde_json::{Map, Value, json};

use crate::server::table::{Answer, Body, Document, Key, Listener, Row, TABLE};
use crate::server::{Gateway, reply};

/// The page loads nothing and runs nothing.
const POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; frame-ancestors 'none'",
);

/// The document about the routes that these listeners have.
pub(super) fn answer(gateway: &Gateway, document: Document, listeners: &[Listener]) -> Response<HttpBody> {
    let rows: Vec<&Row> = TABLE.iter().filter(|row| listeners.contains(&row.listener)).collect();
    let configured = match listeners.contains(&Listener::Clients) {
        true => gateway.edge.now().passthrough.clone(),
        false => Vec::new(),
    };
    match document {
        Document::OpenApi => reply::json(StatusCode::OK, openapi(&rows, &configured).to_string()),
        Document::Page => {
            let mut response = Response::new(HttpBody::from(page(&rows, &configured)));
            let headers = response.headers_mut();
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
            headers.insert(header::CONTENT_SECURITY_POLICY, POLICY);
            headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
            response
        }
    }
}

fn openapi(rows: &[&Row], configured: &[String]) -> Value {
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
        paths
            .entry(path.clone())
            .or_insert_with(|| json!({ "post": { "summary": summary, "responses": answers() } }));
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "pd-proxy",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "The routes of this gateway. Bodies and answers are those of the engines behind it, whose own \
                            /openapi.json describes them.",
        },
        "paths": paths,
        "components": { "securitySchemes": {
            "bearer": { "type": "http", "scheme": "bearer" },
            "apiKey": { "type": "apiKey", "in": "header", "name": "X-API-Key" },
        } },
    })
}

fn operation(row: &Row, method: &Method) -> Value {
    let mut operation = json!({
        "summary": row.summary,
        "operationId": operation_id(row.path, method),
        "tags": [tag(row)],
        "responses": answers(),
    });
    let mut parameters: Vec<Value> = names(row.path)
        .map(|name| json!({ "name": name, "in": "path", "required": true, "schema": { "type": "string" } }))
        .collect();
    if matches!(row.answer, Answer::EveryEngine) {
        let roles =
            json!({ "type": "string", "enum": ["prefill", "decode", "encode", "all"], "default": "all" });
        parameters.push(json!({ "name": "role", "in": "query", "required": false, "schema": roles }));
    }
    if !parameters.is_empty() {
        operation["parameters"] = parameters.into();
    }
    if let Some(kind) = kind(row.body).filter(|_| *method != Method::GET) {
        let object = json!({ "schema": { "type": "object" } });
        operation["requestBody"] = json!({ "content": { kind: object } });
    }
    if row.key != Key::Open {
        operation["security"] = json!([{ "bearer": [] }, { "apiKey": [] }]);
    }
    operation
}

fn answers() -> Value {
    json!({ "default": { "description": "The answer, or an error object." } })
}

fn kind(body: Body) -> Option<&'static str> {
    match body {
        Body::Empty => None,
        Body::Json | Body::Any => Some("application/json"),
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

fn tag(row: &Row) -> &'static str {
    match (row.answer, row.listener) {
        (Answer::Generating(_), _) => "generating",
        (Answer::OneEngine(_), _) => "one engine",
        (Answer::EveryEngine, _) => "every engine",
        (_, Listener::Operators | Listener::Pages) => "operators",
        (_, Listener::Both | Listener::Clients) => "gateway",
    }
}

fn page(rows: &[&Row], configured: &[String]) -> String {
    let mut page = String::from(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>pd-proxy: routes</title>\
         <style>body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:70rem;padding:0 1rem}\
         table{border-collapse:collapse;width:100%}td,th{text-align:left;padding:.25rem .75rem .25rem 0;\
         border-bottom:1px solid #8884;vertical-align:top}</style><h1>Routes of this gateway</h1>\
         <p>The same for tools: <a href=\"/openapi.json\">/openapi.json</a>.</p>\
         <table><tr><th>Method<th>Path<th>Answered by<th>Key<th>What for</tr>",
    );
    for row in rows {
        let methods: Vec<&str> = row.methods.iter().map(Method::as_str).collect();
        let key = match row.key {
            Key::Open => "none",
            Key::Client => "any",
            Key::Admin => "admin",
        };
        // Nothing here is of a client or an engine, and a String takes all.
        let _ = write!(
            page,
            "<tr><td>{}<td><code>{}</code><td>{}<td>{key}<td>{}</tr>",
            methods.join(", "),
            row.path,
            tag(row),
            row.summary
        );
    }
    for path in configured {
        let path = path.replace('&', "&amp;").replace('<', "&lt;");
        let _ = write!(
            page,
            "<tr><td>any<td><code>{path}</code><td>one engine<td>any<td>server.passthrough.</tr>"
        );
    }
    page.push_str("</table></html>\n");
    page
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn all() -> Vec<&'static Row> {
        TABLE.iter().collect()
    }

    #[test]
    fn every_method_of_every_row_is_an_operation_of_its_own() {
        let document = openapi(&all(), &["/v9/new".to_owned()]);
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

    #[test]
    fn the_page_shows_each_row_and_no_markup_of_the_configuration() {
        let page = page(&all(), &["/<script>".to_owned()]);
        assert!(TABLE.iter().all(|row| page.contains(row.path)));
        assert!(!page.contains("<script") && page.contains("&lt;script"));
    }
}
