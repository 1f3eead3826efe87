//! The table of errors: code, type, meaning and remedy of each kind. Whatever is said of an error
//! comes from it, but for its status, which `server/reply.rs` knows.

/// OpenAI's types: whose fault it was, as far as a client needs to know.
const REQUEST: &str = "invalid_request_error";
const KEY: &str = "authentication_error";
const RATE: &str = "rate_limit_error";
const SERVER: &str = "server_error";

/// The enum and its tables. The comment of a kind is also what the reference says of it.
macro_rules! kinds {
    ($($(#[doc = $meaning:literal])+ $kind:ident = $code:literal, $blame:ident, $remedy:literal;)+) => {
        /// Kinds of errors, as docs/reference/errors.md lists them.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Kind { $($(#[doc = $meaning])+ $kind,)+ }

        impl Kind {
            /// All kinds, for tables.
            pub const ALL: &'static [Kind] = &[$(Kind::$kind),+];

            /// The stable code that clients and metrics see, for example `decode_failed`.
            pub fn code(self) -> &'static str {
                match self { $(Kind::$kind => $code,)+ }
            }

            /// OpenAI's `error.type`: whose fault it was, as far as a client needs to know.
            pub fn openai_type(self) -> &'static str {
                match self { $(Kind::$kind => $blame,)+ }
            }

            /// Causes of the error, in a sentence or two.
            pub fn meaning(self) -> &'static str {
                match self { $(Kind::$kind => concat!($($meaning),+).trim_ascii(),)+ }
            }

            /// Advice to the client or its operator.
            pub fn remedy(self) -> &'static str {
                match self { $(Kind::$kind => $remedy,)+ }
            }
        }
    };
}

