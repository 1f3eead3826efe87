#!/usr/bin/env python3
"""The book's part that mdBook does not do: a preprocessor for book.toml, and a check of what was built.

As a preprocessor it adds the pages that lie at the root of the repository behind those of docs/SUMMARY.md.
A link that leads to a file outside of the book becomes the name of that file. With `--check FOLDER`
it looks at every page that mdBook wrote there: each link leads to a page, and each anchor to a heading.

Standard library only.
"""
import argparse
import html.parser
import json
import pathlib
import re
import sys
import urllib.parse

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Pages at the root, in the order of the book, each with its name there.
ROOT_PAGES = {"ARCHITECTURE.md": "Architecture", "CONTRIBUTING.md": "Contributing", "GLOSSARY.md": "Glossary",
              "SECURITY.md": "Reporting a vulnerability", "CHANGELOG.md": "Changes", "README.md": "README"}
FOLDER = "project"


def place(path):
    """The place in the book of a file of the repository; None if it is no part of the book."""
    if path.parent == ROOT and path.name in ROOT_PAGES:
        # A page called README.md becomes the index of its folder.
        return pathlib.PurePath(FOLDER, "overview.md" if path.name == "README.md" else path.name)
    docs = ROOT / "docs"
    if path == docs / "README.md":
        return pathlib.PurePath("index.md")
    return path.relative_to(docs) if path.is_relative_to(docs) and path.is_file() else None


def up(place_of_page):
    return "../" * (len(place_of_page.parts) - 1)


def rewrite(text, source, here):
    """The text of a page with links that fit the book."""
    def link(match):
        label, target = match.groups()
        path, _, anchor = target.partition("#")
        if re.match(r"\w+:", target) or not path:
            return match[0]
        there = place((source.parent / path).resolve())
        if there is None:
            return label if "`" in label else f"{label} (`{(source.parent / path).resolve().relative_to(ROOT)}`)"
        return f"[{label}]({up(here)}{there}{'#' + anchor if anchor else ''})"

    parts = re.split(r"(^\s*```.*?^\s*```)", text, flags=re.M | re.S)
    parts[::2] = [re.sub(r"\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)", link, part) for part in parts[::2]]
    return "".join(parts)


def chapters(items):
    for item in items:
        if chapter := isinstance(item, dict) and item.get("Chapter"):
            yield chapter
            yield from chapters(chapter["sub_items"])


def preprocess(book):
    items = book["items"]
    for chapter in chapters(items):
        if chapter["path"]:
            source = ROOT / "docs" / chapter["source_path"]
            chapter["content"] = rewrite(chapter["content"], source, pathlib.PurePath(chapter["path"]))
    last = max((chapter["number"][0] for chapter in chapters(items) if chapter["number"]), default=0)
    for number, (name, title) in enumerate(ROOT_PAGES.items(), last + 1):
        here = place(ROOT / name)
        items.append({"Chapter": {
            "name": title, "content": rewrite((ROOT / name).read_text(), ROOT / name, here), "number": [number], "sub_items": [],
            "path": str(here), "source_path": str(here), "parent_names": []}})
    return book


class Written(html.parser.HTMLParser):
    """The anchors and links of a page that mdBook wrote."""

    def __init__(self, text):
        super().__init__()
        self.anchors, self.links = set(), set()
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        named = dict(attributes)
        self.anchors |= {named[key] for key in ("id", "name") if named.get(key)}
        self.links |= {named[key] for key in ("href", "src") if named.get(key)}


def check(folder):
    """The links of a built book that lead nowhere."""
    pages = {path.resolve(): Written(path.read_text()) for path in sorted(folder.rglob("*.html"))}
    count = 0
    for page, written in pages.items():
        # These two have the addresses of a site's root.
        for target in written.links if page.name not in ("404.html", "print.html", "toc.html") else ():
            path, _, anchor = target.partition("#")
            if re.match(r"\w+:", target):
                continue
            count += 1
            there = (page.parent / urllib.parse.unquote(path)).resolve() if path else page
            if not there.is_file():
                yield f"{page.relative_to(folder)}: a dead link, {target}"
            elif anchor and there in pages and urllib.parse.unquote(anchor) not in pages[there].anchors:
                yield f"{page.relative_to(folder)}: a link without its anchor, {target}"
    print(f"book: {len(pages)} pages, {count} links")
    if len(pages) < 40 or count < 400:
        yield "fewer pages or links than the documents have"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", type=pathlib.Path)
    parser.add_argument("words", nargs="*", help="mdBook asks `supports RENDERER`")
    arguments = parser.parse_args()
    if arguments.check:
        found = list(check(arguments.check.resolve()))
        print(*(f"book: {problem}" for problem in found), sep="\n", end="\n" if found else "")
        raise SystemExit(bool(found))
    if arguments.words[:1] == ["supports"]:
        raise SystemExit(0)
    _, book = json.load(sys.stdin)
    json.dump(preprocess(book), sys.stdout)


if __name__ == "__main__":
    main()
