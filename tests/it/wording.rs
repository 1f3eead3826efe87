//! The comments of the sources are plain technical English: GLOSSARY.md and CONTRIBUTING.md have
//! the rules.

use std::path::{Path, PathBuf};

use crate::tidy::sources_below;

/// Words that open a question. A comment says what something is or does.
const INTERROGATIVES: [&str; 12] = [
    "Who", "Whoever", "Whom", "Whose", "What", "Whatever", "Whether", "Where", "When", "Which", "How", "Why",
];
/// Pronouns that open a name without a noun.
const PRONOUNS: [&str; 5] = ["it", "its", "they", "he", "she"];
/// Folders whose comments follow the rules.
const FOLDERS: [&str; 5] = ["crates", "src", "benches", "examples", "tests"];
/// Columns of a comment line, tables and blocks of text aside.
const COLUMNS: usize = 100;
/// A sentence has at least so many words.
const WORDS: usize = 3;

/// A run of comment lines with the same marker, and the number of its first line.
struct Block {
    line: usize,
    text: Vec<String>,
}

fn sources() -> Vec<(PathBuf, String)> {
    let all = FOLDERS.iter().flat_map(|folder| sources_below(folder));
    all.filter(|(path, _)| path.extension().is_some_and(|extension| extension == "rs")).collect()
}

/// Splits a line into the marker of a documentation comment and its text.
fn documentation(line: &str) -> Option<(&str, &str)> {
    let line = line.trim_start();
    let (marker, text) = line.split_at_checked(3).filter(|(marker, _)| matches!(*marker, "///" | "//!"))?;
    Some((marker, text.strip_prefix(' ').unwrap_or(text)))
}

fn blocks(source: &str) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let mut before = None;
    for (at, line) in source.lines().enumerate() {
        let Some((marker, text)) = documentation(line) else {
            before = None;
            continue;
        };
        match blocks.last_mut().filter(|_| before == Some(marker)) {
            Some(block) => block.text.push(text.to_owned()),
            None => blocks.push(Block { line: at + 1, text: vec![text.to_owned()] }),
        }
        before = Some(marker);
    }
    blocks
}

/// The first words of a block's paragraphs, each with its line.
fn openings(block: &Block) -> impl Iterator<Item = (usize, &str)> {
    let ends = |before: &str| before.trim().is_empty() || before.starts_with('#');
    let begins = move |at: usize| at == 0 || block.text.get(at - 1).is_some_and(|before| ends(before));
    let paragraphs = block.text.iter().enumerate().filter(move |(at, _)| begins(*at));
    paragraphs.filter_map(|(at, line)| Some((block.line + at, line.split_whitespace().next()?)))
}

/// The sentences of a block's first paragraph, which is its summary.
fn sentences(block: &Block) -> Vec<String> {
    let lines = block.text.iter().take_while(|line| !line.trim().is_empty());
    let summary = lines.map(String::as_str).collect::<Vec<_>>().join(" ");
    summary.split(". ").map(str::to_owned).collect()
}

/// The rules that a source breaks, each with its line.
fn faults(source: &str) -> Vec<(usize, String)> {
    let mut faults = Vec::new();
    for block in blocks(source) {
        for (line, first) in openings(&block).filter(|(_, first)| INTERROGATIVES.contains(first)) {
            faults.push((line, format!("begins with {first:?}: say what it is or does")));
        }
        for sentence in sentences(&block) {
            let words = sentence.split_whitespace().count();
            if words < WORDS && !sentence.starts_with(['#', '|', '`', '[', '<']) {
                faults.push((block.line, format!("{sentence:?} is no sentence: use {WORDS} words or more")));
            }
        }
    }
    let mut in_text = false;
    for (at, line) in source.lines().enumerate() {
        let Some((_, text)) = line.trim_start().split_once("//").filter(|(code, _)| code.is_empty()) else {
            in_text = false;
            continue;
        };
        let text = text.trim_start_matches(['/', '!']).trim_start();
        in_text ^= text.starts_with("```");
        if line.chars().count() > COLUMNS && !in_text && !text.starts_with('|') {
            faults.push((at + 1, format!("has more than {COLUMNS} columns: wrap it")));
        }
    }
    faults
}

