//! The comments of the sources are plain technical English: GLOSSARY.md and CONTRIBUTING.md have the rules.

use std::path::{Path, PathBuf};

use crate::tidy::sources_below;

/// Words that open a question. A comment says what something is or does.
const INTERROGATIVES: [&str; 12] = [
    "Who", "Whoever", "Whom", "Whose", "What", "Whatever", "Whether", "Where", "When", "Which", "How", "Why",
];
/// Folders whose comments follow the rules.
const FOLDERS: [&str; 4] = ["crates", "src", "benches", "tests/fuzz/fuzz_targets"];
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

#[test]
fn comments_of_the_sources_follow_the_rules() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = Vec::new();
    for (path, source) in sources() {
        let name = path.strip_prefix(root).unwrap().display().to_string();
        found.extend(faults(&source).into_iter().map(|(line, rule)| format!("{name}:{line}: {rule}")));
    }
    assert!(found.is_empty(), "{} comments break rules:\n{}", found.len(), found.join("\n"));
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
}
