"""Files of settings are read, and written, as Java reads them."""

import pytest

from barnabas.common.properties import parse_properties, to_properties


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        ("# a=1\n  ! b=2\n\nc=3", {"c": "3"}),
        ("a=1\nb = 2 \nc:3\nd 4\ne\n", {"a": "1", "b": "2 ", "c": "3", "d": "4", "e": ""}),
        ("a=1\r\nb=2\r\n", {"a": "1", "b": "2"}),
        ("a=1\na=2", {"a": "2"}),
        ("listeners=PLAINTEXT://h:1", {"listeners": "PLAINTEXT://h:1"}),
        ("a=1,\\\n   2,\\\n   3\nb=4", {"a": "1,2,3", "b": "4"}),
        ("a=1\\\\\nb=2", {"a": "1\\", "b": "2"}),
        ("a=C\\:\\\\logs\\ x", {"a": "C:\\logs x"}),
        ("# a \\\nb=2", {"b": "2"}),
        ("a=1,\\\n# 2", {"a": "1,# 2"}),
        ("a\\=b=c", {"a=b": "c"}),
        ("a = = b", {"a": "= b"}),
        ("a=x\\", {"a": "x"}),
        ("a=\\u0041\\tb\\r\\n", {"a": "A\tb\r\n"}),
    ],
)
def test_properties_are_read_as_java_reads_them(text: str, expected: dict[str, str]) -> None:
    assert parse_properties(text) == expected


@pytest.mark.parametrize("value", ["\\u004", "\\b", "C:\\logs", "\\\\\\d"])
def test_a_backslash_before_a_letter_is_refused_with_its_line(value: str) -> None:
    with pytest.raises(ValueError, match=r"line 2 has .*: write two backslashes for one"):
        parse_properties(f"a=1\nb={value}")


def test_a_value_without_a_name_is_refused() -> None:
    with pytest.raises(ValueError, match="line 1 has no name"):
        parse_properties("=1")


@pytest.mark.parametrize("value", ["a\\b ", " #", "\tx", "-----BEGIN-----\nM=\r\n", "grün 🔑 \x7f"])
def test_a_value_that_was_written_is_read(value: str) -> None:
    text = to_properties({"a": value, "b": "2"})
    assert text.isascii()
    assert parse_properties(text) == {"a": value, "b": "2"}


def test_what_is_not_ascii_is_written_in_the_escapes_of_java() -> None:
    assert to_properties({"a": "ü€🔑"}) == "a=\\u00fc\\u20ac\\ud83d\\udd11\n"
