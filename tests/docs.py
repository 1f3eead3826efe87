#!/usr/bin/env python3
"""Proves what README.md and docs/ say: what can be run is run, and what is named exists.

* Every block of commands (`sh`, `console`) is run in front of simulated engines, in the order of its document, or the line before it
  says in italics what it needs ("*Needs NPUs.*"). What a `console` block shows is compared with what is printed; … stands for anything.
* Every block of TOML is a whole file, named by its first line (`# ascend.toml`), or a part of one (`# part of ascend.toml`); the program
  accepts it.
* Every `text` block, a message of the program, stands in its sources, but for what … stands for.
* Links and anchors lead somewhere. Metrics with their labels, keys, sections, flags, variables, subcommands and error codes exist.
* Drawings are what the scripts beside them draw. Sentences, lines and pages are no longer than docs_measure.py allows.

Standard library only; Linux, since every address of 127.0.0.0/8 must be one of this machine. At the end the checks are given faults,
which they must find. Started by docs.sh. Exit status 0: all as it should be.
"""
import argparse
import pathlib
import re
import subprocess
import tempfile

import docs_measure
from docs_rig import Rig, matches

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Documents of which only links and names are looked at.
OTHERS = ["ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "GLOSSARY.md", "SECURITY.md", "config/kubernetes/README.md",
          "config/helm/README.md"]
GUIDE = ["What you need", "On the engines", "The gateway", "Check it", "First request", "What to watch", "What goes wrong", "What was tried"]
GUIDE_LINES = 140
# The order of the book, in which every page below docs/ is once.
CONTENTS = "docs/SUMMARY.md"
KEYS_PEOPLE_SET = 25
LANGUAGES = {"sh", "console", "toml", "text", "json", "yaml"}
NEEDS = re.compile(r".*\*[Nn]eeds [^*]+\*")
# A block without a kind has a comment before it that says what it is, or who runs it.
COMMENT = "<!-- "
# What has tables and values that other documents may name.
# Names that metrics had in an earlier release; the upgrade guide and the changelog tell them.
FORMER_METRICS = {"pd_proxy_instances"}
REFERENCE = ["reference/errors", "reference/log", "http-api", "metrics", "broken-streams", "pool-and-tokens", "operating", "connectors", "keys-and-overload"]
# Flags of engines and other tools, which the program does not have, or takes without telling.
FOREIGN = set("""--all-features --all-targets --compatibility --enable-prefix-caching --exact --lib --no-deps --only --out --target --zig
    --fail --sse-keep-alive-interval --api-key --as --bench --otlp-traces-endpoint --p2p-advertise-url --block-size --chat-template --compare --data-parallel-size --cors-allowed-origins --chat-template-content-format --default-chat-template-kwargs --mm-hasher-algorithm --reasoning-effort-map --anthropic-disabled-thinking-effort --exe
    --decode-servers-urls --disaggregation-bootstrap-port --disaggregation-mode --enable-prompt-tokens-details --encode-servers-urls --example --features --foreground --fuzz-dir --generator_on_p_node
    --enable-scale-out --intra-node-data-parallel-size --locked --kv-connector --kv-events-config --kv-transfer-config --max-num-queued-reqs --metrics_port --tokenizer-mode
    --no-default-features --nocapture --override-generation-config --pd-disaggregation --path --pgo --profile --pd-hosts --pd-kv-events --pd-ports --prefill-servers-urls --prefix-caching-hash-algo
    --prefiller-host --prefiller-port --decoder-host --decoder-port --encoder-host --encoder-port
    --prometheus-port --read-only --reps --roundrobin --rpc_port --scheduling-policy --served-model-name --show-labels --stop-timeout --tensor-parallel-size
    --test --ulimit --vllm-pd-disaggregation --horizontal-pod-autoscaler-tolerance --http-host --http-port --tls-cert-path --tls-key-path
    --router-mode --router-queue-threshold --decode-fallback --router-replica-sync --migration-limit --active-prefill-tokens-threshold
    --discovery-backend --tool-call-parser --reasoning-parser --model-server-port --mooncake-bootstrap-port --prefill-max-retries
    --tenant-api-key --max-concurrent-requests --queue-size --queue-timeout-secs --prefill-queue-size --enable-mesh --prefill-policy
    --decode-policy --service-discovery --prefill-selector --decode-selector --max-payload-size --retry-max-retries --request-timeout-secs
    --vllm-discovery-address""".split())


