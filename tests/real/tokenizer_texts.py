"""Texts for `tokenizer_forms.py`, from a seed: languages, code, numbers, white space, emoji, special tokens, broken escapes, every code point."""

import gettext
import pathlib
import random

import tiktoken

SITE = pathlib.Path(tiktoken.__file__).parents[1]
SENTENCES = """The quick brown fox doesn't jump; it's over I'LL say. | Größe, Straße, naïve façade — „Zitat“ | Ça va? L'été où l'œuvre s'achève…
El niño comió piñas; ¿qué más? | Быстрая коричневая лиса прыгает. | Η γρήγορη αλεπού πηδάει. | 敏捷的棕色狐狸跳过懒狗。今天是2026年。 | 素早い茶色の狐がのろまな犬を飛び越える。カタカナ
빠른 갈색 여우가 게으른 개를 뛰어넘는다. | الثعلب البني السريع يقفز فوق الكلب | השועל החום המהיר קופץ | तेज़ भूरी लोमड़ी आलसी कुत्ते पर कूदती है | สุนัขจิ้งจอกสีน้ำตาลกระโดด
ተንኮለኛው ቡናማ ቀበሮ | ქართული ენა მშვენიერია | Հայերեն լեզու | தமிழ் மொழி அழகானது | తెలుగు భాష | ພາສາລາວ | ភាសាខ្មែរ | မြန်မာဘာသာ | Tiếng Việt rất đẹp với dấu thanh | Ǆungla ǅ ǆ
ᏣᎳᎩ ᎦᏬᏂᎯᏍᏗ | 𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𝟙𝟚𝟛 𝕬 | İstanbul ıslak ŞİŞ | e\u0301te\u0301 n\u0303 A\u030a | ﷽ ﬁ ﬂ Ⅷ ½ ²³ ٣٤٥ १२३ 一二三""".replace("\n", "|").split("|")
EMOJI = "😀 👨‍👩‍👧‍👦 👩🏽‍💻 🏳️‍🌈 🇩🇪🇯🇵 ❤️‍🔥 1️⃣ #️⃣ ☃️ 🤷🏿‍♂️ 🫠 ✨✨✨".split()
SPACES = [" ", "  ", "\t", "\n", "\r\n", "\r", "\n\n\n", "\u00a0", "\u2003", "\u3000", "\u200b", "\ufeff", "\x0b", "\x0c", "\x1c", "\x1f", "\x85", "\u2028", "\u1680", "        "]
BROKEN = ["\ufffd", "\\ud800", "\\udfff\\ud800", "\\xff\\xfe", "%C3%28", "Ã¼Ã©â‚¬", "\x00", "\x00\x01\x7f\x80", "\ufffe", "\U0010ffff", "\ufdd0", "&#xD800;", "\\u00e", "\x1b[31m"]
CODE = """def f(x: int) -> list[int]:\n    return [i**2 for i in range(x) if i % 3 != 0]  # why\n
fn main() { let v: Vec<_> = (0..10).map(|x| x * 2).collect(); println!("{v:?}"); }\n
SELECT a.b, COUNT(*) FROM "T" AS a WHERE c >= 1e-9 GROUP BY 1;\n
{"key": [1, 2.50, null, true], "s": "\\n\\"\\u00fc"}\n
<div class="a b">&amp;&nbsp;</div><!-- x -->\n
#include <stdio.h>\r\nint main(void){\treturn 0x1F ^ ~0b1010;}\r\n
git commit -m 'fix: don\\'t' && curl -s https://example.com/a?b=c&d=%20#e | jq '.[]'\n
\\frac{\\partial f}{\\partial x} = \\sum_{i=0}^{n} a_i x^{i}\n""".split("\n\n")


# What libraries that split without a regular expression may take for something else: contractions in other letters, digits of other
# scripts, Chinese numbers and radicals, marks, runs of white space before each of them.
EDGES = ["'s", "'LL", "'ſ", "'t", "ſ", "ʼs", "K", "ǅ", "ⓐ", "々", "〇", "⺀", "〡", "ʰ", "\u0301", "\u200d", "١", "Ⅷ", "½", "7", "42", "é", "中", "の", "ハ", "한", "ß"] + list(" aAzZ.,/-_!#\t\n") + ["  ", "\r\n", "\u00a0", "\u3000", "🦀"]


