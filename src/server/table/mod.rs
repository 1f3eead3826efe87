//! The table of routes: path, methods, who answers, which key, which body. Router, methods, keys,
//! `/openapi.json` and `/docs` come from it.

mod rows;

use std::sync::Arc;

use axum::routing::{MethodFilter, MethodRouter};
use http::Method;

use crate::fleet::Role;
use crate::server::Gateway;
use crate::server::openai::Route;

pub(super) use rows::{CONFIGURED, TABLE};

/// One route of the table.
#[derive(Debug)]
pub(super) struct Row {
    /// The path; a segment in braces stands for any one, `{*name}` at the end for all that follow.
    pub(super) path: &'static str,
    /// The methods; others are answered with 405. `HEAD` is allowed wherever `GET` is.
    pub(super) methods: &'static [Method],
    /// Handler of the route.
    pub(super) answer: Answer,
    /// The listener that has it, where operators have one of their own.
    pub(super) listener: Listener,
    /// The key that it takes, where keys are asked for.
    pub(super) key: Key,
    /// Kind of body that a request carries.
    pub(super) body: Body,
    /// Parameters of the query that the gateway reads itself.
    pub(super) query: &'static [Query],
    /// Purpose in one line, as `/docs` shows it.
    pub(super) summary: &'static str,
}

/// Handlers of routes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Answer {
    /// The gateway itself, by the handler that this function registers for the methods.
    Gateway(fn(MethodFilter) -> MethodRouter<Arc<Gateway>>),
    /// The gateway, by what it tells of this table.
    Document(Document),
    /// A prefiller and a decoder: both legs.
    Generating(Route),
    /// One engine, whose answer is passed on.
    OneEngine(Passage),
    /// Every member of the roles that the query names (`?role=prefill|decode|encode|all`).
    EveryEngine,
}

/// Way of a request to one engine.
#[derive(Clone, Copy, Debug)]
pub(super) struct Passage {
    /// The roles that may answer, the first one preferred.
    pub(super) roles: &'static [Role],
    /// It generates without a prefill leg: only decoders that compute a prompt themselves can
    /// answer it.
    pub(super) generates: bool,
    /// Asking twice does no harm: after a reset another engine is asked. Methods that are safe are
    /// repeated anyway.
    pub(super) repeatable: bool,
    /// The one decoder that can answer, where a stored response is meant.
    pub(super) stored: Stored,
}

/// Places where a request names a response that one decoder keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stored {
    /// It names none.
    Nowhere,
    /// In its path: `/v1/responses/{id}`.
    InPath,
    /// Perhaps in its body: `previous_response_id`.
    InBody,
}

/// Documents about the routes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Document {
    /// OpenAPI 3.1, for tools.
    OpenApi,
    /// A page, for people.
    Page,
}

/// The listener that has a route, where operators have one of their own (`server.admin_host`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Listener {
    /// Clients' and operators' listeners.
    Both,
    /// That of clients.
    Clients,
    /// That of operators.
    Operators,
    /// The same, for browsers: on a shared listener it is hidden where keys are asked for.
    Pages,
}

/// The key that a route takes, where keys are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    /// No key is needed.
    Open,
    /// One that is known.
    Client,
    /// The admin key, or one with that grant.
    Admin,
}

/// Kinds of bodies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Body {
    /// There is no body.
    Empty,
    /// A JSON object, or nothing.
    Json,
    /// A form with a file (`multipart/form-data`).
    Form,
    /// A JSON object, a form, or nothing, as its `Content-Type` says.
    Any,
    /// Engines of a role, as JSON: to be taken in or out.
    Members,
    /// An engine and its new role, as JSON.
    Move,
}

/// Parameters of queries that the gateway reads itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Query {
    /// The roles whose engines are asked.
    Role,
    /// The fleet that is meant.
    Fleet,
    /// Time for which engines first end their requests.
    DrainMs,
    /// Time for which the answer waits for drained engines.
    WaitMs,
    /// The path that a body would be sent to.
    Path,
}

impl Row {
    /// True if a request for `path` is for this row.
    fn is_at(&self, path: &str) -> bool {
        if !self.path.contains('{') {
            return self.path == path;
        }
        let (mut wanted, mut given) = (self.path.split('/'), path.split('/'));
        loop {
            match (wanted.next(), given.next()) {
                (None, None) => return true,
                (Some(rest), Some(_)) if rest.starts_with("{*") => return true,
                (Some(name), Some(segment)) if name.starts_with('{') && !segment.is_empty() => {}
                (Some(name), Some(segment)) if name == segment => {}
                _ => return false,
            }
        }
    }

