"""Bytes and their meaning: ids, errors, messages, codecs, frames, record batches, and the one RPC channel."""
