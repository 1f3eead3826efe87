#!/usr/bin/env python3
"""Measures the prose of the documents, and says where a bound is broken; docs.py asks it too.

* A sentence has at most 30 words, a line of prose at most 100 columns, README.md at most 150 lines.
* A table has an empty line before and after it: text beside it would be read as a row.
* The words of prose of all pages together are at most TOTAL_WORDS, with those of tables and code at
  most ALL_WORDS. Both bounds are only ever lowered.

Code blocks, tables, markup, generated pages and the table of contents are no prose. A name in backticks is one word; of a
link, the text counts. Run alone, it prints a line for each page. Exit status 1: a bound is broken.
"""
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGES = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "GLOSSARY.md", "SECURITY.md"]
GENERATED = {"docs/configuration.md", "docs/SUMMARY.md", *(f"docs/reference/{page}.md" for page in ("cli", "http", "errors", "log"))}
SENTENCE_WORDS = 30
COLUMNS = 100
README_LINES = 150
TOTAL_WORDS = 32_000
ALL_WORDS = 62_000
ABBREVIATIONS = ("e.g.", "i.e.", "etc.", "vs.", "cf.")


def pages():
    """The measured pages with their texts, by their path from the root."""
    files = [ROOT / name for name in PAGES] + sorted((ROOT / "docs").rglob("*.md"))
    named = {str(file.relative_to(ROOT)): file.read_text() for file in files}
    return {name: text for name, text in named.items() if name not in GENERATED}


def prose(text):
    """The lines of prose with their numbers; None where something else stands between them."""
    fenced = commented = False
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        fence = stripped.startswith("```")
        fenced ^= fence
        commented |= stripped.startswith("<!--")
        if fence or fenced or commented or not stripped or stripped.startswith(("|", "<")):
            yield number, None
        else:
            yield number, line
        commented &= "-->" not in stripped


def plain(text):
    """A text without marks: a link is its text, a name in backticks one word."""
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"<[^>]+>", " ", text)
    return re.sub(r"`[^`]+`", "code", text)


def count(text):
    return all_words(plain(text))


def all_words(text):
    """Words with a letter or a digit: bars of tables and signs of lists are none."""
    return sum(bool(re.search(r"\w", word)) for word in text.split())


def paragraphs(text):
    """Paragraphs and items of lists, each with the number of its first line; headings are left out."""
    first, lines = None, []
    for number, line in [*prose(text), (0, None)]:
        heading = line is not None and line.startswith("#")
        item = line is not None and re.match(r"\s*([*+-]|\d+\.)\s", line)
        if lines and (line is None or heading or item):
            yield first, " ".join(lines)
            lines = []
        if line is None or heading:
            continue
        first = first if lines else number
        lines.append(re.sub(r"^\s*([*+-]|\d+\.)\s+", "", line).strip())


def sentences(text):
    """Every sentence with the line where its paragraph begins."""
    for number, paragraph in paragraphs(text):
        words = []
        for word in plain(paragraph).split():
            words.append(word)
            end = re.search(r"[.!?][\"')*_]*$", word)
            if end and not word.endswith(ABBREVIATIONS):
                yield number, " ".join(words)
                words = []
        if words:
            yield number, " ".join(words)


def glued(text):
    """The numbers of lines where a table and text stand together, without an empty line between them."""
    lines, fenced = text.splitlines(), False
    for number, (before, line) in enumerate(zip(lines, lines[1:]), 2):
        fenced ^= before.strip().startswith("```")
        if not fenced and before.strip() and line.strip() and before.startswith("|") != line.startswith("|"):
            yield number


class Page:
    """The figures of one page."""

    def __init__(self, name, text):
        self.name = name
        self.lines = text.count("\n")
        kept = [(number, line) for number, line in prose(text) if line is not None]
        self.words = sum(count(line) for _, line in kept)
        self.all_words = all_words(text)
        measured = [(number, count(sentence), sentence) for number, sentence in sentences(text)]
        self.sentences = sorted(words for _, words, _ in measured if words)
        self.long = [found for found in measured if found[1] > SENTENCE_WORDS]
        self.wide = [(number, len(line)) for number, line in kept if len(line) > COLUMNS]
        self.glued = list(glued(text))

    def at(self, share):
        """The length of a sentence than which that share of all is not longer."""
        return self.sentences[int(share * (len(self.sentences) - 1))] if self.sentences else 0

    def row(self):
        longest = self.sentences[-1] if self.sentences else 0
        return (f"{self.name:34} {self.lines:5} {self.words:6} {self.all_words:6} {self.at(0.5):4} {self.at(0.9):4} {longest:4} "
                f"{len(self.long):5} {len(self.wide):5}")


