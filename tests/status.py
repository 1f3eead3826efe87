#!/usr/bin/env python3
"""Proves the status page in a real browser: a gateway with an operators' listener, simulated engines, headless Chromium.

* Engines, the pool and requests appear as they are; a killed engine changes its row, and screen readers are told once.
* A model whose name is markup is text. There is no error on the console, and nobody but the gateway is asked.
* Everything is reached by Tab, in order, and it can be seen where the focus is; the buttons work by keyboard. Tables have captions
  and headers, controls have names, states are words.
* Contrast of all texts is 4.5 and more, in the light and in the dark; nothing is cut off at 400 pixels; nothing moves for who wants that.
* Engines take a line each, in trouble first; 64 fit on 1 800 pixels. A column's head sorts, by mouse and keyboard.
* A request can be tried from the page, or its command pasted; what was in the last minutes is shown.
* It pauses, is quiet while it can't be seen, says since when it is stale, and goes on afterwards.
* Where there is an admin key it asks for one, and keeps it out of storage and of the address.
* A page of another origin streams an answer where `server.cors_origins` names it, and reads neither that elsewhere nor the fleet.

At the end the checks are given faults, which they must find. Started by status.sh. Exit status 0: all as it should be.
"""
import argparse
import http.server
import json
import os
import pathlib
import re
import signal
import tempfile
import threading
import time

from PIL import Image
from playwright.sync_api import expect, sync_playwright

import status_checks as checks
import status_fleets
from browser import Events, launch
from processes import Process, ask

HOSTILE = "<img src=x onerror=owned=1><script>owned=1</script>"
KEY = "of-the-operators"
GATEWAY = """[server]
host = "127.0.0.1"
port = 0
[fleet]
prefill = {prefill}
decode = {decode}
[dialect]
name = "kv-transfer"
[prompt]
tokens = "engine"
budget_ms = 1000
[hash]
seed = "0"
[key]
preset = "mooncake-store-0.30"
[pool]
kind = "mooncake"
addresses = ["{pool}"]
deadline_ms = 200
[health]
probe_ms = 300
probe_timeout_ms = 1000
"""
# Longest wait for something to be shown.
SECONDS = 30
WINDOW = {"width": 1360, "height": 900}
# Documentation shows no more than it needs.
IMAGE_BYTES = 100 << 10


class Rig:
    """Engines, a pool and gateways."""

    def __init__(self, program, directory):
        self.program, self.directory, self.processes = program, pathlib.Path(directory), []

    def run(self, name, *command):
        self.processes.append(Process(self.directory, name, [str(self.program), *map(str, command)]))
        return self.processes[-1]

    def start(self):
        self.engines = {}
        for name, role, more in (("p1", "prefill", ()), ("p2", "prefill", ()),
                                 ("d1", "decode", ("--tpot-ms", 25)), ("d2", "decode", ("--tpot-ms", 25))):
            process = self.run(name, "sim", "--role", role, "--port", 0, "--prefill-tokens-per-s", 8000, *more)
            self.engines[name] = (process, process.wait_for(r"engine on http://([0-9.:]+)")[0])
        master = self.run("pool", "sim", "mooncake", "--port", 0, "--admin-port", 0)
        (self.pool,) = master.wait_for(r"([0-9.]+:[0-9]+)")
        self.gateway, self.at, self.admin = self.serve("gateway")

    def serve(self, name, more="", operators='admin_host = "127.0.0.1"\nadmin_port = 0\n'):
        """A gateway, the address for clients, and that for operators: the same one where they have none of their own."""
        config = self.directory / f"{name}.toml"
        of = lambda kind: json.dumps([address for name, (_, address) in self.engines.items() if name[0] == kind])
        text = GATEWAY.format(prefill=of("p"), decode=of("d"), pool=self.pool)
        config.write_text(text.replace("[fleet]", operators + more + "[fleet]"))
        gateway = self.run(name, "--config", config.name)
        (at,) = gateway.wait_for(r"listening on http://([0-9.:]+)")
        (admin,) = gateway.wait_for(r"for operators on http://([0-9.:]+)") if operators else (at,)
        return gateway, at, admin

    def ask(self, text, tokens=12, at=None):
        return ask(at or self.at, {"model": "sim", "prompt": text, "max_tokens": tokens, "stream": True})

    def load(self, rounds=6, long=0):
        """Conversations whose prompts grow, so that there are hits; and requests that last."""
        talks = [threading.Thread(target=self.talk, args=(n, rounds)) for n in range(4)]
        talks += [threading.Thread(target=self.ask, args=(f"a long story {n} " * 30, 4000)) for n in range(long)]
        for talk in talks:
            talk.daemon = True
            talk.start()
        for talk in talks[:4]:
            talk.join()

    def talk(self, number, rounds):
        text = f"conversation {number} has its own beginning. " * 40
        for turn in range(rounds):
            text += f"turn {turn} of {number} says something more. " * 12
            status = self.ask(text)
            assert status == 200, f"a request was answered with {status}"

    def stop(self):
        for process in reversed(self.processes):
            process.end(signal.SIGKILL)


