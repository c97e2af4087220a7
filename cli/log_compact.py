"""`barnabas log compact`: cleans compacted logs of a stopped broker, as its cleaner would.

It takes the lock of the log dir, so no broker can use it meanwhile. A log is opened as a start would open it,
with recovery if the last stop was unclean; its active segment is sealed if all of it is committed, then all
sealed segments up to the high watermark of the checkpoint are cleaned. A log that is not known to be
compacted is refused, because all but the newest record of each key would be lost: the policy comes from the
cluster (``--bootstrap-server``) or from ``--set cleanup.policy=compact``.

The command may be interrupted at any time. While a log is open here, the mark of a clean stop names it as
open, so that the next start recovers it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from barnabas.broker.base.clocks import wall_clock_ms
from barnabas.broker.compaction.choice import assess
from barnabas.broker.compaction.cleaner import figures_of
from barnabas.broker.compaction.cleaning import clean
from barnabas.broker.compaction.offset_map import OffsetMap
from barnabas.broker.config.load import load_config
from barnabas.broker.config.settings import BrokerConfig, topic_setting_names
from barnabas.broker.config.topic_settings import TopicSettingsTable
from barnabas.broker.log.file_system import LOG_SUFFIX
from barnabas.broker.log.log import Log
from barnabas.broker.log.log_config import COMPACT, LogConfig
from barnabas.broker.log.log_dir import CleanMark, LogDir, ScannedLog
from barnabas.broker.log.storage_errors import CheckpointDamaged
from barnabas.cli.arguments import (
    add_bootstrap_argument,
    add_set_argument,
    key_values,
    named_bootstrap,
    run_async,
)
from barnabas.cli.exit_codes import FAILED, NOT_FOUND, OK, USAGE, CommandError
from barnabas.cli.log_cluster import cluster_of
from barnabas.cli.log_verify import locked, log_dir_of
from barnabas.cli.output import bytes_progress, count, print_json
from barnabas.client.admin.admin import ConfigResource
from barnabas.logtools.verification import scan_to_verify
from barnabas.protocol.errors import ApiError
from barnabas.protocol.topic_names import OFFSETS_TOPIC

_POLICY: Final = "cleanup.policy"


class Chosen(NamedTuple):
    """A log to clean."""

    scanned: ScannedLog
    config: LogConfig
    high_watermark: int


class Size(NamedTuple):
    segments: int
    size_bytes: int


def add_action(actions: Any) -> None:
    compact = actions.add_parser("compact", help="clean compacted logs of a stopped broker")
    compact.add_argument(
        "dir", type=Path, metavar="DIR", help="a log dir, or the folder of a partition in it"
    )
    compact.add_argument(
        "partitions", nargs="*", metavar="TOPIC-PARTITION", help="only these (default: all compacted ones)"
    )
    add_bootstrap_argument(compact)
    add_set_argument(compact, "a setting of the topics, for example cleanup.policy=compact (may be repeated)")
    compact.add_argument(
        "--config", type=Path, metavar="FILE", help="the broker's .properties file, for its defaults"
    )
    compact.add_argument("--dry-run", action="store_true", help="print what would be cleaned, change nothing")
    compact.add_argument("--json", action="store_true", help="one JSON object per line")
    compact.epilog = (
        "exit code: 0 done, 1 a log was not cleaned, 2 not a log dir, or in use by a running broker, "
        "4 no such folder or partition"
    )


def run(options: argparse.Namespace) -> int:
    root, only = log_dir_of(options.dir)
    if only is not None and options.partitions:
        raise CommandError(f"{options.dir} is a partition; expected no others, or its log dir", USAGE)
    names = options.partitions if only is None else [only.name]
    overrides = key_values(options.overrides)
    code = OK
    with locked(root) as log_dir:
        broker = _broker_config(options.config, log_dir)
        logs = _named(scan_to_verify(log_dir).logs, names, log_dir)
        bootstrap = named_bootstrap(options)
        configs = _configs(broker, log_dir, logs, overrides, bootstrap, is_named=bool(names))
        high_watermarks = log_dir.high_watermarks.read()
        for log in logs:
            config = configs.get(log.key.topic)
            try:
                if config is None or not config.is_compacted:
                    # Without names, these are not meant.
                    if names:
                        raise CommandError(_not_compacted(config))
                    continue
                if log.key not in high_watermarks:
                    raise CommandError(f"{log_dir.high_watermarks.path.name} has no high watermark of it")
                chosen = Chosen(log, config, high_watermarks[log.key])
                if options.dry_run:
                    _print_plan(chosen, as_json=options.json)
                else:
                    _compact(log_dir, chosen, broker, as_json=options.json)
            except (CommandError, ApiError, CheckpointDamaged) as error:
                print(f"{log.key} was not cleaned: {error}", file=sys.stderr)
                code = FAILED
    return code


def _named(logs: Sequence[ScannedLog], names: Sequence[str], log_dir: LogDir) -> list[ScannedLog]:
    unknown = sorted(set(names) - {str(log.key) for log in logs})
    if unknown:
        raise CommandError(f"not in {log_dir.path}: {', '.join(unknown)}", NOT_FOUND)
    return [log for log in logs if not names or str(log.key) in names]


# -- the settings --------------------------------------------------------------------------------------------


def _broker_config(file: Path | None, log_dir: LogDir) -> BrokerConfig:
    """The broker's defaults for topics, and its settings of the cleaner; nothing else is used."""
    required = {"broker.id": "0", "zookeeper.connect": "unused:1", "log.dirs": str(log_dir.path)}
    return load_config(file=file, defaults=required)


