"""Hooks of `mkdocs build`: a page gets the recordings that it names, the site the script that replays them.

The recordings and the script are those of the live page (``ui/``). A recording becomes a part of its page, so
that the page works from a file, without a server.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

from mkdocs.structure.files import File, Files

from barnabas.ui.report import as_classic_script, as_data

UI: Final = Path(__file__).parents[1] / "ui"
_MODULES: Final = ("dom.js", "picture.js", "replay.js")
_PLACE: Final = re.compile(r'(<div class="replay" )data-recording="([\w-]+)"(>)')


def on_files(files: Files, config: Any) -> Files:
    """Add the script and the styles of a replay."""
    static = UI / "static"
    files.append(File.generated(config, "assets/replay.js", content=replay_script()))
    for name in ("picture.css", "replay.css"):
        files.append(File.generated(config, f"assets/{name}", content=(static / name).read_text()))
    return files


def replay_script() -> str:
    return as_classic_script((UI / "static" / name).read_text() for name in _MODULES)


def on_page_content(html: str, **_: Any) -> str:
    """Put each recording into its place."""
    return _PLACE.sub(_filled, html)


def _filled(place: re.Match[str]) -> str:
    data = as_data((UI / "replays" / f"{place[2]}.json").read_text())
    return f'{place[1]}{place[3]}<script type="application/json">{data}</script>'