class Block:
    """A fenced block: its language, its lines, the line where it begins, and the last line before it that is not empty."""

    def __init__(self, fence, line, before):
        self.indent, self.language = fence.groups()
        self.line, self.before, self.lines = line, before, []

    @property
    def text(self):
        return "".join(line + "\n" for line in self.lines)


def split(text):
    """The blocks of a document, and its other lines, of which those of blocks are empty."""
    blocks, prose, current, before = [], [], None, ""
    for number, line in enumerate(text.splitlines(), 1):
        fence = re.match(r"(\s*)```(\S*)", line)
        if fence and current is None:
            current = Block(fence, number, before)
        elif fence:
            blocks.append(current)
            current, before = None, ""
        elif current:
            current.lines.append(line.removeprefix(current.indent))
        else:
            prose.append(line)
            before = line.strip() or before
            continue
        prose.append("")
    if current:
        current.language = "unclosed"
        blocks.append(current)
    return blocks, prose


def slugs(text):
    """The anchors of a document's headings, as GitHub makes them."""
    found = {}
    for line in split(text)[1]:
        if heading := re.match(r"#+ (.*)", line):
            words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading[1]).strip().lower()
            slug = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
            found[slug] = found.get(slug, -1) + 1
    return {f"{slug}-{n}" if n else slug for slug, last in found.items() for n in range(last + 1)}


class Known:
    """What exists, by the tables of docs/, which other tests compare with the code, by config/pd-proxy.toml and by the program."""

    def __init__(self, program):
        text = "".join((ROOT / f"docs/{page}.md").read_text() for page in REFERENCE)
        rows = re.findall(r"^\| `(pd_proxy_\w+)` \| \w+ \|([^|]*)\|", text, re.M)
        self.metrics = {name: set(re.findall(r"`(\w+)`", labels)) for name, labels in rows}
        table = text.split("| Status | `code` |")[1].split("\n\n")[0]
        self.codes = {(row[0], code) for row in re.findall(r"^\| (\d+) \| ([^|]*) \|", table, re.M) for code in re.findall(r"\w+", row[1])}
        self.codes |= {("429", code) for status, code in self.codes if code == "overloaded"}
        self.words = set(re.findall(r"`([\w.-]+)`", text)) | {code for _, code in self.codes}
        self.keys, section = {}, None
        for line in (ROOT / "config/pd-proxy.toml").read_text().splitlines():
            if head := re.match(r"\[([\w.]+)\]$", line):
                section = self.keys.setdefault(head[1], set())
            elif key := re.match(r"(?:# )?(\w+) = ", line):
                section.add(key[1])
        self.subcommands, self.flags = set(), set()
        for command in [[], ["check"], ["keys"], ["replay"], ["demo"], ["sim"], ["sim", "mooncake"], ["api-key", "new"], ["health"], ["generate"], ["init"]]:
            told = subprocess.run([program, *command, "--help"], capture_output=True, text=True, check=True, timeout=20).stdout
            self.flags |= set(re.findall(r"--[a-z][a-z0-9-]*", told))
            if not command:
                self.subcommands = set(re.findall(r"^  ([a-z-]+)  +\w", told, re.M))
        strings = [(path.read_text()) for folder in ("src", "crates") for path in sorted((ROOT / folder).rglob("*.rs"))]
        self.source = re.sub(r"\\\n\s*", "", "\n".join(strings)).replace('\\"', '"')

    def has_key(self, section, key):
        return any(name.startswith(key[:-1]) if key.endswith("*") else name == key for name in self.keys[section])