def none(what, found):
    if found:
        raise SystemExit(f"status: {what}:\n  " + "\n  ".join(map(str, found)))
    print(f"  {what}: fine")


def state_of(page, rig, name):
    """The state of an engine, in the table of its role."""
    table = {"p": "prefill", "d": "decode"}[name[0]]
    return page.locator(f"#{table} tbody tr", has_text=rig.engines[name][1]).locator("th, td").nth(1)


def shows(page, rig):
    """Every engine is there, and what it does."""
    for name in rig.engines:
        expect(state_of(page, rig, name)).to_have_text(re.compile("^up"))
    expect(page.locator("#state")).to_have_text("up")
    rig.load(long=3)
    expect(page.locator("#decisions tbody tr").nth(19)).to_be_attached()
    expect(page.locator("#inflight")).to_have_text("3")
    expect(page.locator("#rate")).to_have_text(re.compile("[1-9]"))
    expect(page.locator("#ttft")).to_have_text(re.compile(r"^[0-9.]+ m?s, [0-9.]+ m?s$"))
    expect(page.locator("#tokens")).to_have_text(re.compile("[1-9]"))
    expect(page.locator("#failed-all")).to_have_text(re.compile("^of [1-9]"))
    expect(page.locator("#model")).to_have_text("sim")
    expect(page.locator("#decisions .pill").get_by_text("under way", exact=True).first).to_be_attached()
    rows = page.evaluate("Array.from(document.querySelectorAll('#decisions tbody tr'), r => Array.from(r.cells, c => c.textContent))")
    addresses = [address for _, address in rig.engines.values()]
    done = [row for row in rows if row[7].startswith("ok")]
    assert len(done) >= 15, rows
    for row in done:
        assert sum(address in row[2] for address in addresses) == 2, row
        assert "begins in" in row[3] and "computes" in row[3], row
    assert any(int(row[6].replace(",", "")) > 0 for row in done), "nothing was cached"
    assert page.locator("#pools tbody").text_content().startswith("mooncakeanswered"), "the pool does not show"
    print("  engines, load, hits, decisions and the pool: fine")


def takes_names_for_text(page, rig):
    """An engine joins whose model is called like markup, and leaves."""
    process = rig.run("hostile", "sim", "--port", 0, "--model", HOSTILE)
    (address,) = process.wait_for(r"engine on http://([0-9.:]+)")
    change = {"type": "encode", "instances": [address]}
    assert ask(rig.admin, change, path="/instances/add") == 200
    expect(page.locator("#encode tbody")).to_contain_text(HOSTILE)
    none("names that are markup", checks.markup(page))
    assert page.evaluate("typeof owned") == "undefined", "a name was run"
    assert ask(rig.admin, change, path="/instances/remove") == 200
    expect(page.locator("#encoders")).to_be_hidden()


