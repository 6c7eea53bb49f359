"""Lives of blocks out of a trace: which free ends which allocation.

Whatever is freed in the trace without having been allocated in it was there when the history begins; so
was whatever is in use at the end without an allocation in the trace.  So the lives are exact from the
first entry on, also where a ring of limited length lost what came before.
"""

from dataclasses import dataclass, field

import numpy as np

from zprof.collectors.snapshot.fields import Integers
from zprof.collectors.snapshot.held import HeldBlocks
from zprof.collectors.snapshot.trace import Action, Trace

#: No event: the block is still in use, or was there before the first entry.
NONE = -1
#: Given back before the first entry.
BEFORE = -2


@dataclass(slots=True, kw_only=True)
class Lives:
    """One row for each life, as indices into the trace's entries.

    ``entry``: its allocation, or where that is not in the trace (``before``) the first event that speaks of
    it, NONE where only the segments do: then ``held`` is its block there.  ``requested``: free_requested,
    ``completed``: free_completed.
    """

    entry: list[int] = field(default_factory=list)
    before: list[bool] = field(default_factory=list)
    requested: list[int] = field(default_factory=list)
    completed: list[int] = field(default_factory=list)
    held: list[int] = field(default_factory=list)
    #: Allocations at an address whose last life has no end in the trace.
    overlaps: int = 0
    #: What the trace leaves in use and the segments do not have, and what they have with another size.
    not_held: int = 0
    resized: int = 0
    #: The trace leaves out a kind of entry.
    requests_lost: bool = False
    completions_lost: bool = False

    def add(self, entry: int, *, before: bool, requested: int = NONE, completed: int = NONE) -> int:
        """A new life; its row."""
        self.entry.append(entry)
        self.before.append(before)
        self.requested.append(requested)
        self.completed.append(completed)
        self.held.append(NONE)
        return len(self.entry) - 1

    def arrays(self) -> tuple[Integers, Integers, Integers, Integers]:
        """Entry, requested, completed and held as arrays."""
        columns = (self.entry, self.requested, self.completed, self.held)
        first, second, third, fourth = (np.array(each, dtype=np.int64) for each in columns)
        return first, second, third, fourth


class Replay:
    """Follows the entries of one device; ``open`` is what is in use, by address."""

    def __init__(self, trace: Trace) -> None:
        self.lives = Lives()
        self.open: dict[int, int] = {}
        self._trace = trace
        self._no_completions = not trace.has(Action.FREE_COMPLETED)

    def run(self) -> None:
        """All entries, in order."""
        handlers = {
            Action.ALLOC: self._alloc,
            Action.FREE_REQUESTED: self._request,
            Action.FREE_COMPLETED: self._complete,
        }
        wanted = np.flatnonzero(np.isin(self._trace.action, list(handlers)))
        actions = self._trace.action[wanted].tolist()
        addresses = self._trace.address[wanted].tolist()
        for index, action, address in zip(wanted.tolist(), actions, addresses, strict=True):
            handlers[action](index, address)

    def _alloc(self, index: int, address: int) -> None:
        row = self.open.get(address)
        if row is not None:
            self._end_unseen(row, index)
        self.open[address] = self.lives.add(index, before=False)

    def _end_unseen(self, row: int, index: int) -> None:
        """An address was handed out again, so its last life ended by then."""
        if self.lives.requested[row] == NONE:
            self.lives.requested[row] = index
        elif self._no_completions:
            return
        self.lives.overlaps += 1
        self.lives.completed[row] = index

    def _request(self, index: int, address: int) -> None:
        row = self.open.get(address)
        if row is None:
            self.open[address] = self.lives.add(index, before=True, requested=index)
        elif self.lives.requested[row] == NONE:
            self.lives.requested[row] = index

    def _complete(self, index: int, address: int) -> None:
        row = self.open.pop(address, None)
        if row is None:
            row = self.lives.add(index, before=True)
        self.lives.completed[row] = index


def join_held(replay: Replay, trace: Trace, blocks: HeldBlocks) -> None:
    """Find each block that is in use at the end among the open lives; what is new was there before."""
    lives = replay.lives
    rest = dict(replay.open)
    columns = zip(blocks.address.tolist(), blocks.requested.tolist(), blocks.awaiting.tolist(), strict=True)
    for number, (address, requested, awaiting) in enumerate(columns):
        row = rest.pop(address, None)
        if row is None:
            row = lives.add(NONE, before=True, requested=BEFORE if awaiting else NONE)
        elif int(trace.size[lives.entry[row]]) != requested:
            lives.resized += 1
        lives.held[row] = number


def settle(lives: Lives, trace: Trace) -> None:
    """Give lives the end that the trace leaves open because it was told to skip a kind of entry.

    A block that is free again was given back: where a trace says so of none of its own blocks it left
    free_requested out, and the two are taken as one moment; otherwise it was given back before the history
    began.  The same the other way round, except for what the segments say is still awaiting its free.
    """
    _, requested, completed, held = lives.arrays()
    before = np.array(lives.before, dtype=np.bool_)
    unsaid = (completed >= 0) & (requested == NONE)
    lives.requests_lost = bool((unsaid & ~before).any())
    requested[unsaid] = completed[unsaid] if lives.requests_lost else BEFORE
    if not trace.has(Action.FREE_COMPLETED):
        ended = (requested >= 0) & (completed == NONE) & (held == NONE)
        lives.completions_lost = bool(ended.any())
        completed[ended] = requested[ended]
    lives.not_held = int(((completed == NONE) & (held == NONE)).sum())
    lives.requested, lives.completed = requested.tolist(), completed.tolist()
