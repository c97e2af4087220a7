"""The order in which tests are dealt to workers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.shares import in_shares


@dataclass(frozen=True)
class Item:
    name: str

    @property
    def path(self) -> Path:
        return Path(self.name.rstrip("0123456789"))


def _dealt(names: str, workers: int) -> list[str]:
    items: list[Any] = [Item(name) for name in names.split()]
    return [item.name for item in in_shares(items, lambda item: item.name[0].isupper(), workers)]


@pytest.mark.parametrize(
    ("names", "workers", "dealt"),
    [
        ("a1 B1 c1 D1 e1 f1", 1, "B1 D1 a1 c1 e1 f1"),
        ("a1 B1 c1 D1 e1 f1", 2, "B1 a1 c1 D1 e1 f1"),
        ("A1 A2 A3 B1 c1 c2 c3 c4", 2, "A1 A2 A3 c1 B1 c2 c3 c4"),
        ("A1 B1 C1 d1 d2 d3 d4", 3, "A1 d1 B1 d2 C1 d3 d4"),
        ("A1 A2 A3 A4 b1 b2", 2, "A1 A2 A3 A4 b1 b2"),
        ("a1 a2 a3", 2, "a1 a2 a3"),
        ("A1 B1", 4, "A1 B1"),
        ("", 2, ""),
    ],
    ids=[
        "long tests first",
        "each share has both kinds",
        "a module is not divided",
        "three shares",
        "a module that is longer than a share",
        "no long tests",
        "more workers than tests",
        "no tests",
    ],
)
def test_each_share_begins_with_long_tests(names: str, workers: int, dealt: str) -> None:
    assert _dealt(names, workers) == dealt.split()