def loses_an_engine(page, rig):
    process, address = rig.engines["d2"]
    page.wait_for_timeout(7_000)
    process.end(signal.SIGKILL)
    expect(state_of(page, rig, "d2")).to_have_text(re.compile("^down"))
    expect(page.locator("#news")).to_contain_text(f"decode {address} is ")
    expect(page).to_have_title(re.compile("^1 down"))
    expect(page.locator("#decode .count")).to_have_text("1 down, 1 up")
    expect(page.locator("#state")).to_have_text("degraded")
    first = page.locator("#decode tbody tr").first
    expect(first).to_contain_text(address)
    expect(first).to_contain_text("connection refused")
    print("  an engine that dies: fine")


def keys_work(page, events):
    """By keyboard alone: pause and go on, filter, open a decision."""
    page.locator("#pause").focus()
    page.keyboard.press("Space")
    expect(page.locator("#pause")).to_have_attribute("aria-pressed", "true")
    page.wait_for_timeout(500)
    before = len(events.requests)
    page.wait_for_timeout(3_000)
    assert len(events.requests) == before, "it asks while it is paused"
    with page.expect_request("**"):
        page.keyboard.press("Enter")
    page.locator("#filter").focus()
    page.keyboard.insert_text("retried by nobody")
    assert page.locator("#decisions tbody").inner_text().strip() == "No row contains that."
    page.locator("#filter").select_text()
    page.keyboard.insert_text(" ")
    details = page.locator("#decisions tbody tr details").first
    details.locator("summary").focus()
    page.keyboard.press("Enter")
    expect(details).to_have_attribute("open", "")
    page.wait_for_timeout(4_500)
    expect(details).to_have_attribute("open", "")
    assert page.evaluate("document.activeElement.localName") == "summary", "a look takes the focus away"
    page.keyboard.press("Enter")
    print("  pause, filter and details by keyboard: fine")


def hides(page, events):
    page.evaluate("Object.defineProperty(document, 'hidden', {get: () => true, configurable: true}), document.dispatchEvent(new Event('visibilitychange'))")
    page.wait_for_timeout(500)
    before = len(events.requests)
    page.wait_for_timeout(3_000)
    assert len(events.requests) == before, "it asks while it can't be seen"
    with page.expect_request("**"):
        page.evaluate("delete document.hidden, document.dispatchEvent(new Event('visibilitychange'))")
    print("  quiet while it can't be seen: fine")


def goes_stale(page, rig):
    rig.gateway.process.send_signal(signal.SIGSTOP)
    try:
        expect(page.locator("#stale")).to_have_text(re.compile("^Stale since "))
        expect(page.locator("#stale")).to_be_visible()
        assert page.locator("#decisions tbody tr").count() >= 20, "what was there is gone"
        none("contrast while it is stale", checks.contrast(page))
    finally:
        rig.gateway.process.send_signal(signal.SIGCONT)
    expect(page.locator("#stale")).to_be_hidden()
    print("  a gateway that hangs: fine")


def wants_the_key(browser, rig):
    gateway, at, admin = rig.serve("locked", f'admin_key = "{KEY}"\n')
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    events = Events(page)
    page.goto(f"http://{admin}/")
    key = page.locator("#key")
    expect(key).to_be_focused()
    expect(page.locator("#main")).to_be_hidden()
    # The scheme's contrast, the order of Tab: of this form, too.
    none("contrast of the question for the key", page.evaluate(checks.CONTRAST)["found"])
    none("keyboard on the question for the key", checks.keyboard(page))
    for value, then in (("wrong", "#key-wrong"), (KEY, "#main")):
        key.focus()
        page.keyboard.insert_text(value)
        page.keyboard.press("Enter")
        expect(page.locator(then)).to_be_visible()
    expect(page.locator("#main")).to_be_focused()
    expect(state_of(page, rig, "p1")).to_have_text(re.compile("^up"))
    kept = page.evaluate("[location.href, document.cookie, JSON.stringify({...localStorage, ...sessionStorage}), document.querySelector('#key').value]")
    assert kept == [f"http://{admin}/", "", "{}", ""], kept
    none("requests with the key", checks.hosts(events.requests, admin))
    page.locator("#forget").click()
    expect(page.locator("#main")).to_be_hidden()
    expect(page.locator("#ask")).to_be_visible()
    print("  the admin key: fine")
    gateway.end()
    none("the console where a key is wanted", [fault for fault in events.faults if "401" not in fault])
    page.close()