def links(texts, name, prose):
    for number, line in enumerate(prose, 1):
        for target in re.findall(r"\]\(([^)\s]+)\)", line):
            if re.match(r"\w+:", target):
                continue
            path, _, anchor = target.partition("#")
            file = (ROOT / name).parent / path if path else ROOT / name
            try:
                inside = str(file.resolve().relative_to(ROOT))
            except ValueError:
                inside = None
            if inside not in texts and not (inside and file.exists()):
                yield f"{name}:{number}: a dead link, {target}"
            elif anchor and file.suffix in (".md", "") and anchor not in slugs(texts.get(inside) or file.read_text()):
                yield f"{name}:{number}: a link without its anchor, {target}"


def names(known, name, lines):
    """What is named in backticks exists, but where a changelog says what was removed."""
    removed = False
    for number, line in enumerate(lines, 1):
        removed = line == "### Removed" if line.startswith("#") else removed
        for what in () if removed else named(known, line):
            yield f"{name}:{number}: there is no {what}"


def named(known, line):
    for metric, star, labels in re.findall(r"\b(pd_proxy_\w+)(\*?)(?:\{([^}]*)\})?", line):
        if metric in FORMER_METRICS and not labels:
            continue
        if not any(one.startswith(metric) if star or metric.endswith("_") else one == metric for one in known.metrics):
            yield f"metric {metric}"
            continue
        for label, value in re.findall(r"(\w+)=~?\"([^\"]*)\"", labels):
            if label not in known.metrics.get(metric, set()):
                yield f"label {label} of {metric}"
            elif label not in ("instance", "engine") and value not in known.words:
                yield f"value {value} of {label}"
    for status, code in re.findall(r"\b([45]\d\d) `([a-z_]+)`", line):
        if (status, code) not in known.codes:
            yield f"error {status} {code}"
    for section, key in re.findall(r"\bPD_PROXY__([A-Z]+)__([A-Z_]+)", line):
        if section != "SECTION" and key.lower() not in known.keys.get(section.lower(), ()):
            yield f"variable PD_PROXY__{section}__{key}"
    for span in re.findall(r"`([^`]+)`", line):
        key = re.match(r"(\w+(?:\.kubernetes)?)\.(?!rs$)(\w+\*?)(?: *= *.*)?$", span)
        if key and key[1] in known.keys and not known.has_key(*key.groups()):
            yield f"key {key[1]}.{key[2]}"
        section = re.match(r"\[([a-z.]+)\]$", span)
        if section and section[1] not in known.keys:
            yield f"section {section[1]}"
        ours = re.match(r"pd-proxy( +[a-z][a-z-]*)?", span)
        if ours and ours[1] and ours[1].strip() not in known.subcommands:
            yield f"subcommand{ours[1]}"
        foreign = set() if ours else FOREIGN
        for flag in re.findall(r"(?:^|\s)(--[a-z][a-z0-9_-]*)", span):
            if flag not in known.flags and flag not in foreign:
                yield f"flag {flag}"


def said(known, name, block):
    """Whether a message is one of the program's."""
    for offset, line in enumerate(block.lines, 1):
        for piece in line.split("…"):
            if len(piece.strip()) > 3 and piece.strip() not in known.source:
                yield f"{name}:{block.line + offset}: the program does not say {piece.strip()!r}"


def shape(texts):
    """Guides are alike and short; no document is one that nobody finds."""
    linked = {pathlib.PurePath(name).parent / target.partition("#")[0] for name, text in texts.items()
              for line in split(text)[1] for target in re.findall(r"\]\(([^)\s]+)\)", line)}
    linked = {str((ROOT / path).resolve().relative_to(ROOT)) for path in linked if (ROOT / path).resolve().is_relative_to(ROOT)}
    for name, text in texts.items():
        headings = [line[3:] for line in split(text)[1] if line.startswith("## ")]
        if "/guides/" in name and headings != GUIDE:
            yield f"{name}: its headings are {headings}"
        if "/guides/" in name and text.count("\n") > GUIDE_LINES:
            yield f"{name}: more than {GUIDE_LINES} lines"
        if "README.md" in texts and name not in linked | {"README.md", CONTENTS}:
            yield f"{name}: no document links to it"
    if CONTENTS in texts:
        listed = [f"docs/{page}" for page in re.findall(r"\]\(([^)\s]+)\)", texts[CONTENTS])]
        yield from (f"{CONTENTS}: {name} is missing" for name in texts if name.startswith("docs/") and name not in [*listed, CONTENTS])
        yield from (f"{CONTENTS}: {name} is there twice" for name in sorted(set(listed)) if listed.count(name) > 1)


