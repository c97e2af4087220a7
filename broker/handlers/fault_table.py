"""The rules of faults that a broker injects, their counters, and the decision about one request. Pure.

A request is compared with the rules in order. The first whose conditions hold counts it as a match, and hits
it if the counter says so; otherwise the next rule is asked. The decision about a rule's n-th match depends on
the rule and n alone, so it is repeatable, also with a probability.

Any thread. The rules are one tuple that a change replaces; the lock guards it and the counters.
"""

from __future__ import annotations

import fnmatch
import random
import re
import threading
from collections.abc import Callable, Collection, Sequence
from typing import Final

from barnabas.common.fault_rules import MAX_RULES, FaultRule
from barnabas.protocol.errors import InvalidConfiguration
from barnabas.protocol.schema import ApiKey

EVERY_API: Final = frozenset(map(int, ApiKey))


class ActiveRule:
    """A rule in the table. The counters are the table's; `is_removed` is set once, by its removal."""

    __slots__ = ("_clients", "_random", "_topics", "apis", "hits", "is_removed", "matches", "rule")

    def __init__(self, rule: FaultRule) -> None:
        self.rule = rule
        self.apis = frozenset(map(int, rule.api_keys)) or EVERY_API
        self.matches = 0
        self.hits = 0
        self.is_removed = False
        self._clients = _matcher(rule.client_id)
        self._topics = _matcher(rule.topic)
        self._random = random.Random(rule.seed)

    def meets(
        self, api: int, client_id: str, is_of_broker: bool, topics: Callable[[], Collection[str]]
    ) -> bool:
        """Whether the conditions hold for a request; ``topics`` are only found if a rule asks for them."""
        requests = self.rule.requests
        return (
            api in self.apis
            and (requests == "all" or is_of_broker is (requests == "brokers"))
            and (self._clients is None or self._clients(client_id))
            and (self._topics is None or any(map(self._topics, topics())))
        )

    def count(self) -> bool:
        """Count a match; returns whether it is hit. Called with the lock of the table."""
        rule = self.rule
        self.matches += 1
        # Drawn for each match, so that the outcome for the n-th does not depend on what the others were.
        is_drawn = rule.probability == 1 or self._random.random() < rule.probability
        is_hit = (
            is_drawn
            and (rule.nth is None or self.matches == rule.nth)
            and (rule.times is None or self.hits < rule.times)
        )
        self.hits += is_hit
        return is_hit


def _matcher(pattern: str | None) -> Callable[[str], bool] | None:
    """Whether a name is the pattern, or matches it; a client id may contain the characters of patterns."""
    if pattern is None:
        return None
    match = re.compile(fnmatch.translate(pattern)).match
    return lambda name: name == pattern or match(name) is not None


class FaultTable:
    """``on_change`` is called after each change, without the lock, with the removed rules."""

    def __init__(self) -> None:
        self.rules: Sequence[ActiveRule] = ()
        self.on_change: Callable[[Sequence[ActiveRule]], None] = lambda removed: None
        self._lock = threading.Lock()

    def change(self, removed: Collection[str] | None, added: Collection[FaultRule] = ()) -> list[str]:
        """Remove the rules of these names, or all, then add others; returns the names of removed rules.

        Raises InvalidConfiguration and changes nothing if the name of an added rule is in use, so that each
        name belongs to the caller that added it, or if they are too many.
        """
        with self._lock:
            names = None if removed is None else frozenset(removed)
            gone = [each for each in self.rules if names is None or each.rule.name in names]
            stays = {each.rule.name: each for each in self.rules if each not in gone}
            for rule in added:
                if rule.name in stays:
                    raise InvalidConfiguration(f"there is a fault rule of the name {rule.name} already")
                stays[rule.name] = ActiveRule(rule)
            if len(stays) > MAX_RULES:
                raise InvalidConfiguration(f"{len(stays)} fault rules; expected {MAX_RULES} at most")
            self.rules = tuple(stays.values())
            for each in gone:
                each.is_removed = True
        self.on_change(gone)
        return [each.rule.name for each in gone]

    def find(
        self, api: int, client_id: str, is_of_broker: bool, topics: Callable[[], Collection[str]]
    ) -> ActiveRule | None:
        """The rule that hits a request, if one does; counts the request."""
        for active in self.rules:
            if active.meets(api, client_id, is_of_broker, topics):
                with self._lock:
                    if not active.is_removed and active.count():
                        return active
        return None

    def counts(self) -> list[tuple[FaultRule, int, int]]:
        """Each rule with its matches and hits, of one moment."""
        with self._lock:
            return [(active.rule, active.matches, active.hits) for active in self.rules]
