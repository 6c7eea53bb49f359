"""A device of a simulated program: it records who owns each block that the program allocates.

The program says where it is by ``call`` (a Python frame) and ``phase``; blocks are reference-counted as
tensors are.
"""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from benchmarks.snapshot_truth.allocator import Allocator
from benchmarks.snapshot_truth.frames import FrameRecorder, PythonFrame
from benchmarks.snapshot_truth.truth import TrueLifetime, TruePhase
from zprof.model.tenants import Tenant

_MAX_AWAITING_ENTRIES = 40


class WindowEnd(Exception):
    """The window of the snapshot ends here: the program is not simulated any further."""


@dataclass(frozen=True, slots=True)
class EndPoint:
    """Where the recording stops: within the n-th run of a phase, after a share of its entries."""

    phase: str
    step: int
    share: float


@dataclass(eq=False, slots=True)
class Tensor:
    """A block with the number of its references."""

    bytes: int
    lifetime: TrueLifetime
    references: int = 1


class TracedDevice:
    """The allocator of one device, with the truth about its blocks."""

    def __init__(
        self, *, stacks: str, annotations: bool, expandable: bool, chance: random.Random, end: EndPoint | None
    ) -> None:
        self.allocator = Allocator(expandable=expandable, keep_states=False)
        self.allocator.begin_history()
        self.chance, self.has_annotations = chance, annotations
        self.lifetimes: list[TrueLifetime] = []
        self.phases: list[TruePhase] = []
        #: Requested bytes in use, and reserved bytes, after each entry.
        self.live_bytes: list[int] = []
        self.reserved_bytes: list[int] = []
        self.tag = ""
        self._frames = FrameRecorder(stacks)
        self._main: list[PythonFrame] = []
        self._engine: list[PythonFrame] | None = None
        self._live = 0
        self._awaiting: list[tuple[int, Tensor]] = []
        self._phase = "setup"
        self._end = end
        self._end_entry: int | None = None
        self._entries_by_phase: dict[str, int] = {}

    @property
    def entry(self) -> int:
        """Return the number of the next entry."""
        return len(self.allocator.entries)

    def alloc(
        self,
        size: int,
        tenant: Tenant,
        sub: str,
        op: str = "empty",
        *,
        line: int | None = None,
        stream: int = 0,
        also: tuple[Tenant, ...] = (),
    ) -> Tensor:
        """Allocate a tensor in the current frame; ``line`` is the line in the innermost frame."""
        python = self._main if self._engine is None else self._engine
        stack = python[::-1]
        if line is not None and stack:
            stack[0] = stack[0]._replace(line=line)
        self._complete_awaiting()
        self.allocator.tick(self.chance.choice((0, 1, 2, 3, 7)))
        frames = self._frames.record(op, stack, engine=self._engine is not None)
        address = self.allocator.alloc(size, stream=stream, frames=frames, tag=self.tag)
        self._live += size
        lifetime = TrueLifetime(address, size, tenant, sub, self.entry - 1, also=also, born_in=self._phase)
        self.lifetimes.append(lifetime)
        self._note_entries()
        return Tensor(size, lifetime)

    def drop(self, tensor: Tensor, *, awaiting: bool = False) -> None:
        """Drop a reference; the last one frees the block. ``awaiting``: another stream still uses it."""
        tensor.references -= 1
        assert tensor.references >= 0
        if tensor.references:
            return
        self.allocator.tick(self.chance.choice((0, 0, 1, 2)))
        self._live -= tensor.bytes
        tensor.lifetime.freed_entry = self.entry
        if not awaiting:
            tensor.lifetime.released_entry = self.entry + 1
        else:
            self._awaiting.append((self.entry + self.chance.randrange(_MAX_AWAITING_ENTRIES), tensor))
        self.allocator.free(tensor.lifetime.address, awaiting=awaiting)
        self._note_entries()

    def empty_cache(self) -> None:
        """Return unused segments to the device."""
        self.allocator.empty_cache()
        self._note_entries()

    @contextmanager
    def call(self, *frames: PythonFrame) -> Iterator[None]:
        """Run in these Python frames, outermost first, of the thread that is running."""
        stack = self._main if self._engine is None else self._engine
        stack.extend(frames)
        yield
        del stack[len(stack) - len(frames) :]

    @contextmanager
    def on_engine(self) -> Iterator[None]:
        """Run on the autograd engine's thread."""
        self._engine = []
        yield
        self._engine = None

    @contextmanager
    def phase(self, name: str, step: int, micro_batch: int = -1) -> Iterator[None]:
        """Run a phase of a step."""
        begin, self._phase = self.entry, name
        self.allocator.tick(self.chance.randrange(20, 2000))
        if self._end is not None and (self._end.phase, self._end.step) == (name, step):
            expected = self._entries_by_phase.get(name, 150)
            self._end_entry = begin + max(1, int(expected * self._end.share))
        try:
            yield
        finally:
            self._entries_by_phase[name] = self.entry - begin
            self._phase = "between"
            self.phases.append(
                TruePhase(
                    phase=name, step=step, micro_batch=micro_batch, begin_entry=begin, end_entry=self.entry
                )
            )

    @contextmanager
    def annotation(self, name: str) -> Iterator[None]:
        """Run a range of ``record_function``, if this torch records them."""
        if self.has_annotations:
            self.allocator.annotate(name, "START")
        yield
        if self.has_annotations:
            self.allocator.annotate(name, "END")

    def _complete_awaiting(self) -> None:
        due = [pair for pair in self._awaiting if pair[0] <= self.entry]
        if due:
            self._awaiting = [pair for pair in self._awaiting if pair[0] > self.entry]
            for _, tensor in due:
                tensor.lifetime.released_entry = self.entry
                self.allocator.complete(tensor.lifetime.address)
                self._note_entries()

    def _note_entries(self) -> None:
        """Note the state after the new entries, and stop if the window ends."""
        new = self.entry - len(self.live_bytes)
        before = self.live_bytes[-1] if self.live_bytes else 0
        reserved_before = self.reserved_bytes[-1] if self.reserved_bytes else 0
        for number in range(self.entry - new, self.entry):
            entry = self.allocator.entries[number]
            action, size = entry["action"], int(entry["size"])
            before += {"alloc": size, "free_requested": -size}.get(action, 0)
            reserved_before += {
                "segment_alloc": size, "segment_map": size, "segment_free": -size, "segment_unmap": -size
            }.get(action, 0)  # fmt: skip
            self.live_bytes.append(before)
            self.reserved_bytes.append(reserved_before)
        assert before == self._live
        assert reserved_before == self.allocator.reserved_bytes
        if self._end_entry is not None and self.entry >= self._end_entry:
            raise WindowEnd
