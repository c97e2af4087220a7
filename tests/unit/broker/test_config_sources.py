"""The format of ``java.util.Properties``."""

from __future__ import annotations

import pytest

from barnabas.broker.config.sources import parse_properties


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        ("# a=1\n  ! b=2\n\n", {}),
        ("a=1\nb = 2 \nc:3\nd 4\ne\n", {"a": "1", "b": "2 ", "c": "3", "d": "4", "e": ""}),
        ("a=1\r\nb=2\r\n", {"a": "1", "b": "2"}),
        ("a=1\na=2", {"a": "2"}),
        ("listeners=PLAINTEXT://h:1", {"listeners": "PLAINTEXT://h:1"}),
        ("a=1,\\\n   2,\\\n   3\nb=4", {"a": "1,2,3", "b": "4"}),
        ("a=1\\\\\nb=2", {"a": "1\\", "b": "2"}),
        ("a=\\u0041\\t\\x", {"a": "A\tx"}),
        ("a\\=b=c", {"a=b": "c"}),
        ("a = = b", {"a": "= b"}),
        ("a=x\\", {"a": "x"}),
    ],
)
def test_properties_are_read_as_java_reads_them(text: str, expected: dict[str, str]) -> None:
    assert parse_properties(text) == expected


def test_a_broken_escape_is_refused_with_its_line() -> None:
    with pytest.raises(ValueError, match="line 2"):
        parse_properties("a=1\nb=\\u00g1")


def test_a_value_without_a_name_is_refused() -> None:
    with pytest.raises(ValueError, match="line 1 has no name"):
        parse_properties("=1")
