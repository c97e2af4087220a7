"""The parts that every page needs: the cluster, the rights of this page, and the templates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from jinja2.filters import do_filesizeformat
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response

from barnabas.client.admin.admin import Admin
from barnabas.deploy.running_cluster import RunningCluster
from barnabas.ui.message_formats import Decode

HERE: Final = Path(__file__).parent
TEMPLATES: Final = Environment(
    loader=FileSystemLoader(HERE / "templates"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
)
_UNKNOWN: Final = "\u2013"


def _clock(time_ms: float) -> str:
    """A time of this machine, as the brokers' log files have it."""
    return datetime.fromtimestamp(time_ms / 1000).strftime("%H:%M:%S.%f")[:-3]


def _size(size_bytes: int | None) -> str:
    return _UNKNOWN if size_bytes is None else do_filesizeformat(size_bytes, binary=True)


TEMPLATES.filters.update(clock=_clock, size=_size)


@dataclass(kw_only=True, frozen=True)
class Context:
    """One served cluster. `cluster` is None unless it runs on this machine, in the chosen directory.

    Belongs to the event loop of the server; calls of `cluster` block and need a thread.
    """

    admin: Admin
    """Open for as long as the page is served."""
    watcher: Admin | None = None
    """Asks only for the state of the brokers, which would else wait behind a slow answer to `admin`."""
    bootstrap: str
    settings: Mapping[str, Any]
    """The settings of further clients, without the bootstrap servers."""
    cluster: RunningCluster | None = None
    dir_words: str = ""
    is_read_only: bool = False
    decoders: Mapping[str, Decode] = field(default_factory=dict)
    """By topic: the decoder of its values, from a local Avro schema."""

    @property
    def is_kafka(self) -> bool:
        """Whether the page speaks Kafka's protocol, as with brokers of other software."""
        return self.admin.is_kafka


def context_of(request: Request) -> Context:
    found: Context = request.app.state.context
    return found


def render(request: Request, template: str, *, status: int = 200, **values: Any) -> Response:
    """A page of the templates; `base.html` has the navigation, the style and the outcome of a change."""
    context, outcome = context_of(request), request.query_params.get("outcome", "")
    page = TEMPLATES.get_template(template).render(
        context=context, path=request.url.path, outcome=outcome, **values
    )
    return HTMLResponse(page, status)


def is_refresh(request: Request) -> bool:
    """Whether the script of a page fetches it again: then the last look of the sampler is new enough."""
    return request.headers.get("sec-fetch-dest") == "empty"


async def form_of(request: Request) -> dict[str, str]:
    """The fields of a form; of a repeated field the last. `Access` bounds the size of the body."""
    body = (await request.body()).decode("utf-8", "replace")
    return dict(parse_qsl(body, keep_blank_values=True))


def outcome(request: Request, location: str, sentence: str, **values: Any) -> Response:
    """The answer to a change: the page at `location` with the sentence, or JSON for a script."""
    if wants_json(request):
        return JSONResponse({"outcome": sentence, **values})
    separator = "&" if "?" in location else "?"
    return RedirectResponse(f"{location}{separator}outcome={quote(sentence)}", 303)


def refused(request: Request, location: str, sentence: str, status: int = 409) -> Response:
    """The answer to a change that was not made: a page with the sentence and the way back, or JSON."""
    if wants_json(request):
        return JSONResponse({"error": sentence}, status)
    return render(request, "refused.html", status=status, sentence=sentence, location=location)


def wants_json(request: Request) -> bool:
    """Whether a script asks, not the form of a page: it accepts JSON, or sends it as curl does."""
    return any("application/json" in request.headers.get(name, "") for name in ("accept", "content-type"))
