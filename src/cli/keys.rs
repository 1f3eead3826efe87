//! Flags of `pd-proxy keys`.

use clap::{Args, ValueEnum};

use super::ServeArgs;

/// Output formats of `pd-proxy keys`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum KeysFormat {
    /// Text for people to read.
    #[default]
    Text,
    /// One JSON object.
    Json,
}

/// Flags of `keys`: a prompt, and what a gateway would be started with.
#[derive(Args, Clone, Debug, Default)]
#[command(args_override_self = true)]
pub struct KeysArgs {
    /// A prompt as text, or @FILE
    #[arg(long, value_name = "TEXT", help_heading = "Prompt")]
    pub prompt: Option<String>,
    /// A conversation as JSON, a list of messages or a whole request, or @FILE
    #[arg(long, value_name = "JSON", help_heading = "Prompt")]
    pub messages: Option<String>,
    /// Path that a whole request is sent to, as /v1/messages; without it the body tells
    #[arg(long, value_name = "PATH", help_heading = "Prompt", requires = "messages")]
    pub path: Option<String>,
    /// A prompt as token ids, as in 1,2,3, or @FILE
    #[arg(long, value_name = "IDS", allow_negative_numbers = true, help_heading = "Prompt")]
    pub tokens: Option<String>,
    /// The request's cache_salt; a whole request carries its own
    #[arg(long, value_name = "TEXT", help_heading = "Prompt")]
    pub cache_salt: Option<String>,
    /// Connector and version that write the keys, as mooncake-store-0.30; sets key.preset
    #[arg(long, value_name = "PRESET", help_heading = "Prompt")]
    pub profile: Option<String>,
    /// Fleet whose blocks are named, where the configuration has several
    #[arg(long, value_name = "NAME", help_heading = "Prompt")]
    pub fleet: Option<String>,
    /// text or json
    #[arg(long, value_enum, default_value_t, help_heading = "Prompt")]
    pub format: KeysFormat,
    /// Options of a gateway; prefillers that are named here are asked for what is not set
    #[command(flatten)]
    pub serve: ServeArgs,
}

impl KeysArgs {
    /// The flags that make the configuration.
    pub fn configuration(&self) -> ServeArgs {
        let mut serve = self.serve.clone();
        serve.set.extend(self.profile.iter().map(|preset| format!("key.preset={preset}")));
        serve
    }
}