class Elsewhere(http.server.BaseHTTPRequestHandler):
    """A site with one empty page."""

    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>elsewhere</title>")

    def log_message(self, *_):
        pass


# The pieces in which an answer came, or the name of the error that a page gets where the browser does not let it ask or read.
STREAM = """(async () => {{ try {{
  const answer = await fetch('http://{at}/v1/completions', {{method: 'POST', headers: {{'content-type': 'application/json', authorization: 'Bearer x'}},
    body: JSON.stringify({{model: 'sim', prompt: 'from elsewhere', max_tokens: 12, stream: true}})}});
  let pieces = 0, text = '';
  for (const reader = answer.body.getReader(), words = new TextDecoder();;) {{
    const {{done, value}} = await reader.read();
    if (done) break;
    pieces += 1; text += words.decode(value);
  }}
  return [answer.status, pieces > 3, text.trim().endsWith('[DONE]'), !!answer.headers.get('x-request-id')];
}} catch (error) {{ return error.name }} }})()"""
FLEET = "fetch('http://{at}/instances').then(() => 'read', error => error.name)"


def asks_from_elsewhere(browser, rig):
    site = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Elsewhere)
    threading.Thread(target=site.serve_forever, daemon=True).start()
    origin = f"http://127.0.0.1:{site.server_port}"
    closed, open_to = [rig.serve(name, f"cors_origins = {json.dumps(origins)}\n", "") for name, origins in (("closed", ["http://other"]), ("open", [origin]))]
    page = browser.new_page()
    page.goto(f"{origin}/")
    found = [page.evaluate(script.format(at=gateway[1])) for gateway in (closed, open_to) for script in (STREAM, FLEET)]
    assert found == ["TypeError", "TypeError", [200, True, True, True], "TypeError"], found
    print("  pages of other origins: fine")
    page.close()
    for gateway in (closed, open_to):
        gateway[0].end()
    site.shutdown()


