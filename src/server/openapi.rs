//! `/openapi.json` and `/docs`: what the table of routes says, for tools and for people.
//!
//! The form of what engines take and answer is theirs, and differs between their releases: their
//! own `/openapi.json` has it. Orders to the gateway, and its errors, have schemas here.

mod document;
mod schemas;

use std::fmt::Write as _;

use axum::body::Body as HttpBody;
use http::{HeaderValue, Method, Response, StatusCode, header};

use crate::server::table::{Answer, Document, Key, Listener, Row, TABLE};
use crate::server::{Gateway, reply};

pub(super) use document::openapi;

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

/// Heading of a route: who answers it.
pub(super) fn tag(row: &Row) -> &'static str {
    match (row.answer, row.listener) {
        (Answer::Generating(_), _) => "generating",
        (Answer::OneEngine(_), _) => "one engine",
        (Answer::EveryEngine, _) => "every engine",
        (_, Listener::Operators | Listener::Pages) => "operators",
        (_, Listener::Both | Listener::Clients) => "gateway",
    }
}

/// The key that a route asks for, in a word.
pub(super) fn key_name(key: Key) -> &'static str {
    match key {
        Key::Open => "none",
        Key::Client => "any",
        Key::Admin => "admin",
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
        let key = key_name(row.key);
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
    use super::*;

    fn all() -> Vec<&'static Row> {
        TABLE.iter().collect()
    }

    #[test]
    fn the_page_shows_each_row_and_no_markup_of_the_configuration() {
        let page = page(&all(), &["/<script>".to_owned()]);
        assert!(TABLE.iter().all(|row| page.contains(row.path)));
        assert!(!page.contains("<script") && page.contains("&lt;script"));
    }
}
