//! The nodes of a template's syntax tree, as a flat list.

use minijinja::machinery::ast::{CallArg, Expr, Stmt};

/// One node with what a check needs to know of its place.
pub(super) enum Node<'t, 'a> {
    /// A statement; `in_macro` names the macro around it by its place in the list.
    Stmt { stmt: &'t Stmt<'a>, in_macro: Option<usize> },
    /// An expression; `called`: what is called is this very expression.
    Expr { expr: &'t Expr<'a>, called: bool },
}

/// All statements and expressions below `root`, parents first.
pub(super) fn nodes<'t, 'a>(root: &'t Stmt<'a>) -> Vec<Node<'t, 'a>> {
    let mut found = Vec::new();
    let mut statements = vec![(root, None)];
    while let Some((stmt, in_macro)) = statements.pop() {
        let (below, expressions) = children(stmt);
        let inner = if matches!(stmt, Stmt::Macro(_)) { Some(found.len()) } else { in_macro };
        found.push(Node::Stmt { stmt, in_macro });
        statements.extend(below.into_iter().rev().map(|stmt| (stmt, inner)));
        expressions.into_iter().for_each(|(expr, called)| push_expr(&mut found, expr, called));
    }
    found
}

/// An expression and all below it.
pub(super) fn parts<'t, 'a>(expr: &'t Expr<'a>) -> Vec<&'t Expr<'a>> {
    let mut found = Vec::new();
    let mut todo = vec![expr];
    while let Some(expr) = todo.pop() {
        found.push(expr);
        todo.extend(operands(expr).into_iter().map(|(expr, _)| expr));
    }
    found
}

fn push_expr<'t, 'a>(found: &mut Vec<Node<'t, 'a>>, expr: &'t Expr<'a>, called: bool) {
    let mut todo = vec![(expr, called)];
    while let Some((expr, called)) = todo.pop() {
        found.push(Node::Expr { expr, called });
        todo.extend(operands(expr));
    }
}

type Below<'t, 'a> = (Vec<&'t Stmt<'a>>, Vec<(&'t Expr<'a>, bool)>);

fn children<'t, 'a>(stmt: &'t Stmt<'a>) -> Below<'t, 'a> {
    let plain = |expr: &'t Expr<'a>| (expr, false);
    match stmt {
        Stmt::Template(it) => (it.children.iter().collect(), vec![]),
        Stmt::EmitExpr(it) => (vec![], vec![plain(&it.expr)]),
        Stmt::ForLoop(it) => {
            let exprs = [Some(&it.target), Some(&it.iter), it.filter_expr.as_ref()];
            (it.body.iter().chain(&it.else_body).collect(), exprs.into_iter().flatten().map(plain).collect())
        }
        Stmt::IfCond(it) => (it.true_body.iter().chain(&it.false_body).collect(), vec![plain(&it.expr)]),
        Stmt::WithBlock(it) => (
            it.body.iter().collect(),
            it.assignments.iter().flat_map(|(to, from)| [plain(to), plain(from)]).collect(),
        ),
        Stmt::Set(it) => (vec![], vec![plain(&it.expr)]),
        Stmt::SetBlock(it) => (it.body.iter().collect(), it.filter.iter().map(plain).collect()),
        Stmt::AutoEscape(it) => (it.body.iter().collect(), vec![plain(&it.enabled)]),
        Stmt::FilterBlock(it) => (it.body.iter().collect(), vec![plain(&it.filter)]),
        Stmt::Block(it) => (it.body.iter().collect(), vec![]),
        Stmt::Macro(it) => (it.body.iter().collect(), it.defaults.iter().map(plain).collect()),
        Stmt::CallBlock(it) => (it.macro_decl.body.iter().collect(), call(&it.call.expr, &it.call.args)),
        Stmt::Do(it) => (vec![], call(&it.call.expr, &it.call.args)),
        _ => (vec![], vec![]),
    }
}

fn call<'t, 'a>(callee: &'t Expr<'a>, args: &'t [CallArg<'a>]) -> Vec<(&'t Expr<'a>, bool)> {
    std::iter::once((callee, true)).chain(args.iter().map(|arg| (arg_expr(arg), false))).collect()
}

/// The value of a call's argument, however it is passed.
pub(super) fn arg_expr<'t, 'a>(arg: &'t CallArg<'a>) -> &'t Expr<'a> {
    match arg {
        CallArg::Pos(expr)
        | CallArg::Kwarg(_, expr)
        | CallArg::PosSplat(expr)
        | CallArg::KwargSplat(expr) => expr,
    }
}

fn operands<'t, 'a>(expr: &'t Expr<'a>) -> Vec<(&'t Expr<'a>, bool)> {
    let plain =
        |exprs: Vec<Option<&'t Expr<'a>>>| exprs.into_iter().flatten().map(|expr| (expr, false)).collect();
    match expr {
        Expr::Var(_) | Expr::Const(_) => vec![],
        Expr::Slice(it) => plain(vec![Some(&it.expr), it.start.as_ref(), it.stop.as_ref(), it.step.as_ref()]),
        Expr::UnaryOp(it) => plain(vec![Some(&it.expr)]),
        Expr::BinOp(it) => plain(vec![Some(&it.left), Some(&it.right)]),
        Expr::Compare(it) => {
            plain(std::iter::once(&it.expr).chain(it.ops.iter().map(|op| &op.expr)).map(Some).collect())
        }
        Expr::IfExpr(it) => plain(vec![Some(&it.test_expr), Some(&it.true_expr), it.false_expr.as_ref()]),
        Expr::Filter(it) => plain(it.expr.iter().chain(it.args.iter().map(arg_expr)).map(Some).collect()),
        Expr::Test(it) => {
            plain(std::iter::once(&it.expr).chain(it.args.iter().map(arg_expr)).map(Some).collect())
        }
        Expr::GetAttr(it) => plain(vec![Some(&it.expr)]),
        Expr::GetItem(it) => plain(vec![Some(&it.expr), Some(&it.subscript_expr)]),
        Expr::Call(it) => call(&it.expr, &it.args),
        Expr::List(it) => plain(it.items.iter().map(Some).collect()),
        Expr::Tuple(it) => plain(it.items.iter().map(Some).collect()),
        Expr::Map(it) => plain(it.keys.iter().chain(&it.values).map(Some).collect()),
    }
}