def drawings():
    """Pictures are what the scripts beside them draw."""
    for script in sorted((ROOT / "docs/images").glob("*.py")):
        run = subprocess.run(["python3", script, "--check"], capture_output=True, text=True, timeout=20)
        if run.returncode:
            yield run.stderr.strip().removeprefix("docs: ")


def keys_that_people_set(page, reference):
    """The table of keys that people set has the defaults of docs/configuration.md."""
    defaults, section = {}, None
    for line in reference.splitlines():
        if line.startswith("## "):
            section = line[3:]
        elif row := re.match(r"\| `(\w+)` \| (.*?) \|", line):
            defaults[f"{section}.{row[1]}"] = row[2]
    rows = re.findall(r"^\| (`.*?) \| (.*?) \|", page, re.M)
    if len(rows) != KEYS_PEOPLE_SET:
        yield f"docs/keys-people-set.md: {len(rows)} rows, not {KEYS_PEOPLE_SET}"
    for keys, said in rows:
        actual = ", ".join(defaults.get(key, "no key") for key in re.findall(r"`([\w.]+)`", keys))
        if said != actual:
            yield f"docs/keys-people-set.md: {keys}: its default is {actual}, not {said}"


def alerts(page, rules):
    """Each alert has a row on the page of troubleshooting, and no other has."""
    named, told = set(re.findall(r"- alert: (\w+)", rules)), set(re.findall(r"`(PdProxy\w+)`", page))
    yield from (f"docs/troubleshooting.md: the alert {name} has no row" for name in sorted(named - told))
    yield from (f"docs/troubleshooting.md: there is no alert {name}" for name in sorted(told - named))


def minimal(program):
    """The file that one writes first is a good one."""
    run = subprocess.run([program, "check", "--offline", "--config", ROOT / "config/minimal.toml"], capture_output=True, text=True, timeout=20)
    if run.returncode:
        yield f"config/minimal.toml: {run.stderr.strip()}"


def unrun(known, name, block):
    """In commands that need what is not here: subcommands and flags of the program, at least."""
    for line in block.text.replace("\\\n", " ").splitlines():
        if command := re.match(r"(?:\$ )?(pd-proxy [^|>;]*)", line):
            for what in named(known, f"`{command[1].strip()}`"):
                yield f"{name}:{block.line}: there is no {what}"


def marks(name, blocks):
    for block in blocks:
        # How clients are made is run by tests/clients.sh.
        known = block.language in LANGUAGES or block.before.startswith("<!-- client ")
        if not known and (block.language or not block.before.startswith(COMMENT)):
            yield f"{name}:{block.line}: a block of no known kind, {block.language!r}"
        if block.language == "toml" and not re.match(r"# (part of )?[\w-]+\.toml$", block.lines[0]):
            yield f"{name}:{block.line}: TOML that does not say whose it is"


def tomls(program, folder, name, blocks):
    """Files, and parts laid over them, as they stand; the program accepts them."""
    files = {}
    for block in (block for block in blocks if block.language == "toml"):
        part, file = re.match(r"# (part of )?([\w-]+\.toml)$", block.lines[0]).groups()
        path = folder / (file if not part else f"part-{block.line}.toml")
        path.write_text(block.text)
        if part and file not in files:
            yield f"{name}:{block.line}: there is no {file}"
            continue
        if not part:
            files[file] = path
        if "[[key]]" in block.lines:
            flags = ["--set", f"auth.keys_file={path}"]
        else:
            flags = ["--config", files[file]] + (["--config", path] if part else [])
        run = subprocess.run([program, "check", "--offline", *flags], capture_output=True, text=True, timeout=20)
        # What it names may be missing here: files of models, certificates.
        if run.returncode and not re.search(r"/\S+: No such file|/\S+ can't be read", run.stderr):
            yield f"{name}:{block.line}: {run.stderr.strip()}"