def words():
    """Words of many languages: translated names of countries, which pycountry carries."""
    found = {}
    for path in sorted((SITE / "pycountry/locales").glob("*/LC_MESSAGES/iso3166-1.mo")):
        with open(path, "rb") as file:
            catalog = gettext.GNUTranslations(file)._catalog
        found[path.parts[-3]] = [text for key, text in catalog.items() if key and isinstance(text, str)]
    return found


def numbers(draw):
    form = draw.randrange(5)
    if form == 0:
        return str(draw.randrange(10 ** draw.randrange(1, 30)))
    if form == 1:
        return f"{draw.uniform(-1e6, 1e6):.{draw.randrange(9)}f}"
    if form == 2:
        return f"{draw.randrange(1900, 2100)}-{draw.randrange(1, 13):02}-{draw.randrange(1, 29):02}T{draw.randrange(24):02}:00:00Z"
    if form == 3:
        return hex(draw.randrange(1 << draw.randrange(1, 128)))
    return f"{draw.randrange(10**9):,}"


def any_text(draw, special, languages):
    """One text of some parts of different kinds."""
    parts = []
    for _ in range(draw.randrange(1, 12)):
        kind = draw.randrange(11)
        if kind == 0:
            parts.append(draw.choice(SENTENCES).strip(" "))
        elif kind == 1:
            parts.append(" ".join(draw.choices(draw.choice(languages), k=draw.randrange(1, 6))))
        elif kind == 2:
            parts.append(draw.choice(CODE))
        elif kind == 3:
            parts.append(numbers(draw))
        elif kind == 4:
            parts.append("".join(draw.choices(SPACES, k=draw.randrange(1, 6))))
        elif kind == 5:
            parts.append("".join(draw.choices(EMOJI, k=draw.randrange(1, 4))))
        elif kind == 6:
            token = draw.choice(special)
            cut = draw.randrange(len(token)) if draw.randrange(4) == 0 else len(token)
            parts.append(token[:cut])
        elif kind == 7:
            parts.append(draw.choice(BROKEN))
        elif kind == 8:
            parts.append("".join(chr(draw.choice([draw.randrange(0xD800), draw.randrange(0xE000, 0x110000)])) for _ in range(draw.randrange(1, 20))))
        elif kind == 9:
            parts.append(draw.choice("aA1 .-=\n\t中é🦀_") * draw.randrange(1, 400))
        else:
            parts.append("".join(draw.choices("abcXYZ'\" .,!?-_/\\\n\r\t0123456789äß中日Ⅷ", k=draw.randrange(1, 60))))
    return draw.choice(["", " ", "", "\n"]).join(parts)


def texts(seed, count, special, one_in=1):
    """`count` texts of mixed kinds, then every code point (or one in so many blocks of 1 024), and texts of edges."""
    draw = random.Random(seed)
    languages = [texts for texts in words().values() if texts]
    yield from ("", " ", "\n", "a")
    for _ in range(count):
        yield any_text(draw, special, languages)
    for start in range(1024 * (seed % one_in), 0x110000, 1024 * one_in):
        points = [point for point in range(start, start + 1024) if not 0xD800 <= point < 0xE000]
        if points:
            yield "".join(map(chr, points))
            yield "a1 ".join(map(chr, points))
            yield " ".join(f"9{char}.{char}A{char}b 1{char}" for char in map(chr, points))
    for _ in range(count // 5):
        yield "".join(draw.choices(EDGES, k=draw.randrange(1, 60)))


def long_texts(seed, special):
    """Texts beyond the limits of Kimi's code, and long runs."""
    draw = random.Random(seed + 1)
    languages = [texts for texts in words().values() if texts]
    for letter in ("a", " ", "中", "1", "\n", "-", "é", "aB"):
        yield letter * 30_001
        yield "x" + letter * 25_000 + "y " + letter * 24_999
    for _ in range(2):
        text = "".join(any_text(draw, special, languages) for _ in range(6_000))
        yield text[:820_003]
        yield text.replace(" ", "").replace("\n", "")[:410_001]
