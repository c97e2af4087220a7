"""The first page: brokers, problems, rates and the timeline. The browser fills it from the stream."""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from barnabas.ui.context import render


async def _overview(request: Request) -> Response:
    return render(request, "overview.html")


ROUTES: Final = [Route("/", _overview)]
