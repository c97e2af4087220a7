"""`barnabas features describe|upgrade|downgrade`: the features that all brokers of a cluster use."""

from __future__ import annotations

import argparse

from barnabas.cli.arguments import add_cluster_arguments, chosen_bootstrap, key_values, run_async
from barnabas.cli.exit_codes import NOT_FOUND, OK, USAGE, CommandError
from barnabas.cli.output import print_json, print_table
from barnabas.client.admin.admin import Admin, FeatureLevels, UpgradeType
from barnabas.common.suggestions import did_you_mean


def add_arguments(parser: argparse.ArgumentParser, name: str) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    describe = actions.add_parser("describe", help="show the supported levels, and the one in use")
    upgrade = actions.add_parser("upgrade", help="raise features, when every broker runs the new version")
    downgrade = actions.add_parser("downgrade", help="lower features; level 0 ends the use of one")
    downgrade.add_argument(
        "--unsafe", action="store_true", help="even if data of the higher level may be lost"
    )
    for action in (upgrade, downgrade):
        action.add_argument(
            "levels", nargs="+", metavar="FEATURE=LEVEL", help="for example transaction.version=2"
        )
        action.add_argument("--validate-only", action="store_true", help="check it and change nothing")
    for action in (describe, upgrade, downgrade):
        add_cluster_arguments(action, json_help="print JSON")


def run(options: argparse.Namespace) -> int:
    if options.action == "describe":
        run_async(_describe(options, chosen_bootstrap(options)))
    else:
        run_async(_update(options, chosen_bootstrap(options), _levels(options.levels)))
    return OK


def _levels(texts: list[str]) -> dict[str, int]:
    levels = {}
    for name, text in key_values(texts, "FEATURE=LEVEL").items():
        if not (text.isascii() and text.isdecimal() and int(text) < 1 << 15):
            raise CommandError(f"{name}={text}: expected a level from 0 to {(1 << 15) - 1}", USAGE)
        levels[name] = int(text)
    return levels


async def _describe(options: argparse.Namespace, bootstrap: str) -> None:
    async with Admin(bootstrap_servers=bootstrap) as admin:
        description = await admin.describe_features()
    features = sorted(description.features.items())
    if options.json:
        rows = [_row(name, levels) for name, levels in features]
        print_json({"epoch": description.epoch, "features": rows})
    else:
        print_table(
            ["feature", "supported", "in use", "epoch"],
            [
                (name, f"{levels.lowest} to {levels.highest}", levels.finalized, description.epoch)
                for name, levels in features
            ],
        )


def _row(name: str, levels: FeatureLevels) -> dict[str, object]:
    return {
        "feature": name,
        "supported_from": levels.lowest,
        "supported_to": levels.highest,
        "finalized": levels.finalized,
    }


async def _update(options: argparse.Namespace, bootstrap: str, levels: dict[str, int]) -> None:
    upgrade_type = UpgradeType.UPGRADE
    if options.action == "downgrade":
        upgrade_type = UpgradeType.UNSAFE_DOWNGRADE if options.unsafe else UpgradeType.SAFE_DOWNGRADE
    async with Admin(bootstrap_servers=bootstrap) as admin:
        features = (await admin.describe_features()).features
        for name in levels.keys() - features.keys():
            hint = did_you_mean(name, features, at_most=3) or f"; there are {', '.join(sorted(features))}"
            raise CommandError(f"there is no feature {name!r}{hint}", NOT_FOUND)
        await admin.update_features(levels, upgrade_type, validate_only=options.validate_only)
    if options.json:
        print_json({"changed": not options.validate_only, "levels": levels})
    else:
        done = "can be changed like this" if options.validate_only else "changed"
        print(", ".join(f"{name}={level}" for name, level in sorted(levels.items())), done)
