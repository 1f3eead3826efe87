"""What a fact is about, read from a release's files: a symbol's source, a struct's fields, members, routes, texts.

Sources are compared as trees, not as text: comments, docstrings, formatting and what is written to the log don't count. The
fingerprint is made of node types and values only, so that it is the same under every Python that reads it.
"""

import ast
import fnmatch
import hashlib
from pathlib import PurePosixPath

# Methods of routers that say where a route is.
METHODS = ("get", "post", "put", "delete", "patch", "head", "websocket")
# Folders above a file, and files below them, in which a symbol is looked for that has left it.
UPWARDS = 2
MAX_BESIDE = 80
# Characters of a fingerprint.
PRINT_CHARS = 16


class Reading:
    """What was found: a text to show, and a fingerprint, or names."""

    def __init__(self, text=None, print_=None, names=None, place=None):
        self.text, self.print, self.names, self.place = text, print_, names, place

    def same(self, other):
        return self.names == other.names and self.print == other.print

    def kept(self):
        return {"names": self.names} if self.names is not None else {"print": self.print}


class Cleaned(ast.NodeTransformer):
    """A tree without texts that stand alone and calls that write to a log."""

    def visit_Expr(self, node):
        if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            return None
        called = node.value.func if isinstance(node.value, ast.Call) else None
        if isinstance(called, ast.Attribute) and ast.unparse(called.value) in ("logger", "logging", "self.logger"):
            return None
        return self.generic_visit(node)

    def generic_visit(self, node):
        super().generic_visit(node)
        if getattr(node, "body", 0) == []:
            node.body = [ast.Pass()]
        return node


def canonical(node):
    """The tree as a text that no version of Python writes otherwise."""
    if isinstance(node, ast.AST):
        fields = [(name, getattr(node, name, None)) for name in node._fields if name not in ("ctx", "kind", "type_comment")]
        inner = [f"{name}={canonical(value)}" for name, value in fields if value is not None and value != []]
        return f"{type(node).__name__}({','.join(inner)})"
    if isinstance(node, list):
        return "[" + ",".join(canonical(each) for each in node) + "]"
    return repr(node)


def fingerprint(nodes):
    return hashlib.sha256("\n".join(canonical(node) for node in nodes).encode()).hexdigest()[:PRINT_CHARS]


def defined(node, name):
    """True if the statement gives this name."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return node.name == name
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return any(isinstance(target, ast.Name) and target.id == name for target in targets)


def statements(body):
    """The statements of a body, and those behind its conditions."""
    for node in body:
        yield node
        for part in ("body", "orelse", "finalbody"):
            if isinstance(node, (ast.If, ast.Try, ast.With)):
                yield from statements(getattr(node, part, []))


def find(tree, symbol):
    """Every statement that defines a dotted symbol; an empty symbol is the file."""
    found = [tree]
    for name in symbol.split(".") if symbol else []:
        found = [node for outer in found for node in statements(getattr(outer, "body", [])) if defined(node, name)]
    return found


def text_of(node):
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def read_source(nodes, _fact):
    nodes = [Cleaned().visit(node) for node in nodes]
    return Reading(text="\n".join(ast.unparse(node) for node in nodes), print_=fingerprint(nodes))


def read_fields(nodes, _fact):
    names = []
    for node in nodes:
        names += [ast.unparse(keyword) for keyword in getattr(node, "keywords", [])]
        for each in getattr(node, "body", []):
            targets = each.targets if isinstance(each, ast.Assign) else [each.target] if isinstance(each, ast.AnnAssign) else []
            # What begins with an underscore is not of the struct.
            names += [target.id for target in targets if isinstance(target, ast.Name) and target.id[0] != "_"]
    return Reading(names=names)


def members_in(node, of):
    """Texts by which an object's members are made, read or looked for."""
    owned = lambda owner: not of or ast.unparse(owner).rsplit(".", 1)[-1] in of
    if isinstance(node, ast.Dict) and not of:
        return [text_of(key) for key in node.keys if key is not None]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "dict" and not of:
        return [keyword.arg for keyword in node.keywords]
    if isinstance(node, ast.Subscript) and owned(node.value):
        return [text_of(node.slice)]
    if isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.In, ast.NotIn)) and owned(node.comparators[0]):
        return [text_of(node.left)]
    called = node.func if isinstance(node, ast.Call) else None
    if isinstance(called, ast.Attribute) and called.attr in ("get", "pop", "setdefault") and node.args and owned(called.value):
        return [text_of(node.args[0])]
    return []


def read_members(nodes, fact):
    of = fact.get("of", [])
    found = {name for outer in nodes for node in ast.walk(outer) for name in members_in(node, of)}
    return Reading(names=sorted(found - {None}))


def read_entries(nodes, fact):
    """Chosen entries of a dictionary, with their values."""
    dictionaries = [node.value for node in nodes if isinstance(getattr(node, "value", None), ast.Dict)]
    entries = {text_of(key): value for node in dictionaries for key, value in zip(node.keys, node.values)}
    chosen = [(name, entries.get(name)) for name in fact["names"]]
    text = "\n".join(f"{name}: {ast.unparse(value) if value else 'is not there'}" for name, value in chosen)
    return Reading(text=text, print_=fingerprint([value or ast.Constant(None) for _, value in chosen]))


