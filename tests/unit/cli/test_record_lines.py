"""Templates: the escapes of kcat and rpk, bytes as they are."""

import argparse
import re

import pytest

from barnabas.cli.record_lines import compile_template, make_formatter
from barnabas.client.consumer_record import ConsumerRecord
from barnabas.protocol.record_batch import TimestampType

FULL = ConsumerRecord(
    "t", 3, 7, 1_000, b"\xff", b"v\n", (("a", b"\x80"), ("b", None)), TimestampType.CREATE_TIME
)
NULLS = ConsumerRecord("t", 0, 0, -1, None, None, (), TimestampType.CREATE_TIME)


@pytest.mark.parametrize(
    ("template", "full", "nulls"),
    [
        (r"%t-%p@%o\n", b"t-3@7\n", b"t-0@0\n"),
        (r"%k[%K]%s[%S]", b"\xff[1]v\n[2]", b"[-1][-1]"),
        (r"%v%V\t%T %d", b"v\n2\t1000 1000", b"-1\t-1 -1"),
        (r"%h;", b"a=\x80,b=NULL;", b";"),
        (r"100%% \\n\x00\xfF\0é", b"100% \\n\0" + b"\xff\0" + "é".encode(), None),
        ("", b"", b""),
        ("two\nlines", b"two\nlines", None),
    ],
)
def test_a_template_writes_bytes_as_they_are(template: str, full: bytes, nulls: bytes | None) -> None:
    write = compile_template(template)
    assert write(FULL) == full
    assert write(NULLS) == (full if nulls is None else nulls)


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("%q", "%q: expected %t topic"),
        ("a%", "%: expected"),
        ("\\q", "\\q: expected"),
        ("\\", "\\: expected"),
    ],
)
def test_an_unknown_escape_is_refused_with_the_known_ones(template: str, said: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=re.escape(said)):
        compile_template(template)


@pytest.mark.parametrize(
    ("name", "full", "nulls"),
    [
        ("value", b"v\n\n", b"\n"),
        ("key-value", b"\xff:v\n\n", b":\n"),
        (
            "full",
            b"t-3  7  1970-01-01T00:00:01.000Z  \\xff: v\n  [a=\\x80]  [b=null]\n",
            b"t-0  0  -  null: null\n",
        ),
    ],
)
def test_a_format_ends_each_line(name: str, full: bytes, nulls: bytes) -> None:
    assert make_formatter(name, ":")(FULL) == full
    assert make_formatter(name, ":")(NULLS) == nulls
