//! Documents: the README is short, every relative link leads to a file and a heading, the justfile
//! lists every script. `tests/docs.sh` proves the rest of what documents say.

use std::collections::{BTreeSet, HashMap};
use std::path::{Component, Path, PathBuf};

/// Folders at the root that have documents; those of tools and builds are not among them.
const FOLDERS: &[&str] = &[".github", "benches", "config", "crates", "docs", "examples", "src", "tests"];
/// The texts before and after the target of a link.
const LINKS: &[(&str, char)] = &[("](", ')'), ("src=\"", '"'), ("srcset=\"", '"')];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Adds the Markdown files below a folder.
fn collect(folder: &Path, found: &mut Vec<PathBuf>) {
    for path in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        if path.is_dir() && !path.ends_with("target") && !path.ends_with("node_modules") {
            collect(&path, found);
        } else if path.extension().is_some_and(|end| end == "md") {
            found.push(path);
        }
    }
}

/// Every document by its path from the root.
fn documents() -> HashMap<PathBuf, String> {
    let files = std::fs::read_dir(root()).unwrap().map(|entry| entry.unwrap().path());
    let mut found: Vec<_> = files.filter(|path| path.extension().is_some_and(|end| end == "md")).collect();
    for folder in FOLDERS.iter().map(|folder| root().join(folder)).filter(|folder| folder.is_dir()) {
        collect(&folder, &mut found);
    }
    let relative = |path: &PathBuf| path.strip_prefix(root()).unwrap().to_owned();
    found.iter().map(|path| (relative(path), std::fs::read_to_string(path).unwrap())).collect()
}

/// The lines outside of code blocks, with their numbers.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut inside = false;
    text.lines().enumerate().filter_map(move |(at, line)| {
        let fence = line.trim_start().starts_with("```");
        inside ^= fence;
        (!fence && !inside).then_some((at + 1, line))
    })
}

/// A heading without the targets of its links: `[a](b)` is `a`.
fn plain(heading: &str) -> String {
    let mut parts = heading.split("](");
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        text += part.split_once(')').map_or("", |(_, rest)| rest);
    }
    text
}

/// The anchors of a document's headings, as GitHub makes them.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut seen: HashMap<String, usize> = HashMap::new();
    let headings = prose(text).filter(|(_, line)| line.starts_with('#'));
    let slugs = headings.map(|(_, line)| {
        let words = plain(line.trim_start_matches('#').trim()).to_lowercase();
        let kept = words.chars().filter(|c| c.is_alphanumeric() || matches!(c, '_' | '-' | ' '));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect::<String>()
    });
    let mut count = |slug: String| {
        let times = seen.entry(slug.clone()).or_default();
        *times += 1;
        if *times == 1 { slug } else { format!("{slug}-{}", *times - 1) }
    };
    slugs.map(&mut count).collect()
}

/// The targets in a line that are no addresses of the web.
fn targets(line: &str) -> Vec<&str> {
    let between = |(open, close): &(&'static str, char)| {
        let (open, close) = (*open, *close);
        line.split(open).skip(1).filter_map(move |rest| rest.split_once(close).map(|(target, _)| target))
    };
    let all = LINKS.iter().flat_map(between);
    all.filter(|target| !target.contains([' ', ':']) && !target.is_empty()).collect()
}

/// A path without `.` and `..`; `None` if it leaves the repository.
fn normal(path: &Path) -> Option<PathBuf> {
    let mut out = PathBuf::new();
    for part in path.components() {
        match part {
            Component::Normal(name) => out.push(name),
            Component::CurDir => (),
            Component::ParentDir if out.pop() => (),
            _ => return None,
        }
    }
    Some(out)
}

/// The links of a document that lead nowhere.
fn dead_links(name: &Path, documents: &HashMap<PathBuf, String>) -> Vec<String> {
    let mut dead = Vec::new();
    for (number, line) in prose(&documents[name]) {
        for target in targets(line) {
            let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
            let here =
                if file.is_empty() { Some(name.to_owned()) } else { normal(&name.with_file_name(file)) };
            let leads = here.is_some_and(|file| match documents.get(&file) {
                Some(text) => anchor.is_empty() || anchors(text).contains(anchor),
                None => root().join(&file).exists(),
            });
            if !leads {
                dead.push(format!("{}:{number}: {target}", name.display()));
            }
        }
    }
    dead
}