def shells(program, name, blocks):
    """Runs what can be run, in the order of the document."""
    runnable = [block for block in blocks
                if block.language in ("sh", "console") and not NEEDS.match(block.before) and not block.before.startswith("<!-- client ")]
    if not runnable:
        return
    with tempfile.TemporaryDirectory() as folder, Rig(program, pathlib.Path(folder), "".join(block.text for block in blocks)) as rig:
        for block in blocks:
            if block.language == "toml":
                rig.file(re.match(r"# (?:part of )?([\w-]+\.toml)$", block.lines[0]), block)
            elif block in runnable:
                for problem in rig.run(block):
                    yield f"{name}:{block.line}: {problem}"


def problems(program, known, texts):
    yield from shape(texts)
    for name, text in texts.items():
        blocks, prose = split(text)
        if name in OTHERS:
            yield from [*links(texts, name, prose), *names(known, name, prose)]
            continue
        found = [*marks(name, blocks), *links(texts, name, prose), *names(known, name, text.splitlines())]
        for block in blocks:
            if block.language == "text":
                found += said(known, name, block)
            elif NEEDS.match(block.before):
                found += unrun(known, name, block)
        if not found:
            with tempfile.TemporaryDirectory() as folder:
                found += tomls(program, pathlib.Path(folder), name, blocks)
        if not found:
            found += shells(program, name, blocks)
        yield from found


TOML = """```toml
# a.toml
[server]
host = "0.0.0.0"
port = 8000

[fleet]
prefill = ["10.0.0.1:8100"]
decode = ["10.0.0.2:8200"]
```

"""
GATEWAY = TOML + "```sh\npd-proxy --config a.toml\n```\n\n"
# A document, and a word of what must be said of it; none where there is nothing to say.
FAULTS = {
    "nothing": (GATEWAY + "`pd_proxy_requests_total{route=\"completions\"}` [a](#a) `route.policy` `--policy` 503 `overloaded`\n\n# A\n\n"
                "```text\nthe gateway is at its limit of requests and its queue is …\n```\n\n"
                "```console\n$ curl -s localhost:8000/readyz\n{\"ready\":true,…}\n```\n", None),
    "an unknown key in a file": (TOML.replace("port", "prot"), "prot"),
    "an unknown key": ("`route.polizei`", "key route.polizei"),
    "an unknown section": ("`[rute]`", "section rute"),
    "an unknown key of a section in another": ("`discovery.kubernetes.prefil_ports`", "key discovery.kubernetes.prefil_ports"),
    "an unknown metric": ("`pd_proxy_requests`", "metric pd_proxy_requests"),
    "an unknown label": ("`pd_proxy_requests_total{role=\"prefill\"}`", "label role"),
    "an unknown value": ("`pd_proxy_requests_total{route=\"chatt\"}`", "value chatt"),
    "an unknown flag": ("`--polizei`", "flag --polizei"),
    "an engine's flag given to us": ("`pd-proxy --served-model-name`", "flag --served"),
    "an unknown subcommand": ("`pd-proxy inspect`", "subcommand inspect"),
    "an unknown variable": ("`PD_PROXY__SERVER__PROT`", "PD_PROXY__SERVER__PROT"),
    "an unknown code": ("503 `overload`", "error 503 overload"),
    "a code under another status": ("502 `overloaded`", "error 502 overloaded"),
    "a dead link": ("[a](b.md)", "dead link"),
    "a dead anchor": ("[a](#b)", "without its anchor"),
    "a message that nobody says": ("```text\nthe gateway is tired\n```", "is tired"),
    "a block without a kind": ("```\nrm -rf /\n```", "no known kind"),
    "TOML without a name": ("```toml\n[server]\n```", "whose it is"),
    "a part of nothing": ("```toml\n# part of b.toml\n[server]\nport = 1\n```", "no b.toml"),
    "a command that fails": (GATEWAY + "```sh\ncurl -sf localhost:8000/nowhere\n```", "ended with 22"),
    "another output": (GATEWAY + "```console\n$ curl -s localhost:8000/readyz\n{\"ready\":false,…}\n```", "printed"),
    "a gateway that does not start": (GATEWAY.replace("--config", "--confog"), "ended with 2"),
    "a flag in what is not run": ("*Needs NPUs.*\n\n```sh\npd-proxy check \\\n  --polizei\n```", "flag --polizei"),
    "a command behind one with a mark": ("*Needs NPUs.*\n\n```sh\nfalse\n```\n\n```sh\nfalse\n```", "ended with 1"),
    "a block without an end": ("```sh\ntrue\n", "unclosed"),
    "a command without its mark": ("*This has no needs.*\n\n```sh\nvllm serve\n```", "ended with 127"),
}


