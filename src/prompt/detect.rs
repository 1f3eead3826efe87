//! Facts in a template's source, before it is ever rendered: the content format it wants, and
//! constructs that are not rendered here as Jinja2 does.

use std::collections::BTreeSet;

use minijinja::machinery::ast::{Call, Expr, Macro, Stmt};

use super::markup::changes_markup;
use super::template::ContentFormat;
use super::walk::{Node, arg_expr, nodes};

/// Attributes that Jinja2 finds on Python's `dict` before it looks at the keys. Called, they are
/// methods and work here too; read, they are a (true) method object there and a key here. A
/// subscript finds them after the keys.
const DICT_ATTRIBUTES: [&str; 11] =
    ["clear", "copy", "fromkeys", "get", "items", "keys", "pop", "popitem", "setdefault", "update", "values"];

/// Filters that were not compared with Jinja2's.
const UNKNOWN_FILTERS: [&str; 24] = [
    "abs",
    "attr",
    "batch",
    "bool",
    "capitalize",
    "chain",
    "e",
    "escape",
    "float",
    "format",
    "groupby",
    "indent",
    "int",
    "lines",
    "max",
    "min",
    "pprint",
    "round",
    "slice",
    "split",
    "sum",
    "title",
    "urlencode",
    "zip",
];

/// The first construct that may render otherwise than in Jinja2, by name; `root` is what `source`
/// parses as.
pub(super) fn unknown_construct(source: &str, root: &Stmt<'_>) -> Option<String> {
    let marked = || changes_markup(root).then(|| "what |safe makes, for more than printing it".to_owned());
    let raw = || has_odd_raw_tag(source).then(|| "raw with white space or signs".to_owned());
    unknown_node(root).or_else(marked).or_else(raw)
}

/// True if white space beside a tag `raw` or `endraw` may go away or stay otherwise than in Jinja2,
/// as a line break after `{% raw %}` does. The syntax tree does not show it. Known to be the same
/// is a block without white space inside and without signs in its tags.
fn has_odd_raw_tag(source: &str) -> bool {
    let mut pieces = source.split("{%");
    let mut before = pieces.next().unwrap_or_default();
    pieces.any(|piece| {
        let before = std::mem::replace(&mut before, piece);
        let name = piece.trim_start_matches(|char: char| char.is_whitespace() || "-+".contains(char));
        let Some(rest) = name.strip_prefix("end").unwrap_or(name).strip_prefix("raw") else { return false };
        if rest.starts_with(|char: char| char.is_alphanumeric() || char == '_') {
            return false;
        }
        match piece.split_once("%}").map(|(tag, behind)| (tag.trim_ascii(), behind)) {
            Some(("raw", behind)) => behind.starts_with(char::is_whitespace),
            Some(("endraw", _)) => before.ends_with(char::is_whitespace),
            _ => true,
        }
    })
}

fn unknown_node(root: &Stmt<'_>) -> Option<String> {
    nodes(root).iter().find_map(|node| match node {
        Node::Expr { expr: Expr::GetAttr(get), called: false } if DICT_ATTRIBUTES.contains(&get.name) => {
            Some(format!(".{}", get.name))
        }
        Node::Expr { expr: Expr::GetItem(get), .. } => match &get.subscript_expr {
            Expr::Const(key) => {
                let found = key.value.as_str().filter(|key| DICT_ATTRIBUTES.contains(key));
                found.map(|key| format!("['{key}']"))
            }
            _ => None,
        },
        Node::Expr { expr: Expr::Filter(filter), .. } if UNKNOWN_FILTERS.contains(&filter.name) => {
            Some(format!("|{}", filter.name))
        }
        Node::Stmt {
            stmt: Stmt::Extends(_) | Stmt::Include(_) | Stmt::Import(_) | Stmt::FromImport(_),
            ..
        } => Some("another template".to_owned()),
        Node::Stmt { stmt: Stmt::AutoEscape(_), .. } => Some("autoescape".to_owned()),
        _ => None,
    })
}

/// `OpenAi` if the template loops over a message's content, `String` if it prints it (vLLM 0.32,
/// `_detect_content_format`).
pub(super) fn content_format(root: &Stmt<'_>) -> ContentFormat {
    if loops_over_content(&nodes(root)).unwrap_or(false) {
        ContentFormat::OpenAi
    } else {
        ContentFormat::String
    }
}

/// `None` where the engine's own analysis gives up (a loop variable that is not a name) and takes
/// the default.
fn loops_over_content(nodes: &[Node<'_, '_>]) -> Option<bool> {
    let message_names = message_names(nodes)?;
    for node in nodes {
        let Node::Stmt { stmt: Stmt::ForLoop(it), in_macro } = node else { continue };
        let of_message = message_names.iter().any(|name| is_access(&it.iter, name, Some("content")));
        let by_name = matches!(&it.iter, Expr::Var(var) if match in_macro {
            None => var.id == "content",
            Some(at) => passes_content(nodes, *at, var.id, &message_names),
        });
        if of_message || by_name {
            return name_of(&it.target).map(|_| true);
        }
    }
    Some(false)
}

/// The variables that stand for one message in a loop over `messages` or over what was assigned
/// from it.
fn message_names<'a>(nodes: &[Node<'_, 'a>]) -> Option<BTreeSet<&'a str>> {
    let mut lists = BTreeSet::from(["messages"]);
    let mut todo = vec!["messages"];
    while let Some(name) = todo.pop() {
        for node in nodes {
            let Node::Stmt { stmt: Stmt::Set(set), .. } = node else { continue };
            if !is_access(&set.expr, name, None) {
                continue;
            }
            let target = name_of(&set.target)?;
            if lists.insert(target) {
                todo.push(target);
            }
        }
    }
    let mut found = BTreeSet::new();
    for node in nodes {
        let Node::Stmt { stmt: Stmt::ForLoop(it), .. } = node else { continue };
        if lists.iter().any(|list| is_access(&it.iter, list, None)) {
            found.insert(name_of(&it.target)?);
        }
    }
    Some(found)
}

