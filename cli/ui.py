"""`barnabas ui`: serve the live page of a cluster on 127.0.0.1 until Ctrl-C.

The page needs its URL's token. With `--public-url` it is also known under the address of a reverse proxy.
"""

from __future__ import annotations

import argparse
import socket
import sys
from collections.abc import Mapping
from pathlib import Path

from barnabas.cli.action import arg, command, flag, repeated
from barnabas.cli.arguments import (
    chosen_bootstrap,
    cluster_options,
    command_settings,
    dir_words,
    local_cluster,
    number,
    run_async,
)
from barnabas.cli.exit_codes import OK
from barnabas.cli.output import print_json
from barnabas.client.admin.admin import Admin
from barnabas.client.config import AdminConfig
from barnabas.deploy.cluster_view import VIEW_SETTINGS
from barnabas.deploy.private_files import write_private
from barnabas.ui.access import Address, make_token
from barnabas.ui.app import bind, serve
from barnabas.ui.avro import load_schemas
from barnabas.ui.context import Context
from barnabas.ui.message_formats import Decode


def _run(options: argparse.Namespace) -> int:
    bootstrap = chosen_bootstrap(options)
    decoders = load_schemas(options.avro)
    with bind(options.port) as listening:
        run_async(_serve(options, bootstrap, listening, decoders))
    return OK


async def _serve(
    options: argparse.Namespace, bootstrap: str, listening: socket.socket, decoders: Mapping[str, Decode]
) -> None:
    settings = command_settings(options, AdminConfig)
    token = make_token()
    public = [] if options.public_url is None else [options.public_url]
    address = Address.parse(f"http://127.0.0.1:{listening.getsockname()[1]}")
    result = {"url": address.url(token)} | ({"public_url": public[0].url(token)} if public else {})

    def ready() -> None:
        if options.url_file is not None:
            write_private(options.url_file, result["url"] + "\n")
        if options.json:
            print_json(result)
        else:
            print("\n".join(result.values()))
        sys.stdout.flush()

    config = AdminConfig.of(settings | {"bootstrap_servers": bootstrap, **VIEW_SETTINGS})
    async with Admin(config) as admin, Admin(config) as watcher:
        context = Context(
            admin=admin,
            watcher=watcher,
            bootstrap=bootstrap,
            settings=settings,
            cluster=local_cluster(options, bootstrap),
            dir_words=dir_words(options),
            is_read_only=options.read_only,
            decoders=decoders,
        )
        await serve(context, listening, token=token, public=public, ready=ready)


def _public_url(text: str) -> Address:
    try:
        return Address.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


add_arguments = command(
    _run,
    *cluster_options("print the URL as a JSON object"),
    arg(
        "--port",
        "PORT",
        "of the page on 127.0.0.1 (default: the first free one from 9080 on)",
        type=number(1, 65535),
    ),
    flag("--read-only", "refuse all changes"),
    repeated("--avro", "TOPIC=FILE", "decode the values of a topic by a schema file (.avsc)"),
    arg("--public-url", "URL", "the address of a reverse proxy that leads to the page", type=_public_url),
    arg("--url-file", "FILE", "write the URL to a file that nobody else can read", type=Path),
)
