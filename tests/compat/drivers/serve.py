"""A whole driver: its module's functions, and the commands around a load, a member and a transaction."""

from collections.abc import Callable, Mapping
from typing import Any

from access import access
from load import Load, load_commands
from member import KEPT, Member, MemberSettings, member_commands
from stdio import Describe, by_name, commands_of, serve
from transactions import Transactions, transaction_commands


def serve_client(
    module: Mapping[str, Any],
    load: Callable[..., Load],
    member: Callable[[MemberSettings], Member],
    transactions: Callable[[str, str, int], Transactions],
    describe: Describe,
) -> None:
    serve(
        commands_of(module)
        | by_name(access)
        | load_commands(load)
        | member_commands(member)
        | transaction_commands(transactions, lambda: KEPT[-1]),
        describe,
    )
