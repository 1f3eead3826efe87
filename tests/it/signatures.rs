//! Parameters that belong together are a struct: no signature of the sources has a tuple. Ends that
//! differ are an enum: no type of the sources nests two of Result, Option and Poll for that.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::tidy::sources_below;

/// Functions that keep a tuple, with the reason.
const KEPT: [(&str, &str, &str); 1] =
    [("src/pool/memcache/ranks.rs", "from_iter", "std's maps are collected from pairs of key and value")];
/// Nested types that say nothing of what their inner and outer cases mean.
const NESTED: [&str; 6] = [
    "Result<Result<",
    "Option<Option<",
    "Option<Result<Option<",
    "Option<Poll<",
    "Poll<Option<Option<",
    "Poll<Option<Poll<",
];
/// Words before a parenthesis that are no name of a tuple struct.
const KEYWORDS: [&str; 6] = ["mut", "dyn", "impl", "const", "for", "in"];

/// A source without its comments and texts, which become blanks; lines stay.
fn code_of(source: &str) -> Vec<char> {
    let chars: Vec<char> = source.chars().collect();
    let mut code = chars.clone();
    let mut at = 0;
    while at < chars.len() {
        let end = literal_end(&chars, at);
        for char in &mut code[at..end] {
            *char = if *char == '\n' { '\n' } else { ' ' };
        }
        at = end.max(at + 1);
    }
    code
}

/// The end of the comment, text or character that begins at `at`; `at` itself if none does.
fn literal_end(chars: &[char], at: usize) -> usize {
    let is = |place: usize, wanted: char| chars.get(place) == Some(&wanted);
    let line_end = || (at..chars.len()).find(|place| is(*place, '\n')).unwrap_or(chars.len());
    let named = at.checked_sub(1).is_some_and(|before| chars[before].is_alphanumeric());
    let hashes = (at + 1..chars.len()).take_while(|place| is(*place, '#')).count();
    match chars[at] {
        '/' if is(at + 1, '/') => line_end(),
        'r' if !named && is(at + 1 + hashes, '"') => {
            let ends = |place: &usize| is(*place, '"') && (1..=hashes).all(|n| is(place + n, '#'));
            let quote = (at + 2 + hashes..chars.len()).find(ends);
            quote.map_or(chars.len(), |quote| quote + 1 + hashes)
        }
        '"' => {
            let mut end = at + 1;
            while end < chars.len() && !is(end, '"') {
                end += if is(end, '\\') { 2 } else { 1 };
            }
            (end + 1).min(chars.len())
        }
        '\'' if is(at + 1, '\\') => {
            (at + 3..chars.len()).find(|end| is(*end, '\'')).map_or(at, |end| end + 1)
        }
        '\'' if is(at + 2, '\'') => at + 3,
        _ => at,
    }
}

/// The place after the bracket that closes the one at `open`; an arrow's head is none.
fn closed(code: &[char], open: usize) -> usize {
    let mut depth = 0_usize;
    for at in open..code.len() {
        match code[at] {
            '(' | '[' | '<' => depth += 1,
            '>' if at > 0 && matches!(code[at - 1], '-' | '=') => {}
            ')' | ']' | '>' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return at + 1;
        }
    }
    code.len()
}

/// True if the parenthesis at `open` holds several things: the comma is in no inner bracket.
fn holds_several(code: &[char], open: usize) -> bool {
    let end = closed(code, open) - 1;
    let mut at = open + 1;
    while at < end {
        match code[at] {
            ',' => return true,
            '(' | '[' | '<' => at = closed(code, at),
            _ => at += 1,
        }
    }
    false
}

/// The word that ends before `at`, blanks aside, with the quote of a lifetime.
fn word_before(code: &[char], at: usize) -> String {
    let before: Vec<char> = code[..at].iter().rev().copied().skip_while(|c| c.is_whitespace()).collect();
    let word = before.into_iter().take_while(|c| c.is_alphanumeric() || matches!(c, '_' | '\''));
    word.collect::<Vec<_>>().into_iter().rev().collect()
}

/// True if a part of a signature has a tuple: a parenthesis with a comma that is no tuple struct's
/// and no function's.
fn has_tuple(code: &[char], part: std::ops::Range<usize>) -> bool {
    part.into_iter().filter(|at| code[*at] == '(').any(|at| {
        let word = word_before(code, at);
        let is_named = !word.is_empty() && !word.starts_with('\'') && !KEYWORDS.contains(&word.as_str());
        !is_named && holds_several(code, at)
    })
}

