//! `|safe`: in Jinja2 it makes a `Markup`, which escapes what is added to it. Here it stays the
//! text that it is, so a template may print it, keep it and join it by `~`, and nothing else that
//! could show the difference.

use std::collections::BTreeSet;

use minijinja::machinery::ast::{BinOpKind, Call, Expr, Spanned, Stmt};

use super::walk::{Node, arg_expr, nodes, parts};

/// True if some `Markup` is added to, formatted, changed by a method with arguments, put into a
/// list or given to a macro.
pub(super) fn changes_markup(root: &Stmt<'_>) -> bool {
    let nodes = nodes(root);
    let names = marked_names(&nodes);
    let marked = |expr: &Expr<'_>| is_marked(expr, &names);
    let passed = |call: &Call<'_>| call.args.iter().any(|arg| marked(arg_expr(arg)));
    let called = |call: &Spanned<Call<'_>>| {
        passed(call) || (!call.args.is_empty() && matches!(&call.expr, Expr::GetAttr(it) if marked(&it.expr)))
    };
    nodes.iter().any(|node| match node {
        Node::Expr { expr, .. } => match expr {
            Expr::BinOp(it) => {
                matches!(it.op, BinOpKind::Add | BinOpKind::Rem) && (marked(&it.left) || marked(&it.right))
            }
            Expr::Call(call) => called(call),
            Expr::List(_) | Expr::Tuple(_) | Expr::Map(_) => marked(expr),
            _ => false,
        },
        Node::Stmt { stmt: Stmt::CallBlock(it), .. } => called(&it.call),
        Node::Stmt { stmt: Stmt::Do(it), .. } => called(&it.call),
        Node::Stmt { .. } => false,
    })
}

/// Variables and members that may be `Markup`, by their last name, wherever they are set.
fn marked_names<'a>(nodes: &[Node<'_, 'a>]) -> BTreeSet<&'a str> {
    let mut names = BTreeSet::new();
    loop {
        let before = names.len();
        for node in nodes {
            let Node::Stmt { stmt, .. } = node else { continue };
            let sets: Vec<(&Expr<'a>, &Expr<'a>)> = match stmt {
                Stmt::Set(it) => vec![(&it.target, &it.expr)],
                Stmt::SetBlock(it) => it.filter.iter().map(|filter| (&it.target, filter)).collect(),
                Stmt::ForLoop(it) => vec![(&it.target, &it.iter)],
                Stmt::WithBlock(it) => it.assignments.iter().map(|(to, from)| (to, from)).collect(),
                Stmt::Macro(it) => it.args.iter().rev().zip(it.defaults.iter().rev()).collect(),
                _ => continue,
            };
            for (target, value) in sets {
                if is_marked(value, &names) {
                    names.extend(parts(target).into_iter().filter_map(name));
                }
            }
        }
        if names.len() == before {
            return names;
        }
    }
}

/// True if a `Markup` is in it anywhere.
fn is_marked(expr: &Expr<'_>, names: &BTreeSet<&str>) -> bool {
    parts(expr).into_iter().any(|part| match part {
        Expr::Filter(filter) => filter.name == "safe",
        part => name(part).is_some_and(|name| names.contains(name)),
    })
}

fn name<'a>(expr: &Expr<'a>) -> Option<&'a str> {
    match expr {
        Expr::Var(it) => Some(it.id),
        Expr::GetAttr(it) => Some(it.name),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use minijinja::machinery::parse;

    use super::*;

    /// Each of these shows `&lt;` or `Markup(…)` in Jinja2 3.1 with MarkupSafe 3.0, or may.
    #[test]
    fn autoescaping_is_detected() {
        for source in [
            "{{ 'x'|safe + '<' }}",
            "{{ '<' + ('x'|safe|upper) }}",
            "{{ ('%s'|safe) % '<' }}",
            "{% set a = 'x'|safe %}{{ a + '<' }}",
            "{% set a = 'x'|safe %}{% set b = a[0] if c else d %}{% set b = b + '<' %}",
            "{% set ns.t = 'x'|safe %}{{ ns.t + '<' }}",
            "{% set ns = namespace(t='<'|safe) %}{{ ns.t + '<' }}",
            "{{ ('x'|safe).replace('x', '<') }}",
            "{{ ['x'|safe] }}",
            "{% for a in 'x'|safe %}{{ a + '<' }}{% endfor %}",
            "{% with a = 'x'|safe %}{{ a + '<' }}{% endwith %}",
            "{% macro f(a, b='x'|safe) %}{{ b + '<' }}{% endmacro %}",
            "{% macro f(a) %}{{ a + '<' }}{% endmacro %}{{ f('x'|safe) }}",
            "{% set a | safe %}x{% endset %}{{ a + '<' }}",
        ] {
            assert!(changes_markup(&parse(source, "t", Default::default()).unwrap()), "{source}");
        }
    }

    /// As the templates of Qwen3-Coder and others use it.
    #[test]
    fn printed_and_kept_text_are_equal() {
        for source in [
            "{{ x|tojson|safe }}{{ '<' ~ (x|safe) }}{{ a + '<' }}",
            "{% set a = x if x is string else x|tojson|safe %}{{ a }}{{ a|trim }}{{ a.strip() }}{{ b + '<' }}",
            "{% filter safe %}{{ a + b }}{% endfilter %}{{ (a|length) + 1 }}",
        ] {
            assert!(!changes_markup(&parse(source, "t", Default::default()).unwrap()), "{source}");
        }
    }
}
