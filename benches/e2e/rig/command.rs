//! The command line of a proxy, with places for ports.

use std::io;
use std::path::Path;

/// Reasons why a text is no command of a proxy.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CommandError {
    /// The command names no place to listen.
    #[error("no {{port}}: say where the proxy is to listen, as in --port {{port}}")]
    NoPort,
    /// A quote without its end.
    #[error("a quote is open at its end: close it")]
    Quote,
    /// A bracket without its end.
    #[error("a bracket is open at its end: end the repeated words with ]")]
    Bracket,
    /// Brackets around nothing that could be repeated.
    #[error("brackets without {{p*}} or {{d*}}: put one of them in")]
    NoStar,
}

/// Values that are put into a command.
#[derive(Clone, Debug, Default)]
pub(crate) struct Places {
    /// Pairs of a name, without braces, and the value that replaces it.
    pub(crate) named: Vec<(String, String)>,
    /// Ports of the prefillers.
    pub(crate) prefill: Vec<u16>,
    /// Ports of the decoders.
    pub(crate) decode: Vec<u16>,
}

/// A command line: words, and words that are repeated for each engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Command(Vec<Piece>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Word(String),
    Each(Star, Vec<String>),
}

/// Role of the engines that a repetition goes over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Star {
    Prefill,
    Decode,
}

impl Star {
    fn name(self) -> &'static str {
        match self {
            Star::Prefill => "{p*}",
            Star::Decode => "{d*}",
        }
    }
}

impl Command {
    /// Reads a command: words, with quotes as in a shell, and brackets around words that are
    /// repeated for each engine.
    ///
    /// # Errors
    /// [`CommandError`] says what is missing.
    pub(crate) fn parse(text: &str) -> Result<Command, CommandError> {
        if !text.contains("{port}") && !text.contains("{file:") {
            return Err(CommandError::NoPort);
        }
        let mut pieces = Vec::new();
        let mut open: Option<Vec<String>> = None;
        for word in words(text)? {
            let (begins, rest) = word.strip_prefix('[').map_or((false, word.as_str()), |rest| (true, rest));
            let mut group = if begins { Some(Vec::new()) } else { open.take() };
            match (&mut group, rest.strip_suffix(']')) {
                (Some(group), Some(last)) => {
                    group.push(last.to_owned());
                    pieces.push(repeated(std::mem::take(group))?);
                }
                (Some(some), None) => {
                    some.push(rest.to_owned());
                    open = group;
                }
                (None, _) => pieces.push(Piece::Word(word)),
            }
        }
        if open.is_some() { Err(CommandError::Bracket) } else { Ok(Command(pieces)) }
    }

    /// True if the command takes any number of engines; otherwise it names those that it takes.
    pub(crate) fn takes_any(&self) -> bool {
        self.0.iter().any(|piece| matches!(piece, Piece::Each(..)))
    }

    /// Fills `places` into the words, and copies files into `work`.
    ///
    /// # Errors
    /// A file can't be read or written.
    pub(crate) fn fill(&self, places: &Places, work: &Path) -> io::Result<Vec<String>> {
        let mut out = Vec::new();
        for piece in &self.0 {
            match piece {
                Piece::Word(word) => out.push(fill(word, places, work)?),
                Piece::Each(star, words) => {
                    let ports = if *star == Star::Prefill { &places.prefill } else { &places.decode };
                    for port in ports {
                        for word in words {
                            let word = word.replace(star.name(), &port.to_string());
                            out.push(fill(&word, places, work)?);
                        }
                    }
                }
            }
        }
        Ok(out)
    }
}

fn repeated(words: Vec<String>) -> Result<Piece, CommandError> {
    let has = |star: Star| words.iter().any(|word| word.contains(star.name()));
    let star = [Star::Prefill, Star::Decode].into_iter().find(|star| has(*star));
    star.map(|star| Piece::Each(star, words)).ok_or(CommandError::NoStar)
}

/// Fills `places` into a word, and copies the files that it names. A name in braces that is no
/// place stays as it is, as do a shell's braces.
fn fill(word: &str, places: &Places, work: &Path) -> io::Result<String> {
    let mut filled = put(word, places);
    while let Some((before, rest)) = filled.split_once("{file:") {
        let Some((path, after)) = rest.split_once('}') else { break };
        let text = std::fs::read_to_string(path).map_err(|e| io::Error::other(format!("{path}: {e}")))?;
        let copy = work.join(Path::new(path).file_name().unwrap_or_default());
        std::fs::write(&copy, put(&text, places))?;
        filled = format!("{before}{}{after}", copy.display());
    }
    Ok(filled)
}

fn put(text: &str, places: &Places) -> String {
    places
        .named
        .iter()
        .fold(text.to_owned(), |text, (name, value)| text.replace(&format!("{{{name}}}"), value))
}

/// Splits a text into words as a shell does: at spaces, except in quotes and after backslashes.
fn words(text: &str) -> Result<Vec<String>, CommandError> {
    let mut out = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    let mut rest = text.chars();
    while let Some(c) = rest.next() {
        match (quote, c) {
            (Some(end), c) if c == end => quote = None,
            (None, '\'' | '"') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None, c) if c.is_whitespace() => out.extend(word.take()),
            (None | Some('"'), '\\') => word.get_or_insert_default().extend(rest.next()),
            (_, c) => word.get_or_insert_default().push(c),
        }
    }
    out.extend(word);
    if quote.is_some() { Err(CommandError::Quote) } else { Ok(out) }
}
