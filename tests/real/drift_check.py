"""The drift watch's check of itself: each fact is found where it was read, a change of what it is about is found, and one that
means nothing is not."""

import ast

from drift_symbols import KINDS, files_of, find, look, sought, symbols_of


def planted(fact, body):
    """A file with a change of what the fact is about."""
    if KINDS[fact["kind"]] is None:
        for wanted in sought(fact).values():
            body = body.replace(wanted, b"~" * len(wanted))
        return body
    tree = ast.parse(body)
    added = {
        "source": "planted = 1",
        "fields": "planted: int = 0",
        "members": f"{(fact.get('of') or ['made'])[0]}['planted']",
        "calls": f"made.{fact.get('call')}('planted')",
        "routes": "router.get('/planted')",
    }.get(fact["kind"])
    for node in find(tree, fact.get("symbol", "")):
        if hasattr(node, "body") and added:
            node.body += ast.parse(added).body
        elif fact["kind"] == "entries":
            at = [getattr(key, "value", None) for key in node.value.keys].index(fact["names"][0])
            node.value.values[at] = ast.Constant("planted")
        elif fact["kind"] == "members":
            node.value = ast.Dict(keys=[ast.Constant("planted")], values=[ast.Constant(0)])
        else:
            node.value = ast.Constant("planted")
    return ast.unparse(ast.fix_missing_locations(tree)).encode()


def removed(fact, body):
    """A file in which the symbol has another name."""
    tree = ast.parse(body)
    for node in [node for symbol in symbols_of(fact) for node in find(tree, symbol)]:
        if hasattr(node, "name"):
            node.name = "planted"
        else:
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            target.id = "planted"
    return ast.unparse(ast.fix_missing_locations(tree)).encode()


def harmless(fact, body):
    """A file that is formatted otherwise and has other comments, docstrings and lines for the log."""
    if KINDS[fact["kind"]] is None:
        return body + b"\n# planted\n"
    tree = ast.parse(body)
    for node in find(tree, fact.get("symbol", "")):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            node.body = ast.parse("'planted'\nlogger.debug('planted')").body + node.body
        elif isinstance(node, ast.ClassDef):
            node.body = ast.parse("'planted'").body + node.body
    return b"# planted\n" + ast.unparse(ast.fix_missing_locations(tree)).encode()


def with_change(release, fact, change):
    """Reads the fact from a release whose files have a change."""
    files = files_of(fact, release.members)
    read = lambda member: change(fact, release.read(member)) if member in files else release.read(member)
    # A symbol that is gone from its file must not be found in another one here.
    members = [member for member in release.members if member in files]
    return look(fact, members, read)


def faults(release, fact, kept):
    """Sentences that say what is wrong with a fact or the watch."""
    reading = look(fact, release.members, release.read)
    if reading is None:
        return ["it is not where it was read"]
    found = []
    if reading.place:
        found.append(f"it is in {reading.place}")
    if reading.kept() != {key: value for key, value in kept.items() if key != "release"}:
        found.append("the release does not say what is recorded")
    if reading.names == [] and fact["kind"] != "fields":
        found.append("it names nothing")
    if KINDS[fact["kind"]] is None and reading.names != fact["names"]:
        found.append(f"only these are there: {reading.names}")
    change = with_change(release, fact, planted)
    if change is not None and change.same(reading):
        found.append("a planted change is not found")
    same = with_change(release, fact, harmless)
    if same is None or not same.same(reading):
        found.append("a change of comments and formatting is found")
    if fact.get("symbol") and with_change(release, fact, removed) is not None:
        found.append("a symbol that was renamed is found")
    return found


def check_package(index, package, kept, wheel):
    """Prints what is wrong; True if something is."""
    wrong = 0
    for fact in package["fact"]:
        name = f"{package['package']}: {fact['name']}"
        if fact["name"] not in kept:
            found = ["nothing is recorded of it"]
        else:
            release = index.release(wheel, kept[fact["name"]]["release"])
            found = faults(release, fact, kept[fact["name"]])
        wrong += bool(found)
        print("".join(f"WRONG  {name}: {fault}\n" for fault in found), end="")
    print(f"{package['package']}: {len(package['fact'])} facts, {wrong} of them wrong; each with three planted changes")
    return wrong > 0
