//! Templates' variables are paid for: `{% set a = b + c %}` becomes `{% set a = (b + c)|kept %}`.

use minijinja::Error;
use minijinja::machinery::{Token, tokenize};

use super::jinja::syntax_config;

/// The name of the filter [`super::allowance::kept`]; no template names it.
pub(super) const KEPT: &str = "__pd_proxy_kept";

/// Place in a JSON text, while a template's tokens are read.
enum Place {
    Outside,
    /// Behind the start of a tag.
    Tag,
    /// Between `set` and its `=`, so many brackets deep.
    Target(usize),
    /// Behind `=`, from this byte on; whether anything there makes a new value.
    Value(usize, bool),
}

/// The source with a filter after every value that is computed and set. A value without such a
/// filter exists already, or is a block, whose text is paid for as it is printed.
///
/// # Errors
/// The source is no template.
pub(super) fn with_paid_variables(source: &str) -> Result<String, Error> {
    let mut out = String::with_capacity(source.len() + source.len() / 8);
    let mut copied = 0;
    let mut place = Place::Outside;
    for token in tokenize(source, false, syntax_config()?) {
        let (token, span) = token?;
        place = match (place, token) {
            (_, Token::BlockStart) => Place::Tag,
            (Place::Tag, Token::Ident("set")) => Place::Target(0),
            (Place::Target(depth), Token::ParenOpen | Token::BracketOpen) => Place::Target(depth + 1),
            (Place::Target(depth), Token::ParenClose | Token::BracketClose) => {
                Place::Target(depth.saturating_sub(1))
            }
            (Place::Target(0), Token::Assign) => Place::Value(span.end_offset as usize, false),
            (place @ Place::Target(_), token) if !matches!(token, Token::BlockEnd) => place,
            (Place::Value(start, true), Token::BlockEnd) => {
                let end = span.start_offset as usize;
                out.push_str(source.get(copied..start).unwrap_or_default());
                out.push_str(&format!(" ({})|{KEPT} ", source.get(start..end).unwrap_or_default()));
                copied = end;
                Place::Outside
            }
            (Place::Value(start, _), token) if makes(&token) => Place::Value(start, true),
            (place @ Place::Value(..), token) if !matches!(token, Token::BlockEnd) => place,
            _ => Place::Outside,
        };
    }
    out.push_str(source.get(copied..).unwrap_or_default());
    Ok(out)
}

/// True if a value with this token in it may be one that was not there before: joined, repeated,
/// filtered, called, sliced.
fn makes(token: &Token<'_>) -> bool {
    matches!(token, Token::Plus | Token::Tilde | Token::Mul | Token::Pipe | Token::ParenOpen | Token::Colon)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn assigned_values_are_charged() {
        for (source, expect) in [
            ("{% set a = b + c %}", "{% set a = ( b + c )|K %}"),
            ("{%- set n.t = n.t ~ m['x'] -%}\n", "{%- set n.t = ( n.t ~ m['x'] )|K -%}\n"),
            (
                "{% set a, b = f(1), 2 %}x{%set a=b|trim%}",
                "{% set a, b = ( f(1), 2 )|K %}x{%set a= (b|trim)|K %}",
            ),
            ("{% set a = '%}' ~ b[1:] %}é{{ a + b }}", "{% set a = ( '%}' ~ b[1:] )|K %}é{{ a + b }}"),
        ] {
            assert_eq!(with_paid_variables(source).unwrap(), expect.replace('K', KEPT), "{source}");
        }
        for same in [
            "{% set a = b %}{% set a = m['content'] %}{% set x = a.b if c else 'd' %}",
            "{% set a %}{{ b + c }}{% endset %}{% set a | join(sep='+') %}{% endset %}",
            "{% raw %}{% set a = b + c %}{% endraw %}{# {% set a = b + c %} #}{% if set + b == c %}{% endif %}",
            "{% with a = b + c %}{% endwith %} set a = b + c ",
        ] {
            assert_eq!(with_paid_variables(same).unwrap(), same);
        }
    }
}