def _configs(
    broker: BrokerConfig,
    log_dir: LogDir,
    logs: Sequence[ScannedLog],
    overrides: Mapping[str, str],
    bootstrap: str | None,
    *,
    is_named: bool,
) -> dict[str, LogConfig]:
    """The settings of each topic whose policy is known."""
    table = TopicSettingsTable(broker)
    try:
        table.validate(overrides)
    except ApiError as error:
        raise CommandError(str(error), USAGE) from error
    if bootstrap is None and _POLICY in overrides and not is_named:
        raise CommandError("name the partitions that --set cleanup.policy is for", USAGE)
    topics = {log.key.topic for log in logs}
    known: dict[str, dict[str, str]] = {}
    if bootstrap is not None:
        known = run_async(fetch_topic_settings(log_dir, bootstrap, topics))
    elif _POLICY in overrides:
        known = {topic: {} for topic in topics}
    known.setdefault(OFFSETS_TOPIC, {_POLICY: COMPACT})
    for topic, settings in known.items():
        table.update(topic, {**settings, **overrides})
    return {topic: table.log_config(topic) for topic in known}


async def fetch_topic_settings(
    log_dir: LogDir, bootstrap: str, topics: set[str]
) -> dict[str, dict[str, str]]:
    """The settings of those topics that the dir's cluster has. Raises CommandError for another cluster."""
    accepted = set(topic_setting_names())
    async with cluster_of(log_dir, bootstrap) as admin:
        existing = topics.intersection(await admin.list_topics(include_internal=True))
        described = await admin.describe_configs([ConfigResource.topic(topic) for topic in sorted(existing)])
    return {
        resource.name: {
            name: entry.value
            for name, entry in entries.items()
            if name in accepted and entry.value is not None
        }
        for resource, entries in described.items()
    }


def _not_compacted(config: LogConfig | None) -> str:
    if config is not None:
        return f"its cleanup.policy is {','.join(config.cleanup_policy)}"
    return (
        "it is not known to be compacted, and would lose records; name running brokers with "
        "--bootstrap-server, or give --set cleanup.policy=compact"
    )


# -- cleaning ------------------------------------------------------------------------------------------------


def _compact(log_dir: LogDir, chosen: Chosen, broker: BrokerConfig, *, as_json: bool) -> None:
    """Clean one log. Raises CorruptLog and CleanedFilesFailed with the log as it was, LogDirFailure."""
    key, now_ms = chosen.scanned.key, wall_clock_ms()
    with _opened(log_dir, chosen, now_ms) as log:
        before = _size(log)
        active = log.segments[-1]
        if active.size and log.log_end_offset <= chosen.high_watermark:
            log.roll(now_ms)
        end = assess(figures_of(log, chosen.high_watermark, None), log.config, now_ms).dirty_end
        map_bytes = int(broker.log_cleaner_dedupe_buffer_size * broker.log_cleaner_io_buffer_load_factor)
        # The dirty part is read for the map, then all is read to be filtered.
        with bytes_progress(2 * before.size_bytes) as advance:
            stats = clean(
                log,
                end,
                offset_map=OffsetMap(map_bytes),
                now_ms=now_ms,
                pause=advance,
                high_watermark=chosen.high_watermark,
            )
        after = _size(log)
    fields = {
        "partition": str(key),
        "cleaned_to": stats.dirty_end,
        "segments_before": before.segments,
        "segments_after": after.segments,
        "size_bytes_before": before.size_bytes,
        "size_bytes_after": after.size_bytes,
        "passes": stats.passes,
        "keyless_records": stats.keyless_records,
    }
    if as_json:
        print_json(fields)
    else:
        print(
            f"{key}: cleaned up to offset {stats.dirty_end}: "
            f"{before.size_bytes:,} bytes in {count(before.segments, 'segment')} before, "
            f"{after.size_bytes:,} in {count(after.segments, 'segment')} after"
        )
        if stats.keyless_records:
            print(f"{key}: {count(stats.keyless_records, 'record')} without a key removed")


@contextmanager
def _opened(log_dir: LogDir, chosen: Chosen, now_ms: int) -> Iterator[Log]:
    """Open a log within the block, then save its state as a clean stop does. Raises as `LogLoader.load`."""
    scanned = chosen.scanned
    name = scanned.folder.name
    mark = log_dir.read_clean_mark()
    if mark is not None:
        log_dir.put_clean_mark(mark._replace(damaged={*mark.damaged, name}))
    log = Log.open(scanned.key, scanned.loader(chosen.config, now_ms))
    try:
        yield log
        log.close(now_ms)
    finally:
        log.abandon()
    checkpoint = log_dir.first_dirty_offsets
    checkpoint.write(checkpoint.read_or_empty() | {scanned.key: log.bounds.first_dirty})
    if mark is not None and scanned.is_clean:
        segments = mark.segments
        if name in segments:
            segments = {**segments, name: len(log.segments)}
        log_dir.put_clean_mark(CleanMark(mark.damaged, segments))


def _size(log: Log) -> Size:
    return Size(len(log.segments), log.size_bytes)


def _print_plan(chosen: Chosen, *, as_json: bool) -> None:
    scanned = chosen.scanned
    sizes = [path.stat().st_size for path in scanned.folder.glob(f"*{LOG_SUFFIX}")]
    fields = {
        "partition": str(scanned.key),
        "first_dirty_offset": max(scanned.first_dirty_offset, scanned.log_start_offset),
        "high_watermark": chosen.high_watermark,
        "segments": len(sizes),
        "size_bytes": sum(sizes),
    }
    if as_json:
        print_json(fields)
    else:
        print(
            f"{scanned.key}: would be cleaned from offset {fields['first_dirty_offset']} to "
            f"{chosen.high_watermark} at most: {sum(sizes):,} bytes in {count(len(sizes), 'segment')}"
        )
