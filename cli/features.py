"""`barnabas features describe|upgrade|downgrade`: the features that all brokers of a cluster use."""

from __future__ import annotations

import argparse

from barnabas.cli.action import Column, actions, answer, arg, flag, show
from barnabas.cli.arguments import key_values, on_cluster
from barnabas.cli.exit_codes import NOT_FOUND, USAGE, CommandError
from barnabas.client.admin.admin import Admin, UpgradeType
from barnabas.common.suggestions import did_you_mean


async def _describe(options: argparse.Namespace, admin: Admin) -> None:
    description = await admin.describe_features()
    rows = [
        {
            "feature": name,
            "supported_from": levels.lowest,
            "supported_to": levels.highest,
            "finalized": levels.finalized,
        }
        for name, levels in sorted(description.features.items())
    ]
    columns: dict[str, Column] = {
        "feature": "feature",
        "supported": lambda row: f"{row['supported_from']} to {row['supported_to']}",
        "in use": "finalized",
        "epoch": lambda row: description.epoch,
    }
    show(options, rows, columns, value={"epoch": description.epoch, "features": rows})


def _check_levels(options: argparse.Namespace) -> None:
    levels = key_values(options.levels, "FEATURE=LEVEL")
    for name, text in levels.items():
        if not (text.isascii() and text.isdecimal() and int(text) < 1 << 15):
            raise CommandError(f"{name}={text}: expected a level from 0 to {(1 << 15) - 1}", USAGE)
    options.levels = {name: int(text) for name, text in levels.items()}


async def _update(options: argparse.Namespace, admin: Admin) -> None:
    levels, upgrade_type = options.levels, UpgradeType.UPGRADE
    if options.action == "downgrade":
        upgrade_type = UpgradeType.UNSAFE_DOWNGRADE if options.unsafe else UpgradeType.SAFE_DOWNGRADE
    features = (await admin.describe_features()).features
    for name in levels.keys() - features.keys():
        hint = did_you_mean(name, features, at_most=3) or f"; there are {', '.join(sorted(features))}"
        raise CommandError(f"there is no feature {name!r}{hint}", NOT_FOUND)
    await admin.update_features(levels, upgrade_type, validate_only=options.validate_only)
    named = ", ".join(f"{name}={level}" for name, level in sorted(levels.items()))
    done = "can be changed like this" if options.validate_only else "changed"
    answer(options, {"changed": not options.validate_only, "levels": levels}, f"{named} {done}")


_LEVELS = (
    arg("levels", "FEATURE=LEVEL", "for example transaction.version=2", nargs="+"),
    flag("--validate-only", "check it and change nothing"),
)

add_arguments = actions(
    on_cluster("describe", "show the supported levels, and the one in use", _describe),
    on_cluster(
        "upgrade",
        "raise features, when every broker runs the new version",
        _update,
        *_LEVELS,
        check=_check_levels,
    ),
    on_cluster(
        "downgrade",
        "lower features; level 0 ends the use of one",
        _update,
        flag("--unsafe", "even if data of the higher level may be lost"),
        *_LEVELS,
        check=_check_levels,
    ),
)
