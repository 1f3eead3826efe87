"""What must hold of the status page, whatever it shows. Each check gives a list of what is wrong."""
import urllib.parse

# The contrast of every text that can be seen with what lies under it, as WCAG 2 computes it.
CONTRAST = r"""(() => {
  const parse = colour => { const n = colour.match(/[\d.]+/g).map(Number); return {rgb: n.slice(0, 3), a: n.length > 3 ? n[3] : 1}; };
  const light = rgb => { const [r, g, b] = rgb.map(v => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const under = node => { for (; node; node = node.parentElement) { const c = parse(getComputedStyle(node).backgroundColor);
    if (c.a === 1) return c.rgb; } return [255, 255, 255]; };
  const ratio = (a, b) => { const [x, y] = [light(a), light(b)].sort((p, q) => q - p); return (x + 0.05) / (y + 0.05); };
  const found = [], walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  let seen = 0;
  while (walker.nextNode()) {
    const node = walker.currentNode.parentElement, text = walker.currentNode.data.trim();
    if (!text || !node.checkVisibility({opacityProperty: true, visibilityProperty: true}) || node.closest('.hidden, script, noscript')) continue;
    seen += 1;
    const r = ratio(parse(getComputedStyle(node).color).rgb, under(node));
    if (r < 4.5) found.push(`${text.slice(0, 30)}: ${r.toFixed(2)}`);
  }
  for (const node of document.querySelectorAll('input[type=search], input[type=password]')) if (node.checkVisibility()) {
    const r = ratio(parse(getComputedStyle(node, '::placeholder').color).rgb, under(node));
    if (r < 4.5) found.push(`${node.id}'s placeholder: ${r.toFixed(2)}`);
  }
  return {seen, found};
})()"""

FOCUSABLE = r"""Array.from(document.querySelectorAll('a[href], button, input, select, textarea, summary, [contenteditable], [tabindex="0"]'))
  .filter(node => node.checkVisibility({visibilityProperty: true}) && !node.disabled)
  .map((node, at) => { node.dataset.at = at; return `${at} ${node.tagName.toLowerCase()}${node.id ? '#' + node.id : ''}`; })"""

FOCUSED = r"""(() => { const node = document.activeElement, style = getComputedStyle(node);
  const shown = style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 2;
  const box = node.getBoundingClientRect();
  return node === document.body ? null : {name: `${node.dataset.at} ${node.tagName.toLowerCase()}${node.id ? '#' + node.id : ''}`,
    shown, inside: box.width > 0 && box.left >= 0 && box.right <= innerWidth + 1}; })()"""


WIDE = r"""Array.from(document.body.querySelectorAll('*')).filter(node => node.getBoundingClientRect().right > innerWidth)
  .map(node => `${node.tagName.toLowerCase()}${node.id ? '#' + node.id : ''} ${node.className}`.trim()).slice(0, 20).join(', ')"""


def contrast(page):
    told = page.evaluate(CONTRAST)
    return told["found"] if told["seen"] > 20 else [f"only {told['seen']} texts were seen"]


def width(page):
    """Nothing has to be scrolled to the side."""
    needs, has = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    found = [f"{needs} pixels in a window of {has}: {page.evaluate(WIDE)}"] if needs > has else []
    over = page.evaluate("""Array.from(document.querySelectorAll('main *')).filter(n => n.checkVisibility() && !n.closest('.hidden, thead, .cut'))
        .filter(n => n.scrollWidth > n.clientWidth + 1 && n.clientWidth > 0 && getComputedStyle(n).overflowX !== 'visible')
        .map(n => n.outerHTML.slice(0, 80))""")
    return found + [f"cut off: {node}" for node in over]


def keyboard(page):
    """Tab goes through all that can be used, in the order of the page, and it can be seen where it is."""
    # From the top: a blur alone would leave the way of Tab where it was.
    page.evaluate("document.body.tabIndex = -1, document.body.focus(), document.body.removeAttribute('tabindex'), scrollTo(0, 0)")
    wanted, reached, found = page.evaluate(FOCUSABLE), [], []
    for _ in range(len(wanted) + 3):
        page.keyboard.press("Tab")
        at = page.evaluate(FOCUSED)
        if at is None or at["name"] in reached:
            break
        reached.append(at["name"])
        if not at["shown"]:
            found.append(f"{at['name']}: the focus can't be seen")
        if not at["inside"]:
            found.append(f"{at['name']}: it is outside of the window")
    return found + ([f"Tab reaches {reached} of {wanted}"] if reached != wanted else [])


def semantics(page):
    """What a screen reader is told: names, headers, the language."""
    found = [] if page.evaluate("document.documentElement.lang") == "en" else ["no language"]
    nodes = page.context.new_cdp_session(page).send("Accessibility.getFullAXTree")["nodes"]
    shown = [node for node in nodes if not node.get("ignored")]
    by_role = {}
    for node in shown:
        by_role.setdefault(node.get("role", {}).get("value"), []).append(node.get("name", {}).get("value", ""))
    for role in ("button", "table", "searchbox", "heading", "columnheader", "rowheader", "DisclosureTriangle"):
        names = by_role.get(role, [])
        if not names or not all(name.strip() for name in names):
            found.append(f"{role}: {names}")
    for role in ("main", "banner", "row", "cell"):
        if role not in by_role:
            found.append(f"nothing is a {role}")
    found += page.evaluate("""Array.from(document.querySelectorAll('table')).filter(t => t.checkVisibility()).flatMap(t => [
        ...(t.caption && t.caption.textContent.trim() ? [] : [`${t.id} has no caption`]),
        ...Array.from(t.querySelectorAll('th')).filter(h => !h.scope).map(h => `${t.id}: ${h.textContent} has no scope`)])""")
    # A state is a word, not a colour.
    found += page.evaluate("""Array.from(document.querySelectorAll('.pill')).filter(p => p.checkVisibility() && !p.textContent.trim())
        .map(p => `a state without a word: ${p.parentElement.outerHTML.slice(0, 80)}`)""")
    live = page.evaluate("Array.from(document.querySelectorAll('[aria-live], [role=status], [role=alert], [role=log]'), n => n.id)")
    return found + ([] if live == ["news"] else [f"live regions: {live}"])


def markup(page):
    """Others' words have become text alone: the page has the elements that it is made of, and no other kind."""
    known = ("html head meta title link script body a header div h1 h2 h3 span dl dt dd label input button p form main section svg polyline "
             "table caption thead tbody tr th td details summary ul li b i noscript code pre select option").split()
    return page.evaluate(f"""Array.from(document.querySelectorAll('*')).filter(n => !{known}.includes(n.localName))
        .map(n => `an element from nowhere: ${{n.outerHTML.slice(0, 80)}}`)""")


def motion(page):
    return page.evaluate("""Array.from(document.querySelectorAll('*')).filter(n => { const s = getComputedStyle(n);
        return s.transitionDuration.split(',').some(d => parseFloat(d) > 0) || s.animationName !== 'none'; })
        .map(n => `it moves: ${n.outerHTML.slice(0, 80)}`)""")


def hosts(urls, origin):
    """Requests to anybody but the gateway."""
    return [f"it asks {url}" for url in urls
            if not url.startswith(("data:", "about:")) and urllib.parse.urlsplit(url).netloc != origin]
