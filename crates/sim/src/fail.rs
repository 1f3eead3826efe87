//! Error answers, worded and shaped as vLLM 0.32 words and shapes them (recorded from a real
//! engine).

use bytes::Bytes;
use serde_json::{Value, json};

/// An error answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiFailure {
    /// Status of HTTP.
    pub status: u16,
    /// The JSON body.
    pub body: Bytes,
    /// The engine is dead and closes after this answer.
    pub fatal: bool,
}

impl ApiFailure {
    fn new(status: u16, kind: &str, message: &str, param: Value) -> ApiFailure {
        let body = json!({"error": {"message": message, "type": kind, "param": param, "code": status}});
        ApiFailure { status, body: body.to_string().into(), fatal: false }
    }

    /// 400 for a value the engine cannot use.
    #[must_use]
    pub fn bad_value(param: &str, value: &Value, message: &str) -> ApiFailure {
        let message = format!("{message} (parameter={param}, value={value})");
        ApiFailure::new(400, "BadRequestError", &message, param.into())
    }

    /// 400 without a parameter to blame.
    #[must_use]
    pub fn bad_request(message: &str) -> ApiFailure {
        ApiFailure::new(400, "BadRequestError", message, Value::Null)
    }

    /// 400 for a parameter, message as it is.
    #[must_use]
    pub fn bad_param(param: &str, message: &str) -> ApiFailure {
        ApiFailure::new(400, "BadRequestError", message, param.into())
    }

    /// 400 of the schema check: `kind`, `place` ("body.x") and `message` of one finding.
    #[must_use]
    pub fn schema(kind: &str, place: &str, message: &str, input: &str) -> ApiFailure {
        let found = format!("{{'type': '{kind}', 'loc': '{place}', 'msg': '{message}', 'input': '{input}'}}");
        ApiFailure::validation(&[found], place.into())
    }

    /// 400 of the schema check, of findings already written.
    #[must_use]
    pub fn validation(findings: &[String], param: Value) -> ApiFailure {
        let plural = if findings.len() == 1 { "" } else { "s" };
        let message = format!("{} validation error{plural}:\n  {}", findings.len(), findings.join("\n  "));
        ApiFailure::new(400, "Bad Request", &message, param)
    }

    /// 404 for a model that is not served.
    #[must_use]
    pub fn unknown_model(asked: &str, served: &str) -> ApiFailure {
        let message = format!("The model `{asked}` does not exist. Valid aliases: {served}.");
        ApiFailure::new(404, "NotFoundError", &message, "model".into())
    }

    /// 404 for an adapter that is not loaded and is to be unloaded.
    #[must_use]
    pub fn unknown_adapter(name: &str) -> ApiFailure {
        let message = format!("The lora adapter '{name}' cannot be found.");
        ApiFailure::new(404, "NotFoundError", &message, Value::Null)
    }

    /// 500 without a cause, e.g. KV that could not be read.
    #[must_use]
    pub fn internal() -> ApiFailure {
        ApiFailure::new(500, "InternalServerError", "Internal server error", Value::Null)
    }

    /// 500 of a dead engine.
    #[must_use]
    pub fn dead() -> ApiFailure {
        let message = "EngineCore encountered an issue. See stack trace (above) for the root cause.";
        ApiFailure { fatal: true, ..ApiFailure::new(500, "InternalServerError", message, Value::Null) }
    }

    /// A scripted failure.
    #[must_use]
    pub fn of_status(status: u16) -> ApiFailure {
        match status {
            500 => ApiFailure::internal(),
            503 => {
                let message = "The engine is currently busy and cannot accept new requests. Please try again later \
                               or on a different instance.";
                ApiFailure::new(503, "Service Unavailable", message, Value::Null)
            }
            401 => ApiFailure::unauthorized(),
            404 => ApiFailure::unknown_model("lora-a", "sim"),
            405 => ApiFailure::detail(405, "Method Not Allowed"),
            429 => ApiFailure::new(429, "TooManyRequestsError", "The waiting queue is full", Value::Null),
            400..=499 => ApiFailure::new(status, "BadRequestError", "Scripted failure", Value::Null),
            _ => ApiFailure::new(status, "InternalServerError", "Scripted failure", Value::Null),
        }
    }

    /// Answers of the web framework: 404, 405, a body that is not UTF-8.
    #[must_use]
    pub fn detail(status: u16, detail: &str) -> ApiFailure {
        ApiFailure { status, body: json!({ "detail": detail }).to_string().into(), fatal: false }
    }

    /// 401 without the right key.
    #[must_use]
    pub fn unauthorized() -> ApiFailure {
        ApiFailure { status: 401, body: Bytes::from_static(br#"{"error":"Unauthorized"}"#), fatal: false }
    }

    /// The same error as an event of a stream that has begun.
    #[must_use]
    pub fn event(&self) -> Bytes {
        [b"data: ".as_slice(), &self.body, b"\n\n"].concat().into()
    }
}