    /// The methods as a filter of the router.
    pub(super) fn filter(&self) -> Option<MethodFilter> {
        let filters = self.methods.iter().filter_map(|method| MethodFilter::try_from(method.clone()).ok());
        filters.reduce(MethodFilter::or)
    }
}

/// The first row at `path`, whatever the method. Paths without a name in braces go before those
/// with one.
pub(super) fn row_at(path: &str) -> Option<&'static Row> {
    let plain = TABLE.iter().find(|row| row.path == path);
    plain.or_else(|| TABLE.iter().find(|row| row.is_at(path)))
}

/// The key that a request for `path` must have, where keys are asked for; that of clients where
/// there is no such route.
pub(super) fn key_of(path: &str) -> Key {
    // Nearly all requests are for the first rows.
    row_at(path).map_or(Key::Client, |row| row.key)
}

/// True if clients have no use for `path`: their pages and listeners don't get it.
pub(super) fn is_for_operators(path: &str) -> bool {
    row_at(path).is_some_and(|row| matches!(row.listener, Listener::Operators | Listener::Pages))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn each_path_and_method_has_one_row() {
        let mut seen = HashSet::new();
        for row in TABLE {
            assert!(
                row.path.starts_with('/') && !row.methods.is_empty() && !row.summary.is_empty(),
                "{row:?}"
            );
            assert!(row.summary.ends_with('.'), "{row:?}");
            for method in row.methods {
                assert!(seen.insert((row.path, method)), "{method} {} stands twice", row.path);
            }
        }
    }

    #[test]
    fn no_route_takes_a_method_that_is_about_the_connection() {
        let about = [Method::TRACE, Method::CONNECT, Method::OPTIONS];
        assert!(TABLE.iter().all(|row| row.filter().is_some()));
        assert!(TABLE.iter().all(|row| !row.methods.iter().any(|method| about.contains(method))));
    }

    #[test]
    fn generating_rows_are_those_of_the_way_past_the_router() {
        for row in TABLE {
            let past = Route::at(row.path).is_some();
            assert_eq!(past, matches!(row.answer, Answer::Generating(_)), "{}", row.path);
            assert!(!past || row.methods == [Method::POST], "{}", row.path);
        }
        let generating = TABLE.iter().filter(|row| matches!(row.answer, Answer::Generating(_)));
        assert_eq!(generating.count(), crate::server::openai::ROUTES.len());
    }

    #[test]
    fn a_path_is_found_with_its_names_and_plain_ones_first() {
        let path = |path: &str| row_at(path).map(|row| row.path);
        assert_eq!(path("/v1/responses/resp_1"), Some("/v1/responses/{id}"));
        assert_eq!(path("/v1/responses/resp_1/cancel"), Some("/v1/responses/{id}/cancel"));
        assert_eq!(path("/v1/responses/input_tokens"), Some("/v1/responses/input_tokens"));
        assert_eq!(path("/v1/models/org/name"), Some("/v1/models/{*name}"));
        for none in ["/v1/responses/", "/v1/responses/a/b", "", "/nothing", "/v1/responses/a/cancel/b"] {
            assert_eq!(path(none), None, "{none}");
        }
    }

    #[test]
    fn engine_changes_take_the_admin_key() {
        for row in TABLE {
            if matches!(row.answer, Answer::EveryEngine) {
                assert_eq!((row.key, row.listener), (Key::Admin, Listener::Operators), "{}", row.path);
            }
        }
        for admin in ["/instances", "/instances/add", "/debug/route/x", "/status", "/status.json", "/sleep"] {
            assert_eq!(key_of(admin), Key::Admin, "{admin}");
        }
        for open in ["/health", "/metrics", "/", "/v1/metaserver", "/openapi.json"] {
            assert_eq!(key_of(open), Key::Open, "{open}");
        }
        for client in ["/v1/chat/completions", "/tokenize", "/nothing", "/v1/responses/x"] {
            assert_eq!(key_of(client), Key::Client, "{client}");
        }
    }

    #[test]
    fn reads_are_repeated_and_changes_are_not() {
        let repeatable = |path: &str| match row_at(path).map(|row| row.answer) {
            Some(Answer::OneEngine(passage)) => passage.repeatable,
            other => panic!("{path}: {other:?}"),
        };
        for read in ["/v1/embeddings", "/tokenize", "/rerank", "/v2/embed", "/v1/responses/input_tokens"] {
            assert!(repeatable(read), "{read}");
        }
        assert!(!repeatable("/v1/responses/x/cancel") && !repeatable("/v1/responses/x"));
        const { assert!(!CONFIGURED.repeatable) };
    }
}