#[test]
fn links_between_documents_lead_somewhere() {
    let documents = documents();
    assert!(documents.contains_key(Path::new("docs/README.md")), "{:?}", documents.keys());
    let dead: Vec<_> = documents.keys().flat_map(|name| dead_links(name, &documents)).collect();
    assert!(dead.is_empty(), "links that lead nowhere:\n{}", dead.join("\n"));
}

/// Each alert leads to a page that says what to do.
#[test]
fn every_alert_names_a_runbook_that_is_there() {
    let documents = documents();
    let rules = std::fs::read_to_string(root().join("config/prometheus/alerts.yml")).unwrap();
    for rule in rules.split("- alert: ").skip(1) {
        let name = rule.lines().next().unwrap();
        let url = rule.lines().find_map(|line| line.trim().strip_prefix("runbook_url: "));
        let (file, anchor) =
            url.unwrap_or_else(|| panic!("{name} has no runbook_url")).split_once('#').unwrap();
        let page = documents.get(Path::new(file)).unwrap_or_else(|| panic!("{name}: no {file}"));
        assert!(anchors(page).contains(anchor), "{name}: {file} has no heading for #{anchor}");
    }
}

#[test]
fn a_dead_link_is_found() {
    let dead = |text: &str| {
        let name = PathBuf::from("docs/planted.md");
        let other = (PathBuf::from("other.md"), "# One\n\n## [Two](x.md), `2`\n\n## One\n".to_owned());
        dead_links(&name, &HashMap::from([(name.clone(), text.to_owned()), other])).len()
    };
    for good in [
        "[a](../other.md#one-1)",
        "[a](../other.md#two-2)",
        "# A\n[a](#a)",
        "[a](https://x.y/z.md)",
        "```\n[a](b.md)\n```",
    ] {
        assert_eq!(dead(good), 0, "{good}");
    }
    for bad in [
        "[a](b.md)",
        "[a](#b)",
        "[a](../other.md#x)",
        "[a](../../b.md)",
        "<img src=\"b.png\">",
        "[a](../other.md) [a](b.md)",
    ] {
        assert_eq!(dead(bad), 1, "{bad}");
    }
}

#[test]
fn the_readme_is_short() {
    let readme = std::fs::read_to_string(root().join("README.md")).unwrap();
    assert!(
        readme.lines().count() <= 150,
        "README.md has {} lines: move some to docs/",
        readme.lines().count()
    );
    let wide: Vec<_> = readme.lines().filter(|line| line.chars().count() > 120).collect();
    assert!(wide.is_empty(), "more than 120 columns: {wide:#?}");
}

/// The names of scripts in a text: words that end with `.sh`.
fn scripts_in(text: &str) -> BTreeSet<&str> {
    let words = text.split_whitespace();
    words.filter(|word| word.ends_with(".sh")).collect()
}

/// Scripts without the right to be run are parts of others.
#[test]
fn the_justfile_lists_every_script() {
    use std::os::unix::fs::PermissionsExt as _;
    let justfile = std::fs::read_to_string(root().join("justfile")).unwrap();
    let recipes: Vec<_> = justfile.lines().filter(|line| line.starts_with("    ")).collect();
    let recipes = recipes.join("\n");
    let listed = scripts_in(&recipes);
    let missing: Vec<_> = listed.iter().filter(|name| !root().join(name).is_file()).collect();
    assert!(missing.is_empty(), "the justfile has scripts that are not there: {missing:?}");
    for folder in ["tests", "tests/real"] {
        for path in std::fs::read_dir(root().join(folder)).unwrap().map(|entry| entry.unwrap().path()) {
            let runs = path.is_file() && path.metadata().unwrap().permissions().mode() & 0o100 != 0;
            let name = path.strip_prefix(root()).unwrap().to_str().unwrap();
            if runs && path.extension().is_some_and(|end| end == "sh") {
                assert!(listed.contains(name), "the justfile has no {name}");
            }
        }
    }
}