def fewer_colours(path):
    """Half as many bytes, and the same to the eye."""
    Image.open(path).convert("RGB").quantize(256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(path, optimize=True)


def pictures(page, rig, images):
    """Of what there is to see: an engine that rests, requests under way, one decision opened."""
    page.evaluate("document.querySelector('#start').open = false")
    opened = "document.querySelector('#decisions details').open"
    for name, scheme, width, height in (("light", "light", 1320, 860), ("dark", "dark", 1320, 860), ("narrow", "light", 400, 1400)):
        page.emulate_media(color_scheme=scheme)
        page.set_viewport_size({"width": width, "height": height})
        page.wait_for_timeout(600)
        page.evaluate(f"document.activeElement.blur(), scrollTo(0, 0), {opened} = true")
        path = images / f"status-{name}.png"
        page.screenshot(path=path)
        fewer_colours(path)
        assert 20_000 < path.stat().st_size <= IMAGE_BYTES, f"{path} has {path.stat().st_size} bytes"
        none(f"contrast, {name}", checks.contrast(page))
        none(f"width, {name}", checks.width(page))
        page.evaluate(f"{opened} = false")
    page.emulate_media(color_scheme="light", reduced_motion="reduce")
    none("motion, where none is wanted", checks.motion(page))
    page.emulate_media(reduced_motion="no-preference")
    page.set_viewport_size(WINDOW)


def finds_faults(page, events, origin):
    """Each check sees the fault that it is there for. The page is paused, and what was planted goes with it."""
    style = "(css => { const s = new CSSStyleSheet(); s.replaceSync(css); document.adoptedStyleSheets = [s]; })"
    faults = [
        ("contrast", checks.contrast, f"{style}(':root {{ --soft: #9aa3ad; }}')"),
        ("width", checks.width, f"{style}('.tiles {{ min-width: 3000px; }}')"),
        ("Tab", checks.keyboard, "document.querySelector('#pause').tabIndex = -1"),
        ("focus", checks.keyboard, f"{style}('* {{ outline: none !important; }}')"),
        ("caption", checks.semantics, "document.querySelector('#decode').caption.remove()"),
        ("scope", checks.semantics, "document.querySelector('#decode th').removeAttribute('scope')"),
        ("name", checks.semantics, "document.querySelector('#pause').textContent = ''"),
        ("colour alone", checks.semantics, "document.querySelector('.pill').textContent = ''"),
        ("chatter", checks.semantics, "document.querySelector('#main').setAttribute('aria-live', 'polite')"),
        ("markup", checks.markup, "document.querySelector('#prefill td').append(document.createElement('img'))"),
        ("motion", checks.motion, f"{style}('.pill {{ transition: color 1s; }}')"),
    ]
    for name, check, plant in faults:
        page.goto(f"http://{origin}/")
        page.locator("#decisions tbody tr summary").first.wait_for()
        page.locator("#pause").click()
        page.wait_for_timeout(300)
        before = check(page) if name != "motion" else []
        assert not before, f"before the fault: {before}"
        page.evaluate(plant)
        if not check(page):
            raise SystemExit(f"status: the planted fault is not found: {name}")
    events.faults.clear()
    page.evaluate("setTimeout(() => { null.x; }), console.error('x'), fetch('http://127.0.0.1:1/').catch(() => 0)")
    page.wait_for_timeout(1_000)
    found = events.faults
    assert len(found) >= 3 and any("Content Security Policy" in it for it in found), found
    assert checks.hosts(["http://127.0.0.2:1/"], origin) and not checks.hosts([], origin)
    made = page.evaluate("try { document.body.innerHTML = '<b>x</b>'; 'done' } catch (error) { error.name }")
    assert made == "TypeError", "strings can become markup"
    print(f"  {len(faults) + 3} planted faults: found")


def look(browser, rig, images):
    """All that is checked, in a browser."""
    page = browser.new_page(viewport=WINDOW)
    events = Events(page)
    assert ask(rig.at, path="/") == 404, "the page is on the clients' listener"
    page.goto(f"http://{rig.admin}/")
    shows(page, rig)
    takes_names_for_text(page, rig)
    none("keyboard", checks.keyboard(page))
    none("semantics", checks.semantics(page))
    loses_an_engine(page, rig)
    rig.load(rounds=2, long=5)
    page.wait_for_timeout(3_000)
    pictures(page, rig, images)
    keys_work(page, events)
    hides(page, events)
    none("the console", events.faults)
    none("requests", checks.hosts(events.requests, rig.admin))
    goes_stale(page, rig)
    wants_the_key(browser, rig)
    asks_from_elsewhere(browser, rig)
    none("fleets of 4 and 64 engines", list(status_fleets.sizes(page, rig, images)))
    none("before the first request", list(status_fleets.empty(page, rig)))
    page.unroute_all()
    status_fleets.tries(browser, rig.serve("alone", operators=""))
    print("  a request from the page: fine")
    finds_faults(page, events, rig.admin)


def run(arguments, directory):
    rig = Rig(arguments.program.resolve(), directory)
    expect.set_options(timeout=SECONDS * 1_000)
    try:
        rig.start()
        with sync_playwright() as playwright:
            look(launch(playwright, arguments.chromium), rig, arguments.images or pathlib.Path(directory))
    finally:
        rig.stop()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", type=pathlib.Path, required=True)
    parser.add_argument("--chromium", required=True)
    parser.add_argument("--images", type=pathlib.Path, help="where screenshots go; left out, they are thrown away")
    arguments = parser.parse_args()
    if arguments.images:
        arguments.images.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: os._exit(143))
    began = time.monotonic()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        run(arguments, directory)
    print(f"status: ok, {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
