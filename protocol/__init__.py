"""Bytes and their meaning: ids, errors, messages, codecs, frames and record batches. Opens no socket."""