/// Line and name of each function of a source whose parameters have a tuple.
fn tuples(source: &str) -> Vec<(usize, String)> {
    let code = code_of(source.split("#[cfg(test)]").next().unwrap());
    let mut found = Vec::new();
    for at in 0..code.len().saturating_sub(3) {
        let is_fn = code[at..].starts_with(&['f', 'n', ' ']) && !(at > 0 && code[at - 1].is_alphanumeric());
        let name: String = code[at + 3..].iter().take_while(|c| c.is_alphanumeric() || **c == '_').collect();
        if !is_fn || name.is_empty() {
            continue;
        }
        let generics = at + 3 + name.chars().count();
        let params = if code.get(generics) == Some(&'<') { closed(&code, generics) } else { generics };
        if code.get(params) != Some(&'(') {
            continue;
        }
        let end = closed(&code, params);
        if has_tuple(&code, generics..params) || has_tuple(&code, params + 1..end) {
            found.push((code[..at].iter().filter(|c| **c == '\n').count() + 1, name));
        }
    }
    found
}

/// The modules that are compiled for tests alone.
fn test_modules(sources: &[(PathBuf, String)]) -> BTreeSet<PathBuf> {
    let mut modules = BTreeSet::new();
    for (path, text) in sources {
        let folder =
            if path.ends_with("mod.rs") { path.parent().unwrap().into() } else { path.with_extension("") };
        for rest in text.split("#[cfg(test)]\n").skip(1) {
            let line = rest.lines().next().unwrap_or("").trim_start_matches("pub(crate) ");
            let name = line.strip_prefix("mod ").and_then(|line| line.strip_suffix(';'));
            modules.extend(name.map(|name| folder.join(name)));
        }
    }
    modules
}

#[test]
fn signatures_have_structs_instead_of_tuples() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let sources = sources_below("src");
    let tests = test_modules(&sources);
    let mut found = Vec::new();
    for (path, text) in &sources {
        if path.ancestors().any(|part| tests.contains(&part.with_extension(""))) {
            continue;
        }
        let file = path.strip_prefix(root).unwrap().display().to_string();
        for (line, name) in tuples(text) {
            if !KEPT.iter().any(|(of, function, _)| *of == file && *function == name) {
                found.push(format!("{file}:{line}: `{name}` takes a tuple: name its parts in a struct"));
            }
        }
    }
    assert!(found.is_empty(), "{} signatures have tuples:\n{}", found.len(), found.join("\n"));
}

#[test]
fn ends_that_differ_are_enums() {
    let mut found = Vec::new();
    for (path, text) in sources_below("src") {
        let code: String = code_of(text.split("#[cfg(test)]").next().unwrap()).iter().collect();
        for (at, line) in code.lines().enumerate() {
            if let Some(nested) = NESTED.iter().find(|nested| line.contains(**nested)) {
                found.push(format!("{}:{}: `{nested}…`: name the ends in an enum", path.display(), at + 1));
            }
        }
    }
    assert!(found.is_empty(), "{} types are nested:\n{}", found.len(), found.join("\n"));
}

#[test]
fn a_tuple_is_found_in_parameters_and_nowhere_else() {
    let bad = [
        "fn f((a, b): (u8, u8)) {}",
        "fn f(x: &[(u8, String)], y: u8) {}",
        "fn f<I: IntoIterator<Item = (u8, u8)>>(all: I) {}",
        "fn f(x: &'a (u8, u8), why: char) {}",
        "fn f(x: &mut (u8, u8)) {}",
        "fn f(each: impl Fn((u8, u8)) -> u8) {}",
        "fn f(quote: char) { g('\"') }\nfn g(\n    a: u8,\n    (b, c): Pair) {}",
    ];
    for source in bad {
        assert_eq!(tuples(source).len(), 1, "{source}");
    }
    assert_eq!(tuples(bad[6]), [(2, "g".to_owned())]);
    let good = "fn f(Pair(a, b): Pair, each: impl Fn(u8, u8) -> u8) -> (u8, u8) { (a, b) } // fn f((a, b): T)\n\
                fn g<A, B>(a: A, b: [B; 2]) {}\nconst T: &str = \"fn f((a, b): T)\";\n\
                #[cfg(test)]\nfn f((a, b): (u8, u8)) {}";
    assert!(tuples(good).is_empty());
}
