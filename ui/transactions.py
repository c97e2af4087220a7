"""Open and prepared transactions: their age, what they hold back, and the ways to end them.

A read_committed consumer stops at the last stable offset (LSO), where the first open transaction of the
partition begins. The transactions of a partition hold back the records between LSO and high watermark.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from barnabas.client.admin.admin import Admin, TransactionDescription
from barnabas.client.admin.group_lag import led_partitions
from barnabas.client.admin.transactions import OPEN_STATES
from barnabas.client.offsets import LATEST
from barnabas.common.settings import INT_MAX, LONG_MAX
from barnabas.common.texts import age_text, iso_time
from barnabas.protocol.errors import InvalidConfiguration, InvalidTxnStateError
from barnabas.protocol.ids import TopicPartition
from barnabas.ui.asking import TIMEOUT_MS, State, answer_change, paced, tried
from barnabas.ui.context import Context, context_of, form_of, is_refresh, render
from barnabas.ui.groups import led_in
from barnabas.ui.message_query import parse_number

MAX_TRANSACTIONS: Final = 1_000
_HANGING_LIMIT_S: Final = 20.0

# -- the part of the stream --------------------------------------------------------------------------------


async def transactions_now(
    admin: Admin, led: Collection[TopicPartition] | None = None, timeout_ms: int = TIMEOUT_MS
) -> State:
    """``{"transactions": {id: entry}, "transactions_note": sentence or None}``: those that are not ended.

    `led`: the partitions that have a leader, if the caller knows them.
    """
    listed = await admin.list_transactions(timeout_ms=timeout_ms)
    open_ones = [each for each in listed if each.state in OPEN_STATES]
    surveyed = await admin.survey_transactions(open_ones[:MAX_TRANSACTIONS], timeout_ms=timeout_ms)
    described = [
        transaction
        for transaction in surveyed.values()
        if isinstance(transaction, TransactionDescription) and transaction.state in OPEN_STATES
    ]
    held = await _held_back(admin, described, led, timeout_ms)
    return {
        "transactions": {
            transaction.transactional_id: transaction_entry(transaction, held)
            for transaction in sorted(described, key=_urgency)
        },
        "transactions_note": note_of([each.state for each in listed], len(open_ones)),
    }


def _urgency(transaction: TransactionDescription) -> tuple[bool, int]:
    """Prepared ones first, since nothing ends them by itself; the oldest on top."""
    return not transaction.is_prepared, transaction.start_time_ms or 0


def note_of(states: Iterable[str], open_ones: int) -> str:
    ended = Counter(state for state in states if state not in OPEN_STATES)
    idle = ", ".join(f"{number:,} {state}" for state, number in sorted(ended.items()))
    cut = f"The first {MAX_TRANSACTIONS:,} of {open_ones:,} open ones, by name. "
    return (cut if open_ones > MAX_TRANSACTIONS else "") + (f"Not open: {idle}." if idle else "")


async def _held_back(
    admin: Admin,
    transactions: Sequence[TransactionDescription],
    led: Collection[TopicPartition] | None,
    timeout_ms: int,
) -> dict[TopicPartition, int]:
    """The records between LSO and high watermark in the partitions of transactions that have a leader.

    The others would keep all of them waiting, when it matters to see them.
    """
    partitions = {tp for transaction in transactions for tp in transaction.partitions}
    if partitions and led is None:
        led = await led_partitions(admin)
    specs = dict.fromkeys(partitions & set(led or ()), LATEST)
    if not specs:
        return {}
    stable, ends = await asyncio.gather(
        admin.list_offsets(specs, isolation_level="read_committed", timeout_ms=timeout_ms),
        admin.list_offsets(specs, timeout_ms=timeout_ms),
    )
    return {tp: max(0, ends[tp].offset - stable[tp].offset) for tp in specs}


def transaction_entry(transaction: TransactionDescription, held: Mapping[TopicPartition, int]) -> State:
    return {
        "transactional_id": transaction.transactional_id,
        "state": transaction.state,
        "is_prepared": transaction.is_prepared,
        "producer_id": transaction.producer_id,
        "producer_epoch": transaction.producer_epoch,
        "coordinator": transaction.coordinator,
        "timeout_ms": transaction.timeout_ms,
        "start_time_ms": transaction.start_time_ms,
        "partitions": [str(tp) for tp in transaction.partitions],
        "holds_back": [
            {"partition": str(tp), "records": held[tp]} for tp in transaction.partitions if tp in held
        ],
    }


def make_part(context: Context) -> Callable[[State], Awaitable[State]]:
    """The part ``transactions`` of the stream."""

    async def look(state: State) -> State:
        return await transactions_now(context.admin, led_in(state) if "partitions" in state else None)

    return paced(look, "transactions_note")


# -- pages -------------------------------------------------------------------------------------------------


def age_of(start_time_ms: int | None) -> str:
    return "-" if start_time_ms is None else age_text(int(time.time() * 1000) - start_time_ms)


async def _transactions(request: Request) -> Response:
    """The open ones; with ``hanging`` in the query also those that no coordinator will end."""
    admin = context_of(request).admin
    now, problem = request.app.state.sampler.recent(), ""
    if "transactions" not in now or not is_refresh(request):
        now, problem = await tried(transactions_now(admin))
    hanging, hanging_problem = None, ""
    if request.query_params.get("hanging"):
        hanging, hanging_problem = await tried(admin.find_hanging_transactions(), _HANGING_LIMIT_S)
    return render(
        request,
        "transactions.html",
        transactions=[] if now is None else list(now["transactions"].values()),
        note=problem or now["transactions_note"],
        hanging=hanging,
        hanging_problem=hanging_problem,
        age_of=age_of,
        iso_time=iso_time,
    )


async def _described(admin: Admin, transactional_id: str) -> State:
    described = await admin.describe_transactions(transactional_id, timeout_ms=TIMEOUT_MS)
    transaction = described[transactional_id]
    return transaction_entry(transaction, await _held_back(admin, [transaction], None, TIMEOUT_MS))


async def _transaction(request: Request) -> Response:
    """The page that says what an end loses, with the button for it."""
    transactional_id = request.query_params.get("id", "")
    transaction, problem = await tried(_described(context_of(request).admin, transactional_id))
    return render(
        request,
        "transaction.html",
        transactional_id=transactional_id,
        transaction=transaction,
        problem=problem,
        is_open=transaction is not None and transaction["state"] in OPEN_STATES,
        losses=[] if transaction is None else losses_of(transaction),
        age_of=age_of,
        hanging=None,
    )


def losses_of(transaction: State) -> list[str]:
    """The losses of an abort, as sentences."""
    held: Sequence[State] = transaction["holds_back"]
    offsets = [each["partition"] for each in held if each["partition"].startswith("__consumer_offsets-")]
    records = [each for each in held if each["partition"] not in offsets]
    losses = []
    if records:
        places = ", ".join(f"{each['partition']} ({each['records']:,} held back)" for each in records)
        losses.append(
            f"Its records in {places} are never read by a read_committed consumer. Records that other "
            "producers wrote after them are read at last."
        )
    if offsets:
        losses.append("The group offsets that it commits are dropped: its input is read again.")
    if not transaction["is_prepared"]:
        losses.append(
            "Its producer is fenced: the next call of a running program fails, and the program has to make a "
            "new producer."
        )
    else:
        losses.append("The other side of the two-phase commit must abort too, or both sides differ.")
    return losses


async def _end(admin: Admin, transactional_id: str, how: str) -> str:
    if how == "commit":
        await admin.complete_transaction(transactional_id, commit=True, timeout_ms=TIMEOUT_MS)
        return f"The transaction of {transactional_id} is committed."
    if how != "abort":
        raise InvalidConfiguration(f"outcome {how!r}: expected commit or abort")
    # The id must exist: to fence an unknown one would create it.
    described = await admin.describe_transactions(transactional_id, timeout_ms=TIMEOUT_MS)
    state = described[transactional_id].state
    if state not in OPEN_STATES:
        raise InvalidTxnStateError(f"no transaction of {transactional_id} is open, its state is {state}")
    if described[transactional_id].is_prepared:
        await admin.complete_transaction(transactional_id, commit=False, timeout_ms=TIMEOUT_MS)
        return f"The transaction of {transactional_id} is aborted."
    await admin.fence_producers(transactional_id, timeout_ms=TIMEOUT_MS)
    return f"The transaction of {transactional_id} is aborted, its producer is fenced."


async def _end_transaction(request: Request) -> Response:
    form = await form_of(request)
    end = _end(context_of(request).admin, form.get("id", ""), form.get("outcome", ""))
    return await answer_change(request, end, "transactions")


# -- hanging transactions ----------------------------------------------------------------------------------


async def _hanging(request: Request) -> Response:
    """The page before the abort of a hanging transaction in one partition."""
    query = request.query_params
    hanging = {name: query.get(name, "") for name in ("topic", "partition", "start")}
    return render(request, "transaction.html", hanging=hanging)


async def _abort(admin: Admin, form: Mapping[str, str]) -> str:
    partition = parse_number("partition", form.get("partition", ""), 0, INT_MAX)
    start = parse_number("start", form.get("start", ""), 0, LONG_MAX)
    tp = TopicPartition(form.get("topic", ""), partition)
    # Raises for a topic that does not exist; the next call would wait for it.
    await admin.describe_topics(tp.topic)
    await admin.abort_transaction(tp, start_offset=start, timeout_ms=TIMEOUT_MS)
    return f"The transaction that begins at offset {start} of {tp} is aborted there."


async def _abort_hanging(request: Request) -> Response:
    abort = _abort(context_of(request).admin, await form_of(request))
    return await answer_change(request, abort, "transactions?hanging=1")


ROUTES: Final = [
    Route("/transactions", _transactions),
    Route("/transaction", _transaction),
    Route("/end-transaction", _end_transaction, methods=["POST"]),
    Route("/hanging-transaction", _hanging),
    Route("/abort-hanging", _abort_hanging, methods=["POST"]),
]
