"""The pages of records over real brokers, by both protocols."""

from __future__ import annotations

import re
from typing import Final

from barnabas.client import Admin
from barnabas.deploy.local import LocalCluster
from barnabas.ui.app import make_app
from barnabas.ui.context import Context
from tests.support.asgi import get, post

from .isolation import TOPIC, Writers, read_decided_and_open_transactions

STATES: Final = {
    **{0: ["aborted"], 1: ["aborted"], 2: ["committed"], 3: [], 4: ["committed"]},
    **{7: ["committed"], 9: ["open"], 10: ["held back"]},
}
"""By offset, without the markers, of the history of `isolation.py`."""


async def test_marks_search_download_and_produce(shared_cluster: LocalCluster) -> None:
    bootstrap = shared_cluster.bootstrap
    async with Writers(bootstrap, "native") as writers:
        await read_decided_and_open_transactions(writers)
        for wire in ("native", "kafka"):
            async with Admin(bootstrap_servers=bootstrap, wire=wire) as admin:
                app = make_app(Context(admin=admin, bootstrap=bootstrap, settings={"wire": wire}))
                page = await get(app, f"messages?topic={TOPIC}&from=earliest&to=offset:11")
                states = {
                    int(offset): re.findall(r'class="state"[^>]*>([^<]*)<', row)
                    for offset, row in re.findall(r'&amp;offset=(\d+)"(.*?)</tr>', page.text, re.DOTALL)
                }
                assert sorted(map(str, states.values())) == sorted(map(str, STATES.values())), states
                found = await get(app, f"messages?topic={TOPIC}&from=earliest&value=p1")
                assert "1 match" in found.text
                written = await post(app, "produce", topic=TOPIC, partition="0", key=wire, value="new")
                assert written.status == 303, written.text
                lines = (await get(app, f"messages.jsonl?topic={TOPIC}&from=earliest&key={wire}")).body
                assert lines.count(b'"value": "new"') == 1
