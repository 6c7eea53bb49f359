"""Compare the passes and steps that the product finds in a snapshot with its truth."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.snapshot_truth.truth import SnapshotTruth, TruePhase
from zprof.analysis.memory.tables import Timeline
from zprof.model.memory import HistoryWindow, WindowKind
from zprof.model.training import Phase

#: What a phase of the truth counts as: the product takes a recomputation for a part of the backward.
_COMPARED = {
    Phase.FORWARD.value: Phase.FORWARD.value,
    Phase.RECOMPUTE.value: Phase.BACKWARD.value,
    Phase.BACKWARD.value: Phase.BACKWARD.value,
    Phase.OPTIMIZER.value: Phase.OPTIMIZER.value,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseComparison:
    """Passes and steps of one snapshot.

    ``entries`` counts the trace entries by (true, said) phase; entries outside of all phases are left out,
    and the said phase is ``other`` before the first known pass. ``steps`` and ``kind`` are (true, said).
    ``has_right_steps``: the number is right; the step that the start of the window cuts may be missing.
    ``untraced_steps`` have no entry in the history. ``micro_batches`` is (least, most, said) of the whole
    steps, or None if the window has none.
    """

    entries: dict[tuple[str, str], int]
    kind: tuple[WindowKind, WindowKind]
    steps: tuple[int, int]
    has_right_steps: bool
    untraced_steps: int
    micro_batches: tuple[int, int, int | None] | None

    @property
    def has_right_micro_batches(self) -> bool:
        """Whether the number is one of a whole step."""
        if self.micro_batches is None:
            return True
        least, most, said = self.micro_batches
        return said is not None and least <= said <= most


def compare_phases(truth: SnapshotTruth, timeline: Timeline, window: HistoryWindow) -> PhaseComparison:
    """Compare the phase of each entry, and the steps of the window."""
    entries: Counter[tuple[str, str]] = Counter()
    for phase in truth.phases:
        if phase.phase in _COMPARED:
            for time_ns in truth.entry_ns[phase.begin_entry : phase.end_entry]:
                entries[_COMPARED[phase.phase], timeline.phase_at(time_ns)] += 1
    optimizers = [phase for phase in truth.phases if phase.phase == Phase.OPTIMIZER]
    steps, cut_steps = len(optimizers), sum(phase.is_cut for phase in optimizers)
    counts = list(_count_micro_batches(truth.phases))
    return PhaseComparison(
        entries=dict(entries),
        kind=(find_window_kind(truth), window.kind),
        steps=(steps, window.steps),
        has_right_steps=steps - cut_steps <= window.steps <= steps,
        untraced_steps=sum(phase.begin_entry == phase.end_entry for phase in optimizers),
        micro_batches=(min(counts), max(counts), window.micro_batches) if counts else None,
    )


def find_window_kind(truth: SnapshotTruth) -> WindowKind:
    """Return what the window shows of its program."""
    phases = {_COMPARED.get(each.phase) for each in truth.phases if each.begin_entry < each.end_entry}
    if Phase.BACKWARD in phases:
        return WindowKind.TRAINING
    if Phase.OPTIMIZER in phases:
        return WindowKind.OPTIMIZER
    if Phase.FORWARD in phases:
        return WindowKind.FORWARD if truth.keeps_for_backward else WindowKind.INFERENCE
    return WindowKind.UNKNOWN


def _count_micro_batches(phases: Sequence[TruePhase]) -> Iterator[int]:
    """Yield the number of backward passes of each step that is whole in the window."""
    is_whole, count, previous = False, 0, ""
    for number, phase in enumerate(sorted(phases, key=lambda each: (each.begin_entry, each.end_entry))):
        name = _COMPARED.get(phase.phase, "")
        if number == 0:
            is_whole = name == Phase.FORWARD and phase.micro_batch <= 0 and not phase.is_cut
        if name == Phase.BACKWARD and previous != Phase.BACKWARD:
            count += 1
        if name == Phase.OPTIMIZER:
            if is_whole and count:
                yield count
            is_whole, count = True, 0
        previous = name
