"""Zigzag varints, as the fields of a record use them.

A signed number is folded so that small magnitudes are small (0, -1, 1, -2 become 0, 1, 2, 3), then written
seven bits at a time, the lowest first, with the high bit set on all bytes but the last. The hot loops of
`records` and `batch_builder` have these steps inline; this module is their slow path and reference.
Pure functions, any thread.

Source: https://developers.google.com/protocol-buffers/docs/encoding (sint32, sint64), named by Kafka's
message format page.
"""

from __future__ import annotations

from typing import Final

from barnabas.protocol.compression import Buffer
from barnabas.protocol.errors import ErrorCode, api_error

MAX_VARINT_BYTES: Final = 10
"""A 64-bit number takes at most this many bytes; a longer run of high bits is malformed."""


def encode_varint(value: int) -> bytes:
    """The bytes of a signed number of up to 64 bits; raises OverflowError beyond them."""
    if not -(1 << 63) <= value < 1 << 63:
        raise OverflowError(f"{value} does not fit into 64 bits")
    folded = (value << 1) ^ (value >> 63)
    out = bytearray()
    while folded > 0x7F:
        out.append((folded & 0x7F) | 0x80)
        folded >>= 7
    out.append(folded)
    return bytes(out)


def decode_varint(buffer: Buffer, position: int) -> tuple[int, int]:
    """Read one number; returns it and the position after it.

    Raises INVALID_RECORD if the buffer ends inside the number or the number exceeds 64 bits.
    """
    folded = 0
    end = min(len(buffer), position + MAX_VARINT_BYTES)
    for shift, at in enumerate(range(position, end)):
        byte = buffer[at]
        folded |= (byte & 0x7F) << (7 * shift)
        if byte < 0x80:
            if folded >> 64:
                break
            return (folded >> 1) ^ -(folded & 1), at + 1
    raise api_error(ErrorCode.INVALID_RECORD, f"no varint of at most 64 bits at byte {position}")