/// The test functions of a source, each with its line.
fn test_names(source: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut is_test = false;
    source.lines().enumerate().filter_map(move |(at, line)| {
        let line = line.trim_start();
        is_test |= line.starts_with("#[test]") || line.starts_with("#[tokio::test");
        let name = line.trim_start_matches("async ").strip_prefix("fn ").filter(|_| is_test)?;
        is_test = false;
        Some((at + 1, name.split(['(', '<']).next().unwrap_or(name)))
    })
}

/// The test functions whose names do not begin with what is tested.
fn riddles(source: &str) -> Vec<(usize, String)> {
    let opens_badly = |name: &str| {
        let first = name.split('_').next().unwrap_or(name);
        INTERROGATIVES.iter().any(|word| word.eq_ignore_ascii_case(first)) || PRONOUNS.contains(&first)
    };
    let found = test_names(source).filter(|(_, name)| opens_badly(name));
    found
        .map(|(line, name)| (line, format!("`{name}`: name what is tested, then what is expected")))
        .collect()
}

/// Collects what a rule finds in all sources, as lines with file and line number.
fn found_by(rule: fn(&str) -> Vec<(usize, String)>) -> Vec<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = Vec::new();
    for (path, source) in sources() {
        let name = path.strip_prefix(root).unwrap().display().to_string();
        found.extend(rule(&source).into_iter().map(|(line, rule)| format!("{name}:{line}: {rule}")));
    }
    found
}

#[test]
fn comments_of_the_sources_follow_the_rules() {
    let found = found_by(faults);
    assert!(found.is_empty(), "{} comments break rules:\n{}", found.len(), found.join("\n"));
}

#[test]
fn test_names_begin_with_the_thing_tested() {
    let found = found_by(riddles);
    assert!(found.is_empty(), "{} names break rules:\n{}", found.len(), found.join("\n"));
    let all: usize = sources().iter().map(|(_, source)| test_names(source).count()).sum();
    assert!(all > 1000, "only {all} test functions were looked at");
}

#[test]
fn modules_are_told_apart_by_more_than_an_s() {
    let mut names: Vec<(PathBuf, String)> = Vec::new();
    for (path, _) in sources() {
        let path = if path.ends_with("mod.rs") { path.parent().unwrap().to_owned() } else { path };
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        names.push((path.parent().unwrap().to_owned(), name));
    }
    for (folder, name) in &names {
        let plural = (folder.clone(), format!("{name}s"));
        assert!(!names.contains(&plural), "{}: `{name}` and `{name}s`", folder.display());
    }
}

#[test]
fn each_rule_finds_what_breaks_it() {
    let long = format!("/// {} end.", "word ".repeat(20));
    let bad = [
        "/// Whether it is.\nfn a() {}",
        "/// It is there.\n///\n/// # Errors\n/// When it is not there.",
        "//! What it is made of.",
        "/// The key.\nx: u8,",
        long.as_str(),
    ];
    for source in bad {
        assert_eq!(faults(source).len(), 1, "{source}");
    }
    let good = "/// True if it is there.\n///\n/// | a table | may be wider |\n/// ```text\n/// so may text\n/// ```\nfn a() {}";
    assert!(faults(good).is_empty());
    let named =
        |name: &str| riddles(&format!("    #[tokio::test(start_paused = true)]\n    async fn {name}() {{}}"));
    for bad in ["who_leaves_pays", "whatever_is_left", "it_ends", "where_it_is"] {
        assert_eq!(named(bad).first().map(|(line, _)| *line), Some(2), "{bad}");
    }
    assert!(named("whole_answers_are_read").is_empty() && riddles("fn who_is_no_test() {}").is_empty());
}
