"""Faults of single links, chosen at random: cuts, rejections, refusals and delays, and their end.

Most are faults of one pair: both ends reach everybody else, and ZooKeeper and the clients reach both.
"""

import errno
import json
import random
from collections.abc import Callable, Sequence
from typing import Final

from kazoo.exceptions import KazooException

from barnabas.deploy.links import CLIENT, Links
from barnabas.deploy.state import ZOOKEEPER
from barnabas.protocol.ids import BrokerId
from barnabas.zookeeper import paths

from ..cluster.tools import ClusterView
from .random_faults import Choice

_DELAYS_MS: Final = (5.0, 50.0, 150.0, 300.0)
"""With the jitter, both ways take less than the shortest time-out of a request."""
_ERRORS: Final = (errno.ECONNREFUSED, errno.EHOSTUNREACH)
"""Those of a firewall, and of a router without a route."""


class LinkFaults:
    def __init__(
        self, links: Links, view: ClusterView, chance: random.Random, say: Callable[[str], None]
    ) -> None:
        self._links = links
        self._view = view
        self._chance = chance
        self._say = say
        self._is_whole = True

    def choices(self) -> list[Choice]:
        acts = [self._cut, self._sever, self._reject, self._reject_controller, self._delay, self._slow_down]
        found: list[Choice] = [
            (act.__name__.strip("_").replace("_", " "), lambda act=act: self._harm(act))
            for act in (*acts, self._refuse)
        ]
        if not self._is_whole:
            found += [("mend the links", self.mend)] * 6
        return found

    def mend(self) -> None:
        self._links.mend()
        self._is_whole = True

    def join(self, broker_id: int) -> None:
        """A broker that starts needs its link to ZooKeeper."""
        self._links.mend_pair(broker_id, ZOOKEEPER)

    def _harm(self, act: Callable[[], str]) -> None:
        self._is_whole = False
        self._say(f"  {act()}")

    @property
    def _brokers(self) -> Sequence[BrokerId]:
        return self._view.cluster.broker_ids

    def _pair(self) -> tuple[int | str, int | str]:
        one, other = self._chance.sample([*self._brokers, ZOOKEEPER], 2)
        return one, other

    def _cut(self) -> str:
        one, other = self._pair()
        self._links.cut(one, other)
        return f"{one} -> {other}"

    def _sever(self) -> str:
        one, other = self._pair()
        self._links.sever(one, other)
        return f"{one} <-> {other}"

    def _reject(self) -> str:
        return self._reject_one(*self._chance.sample(self._brokers, 2))

    def _reject_controller(self) -> str:
        """One broker cannot be reached by the controller alone."""
        try:
            with self._view.zookeeper() as zookeeper:
                controller = BrokerId(json.loads(zookeeper.get(paths.CONTROLLER)[0])["brokerid"])
        except KazooException as error:
            return f"the controller is not known: {error!r}"
        return self._reject_one(
            controller, self._chance.choice([id for id in self._brokers if id != controller])
        )

    def _reject_one(self, source: BrokerId, target: BrokerId) -> str:
        error = self._chance.choice(_ERRORS)
        self._links.reject(source, target, error)
        return f"{source} -> {target}, {errno.errorcode[error]}"

    def _refuse(self) -> str:
        target = self._chance.choice(self._brokers)
        self._links.refuse(target)
        return str(target)

    def _delay(self) -> str:
        one, other = self._pair()
        return self._delay_both(one, [other])

    def _slow_down(self) -> str:
        """All links of one broker are slow, to the clients as well."""
        one = self._chance.choice(self._brokers)
        return self._delay_both(one, [*(id for id in self._brokers if id != one), ZOOKEEPER, CLIENT])

    def _delay_both(self, one: int | str, others: Sequence[int | str]) -> str:
        delay_ms = self._chance.choice(_DELAYS_MS)
        jitter_ms = self._chance.choice((0.0, delay_ms))
        for other in others:
            self._links.delay(one, other, delay_ms, jitter_ms)
            self._links.delay(other, one, delay_ms, jitter_ms)
        return f"{one} <-> {', '.join(map(str, others))}: {delay_ms:g} ms, and up to {jitter_ms:g} more"
