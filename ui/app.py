"""The application of the live page: the routes of all pages and the static files."""

from __future__ import annotations

from typing import Final

from starlette.applications import Starlette
from starlette.routing import BaseRoute, Mount
from starlette.staticfiles import StaticFiles

from barnabas.ui import (
    event_log,
    faults,
    groups,
    message,
    messages,
    overview,
    produce,
    replay,
    settings,
    topics,
    transactions,
)
from barnabas.ui.context import HERE, Context

_ROUTES: Final[list[BaseRoute]] = [
    *overview.ROUTES,
    *topics.ROUTES,
    *messages.ROUTES,
    *message.ROUTES,
    *produce.ROUTES,
    *faults.ROUTES,
    *event_log.ROUTES,
    *groups.ROUTES,
    *transactions.ROUTES,
    *settings.ROUTES,
    *replay.ROUTES,
    Mount("/static", StaticFiles(directory=HERE / "static")),
]


def make_app(context: Context) -> Starlette:
    app = Starlette(routes=_ROUTES)
    app.state.context = context
    return app
