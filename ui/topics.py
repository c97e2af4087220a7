"""All topics, and the picture of one partition. The browser fills both from the stream."""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from barnabas.ui.context import render


async def _topics(request: Request) -> Response:
    return render(request, "topics.html")


async def _partition(request: Request) -> Response:
    topic, partition = request.query_params.get("topic", ""), request.query_params.get("partition", "0")
    return render(request, "partition.html", topic=topic, partition=partition)


ROUTES: Final = [Route("/topics", _topics), Route("/partition", _partition)]
