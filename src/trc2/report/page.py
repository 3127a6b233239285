"""The report as one page: an HTML file that holds its data and its drawing code, and asks nobody for anything."""

from __future__ import annotations

import base64
import colorsys
import hashlib
import json
import re
from importlib import resources
from pathlib import Path
from typing import Any

from trc2.files import write_atomically
from trc2.report.evidence import Evidence
from trc2.report.page_data import page_data

SCRIPTS = ("chart.js", "page.js", "panel.js", "check.js")
DARK = "#14181c"  # the page's ground at night, as in page.css
MIN_CONTRAST = 3.0  # of a line or a marker with its ground


def write_page(evidence: Evidence, path: Path) -> Path:
    """Write the page; the same evidence gives the same bytes."""
    data = page_data(evidence)
    style = _part("page.css") + family_style(data["families"])
    script = "".join(map(_part, SCRIPTS))
    parts = {"policy": policy(style, script), "style": style, "script": script, "data": script_json(data)}
    # In one pass: what is put in is never looked at again, so data cannot pretend to be a place.
    html = re.sub(r"\{\{(\w+)\}\}", lambda place: parts[place.group(1)], _part("page.html"))
    write_atomically(path, html.encode())
    return path


def script_json(data: Any) -> str:
    """JSON that may stand inside <script>: nothing in it can end the element or begin a comment, and all is ASCII."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


def policy(style: str, script: str) -> str:
    """Content-Security-Policy: our own style and script, known by their hashes, and nothing else at all."""
    return (
        f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def family_style(families: list[dict[str, str]]) -> str:
    """The colour of every family, as in all pictures; on dark ground what would be too dark is as light instead."""
    light = "".join(f".f{index} {{ --c: {family['colour']}; }}\n" for index, family in enumerate(families))
    night = "".join(f".f{index} {{ --c: {on_dark(family['colour'])}; }}\n" for index, family in enumerate(families))
    return f"{light}@media screen and (prefers-color-scheme: dark) {{\n{night}}}\n"


def on_dark(colour: str) -> str:
    """The colour itself, or, where it cannot be seen on the dark ground, the same hue as light as it was dark."""
    if contrast(colour, DARK) >= MIN_CONTRAST:
        return colour
    hue, lightness, saturation = colorsys.rgb_to_hls(*_channels(colour))
    return "#" + "".join(f"{round(255 * c):02X}" for c in colorsys.hls_to_rgb(hue, 1 - lightness, saturation))


def contrast(one: str, other: str) -> float:
    """The contrast ratio of WCAG: 1 for equal colours, 21 for black and white."""
    low, high = sorted((_luminance(one), _luminance(other)))
    return (high + 0.05) / (low + 0.05)


def _luminance(colour: str) -> float:
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in _channels(colour)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _channels(colour: str) -> tuple[float, float, float]:
    red, green, blue = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    return red, green, blue


def _part(name: str) -> str:
    return (resources.files("trc2.report") / "page_parts" / name).read_text(encoding="utf-8")