def self_test(program, known):
    readme = "<!-- run by others -->\n```\ncargo test\n```\n\nOr:\n\n```\ncargo test\n```\n"
    assert len(list(problems(program, known, {"README.md": readme}))) == 1
    for what, (text, word) in FAULTS.items():
        found = list(problems(program, known, {"docs/planted.md": text}))
        if bool(found) != bool(word) or (word and not any(word in problem for problem in found)):
            raise SystemExit(f"docs: planted: {what}; found: {found}")
    guide = "".join(f"## {heading}\n" for heading in GUIDE)
    for text, count in [(guide, 0), (guide + "\n" * GUIDE_LINES, 1), (guide.replace("Check it", "Check"), 1)]:
        assert len(list(shape({"docs/guides/planted.md": text}))) == count
    assert len(list(shape({"README.md": "", "docs/planted.md": ""}))) == 1
    twice = {"README.md": "[a](docs/planted.md)", "docs/planted.md": "", CONTENTS: "[a](planted.md)\n"}
    for text, count in [(twice[CONTENTS], 0), (twice[CONTENTS] * 2, 1), ("", 1)]:
        assert len(list(shape(twice | {CONTENTS: text}))) == count
    assert len(list(alerts("`PdProxyA`", "- alert: PdProxyB"))) == 2
    reference = "## a\n\n| `b` | `1` | at once |\n"
    for page, count in [("| `a.b` | `1` | x |\n" * KEYS_PEOPLE_SET, 0), ("| `a.b` | `2` | x |\n", 2), ("| `a.c` | `1` | x |\n", 2)]:
        assert len(list(keys_that_people_set(page, reference))) == count
    assert matches("a … c\n…\nd", "a b c\nx\ny\nd") and not matches("a … c", "a b d")
    return len(FAULTS) + 8


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", required=True)
    parser.add_argument("--only", help="look at documents whose path has this in it, without the planted faults")
    arguments = parser.parse_args()
    program = str(pathlib.Path(arguments.program).resolve())
    known = Known(program)
    files = [ROOT / "README.md", *(ROOT / name for name in OTHERS), *sorted((ROOT / "docs").rglob("*.md"))]
    texts = {str(file.relative_to(ROOT)): file.read_text() for file in files}
    if arguments.only:
        texts = {name: text for name, text in texts.items() if arguments.only in name}
    found = list(problems(program, known, texts))
    if not arguments.only:
        found += [*docs_measure.problems(docs_measure.pages()), *drawings(), *minimal(program)]
        found += alerts(texts["docs/troubleshooting.md"], (ROOT / "config/prometheus/alerts.yml").read_text())
        found += keys_that_people_set(texts["docs/keys-people-set.md"], texts["docs/configuration.md"])
    for problem in found:
        print(f"docs: {problem}")
    if found:
        raise SystemExit(1)
    blocks = [block for name, text in texts.items() if name not in OTHERS for block in split(text)[0] if block.language in ("sh", "console")]
    needy = sum(bool(NEEDS.match(block.before)) for block in blocks)
    print(f"docs: {len(texts)} documents: {len(blocks) - needy} blocks of commands were run, {needy} need what is not here")
    if not arguments.only:
        print(f"docs: {self_test(program, known) + docs_measure.self_test()} planted faults were found")


if __name__ == "__main__":
    main()