def read_calls(nodes, fact):
    """First texts of calls of one method: what is registered by it; with `whole`, all that it is called with."""
    calls = [node for outer in nodes for node in ast.walk(outer) if isinstance(node, ast.Call) and node.args]
    named = [node for node in calls if isinstance(node.func, ast.Attribute) and node.func.attr == fact["call"]]
    if fact.get("whole"):
        return Reading(names=sorted({", ".join(ast.unparse(each) for each in node.args) for node in named}))
    return Reading(names=sorted({text_of(node.args[0]) for node in named} - {None}))


def routes_in(node):
    """Routes that a call says: `router.get("/x")`, `app.add_api_route("/x", …)`, `app.router.add_post("/x", …)`."""
    called = node.func if isinstance(node, ast.Call) else None
    if not isinstance(called, ast.Attribute) or not any(word in ast.unparse(called.value) for word in ("app", "router")):
        return []
    paths = [text_of(argument) for argument in node.args[:2]]
    path = next((path for path in paths if path and path.startswith("/")), None)
    if path is None:
        return []
    attribute = called.attr.removeprefix("add_")
    if attribute in METHODS:
        return [f"{attribute.upper()} {path}"]
    if attribute in ("api_route", "route"):
        said = [keyword.value for keyword in node.keywords if keyword.arg == "methods"]
        return [f"{text_of(each)} {path}" for each in getattr(said[0], "elts", [])] if said else [f"ANY {path}"]
    return []


def read_routes(nodes, _fact):
    return Reading(names=sorted({route for outer in nodes for node in ast.walk(outer) for route in routes_in(node)}))


KINDS = {
    "source": read_source,
    "fields": read_fields,
    "members": read_members,
    "entries": read_entries,
    "calls": read_calls,
    "routes": read_routes,
    "texts": None,
    "bytes": None,
}


def parse(body, place):
    """A file's tree; None if this Python can't read it."""
    try:
        return ast.parse(body)
    except (SyntaxError, ValueError) as why:
        print(f"{place}: can't be parsed: {why}")
        return None


def patterns_of(fact):
    return [fact["file"]] if isinstance(fact["file"], str) else fact["file"]


def files_of(fact, members):
    """The files that a fact is read from, as this release names them."""
    return [member for member in members if any(fnmatch.fnmatch(member, pattern) for pattern in patterns_of(fact))]


def files_or_moved(fact, members):
    """The same, and where they are now if their folder has moved: `a/v1/x.py` to `a/b/v1/x.py`."""
    files = files_of(fact, members)
    tails = ["*/" + pattern.partition("/")[2] for pattern in patterns_of(fact)]
    moved = [member for member in members if any(fnmatch.fnmatch(member, tail) for tail in tails)]
    return (files, None) if files or not moved else (moved, moved[0])


def sought(fact):
    """The bytes of each name of a fact: its text, or its first word as hexadecimal digits."""
    return {name: bytes.fromhex(name.split()[0]) if fact["kind"] == "bytes" else name.encode() for name in fact["names"]}


def read_texts(fact, members, read):
    """Which of the names are in a file of any kind. Words of four bytes are found by chance in one of a thousand programs."""
    files, place = files_or_moved(fact, members)
    bodies = [read(member) for member in files]
    if not bodies:
        return None
    found = [name for name, wanted in sought(fact).items() if any(wanted in body for body in bodies)]
    return Reading(names=found, place=place) if found else None


def symbols_of(fact):
    """The symbol, and the names that it had before."""
    return [fact.get("symbol", ""), *fact.get("once", [])]


def found_in(file, fact, read):
    """The statements of the fact's symbol in a file, under its name of today."""
    tree = parse(read(file), file)
    for symbol in symbols_of(fact) if tree else []:
        nodes = find(tree, symbol)
        for node in nodes:
            if hasattr(node, "name"):
                node.name = fact["symbol"].rsplit(".", 1)[-1]
        if nodes:
            return nodes
    return []


def elsewhere(fact, members, files):
    """Files in which a symbol may be that has left its own: those where it was, those of the same name, those beside it."""
    named = patterns_of(fact)
    ends = {file.rsplit("/", 1)[-1] for file in named}
    folders = [str(parent) + "/" for file in named for parent in list(PurePosixPath(file).parents)[:UPWARDS]]
    beside = [member for folder in folders for member in members if member.startswith(folder) and member.endswith(".py")]
    tried = [*fact.get("before", []), *(member for member in members if member.rsplit("/", 1)[-1] in ends), *beside[:MAX_BESIDE]]
    return [file for file in dict.fromkeys(tried) if file in members and file not in files]


def look(fact, members, read):
    """Reads a fact; None if there is no such file or symbol. Where its file has none, others are tried."""
    reader = KINDS[fact["kind"]]
    if reader is None:
        return read_texts(fact, members, read)
    files, place = files_or_moved(fact, members)
    found = [node for file in files for node in found_in(file, fact, read)]
    if found:
        reading = reader(found, fact)
        reading.place = place
        return reading
    if not fact.get("symbol"):
        return None
    for file in elsewhere(fact, members, files):
        found = found_in(file, fact, read)
        if found:
            reading = reader(found, fact)
            reading.place = file
            return reading
    return None
