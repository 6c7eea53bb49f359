"""List the order of forward and backward passes of each pipeline rank, and of the messages between them.

Sources: GPipe (Huang et al. 2019), 1F1B and its interleaved form (Narayanan et al. 2021, as in
`schedules.py` of Megatron-Core), ZB-H1 (Qi et al. 2024).
"""

from __future__ import annotations

from typing import Final, NamedTuple

from zprof.simulator.mesh.layout import Schedule

_FORWARD_UNITS: Final = 2
"""Time of a forward pass; a backward pass takes twice as long, a split one has two such halves."""


class Action(NamedTuple):
    """A pass: "F", "B" or, if weight gradients are computed by themselves, "W"."""

    kind: str
    stage: int
    micro: int


class Message(NamedTuple):
    """What a pass sends to another rank: ideal time, ranks of the pipeline, and the pass that needs it."""

    time: int
    sender: int
    receiver: int
    needed_by: Action


def list_actions(schedule: Schedule, ranks: int, micros: int, virtual: int) -> list[list[Action]]:
    """Return the passes of each pipeline rank in the order in which the rank runs them.

    Raises:
        ValueError: The interleaved schedule needs a multiple of `ranks` micro-batches.
    """
    if schedule == "zero_bubble":
        return _list_zero_bubble(ranks, micros)
    if schedule == "interleaved" and micros % ranks:
        raise ValueError(f"an interleaved schedule needs a multiple of {ranks} micro-batches, not {micros}")
    count = micros * virtual
    orders = []
    for rank in range(ranks):
        forwards, backwards = [], []
        for number in range(count):
            chunk = number // ranks % virtual if virtual > 1 else 0
            micro = number // (ranks * virtual) * ranks + number % ranks if virtual > 1 else number
            forwards.append(Action("F", chunk * ranks + rank, micro))
            backwards.append(Action("B", (virtual - 1 - chunk) * ranks + rank, micro))
        ahead = ranks - 1 - rank
        if virtual > 1:
            ahead = 2 * ahead + (virtual - 1) * ranks
        ahead = count if schedule == "gpipe" else min(count, ahead)
        order = forwards[:ahead]
        for forward, backward in zip(forwards[ahead:], backwards, strict=False):
            order += [forward, backward]
        orders.append(order + backwards[count - ahead :])
    return orders


def _list_zero_bubble(ranks: int, micros: int) -> list[list[Action]]:
    """Return ZB-H1's order: as many micro-batches in memory as 1F1B, weight gradients instead of waits.

    The order is found by a simulation in which each rank runs what is ready: backward, forward, weights.
    """
    orders: list[list[Action]] = [[] for _ in range(ranks)]
    done: dict[Action, int] = {}
    counts = [dict.fromkeys("FBW", 0) for _ in range(ranks)]
    now = 0
    while any(count["W"] < micros for count in counts):
        chosen = []
        for rank, count in enumerate(counts):
            options = [Action(kind, rank, count[kind]) for kind in "BFW" if count[kind] < micros]
            for action in options:
                if action.kind == "F" and (
                    count["F"] - count["B"] >= ranks - rank or count["F"] - count["W"] >= ranks
                ):
                    continue
                if all(done.get(need, now + 1) <= now for need in list_needs(action, ranks)):
                    chosen.append(action)
                    break
        now += 1
        for action in chosen:
            done[action] = now
            counts[action.stage][action.kind] += 1
            orders[action.stage].append(action)
    return orders


def list_needs(action: Action, stages: int) -> list[Action]:
    """Return the passes whose results a pass needs."""
    kind, stage, micro = action
    if kind == "F":
        return [Action("F", stage - 1, micro)] if stage else []
    if kind == "W":
        return [Action("B", stage, micro)]
    own = [Action("F", stage, micro)]
    return own + ([Action("B", stage + 1, micro)] if stage + 1 < stages else [])


def play_actions(orders: list[list[Action]], stages: int) -> dict[Action, tuple[int, int]]:
    """Return the ideal start and end of each pass, with equal stages and free messages."""
    is_split = any(action.kind == "W" for action in orders[0])
    units = {"F": _FORWARD_UNITS, "B": _FORWARD_UNITS * (1 if is_split else 2), "W": _FORWARD_UNITS}
    spans: dict[Action, tuple[int, int]] = {}
    nexts, free = [0] * len(orders), [0] * len(orders)
    left = sum(map(len, orders))
    while left:
        before = left
        for rank, order in enumerate(orders):
            while nexts[rank] < len(order):
                action = order[nexts[rank]]
                needs = list_needs(action, stages)
                if any(need not in spans for need in needs):
                    break
                start = max([free[rank], *(spans[need][1] for need in needs)])
                spans[action] = start, start + units[action.kind]
                free[rank] = spans[action][1]
                nexts[rank] += 1
                left -= 1
        if left == before:
            raise AssertionError("a pipeline schedule waits for itself")
    return spans


def list_messages(spans: dict[Action, tuple[int, int]], ranks: int, stages: int) -> list[Message]:
    """Return all messages of a pipeline in one order that all ranks keep, so that none waits for itself."""
    messages = []
    for action in spans:
        for need in list_needs(action, stages):
            sender, receiver = need.stage % ranks, action.stage % ranks
            if sender != receiver:
                messages.append(Message(spans[need][1], sender, receiver, action))
    return sorted(messages)