def problems(texts, total=TOTAL_WORDS):
    """The bounds that are broken, each with what to do."""
    measured = [Page(name, text) for name, text in texts.items()]
    everything = sum(page.all_words for page in measured)
    if everything > ALL_WORDS:
        yield f"{everything} words with tables and code, at most {ALL_WORDS}: say it once, or cut something else"
    for page in measured:
        for number, words, sentence in page.long:
            yield f"{page.name}:{number}: a sentence of {words} words, at most {SENTENCE_WORDS}: {sentence[:60]}…"
        for number, columns in page.wide:
            yield f"{page.name}:{number}: {columns} columns, at most {COLUMNS}: wrap it"
        for number in page.glued:
            yield f"{page.name}:{number}: a table beside text: put an empty line between them"
        if page.name == "README.md" and page.lines > README_LINES:
            yield f"README.md: {page.lines} lines, at most {README_LINES}: move some to docs/"
    words = sum(page.words for page in measured)
    if words > total:
        yield f"{words} words of prose, at most {total}: say it once, or cut something else"


LONG = "It " + "is " * 30 + "long."
# A page, the bound of its words, and a word of what must be said of it; none where all is well.
FAULTS = {
    "nothing": (f"# A\n\nOne. Two `a b c` words.\n\n```\n{LONG}\n```\n\n| {LONG * 2} |\n\n<!-- {LONG} -->\n", 7, None),
    "a long sentence": (LONG.replace("is is", "is\nis"), 99, "sentence of 32 words"),
    "a long item of a list": (f"* short.\n* {LONG}\n", 99, "docs/planted.md:2: a sentence"),
    "two sentences": (LONG.replace("is is is is long", "is. vLLM is long"), 99, None),
    "a wide line": ("[a](" + "b" * 100 + ")", 99, "105 columns"),
    "text after a table": ("| a |\n|---|\n| b |\nText.\n", 99, "4: a table beside text"),
    "a table after text": ("Text.\n| a |\n|---|\n", 99, "2: a table beside text"),
    "rows in a block": ("```\ntext\n| a |\n```\n", 99, None),
    "a word too many": ("One two three.", 2, "3 words of prose"),
}


def self_test():
    for what, (text, total, word) in FAULTS.items():
        found = list(problems({"docs/planted.md": text}, total))
        if bool(found) != bool(word) or (word and not any(word in problem for problem in found)):
            raise SystemExit(f"docs: planted: {what}; found: {found}")
    assert any("with tables and code" in problem for problem in problems({"docs/planted.md": "| a |\n" * (ALL_WORDS + 1)}))
    assert any("move some" in problem for problem in problems({"README.md": "\n" * 151}))
    return len(FAULTS) + 2


def main():
    measured = [Page(name, text) for name, text in pages().items()]
    print(f"{'page':34} {'lines':>5} {'prose':>6} {'all':>6} {'p50':>4} {'p90':>4} {'max':>4} {'>30 w':>5} {'>100c':>5}")
    for page in measured:
        print(page.row())
    every = sorted(words for page in measured for words in page.sentences)
    print(f"{len(measured)} pages, {sum(page.words for page in measured)} words of prose, {sum(page.all_words for page in measured)} words in all; "
          f"{len(every)} sentences, p50 {every[len(every) // 2]}, p90 {every[len(every) * 9 // 10]}, longest {every[-1]}, "
          f"{sum(len(page.long) for page in measured)} beyond {SENTENCE_WORDS} words; {sum(len(page.wide) for page in measured)} lines beyond {COLUMNS} columns")
    self_test()
    found = list(problems(pages()))
    for problem in found:
        print(f"docs: {problem}")
    raise SystemExit(1 if found else 0)


if __name__ == "__main__":
    main()