/// True if some call of the macro at `at` passes a message's content as its parameter `name`.
fn passes_content(nodes: &[Node<'_, '_>], at: usize, name: &str, messages: &BTreeSet<&str>) -> bool {
    let Some(Node::Stmt { stmt: Stmt::Macro(it), .. }) = nodes.get(at) else { return false };
    let Some(place) = it.args.iter().position(|arg| name_of(arg) == Some(name)) else { return false };
    nodes.iter().any(|node| match node {
        Node::Expr { expr: Expr::Call(call), .. } => call_passes(call, it, place, name, messages),
        _ => false,
    })
}

fn call_passes(call: &Call<'_>, it: &Macro<'_>, place: usize, name: &str, messages: &BTreeSet<&str>) -> bool {
    use minijinja::machinery::ast::CallArg;
    if name_of(&call.expr) != Some(it.name) {
        return false;
    }
    call.args.iter().enumerate().any(|(at, arg)| {
        let this = match arg {
            CallArg::Pos(_) => at == place,
            CallArg::Kwarg(key, _) => *key == name,
            CallArg::PosSplat(_) | CallArg::KwargSplat(_) => false,
        };
        this && messages.iter().any(|message| is_access(arg_expr(arg), message, Some("content")))
    })
}

fn name_of<'a>(expr: &Expr<'a>) -> Option<&'a str> {
    match expr {
        Expr::Var(var) => Some(var.id),
        _ => None,
    }
}

/// True if `expr` is `name` (or `name.key`), possibly filtered, tested or sliced.
fn is_access(expr: &Expr<'_>, name: &str, key: Option<&str>) -> bool {
    match (expr, key) {
        (Expr::Filter(it), _) => it.expr.as_ref().is_some_and(|inner| is_access(inner, name, key)),
        (Expr::Test(it), _) => is_access(&it.expr, name, key),
        (Expr::Slice(it), _) => is_access(&it.expr, name, key),
        (Expr::Var(var), None) => var.id == name,
        (Expr::GetAttr(it), Some(key)) => it.name == key && name_of(&it.expr) == Some(name),
        (Expr::GetItem(it), Some(key)) => {
            name_of(&it.expr) == Some(name)
                && matches!(&it.subscript_expr, Expr::Const(sub) if sub.value.as_str() == Some(key))
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use minijinja::machinery::parse;

    use super::*;

    #[track_caller]
    fn detects(source: &str, expect: ContentFormat) {
        assert_eq!(content_format(&parse(source, "t", Default::default()).unwrap()), expect, "{source}");
    }

    #[test]
    fn loops_over_content_want_parts() {
        let parts = ContentFormat::OpenAi;
        detects("{% for m in messages %}{{ m.content }}{% endfor %}", ContentFormat::String);
        detects("{% for m in messages %}{% for c in m['content'] %}{% endfor %}{% endfor %}", parts);
        detects("{% for m in messages %}{% for c in m.content|list %}{% endfor %}{% endfor %}", parts);
        detects(
            "{% set l = messages[1:] %}{% for m in l %}{% for c in m.content %}{% endfor %}{% endfor %}",
            parts,
        );
        detects(
            "{% set l = other %}{% for m in l %}{% for c in m.content %}{% endfor %}{% endfor %}",
            ContentFormat::String,
        );
        detects("{% for c in content %}{% endfor %}", parts);
        detects(
            "{% for a, b in messages %}{% endfor %}{% for c in content %}{% endfor %}",
            ContentFormat::String,
        );
    }

    #[test]
    fn macros_count_when_a_content_is_passed_to_them() {
        let parts = ContentFormat::OpenAi;
        let with = |call: &str| {
            format!(
                "{{% macro show(x, content) %}}{{% for c in content %}}{{% endfor %}}{{% endmacro %}}\
                 {{% for m in messages %}}{{{{ {call} }}}}{{% endfor %}}"
            )
        };
        detects(&with("show(1, m.content)"), parts);
        detects(&with("show(content=m['content'], x=1)"), parts);
        detects(&with("show(m.content, 1)"), ContentFormat::String);
        detects(&with("m.content"), ContentFormat::String);
    }

    #[test]
    fn divergences_from_jinja2_are_named() {
        let found =
            |source: &str| unknown_construct(source, &parse(source, "t", Default::default()).unwrap());
        for (source, expect) in [
            ("{{ a.items }}", ".items"),
            ("{% if x %}{{ f(a['items']) }}{% endif %}", "['items']"),
            ("{{ a|title }}", "|title"),
            ("{% include 'b' %}", "another template"),
            ("{% raw %}\n{{ a }}{% endraw %}", "raw with white space or signs"),
            ("{% raw %}{{ a }} {% endraw %}", "raw with white space or signs"),
            ("{%-raw%}{{ a }}{%endraw%}", "raw with white space or signs"),
            ("{% raw %}{{ a }}{% endraw +%}", "raw with white space or signs"),
            ("{% set a = b|safe %}{{ a + c }}", "what |safe makes, for more than printing it"),
        ] {
            assert_eq!(found(source).as_deref(), Some(expect), "{source}");
        }
        for source in [
            "{{ a.items() }}",
            "{{ loop.index }}",
            "{{ a.format|tojson|safe }}",
            "{{ a['item'] }}",
            "{% if raw %}{% set raw_ = 1 %}{% endif %}",
        ] {
            assert_eq!(found(source), None, "{source}");
        }
    }
}
