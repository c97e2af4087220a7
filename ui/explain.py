"""The two rounds of fetch that raise the high watermark, in sentences of a partition's present offsets.

Pure. A partition is that of the page's state; in a recording it may have fewer figures.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from barnabas.ui.snapshot import State


def explain(name: str, partition: State, broker_id: int) -> list[str]:
    """The sentences on one replica of the partition."""
    leader_id, isr = partition["leader"], partition["isr"]
    replica, leader = (partition["replicas"].get(str(id)) for id in (broker_id, leader_id))
    if replica is None:
        return [f"Broker {broker_id} has no replica of {name} any more."]
    if replica["failure"]:
        return [f"The replica of broker {broker_id} is offline: {replica['failure']}."]
    if replica["is_offline"] or replica["log_end_offset"] is None:
        return [
            f"Broker {broker_id} does not answer, or may not tell this user, so its offsets are not known.",
            "It is still in the ISR: the controller has not taken it out yet."
            if broker_id in isr
            else "It is out of the ISR, so the high watermark does not wait for it.",
            "When it is back, it asks the leader where their histories agree, truncates what the leader "
            "lacks, and fetches from there.",
        ]
    if leader is None or leader["log_end_offset"] is None:
        return [
            f"{name} has no leader that answers: no record can be written or read until a replica of the ISR "
            f"({_ids(isr)}) is back."
        ]
    return [*(_of_leader(name, partition) if broker_id == leader_id else _of_follower(partition, broker_id))]


def _ids(ids: Sequence[int]) -> str:
    return ", ".join(map(str, ids))


def _known_ends(partition: State) -> dict[int, int]:
    """The end of each in-sync log as the leader knows it."""
    ends = {}
    for id in partition["isr"]:
        field = "log_end_offset" if id == partition["leader"] else "remote_log_end_offset"
        end = partition["replicas"].get(str(id), {}).get(field)
        if end is not None:
            ends[id] = end
    return ends


def _of_leader(name: str, partition: State) -> Iterator[str]:
    id, isr = partition["leader"], partition["isr"]
    leader = partition["replicas"][str(id)]
    end, high, stable = (
        leader[field] for field in ("log_end_offset", "high_watermark", "last_stable_offset")
    )
    yield (
        f"Broker {id} leads {name} in epoch {partition['leader_epoch']}. It has written up to {end:,}: that "
        "is the offset of the next record (LEO)."
    )
    ends = _known_ends(partition)
    others = {other: offset for other, offset in ends.items() if other != id}
    if len(isr) == 1:
        yield "No other replica is in sync, so each record is committed as soon as the leader has it."
    elif others:
        asked = ", ".join(f"broker {other} for {offset:,}" for other, offset in others.items())
        yield f"It knows the other logs by what they last asked for: {asked}."
        least = min(ends.values())
        slow = " and ".join(str(other) for other, offset in others.items() if offset == least)
        is_whole = least >= end
        waits = "Every replica of the ISR has every record." if is_whole else f"It waits for broker {slow}."
        if high is not None:
            yield (
                f"The high watermark is the least of these ends: {high:,}. {waits} "
                "Consumers read what is below it."
            )
    if stable is not None and high is not None and stable < high:
        yield (
            f"A transaction is open from {stable:,} on (LSO): consumers with read_committed stop there, "
            f"{high - stable:,} records short."
        )
    if partition["is_under_min_isr"]:
        yield (
            f"Only {len(isr)} of min.insync.replicas={partition['min_isr']} are in sync: writes with "
            "acks=all are refused."
        )


def _of_follower(partition: State, id: int) -> Iterator[str]:
    leader_id, isr, replicas = partition["leader"], partition["isr"], partition["replicas"]
    replica, leader = replicas[str(id)], replicas[str(leader_id)]
    end, high, asked = (
        replica[field] for field in ("log_end_offset", "high_watermark", "remote_log_end_offset")
    )
    yield (
        f"Broker {id} has written up to {end:,}. Its next fetch asks for {end:,}, and so tells broker "
        f"{leader_id}, the leader, that it has everything below."
    )
    if asked is not None:
        yield (
            f"The leader knows: the last fetch asked for {asked:,} (remote LEO)."
            if asked == end
            else f"Until then the leader knows of {asked:,} (remote LEO)."
        )
    if id not in isr:
        yield _way_back(partition, replica, leader)
        return
    ends = {**_known_ends(partition), id: end}
    present = leader["high_watermark"]
    if present is None or len(ends) < len(isr):
        return
    raised = max(present, min(ends.values()))
    if raised > present:
        yield f"The leader then raises its high watermark from {present:,} to {raised:,}."
    elif raised == leader["log_end_offset"]:
        yield (f"The leader's high watermark is at the end of its log, {raised:,}: everything is committed.")
    else:
        yield f"The leader's high watermark stays at {raised:,}, the least end of the ISR."
    if high is not None:
        yield (
            f"Broker {id} learns it in the answer after that: its own high watermark is {high:,} until then."
            if high < raised
            else f"Broker {id} has learnt it from an answer: its own high watermark is {high:,} too."
        )


def _way_back(partition: State, replica: State, leader: State) -> str:
    """How a replica out of the ISR comes back into it."""
    missing = max(0, leader["log_end_offset"] - replica["log_end_offset"])
    late_ms = replica["caught_up_ms_ago"]
    late = "" if late_ms is None else f", and it was last caught up {late_ms / 1000:,.1f} s ago"
    high = leader["high_watermark"]
    reached = "the leader's high watermark" if high is None else f"{high:,}"
    return (
        "It is out of the ISR, so the high watermark does not wait for it. It comes back in when it has "
        f"reached {reached}, and the start of epoch {partition['leader_epoch']}; {missing:,} records are "
        f"missing{late}."
    )
