//! A file that lists engines: JSON, TOML, or a line for each. The module is pure.

use serde::Deserialize;

use crate::endpoint::{Endpoint, HostError};

/// Most engines of a role.
const MAX_ENGINES: usize = 4_096;

/// Content of a file. A role that the file does not mention is left as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EngineLists {
    /// Prefillers, if the file lists them.
    pub prefill: Option<Vec<Endpoint>>,
    /// Decoders, if the file lists them.
    pub decode: Option<Vec<Endpoint>>,
}

/// Reasons why a file says nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ListError {
    /// It is neither JSON nor TOML of the right shape, nor such lines.
    #[error("{0}")]
    Shape(String),
    /// Something else where an engine belongs.
    #[error("`{text}` {why}")]
    Engine {
        /// The text as it stands in the file.
        text: String,
        /// Description of the fault.
        why: HostError,
    },
    /// No engine at all: it is being written, most likely.
    #[error("lists no engine")]
    Empty,
    /// A list of one role without an engine, as a template writes it that found none.
    #[error(
        "lists no engine in `{0}`: leave it out if its engines stay, or remove them by /instances/remove"
    )]
    EmptyRole(&'static str),
    /// More engines than there can be.
    #[error("lists {0} engines of one role, more than {MAX_ENGINES}")]
    TooMany(usize),
}

impl EngineLists {
    /// Merges the engines of an earlier reading into these lists. One that is missing for the first
    /// time may be in the part of a file that is not written yet. One that is now in the other list
    /// has changed its role.
    pub fn and(&self, earlier: &EngineLists) -> EngineLists {
        let is_listed =
            |it: &&Endpoint| self.prefill.iter().chain(&self.decode).flatten().any(|one| one == *it);
        let both = |now: &Option<Vec<Endpoint>>, before: &Option<Vec<Endpoint>>| {
            let mut all = now.clone()?;
            all.extend(before.iter().flatten().filter(|it| !is_listed(it)).cloned());
            Some(all)
        };
        EngineLists {
            prefill: both(&self.prefill, &earlier.prefill),
            decode: both(&self.decode, &earlier.decode),
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Tables {
    prefill: Option<Vec<String>>,
    decode: Option<Vec<String>>,
}

/// Reads a list.
///
/// # Errors
/// [`ListError`] when any of it can't be understood: half a list would drain the other half.
pub fn read(text: &str) -> Result<EngineLists, ListError> {
    let tables = tables(text)?;
    let listed = EngineLists { prefill: endpoints(tables.prefill)?, decode: endpoints(tables.decode)? };
    match (listed.prefill.as_deref(), listed.decode.as_deref()) {
        (None | Some([]), None | Some([])) => Err(ListError::Empty),
        (Some([]), _) => Err(ListError::EmptyRole("prefill")),
        (_, Some([])) => Err(ListError::EmptyRole("decode")),
        _ => Ok(listed),
    }
}

fn tables(text: &str) -> Result<Tables, ListError> {
    let shape = |why: String| ListError::Shape(why);
    if text.trim_start().starts_with('{') {
        return serde_json::from_str(text).map_err(|e| shape(format!("is no list in JSON: {e}")));
    }
    let mut lines = text.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
    if lines.any(|line| line.contains('=')) {
        return toml::from_str(text).map_err(|e| shape(format!("is no list in TOML: {}", e.message())));
    }
    plain(text)
}

/// `prefill host:port` or `decode host:port`, one each line; `#` begins a comment.
fn plain(text: &str) -> Result<Tables, ListError> {
    if !text.ends_with('\n') {
        // Of a list in lines any beginning is a list, too.
        let why = "the last line does not end with a line break: the file may be half written".to_owned();
        return Err(ListError::Shape(why));
    }
    let mut tables = Tables { prefill: None, decode: None };
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.is_empty() {
            continue;
        }
        let list = match line.split_once(char::is_whitespace) {
            Some(("prefill", _)) => &mut tables.prefill,
            Some(("decode", _)) => &mut tables.decode,
            _ => {
                let why = format!("line {number}: expected `prefill host:port` or `decode host:port`");
                return Err(ListError::Shape(why));
            }
        };
        let engine = line.split_once(char::is_whitespace).map_or(line, |(_, engine)| engine);
        list.get_or_insert_default().push(engine.trim().to_owned());
    }
    Ok(tables)
}

fn endpoints(texts: Option<Vec<String>>) -> Result<Option<Vec<Endpoint>>, ListError> {
    let Some(texts) = texts else { return Ok(None) };
    if texts.len() > MAX_ENGINES {
        return Err(ListError::TooMany(texts.len()));
    }
    let one = |text: String| Endpoint::parse(&text).map_err(|why| ListError::Engine { text, why });
    texts.into_iter().map(one).collect::<Result<_, _>>().map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(prefill: Option<&[&str]>, decode: Option<&[&str]>) -> EngineLists {
        let all = |list: Option<&[&str]>| {
            list.map(|list| list.iter().map(|text| Endpoint::parse(text).unwrap()).collect::<Vec<_>>())
        };
        EngineLists { prefill: all(prefill), decode: all(decode) }
    }

    #[test]
    fn three_forms_say_the_same() {
        let expected = listed(Some(&["a:1", "b:2"]), Some(&["c:3"]));
        for text in [
            r#"{"prefill": ["a:1", "http://b:2"], "decode": ["c:3"]}"#,
            "# engines\nprefill = [\"a:1\", \"b:2\"] # two\ndecode = [\"c:3\"]\n",
            "prefill a:1\nprefill   http://b:2/ # the second\n\n# decoders\ndecode c:3\n",
        ] {
            assert_eq!(read(text), Ok(expected.clone()), "{text}");
        }
        assert_eq!(read("decode c:3\n"), Ok(listed(None, Some(&["c:3"]))), "nothing is said of prefillers");
    }

    #[test]
    fn member_missing_once_stays() {
        let (both, one) = (listed(Some(&["a:1", "b:2"]), Some(&["c:3"])), listed(Some(&["b:2"]), None));
        assert_eq!(one.and(&both), listed(Some(&["b:2", "a:1"]), None));
        assert_eq!(both.and(&one), both);
        assert_eq!(one.and(&one), one);
        let other = listed(Some(&["c:3", "a:1", "b:2"]), Some(&["d:4"]));
        assert_eq!(other.and(&both), other, "one has another role");
    }

    #[test]
    fn half_a_list_is_none() {
        for bad in [
            "",
            "\n# nobody\n",
            "{}",
            r#"{"prefill": [], "decode": []}"#,
            r#"{"prefill": ["a:1"], "decode": []}"#,
            "prefill = []\ndecode = [\"a:1\"]\n",
            r#"{"prefill": ["a:1"]"#,
            r#"{"prefill": ["a"]}"#,
            r#"{"prefil": ["a:1"]}"#,
            "prefill = [\"a:1\"",
            "prefill a:1\ndeco",
            "prefill a:1\ndecode c\n",
            "prefill a:1\ndecode c:80",
            "a:1",
        ] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }
}
