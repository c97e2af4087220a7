"""What every page of the live page needs: the cluster, the rights of this page, and the templates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from barnabas.client.admin.admin import Admin
from barnabas.deploy.running_cluster import RunningCluster

HERE: Final = Path(__file__).parent
TEMPLATES: Final = Environment(
    loader=FileSystemLoader(HERE / "templates"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
)


@dataclass(kw_only=True, frozen=True)
class Context:
    """One served cluster. `cluster` is None unless it runs on this machine, in the chosen directory.

    Belongs to the event loop of the server; calls of `cluster` block and need a thread.
    """

    admin: Admin
    """Open for as long as the page is served."""
    bootstrap: str
    settings: Mapping[str, Any]
    """With which further clients connect, without the bootstrap servers."""
    cluster: RunningCluster | None = None
    dir_words: str = ""
    is_read_only: bool = False


def context_of(request: Request) -> Context:
    found: Context = request.app.state.context
    return found


def render(request: Request, template: str, **values: Any) -> Response:
    """A page of the templates; `base.html` has the navigation and the style."""
    context = context_of(request)
    page = TEMPLATES.get_template(template).render(context=context, path=request.url.path, **values)
    return HTMLResponse(page)
