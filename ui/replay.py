"""Recorded histories, step by step: those that are shipped, and any file, which only the browser reads."""

from __future__ import annotations

import json
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from barnabas.ui.context import HERE, render

_RECORDINGS: Final = HERE / "replays"


async def _replay(request: Request) -> Response:
    paths = {path.stem: path for path in sorted(_RECORDINGS.glob("*.json"))}
    titles = {name: json.loads(path.read_bytes())["title"] for name, path in paths.items()}
    name = request.query_params.get("name", "")
    if name and name not in paths:
        problem = f"There is no recording {name!r}; there are {', '.join(paths)}."
        return render(request, "replay.html", status=404, titles=titles, name="", data="", problem=problem)
    # Within a script only this ends it.
    data = paths[name].read_text().replace("</", "<\\/") if name else ""
    return render(request, "replay.html", titles=titles, name=name, data=data, problem="")


ROUTES: Final = [Route("/replay", _replay)]
