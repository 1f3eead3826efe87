//! A minijinja environment that renders as transformers' Jinja2 environment does.

use minijinja::syntax::SyntaxConfig;
use minijinja::value::Value;
use minijinja::{AutoEscape, Environment, Error, ErrorKind, State};

use super::allowance::{charge, kept};
use super::kept::KEPT;
use super::strftime::Today;
use super::{python, tojson};

/// Prefix of variables that are none of the request's.
pub(super) const OWN_VARIABLES: &str = "__pd_proxy_";
/// The variable that carries the date to `strftime_now`; no template names it.
pub(super) const TODAY: &str = "__pd_proxy_today";
/// Deepest nesting of macros.
const RECURSION: usize = 100;

/// Marks an error of `raise_exception`.
#[derive(Debug, thiserror::Error)]
#[error("the template refuses the conversation")]
pub(super) struct TemplateException;

/// Marks an error of `strftime_now` without a date.
#[derive(Debug, thiserror::Error)]
#[error("the date is not known")]
pub(super) struct NoDate;

/// Equivalent of `ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
/// extensions=[…, loopcontrols])`.
pub(super) fn environment() -> Environment<'static> {
    let mut env = Environment::new();
    if let Ok(syntax) = syntax_config() {
        env.set_syntax(syntax);
    }
    env.set_recursion_limit(RECURSION);
    env.set_auto_escape_callback(|_| AutoEscape::None);
    env.set_unknown_method_callback(python::method);
    env.set_formatter(|out, state, value| {
        // Printed text is paid for here, which covers text that a block puts into a variable.
        let mut write = |text: &str| {
            charge(state, text.len())?;
            out.write_str(text).map_err(|_| Error::from(ErrorKind::WriteFailure))
        };
        match value.as_str() {
            Some(text) => write(text),
            None => write(&python::printed(value)?),
        }
    });
    env.add_filter(KEPT, kept);
    env.add_filter("tojson", tojson::tojson);
    env.add_filter("trim", python::trim);
    env.add_filter("string", python::string);
    env.add_filter("join", python::join);
    env.add_test("sequence", python::is_sequence);
    env.add_test("iterable", python::is_iterable);
    env.add_function("raise_exception", raise_exception);
    env.add_function("strftime_now", strftime_now);
    env
}

/// Block tags swallow the line break after them and the blanks before them.
pub(super) fn syntax_config() -> Result<SyntaxConfig, Error> {
    SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()
}

fn raise_exception(message: &str) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message.to_owned()).with_source(TemplateException))
}

fn strftime_now(state: &State, format: &str) -> Result<String, Error> {
    if state.lookup(TODAY).is_none() {
        let error = Error::new(ErrorKind::InvalidOperation, "strftime_now: the engine's date is not known");
        return Err(error.with_source(NoDate));
    }
    let field = |at: usize| state.lookup(TODAY)?.get_item_by_index(at).ok()?.as_usize();
    let today = || {
        Some(Today {
            year: u16::try_from(field(0)?).ok()?,
            month: u8::try_from(field(1)?).ok()?,
            day: u8::try_from(field(2)?).ok()?,
        })
    };
    let text = today().and_then(|today| today.format(format));
    text.ok_or_else(|| Error::new(ErrorKind::InvalidOperation, "strftime_now: a format that is not a date"))
}

/// `{% generation %}` marks what the assistant said, for training; it prints its body in a scope of
/// its own, which here is a `with` block.
pub(super) fn with_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let Some(len) = rest[start..].find("%}") else { break };
        let tag = &rest[start + 2..start + len];
        out.push_str(&rest[..start + 2]);
        match tag.trim_matches(|c: char| c.is_ascii_whitespace() || c == '-' || c == '+') {
            "generation" => out.push_str(&tag.replacen("generation", "with", 1)),
            "endgeneration" => out.push_str(&tag.replacen("endgeneration", "endwith", 1)),
            _ => out.push_str(tag),
        }
        out.push_str("%}");
        rest = &rest[start + len + 2..];
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generation_tags_become_scopes() {
        let source = "{%- generation -%}a{% endgeneration %}{{ generation }}{% if x %}\n{%+ generation+%}";
        let expect = "{%- with -%}a{% endwith %}{{ generation }}{% if x %}\n{%+ with+%}";
        assert_eq!(with_generation_tags(source), expect);
        assert_eq!(with_generation_tags("{% generation"), "{% generation");
    }

    #[track_caller]
    fn renders(source: &str, expect: &str) {
        let context =
            Value::from_pairs([("d", Value::from_pairs([("b", 1), ("a", 2)])), ("f", Value::from(1.0))]);
        assert_eq!(environment().render_str(source, context).unwrap(), expect, "{source}");
    }

    #[test]
    fn output_is_pythons() {
        renders("{{ f }} {{ true }} {{ none }} {{ missing }}|{{ [1, 'a'] }}", "1.0 True None |[1, 'a']");
        renders("{{ d|tojson }}", r#"{"b": 1, "a": 2}"#);
        renders("{{ '<é&>'|tojson }} {{ '<é>'|tojson(ensure_ascii=true) }}", r#""<é&>" "<\u00e9>""#);
        renders("{{ d|tojson(sort_keys=true, separators=(',', ':')) }}", r#"{"a":2,"b":1}"#);
        renders("{{ [d, []]|tojson(indent=2) }}", "[\n  {\n    \"b\": 1,\n    \"a\": 2\n  },\n  []\n]");
        renders("  {% if true %}\nx\n  {% endif %}\ny\n", "x\ny");
        renders("{% for i in range(5) %}{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}", "012");
        renders("{{ ' \x1c a'.strip() }}{{ 'a,b'.split(',')[-1] }}{{ 'abc' is sequence }}", "abTrue");
        renders("{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}{{ d.get('z') }}", "b=1;a=2;None");
    }

    #[test]
    fn unknown_construct_fails() {
        for source in [
            "{{ 'a b'.split() }}",
            "{{ 'a'.title() }}",
            "{{ strftime_now('%H') }}",
            "{{ missing.a }}",
            "{{ (1, 2) }}",
        ] {
            assert!(environment().render_str(source, ()).is_err(), "{source}");
        }
    }
}
