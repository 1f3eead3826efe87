//! Facts in a template's source, before it is ever rendered: the content format it wants, and
//! constructs that are not rendered here as Jinja2 does.

use std::collections::BTreeSet;

use minijinja::machinery::ast::{Call, CallArg, Expr, Macro, Stmt};

use super::markup::changes_markup;
use super::rules::Edition;
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

/// `OpenAi` if the template loops over a message's content, `String` if it prints it (vLLM 0.32 and
/// 0.33, `_detect_content_format`).
pub(super) fn content_format(root: &Stmt<'_>, edition: Edition) -> ContentFormat {
    if loops_over_content(&nodes(root), edition).unwrap_or(false) {
        ContentFormat::OpenAi
    } else {
        ContentFormat::String
    }
}

/// `None` where the engine's own analysis gives up (a loop variable that is not a name) and takes
/// the default.
fn loops_over_content(nodes: &[Node<'_, '_>], edition: Edition) -> Option<bool> {
    let message_names = message_names(nodes, &message_lists(nodes, edition)?)?;
    for node in nodes {
        let Node::Stmt { stmt: Stmt::ForLoop(it), in_macro } = node else { continue };
        let of_message = message_names.iter().any(|name| is_access(&it.iter, name, "content"));
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

/// A variable that stands for the messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Alias<'a> {
    Var(&'a str),
    /// A namespace's member: `of.name`.
    Member {
        of: &'a str,
        name: &'a str,
    },
}

impl Alias<'_> {
    /// True if `expr` is it, possibly filtered, tested or sliced.
    fn is_read_by(self, expr: &Expr<'_>) -> bool {
        match (expr, self) {
            (Expr::Filter(it), _) => it.expr.as_ref().is_some_and(|inner| self.is_read_by(inner)),
            (Expr::Test(it), _) => self.is_read_by(&it.expr),
            (Expr::Slice(it), _) => self.is_read_by(&it.expr),
            (Expr::Var(var), Alias::Var(id)) => var.id == id,
            (Expr::GetAttr(it), Alias::Member { of, name }) => {
                it.name == name && name_of(&it.expr) == Some(of)
            }
            _ => false,
        }
    }
}

/// `messages`, and all that was assigned from it. 0.32 follows variables alone, and gives up at
/// anything else that is assigned from one.
fn message_lists<'a>(nodes: &[Node<'_, 'a>], edition: Edition) -> Option<BTreeSet<Alias<'a>>> {
    let mut lists = BTreeSet::from([Alias::Var("messages")]);
    let mut todo = vec![Alias::Var("messages")];
    while let Some(list) = todo.pop() {
        for node in nodes {
            let Node::Stmt { stmt: Stmt::Set(set), .. } = node else { continue };
            let found = match (edition, &set.target) {
                (_, Expr::Var(to)) if list.is_read_by(&set.expr) => vec![Alias::Var(to.id)],
                (Edition::Of32, _) if list.is_read_by(&set.expr) => return None,
                (Edition::Of32, _) => continue,
                (Edition::Of33, Expr::Var(to)) => members_of(to.id, &set.expr, list),
                (Edition::Of33, Expr::GetAttr(to)) if list.is_read_by(&set.expr) => {
                    name_of(&to.expr).map(|of| Alias::Member { of, name: to.name }).into_iter().collect()
                }
                (Edition::Of33, _) => continue,
            };
            todo.extend(found.into_iter().filter(|alias| lists.insert(*alias)));
        }
    }
    Some(lists)
}

/// Members of the namespace `of` that are made from the list: `namespace(name=list)`.
fn members_of<'a>(of: &'a str, expr: &Expr<'a>, list: Alias<'_>) -> Vec<Alias<'a>> {
    let Expr::Call(call) = expr else { return Vec::new() };
    if name_of(&call.expr) != Some("namespace") {
        return Vec::new();
    }
    let members = call.args.iter().filter_map(|arg| match arg {
        CallArg::Kwarg(name, value) if list.is_read_by(value) => Some(Alias::Member { of, name }),
        _ => None,
    });
    members.collect()
}

/// The variables that stand for one message in a loop over one of the lists.
fn message_names<'a>(nodes: &[Node<'_, 'a>], lists: &BTreeSet<Alias<'a>>) -> Option<BTreeSet<&'a str>> {
    let mut found = BTreeSet::new();
    for node in nodes {
        let Node::Stmt { stmt: Stmt::ForLoop(it), .. } = node else { continue };
        if lists.iter().any(|list| list.is_read_by(&it.iter)) {
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
    if name_of(&call.expr) != Some(it.name) {
        return false;
    }
    call.args.iter().enumerate().any(|(at, arg)| {
        let this = match arg {
            CallArg::Pos(_) => at == place,
            CallArg::Kwarg(key, _) => *key == name,
            CallArg::PosSplat(_) | CallArg::KwargSplat(_) => false,
        };
        this && messages.iter().any(|message| is_access(arg_expr(arg), message, "content"))
    })
}

fn name_of<'a>(expr: &Expr<'a>) -> Option<&'a str> {
    match expr {
        Expr::Var(var) => Some(var.id),
        _ => None,
    }
}

/// True if `expr` is `name.key`, possibly filtered, tested or sliced.
fn is_access(expr: &Expr<'_>, name: &str, key: &str) -> bool {
    match expr {
        Expr::Filter(it) => it.expr.as_ref().is_some_and(|inner| is_access(inner, name, key)),
        Expr::Test(it) => is_access(&it.expr, name, key),
        Expr::Slice(it) => is_access(&it.expr, name, key),
        Expr::GetAttr(it) => it.name == key && name_of(&it.expr) == Some(name),
        Expr::GetItem(it) => {
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
        for edition in [Edition::Of32, Edition::Of33] {
            let found = content_format(&parse(source, "t", Default::default()).unwrap(), edition);
            assert_eq!(found, expect, "{source} {edition:?}");
        }
    }

    /// A template in which 0.32 finds nothing, and 0.33 this.
    #[track_caller]
    fn detects_since_33(source: &str, expect: ContentFormat) {
        let root = parse(source, "t", Default::default()).unwrap();
        assert_eq!(content_format(&root, Edition::Of32), ContentFormat::String, "{source}");
        assert_eq!(content_format(&root, Edition::Of33), expect, "{source}");
    }

    #[test]
    fn messages_are_followed_through_namespaces_since_33() {
        let parts = ContentFormat::OpenAi;
        let walk = |list: &str| {
            format!("{{% for m in {list} %}}{{% for c in m.content %}}{{% endfor %}}{{% endfor %}}")
        };
        let is =
            |before: &str, list: &str, expect| detects_since_33(&format!("{before}{}", walk(list)), expect);
        is("{% set ns = namespace(rest=messages) %}", "ns.rest", parts);
        is("{% set ns = namespace(a=1, rest=messages[1:]) %}", "ns.rest|list", parts);
        is("{% set ns = namespace() %}{% set ns.rest = messages %}", "ns.rest", parts);
        is(
            "{% set ns = namespace(a=messages) %}{% set o = namespace(b=ns.a) %}{% set l = o.b %}",
            "l",
            parts,
        );
        is("{% set ns = namespace(rest=messages) %}", "ns.other", ContentFormat::String);
        is("{% set ns = namespace(rest=messages) %}", "ns['rest']", ContentFormat::String);
        is("{% set ns = dict(rest=messages) %}", "ns.rest", ContentFormat::String);
        // 0.32 gives up at the assignment, and so does not look at what is plain to see.
        is("{% set ns = namespace() %}{% set ns.x = messages %}", "messages", parts);
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
