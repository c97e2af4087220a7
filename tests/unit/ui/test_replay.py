"""The page of recorded histories: it lists those that are shipped, and contains the chosen one."""

import json
import re
from typing import Any

import pytest

from barnabas.ui.app import make_app
from barnabas.ui.context import HERE, Context
from tests.support.asgi import get

NAME = "kip-101-power-cut"


@pytest.fixture
def app() -> Any:
    admin: Any = None
    return make_app(Context(admin=admin, bootstrap="", settings={}))


async def test_the_page_lists_each_recording_and_contains_the_chosen_one(app: Any) -> None:
    page = (await get(app, f"replay?name={NAME}")).text
    links = set(re.findall(r'"replay\?name=([^"]*)"', page))
    assert links == {path.stem for path in (HERE / "replays").iterdir()}
    (data,) = re.findall(r'<script type="application/json">(.*?)</script>', page, re.DOTALL)
    assert json.loads(data) == json.loads((HERE / f"replays/{NAME}.json").read_bytes())


@pytest.mark.parametrize("name", ["nothing", "../replays/" + NAME, "<b>"])
async def test_another_name_is_refused_with_those_that_exist(app: Any, name: str) -> None:
    answer = await get(app, f"replay?name={name}")
    assert answer.status == 404
    assert NAME in answer.text
    assert "<b>" not in answer.text
