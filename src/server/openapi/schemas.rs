//! Schemas of what is the gateway's own: errors, queries, and the bodies of orders to it.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::error::Kind;
use crate::server::table::{Body, Query};

/// A reference to a schema of the document.
pub(super) fn reference(name: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{name}") })
}

/// Every schema that others refer to.
pub(super) fn all() -> Value {
    json!({
        "ErrorObject": error_object(Kind::openai_type),
        "Error": {
            "type": "object",
            "required": ["error"],
            "properties": { "error": reference("ErrorObject") },
        },
        "MessagesError": {
            "type": "object",
            "required": ["type", "error"],
            "properties": { "type": { "const": "error" }, "error": error_object(Kind::anthropic_type) },
        },
        "Members": members(),
        "Move": move_order(),
        "EveryEngine": every_engine(),
    })
}

/// The answers with an error, by the form of their API.
pub(super) fn refusals() -> Value {
    let text = |description: &str| json!({ "description": description, "schema": { "type": "string" } });
    let refusal = |schema: &str| {
        json!({
            "description": "An error. One that an engine made is passed on as it is, without x-pd-error.",
            "headers": {
                "x-pd-error": text("The code, where the error is the gateway's own."),
                "x-request-id": text("The id of the request in the log."),
                "Retry-After": text("Seconds to wait, with 429 and 503."),
            },
            "content": { "application/json": { "schema": reference(schema) } },
        })
    };
    json!({ "Error": refusal("Error"), "MessagesError": refusal("MessagesError") })
}

/// A parameter of a query.
pub(super) fn parameter(query: Query) -> Value {
    let number = json!({ "type": "integer", "minimum": 0 });
    let (name, about, schema) = match query {
        Query::Role => {
            let roles = ["prefill", "decode", "encode", "all"];
            (
                "role",
                "The engines that are asked.",
                json!({ "type": "string", "enum": roles, "default": "all" }),
            )
        }
        Query::Fleet => {
            ("fleet", "The fleet that is meant, where there are several.", json!({ "type": "string" }))
        }
        Query::DrainMs => ("drain_ms", "Time for which engines first end their requests, ms.", number),
        Query::WaitMs => (
            "wait_ms",
            "Time for which the answer waits until engines are drained, ms; else it is 502.",
            number,
        ),
        Query::Path => (
            "path",
            "The path that the body would be sent to.",
            json!({ "type": "string", "examples": ["/v1/completions"] }),
        ),
    };
    json!({ "name": name, "in": "query", "required": false, "description": about, "schema": schema })
}

/// The schema of a body.
pub(super) fn body(body: Body) -> Value {
    match body {
        Body::Members => reference("Members"),
        Body::Move => reference("Move"),
        Body::Empty | Body::Json | Body::Form | Body::Any => json!({ "type": "object" }),
    }
}

/// The object inside `error`, whose types `type_of` names.
fn error_object(type_of: fn(Kind) -> &'static str) -> Value {
    let types: BTreeSet<&str> = Kind::ALL.iter().map(|kind| type_of(*kind)).collect();
    let codes: Vec<&str> = Kind::ALL.iter().map(|kind| kind.code()).collect();
    json!({
        "type": "object",
        "required": ["message", "type", "param", "code"],
        "properties": {
            "message": { "type": "string" },
            "type": { "type": "string", "enum": types },
            "param": { "type": ["string", "null"], "description": "The field at fault." },
            "code": { "type": "string", "enum": codes },
        },
    })
}

fn members() -> Value {
    let engine = json!({ "type": "string", "examples": ["10.0.0.1:8100"] });
    json!({
        "type": "object",
        "required": ["type", "instances"],
        "properties": {
            "type": { "type": "string", "enum": ["prefill", "decode", "encode"] },
            "instances": { "oneOf": [engine, { "type": "array", "items": engine }] },
            "fleet": { "type": "string" },
        },
    })
}

fn move_order() -> Value {
    json!({
        "type": "object",
        "required": ["instance", "to"],
        "properties": {
            "instance": { "type": "string", "examples": ["10.0.0.1:8100"] },
            "to": { "type": "string", "enum": ["prefill", "decode"] },
            "fleet": { "type": "string" },
            "force": { "type": "boolean", "default": false },
            "wait_ms": { "type": "integer", "minimum": 0, "default": 600_000 },
            "switch": { "type": "object", "description": "Further members for SGLang's /pd_role_switch." },
        },
    })
}

fn every_engine() -> Value {
    let text = json!({ "type": "string" });
    json!({
        "type": "object",
        "required": ["path", "asked", "succeeded", "failed", "engines"],
        "properties": {
            "path": text,
            "asked": { "type": "integer" },
            "succeeded": { "type": "integer" },
            "failed": { "type": "array", "items": text },
            "engines": { "type": "array", "items": { "type": "object", "properties": {
                "instance": text,
                "roles": { "type": "array", "items": text },
                "status": { "type": ["integer", "null"] },
                "body": text,
                "error": text,
            } } },
        },
    })
}
