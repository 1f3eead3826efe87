"""What the status page shows of fleets that a test need not run: 4 and 64 engines, in trouble, and before the first request. The gateway's own answer
is changed on its way to the page."""
import copy
import json
import re

from PIL import Image
from playwright.sync_api import Error, expect

import status_checks as checks

# The page's two widths, and how high the tables of engines may be there.
WIDE, NARROW = {"width": 1280, "height": 900}, {"width": 390, "height": 844}
TALLEST = 1_800
DOWN = {"state": "down", "detail": "resting", "cause": "connection refused", "rest_ms": 500, "failures": 1}
EMPTY = {"over_ms": 4000, "ttft_p50_ms": None, "ttft_p95_ms": None, "output_tokens_per_s": 0.0, "ended": 0, "failed": 0}


def grown(answer, engines, down=0):
    """The answer with so many engines, prefillers and decoders alike, of which some are down."""
    answer = copy.deepcopy(answer)
    made = []
    for role in ("prefill", "decode"):
        pattern = next(engine for engine in answer["engines"] if engine["role"] == role)
        for number in range(engines // 2):
            made.append(pattern | {
                "instance": f"10.0.{len(made) // 100}.{number + 1}:8100", "running": (7 * number) % 32, "work_tokens": 1000 * number,
                "models": ["Qwen3-235B-A22B"]} | (DOWN if number < down else {"state": "up", "detail": "serving", "cause": None}))
    answer["engines"] = made
    return answer


def shown(page, rig, change):
    """The page with an answer that `change` makes of the gateway's."""
    def fulfil(route):
        try:
            answer = change(json.loads(route.fetch().text()))
            route.fulfill(status=200, content_type="application/json", body=json.dumps(answer))
        except Error:
            # Asked by the page that was there before.
            pass
    page.unroute_all(behavior="ignoreErrors")
    page.route("**/status.json", fulfil)
    page.goto(f"http://{rig.admin}/")
    expect(page.locator("#prefill tbody tr").first).to_be_visible()
    page.wait_for_timeout(300)


def shot(page, path):
    page.screenshot(path=path, full_page=True, clip={"x": 0, "y": 0, "width": WIDE["width"], "height": TALLEST})
    Image.open(path).convert("RGB").quantize(128, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(path, optimize=True)


def column(page, table, at):
    return page.evaluate(f"Array.from(document.querySelectorAll('#{table} tbody tr'), row => row.cells[{at}].firstChild.textContent || row.cells[{at}].textContent)")


def sorts(page):
    """By a column, the other way round, and as before; by mouse and by keyboard."""
    head = page.locator("#decode thead th", has_text="Running")
    button = head.locator("button")
    before = column(page, "decode", 0)
    numbers = lambda: [int(text) for text in column(page, "decode", 2)]
    button.click()
    expect(head).to_have_attribute("aria-sort", "descending")
    assert numbers() == sorted(numbers(), reverse=True) != column(page, "decode", 2)[::-1], numbers()
    button.focus()
    page.keyboard.press("Enter")
    expect(head).to_have_attribute("aria-sort", "ascending")
    assert numbers() == sorted(numbers()), numbers()
    page.keyboard.press("Enter")
    assert head.get_attribute("aria-sort") is None
    assert column(page, "decode", 0) == before
    page.locator("#decode thead th", has_text="Instance").locator("button").click()
    names = column(page, "decode", 0)
    assert names == sorted(names, key=lambda name: [int(part) for part in re.findall(r"\d+", name)]), names


def sizes(page, rig, images):
    """Large and small fleets fit, in trouble too."""
    for name, window in (("wide", WIDE), ("narrow", NARROW)):
        page.set_viewport_size(window)
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            for engines, down in ((4, 0), (4, 1), (64, 0), (64, 3)):
                shown(page, rig, lambda answer: grown(answer, engines, down))
                what = f"{engines} engines, {down} down, {name}, {scheme}"
                found = [f"{what}: {problem}" for check in (checks.contrast, checks.width) for problem in check(page)]
                if name == "wide":
                    top, bottom = (page.locator(f"#{table}").bounding_box() for table in ("prefill", "decode"))
                    height = bottom["y"] + bottom["height"] - top["y"]
                    if height > TALLEST:
                        found.append(f"{what}: the tables of engines are {height:.0f} pixels high")
                    if engines == 64:
                        print(f"  {what}: {height:.0f} pixels")
                    found += [f"{what}: {problem}" for problem in checks.keyboard(page)] if scheme == "light" else []
                if down:
                    first = column(page, "decode", 1)[:down + 1]
                    assert first == ["down"] * down + ["up"], first
                yield from found
    page.emulate_media(color_scheme="light")
    page.set_viewport_size(WIDE)
    shown(page, rig, lambda answer: grown(answer, 64, 3))
    shot(page, images / "status-64.png")
    sorts(page)


def empty(page, rig):
    """Before the first request: what to do, and numbers that are none."""
    def never(answer):
        none = {"inflight": 0, "queued": 0, "waiting": 0, "ended": 0, "failed": 0}
        return answer | {"requests": none, "recent": EMPTY, "decisions": []}
    shown(page, rig, never)
    expect(page.locator("#start")).to_have_attribute("open", "")
    expect(page.locator("#start-why")).to_have_text("Nothing has been asked yet.")
    expect(page.locator("#ttft")).to_have_text("–")
    expect(page.locator("#curl")).to_contain_text(f"http://{rig.at}/v1/chat/completions")
    expect(page.locator("#curl")).to_contain_text('"model":"sim"')
    # Clients have a listener of their own here.
    expect(page.locator("#send")).to_be_hidden()
    page.locator("#try-prompt").fill("it's me")
    expect(page.locator("#curl")).to_contain_text("it'\\''s me")
    yield from checks.keyboard(page)
    yield from checks.contrast(page)


def tries(browser, gateway):
    """A request from the page, where clients' requests are taken at the same listener."""
    process, at, _ = gateway
    page = browser.new_page(viewport=WIDE)
    page.goto(f"http://{at}/")
    expect(page.locator("#try-model option")).to_have_text("sim")
    page.locator("#try-prompt").focus()
    page.keyboard.insert_text("Hello from the page")
    page.keyboard.press("Enter")
    expect(page.locator("#answer-end")).to_have_text(re.compile("^first text after .*, 3[0-9] events in "))
    assert len(page.locator("#answer").inner_text()) > 20
    page.locator("#try-tokens").fill("512")
    page.locator("#send").click()
    expect(page.locator("#send")).to_have_text("Stop")
    page.locator("#send").click()
    expect(page.locator("#answer-end")).to_have_text("stopped")
    expect(page.locator("#tokens")).to_have_text(re.compile(r"^[1-9][0-9.]*$|^0\.[0-9]"), timeout=20_000)
    page.close()
    process.end()