kinds! {
    /// The body is not one JSON object, or it is deeper or wider than its limits.
    InvalidJson = "invalid_json", REQUEST,
        "Send one JSON object; `limit.json_depth` bounds it.";
    /// The body is JSON, but one field can't be accepted.
    InvalidField = "invalid_value", REQUEST,
        "Change the field that `param` and the message name.";
    /// The request has no `Host` (over HTTP/2 `:authority`), two of them, or an invalid one.
    InvalidHost = "invalid_host", REQUEST,
        "Send one name or address, with or without a port. HTTP/1.0 needs none.";
    /// The client went away or broke its own request while sending it.
    BodyBroken = "body_broken", REQUEST,
        "Send it again; look for a proxy that cuts bodies.";
    /// Clients need a key, and the request has no known one, or one without the right to do this.
    InvalidApiKey = "invalid_api_key", KEY,
        "Send a key of `auth.keys_file`; operators' routes take the admin key.";
    /// No key is asked for, and the route changes the fleet or tells about single requests, on an
    /// address that other machines reach. Or an engine that nobody listed would be sent
    /// `engine.api_key`.
    AdminKeyNeeded = "admin_key_needed", KEY,
        "Set `server.admin_key` and send it in `X-API-Key`, or set `server.open_admin`.";
    /// No key is configured, and the request for an operators' route names a host that is not the
    /// gateway.
    ForeignHost = "foreign_host", REQUEST,
        "Add the name to `server.names`.";
    /// A browser says that a page of another origin asks for a change of the fleet without a key.
    /// Or, where clients need none, for an answer without a CORS preflight.
    ForeignPage = "foreign_page", REQUEST,
        "Name the origin in `server.cors_origins`, or send a key.";
    /// None of several fleets serves the model that the body names, `fleet.model` is another one,
    /// or the key is not for this model.
    ModelNotFound = "model_not_found", REQUEST,
        "Ask for a name of `/v1/models`; the message proposes the nearest one.";
    /// No response of this id was made for this key, as far as this gateway knows.
    ResponseNotFound = "response_not_found", REQUEST,
        "Use the key and the gateway that made it, or send the conversation anew.";
    /// There is no such path here.
    UnknownUrl = "unknown_url", REQUEST,
        "See the [routes](http.md); `server.passthrough` adds paths of engines.";
    /// The path exists, the method does not.
    MethodNotAllowed = "method_not_allowed", REQUEST,
        "Use a method that the header `Allow` names.";
    /// The client took longer than `timeout.body_ms` to send its body, or sent it more slowly than
    /// `limit.body_rate`.
    BodyTimeout = "body_timeout", REQUEST,
        "Send it faster, or raise these keys.";
    /// The body is larger than `limit.body_bytes`.
    BodyTooLarge = "body_too_large", REQUEST,
        "Send less, or raise the key.";
    /// The client sent its body compressed (`Content-Encoding`), which engines don't read either.
    BodyCoded = "body_coded", REQUEST,
        "Send it as it is.";
    /// The request has more header bytes or lines than `limit.header_bytes` or `limit.headers`.
    HeadersTooLarge = "headers_too_large", REQUEST,
        "Send fewer headers, or raise these keys.";
    /// The key's tokens per minute are used up, or it has as many requests under way as it may.
    RateLimited = "rate_limit_exceeded", RATE,
        "Wait for `Retry-After`; the key's entry has its limits.";
    /// The gateway has a bug.
    Internal = "internal", SERVER,
        "Report it with the lines of the log that have the request's id.";
    /// The client sent its body with a transfer coding beside `chunked`.
    TransferCoded = "transfer_coded", REQUEST,
        "Send `Transfer-Encoding: chunked`, or a `Content-Length`.";
    /// Every attempt to have an image, a sound or a film encoded failed.
    EncodeFailed = "encode_failed", SERVER,
        "The log names the encoders and the causes.";
    /// Every attempt at the prefill leg failed.
    PrefillFailed = "prefill_failed", SERVER,
        "The log names the prefillers and the causes.";
    /// The prefiller's answer could not be understood, or it is larger than
    /// `limit.prefill_reply_bytes`.
    BadPrefillReply = "bad_prefill_reply", SERVER,
        "Compare the engines' connector with `dialect.name`: `pd-proxy check`.";
    /// Every attempt at the decode leg failed, a stream broke, or an answer is larger than
    /// `limit.answer_bytes`.
    DecodeFailed = "decode_failed", SERVER,
        "The log names the decoders and the causes; `retry.resume` continues streams.";
    /// No engine answered a request that any one of them could have answered, or its answer broke
    /// off.
    EngineFailed = "engine_failed", SERVER,
        "The log names the engines and the causes.";
    /// The queue is full, the wait in it too long, the first token would come too late, or every
    /// engine answered that it is busy.
    Overloaded = "overloaded", SERVER,
        "Wait for `Retry-After`. If it lasts, [add engines](../autoscaling.md).";
    /// No prefiller is configured or left, or every breaker is open while another request finds
    /// out.
    NoPrefiller = "no_prefiller", SERVER,
        "Wait for `Retry-After`; `/instances` says why each is away.";
    /// No decoder is configured or left, or every breaker is open while another request finds out.
    /// Nothing was prefilled.
    NoDecoder = "no_decoder", SERVER,
        "Wait for `Retry-After`; `/instances` says why each is away.";
    /// The gateway ends, and the time of open requests is over (`server.drain_ms`).
    Shutdown = "shutdown", SERVER,
        "Send it again: another gateway answers, or the next one.";
    /// An encoder ran into its deadline, or the whole request did there.
    EncodeTimeout = "encode_timeout", SERVER,
        "Look at the encoders' load; `timeout.encode_ms`, `timeout.total_ms`.";
    /// The prefill leg ran into its deadline, or the whole request did there.
    PrefillTimeout = "prefill_timeout", SERVER,
        "Look at the prefillers' load; `timeout.prefill_ms`, `timeout.prefill_ms_per_1k_tokens`.";
    /// The decode leg ran into one of its deadlines, or the whole request did there.
    DecodeTimeout = "decode_timeout", SERVER,
        "Look at the decoders' load; `timeout.first_byte_ms`, `timeout.answer_ms`.";
    /// A request that this gateway forwarded came back to it (`Via`).
    Loop = "loop", SERVER,
        "Correct the engine's address: it is the gateway's own, or leads back to it.";
}

impl Kind {
    /// Anthropic's `error.type`, by the status that the error has.
    pub fn anthropic_type(self) -> &'static str {
        match self {
            Kind::ModelNotFound | Kind::ResponseNotFound | Kind::UnknownUrl => "not_found_error",
            Kind::BodyTooLarge | Kind::HeadersTooLarge => "request_too_large",
            Kind::Overloaded | Kind::NoPrefiller | Kind::NoDecoder | Kind::Shutdown => "overloaded_error",
            kind => match kind.openai_type() {
                SERVER => "api_error",
                same => same,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn codes_differ_and_each_kind_has_its_words() {
        let codes: HashSet<&str> = Kind::ALL.iter().map(|kind| kind.code()).collect();
        assert_eq!(codes.len(), Kind::ALL.len());
        for kind in Kind::ALL {
            for text in [kind.meaning(), kind.remedy()] {
                assert!(text.ends_with('.') && !text.contains(['|', '\n']), "{kind:?}: {text}");
                assert!(!text.contains("  ") && text == text.trim(), "{kind:?}: {text}");
            }
        }
    }
}
