"""Sum the comparisons of passes and steps by variant and by what the snapshots have, and print them."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from benchmarks.snapshot_truth.compare import SnapshotComparison
from benchmarks.snapshot_truth.phases import PhaseComparison
from zprof.model.memory import WindowKind
from zprof.model.training import Phase

_MAX_CONFUSED = 8
_SHARES = ("phase_right", "phase_wrong", "kind_right", "kind_wrong", "steps_right", "micro_batches_right")
_TITLES = ("right", "wrong", "right", "wrong", "steps", "micro")


def summarize_phases(comparisons: Sequence[SnapshotComparison]) -> dict[str, dict[str, Any]]:
    """Return shares by variant, by stacks and annotations, and of ``all``; a snapshot with an error has none.

    ``phase_*`` are shares of the entries within phases, the rest shares of the snapshots; what is neither
    right nor wrong is said to be unknown.
    """
    groups: dict[str, list[PhaseComparison]] = {}
    for each in sorted(comparisons, key=lambda each: each.variant):
        if each.phases is not None:
            groups.setdefault(each.variant, []).append(each.phases)
    for each in sorted(comparisons, key=_describe_source):
        if each.phases is not None:
            groups.setdefault(_describe_source(each), []).append(each.phases)
    groups["all"] = [each.phases for each in comparisons if each.phases is not None]
    return {name: _sum_group(group) for name, group in groups.items()}


def _describe_source(comparison: SnapshotComparison) -> str:
    options = comparison.options
    notes = ", annotated" if options.get("annotations") else ""
    return f"stacks {options.get('stacks', 'recorded')}{notes}"


def _sum_group(group: Sequence[PhaseComparison]) -> dict[str, Any]:
    entries: Counter[tuple[str, str]] = Counter()
    for each in group:
        entries.update(each.entries)
    total = max(sum(entries.values()), 1)
    wrong = {pair: count for pair, count in entries.items() if pair[0] != pair[1] != Phase.OTHER}
    confused = Counter({f"{true} read as {said}": count / total for (true, said), count in wrong.items()})
    kinds = Counter(f"{true} read as {said}" for true, said in (each.kind for each in group) if true != said)
    kinds_wrong = sum(each.kind[0] != each.kind[1] != WindowKind.UNKNOWN for each in group)
    count = max(len(group), 1)
    return {
        "snapshots": len(group),
        "entries": sum(entries.values()),
        "phase_right": round(sum(n for (true, said), n in entries.items() if true == said) / total, 4),
        "phase_wrong": round(sum(wrong.values()) / total, 4),
        "kind_right": round(sum(each.kind[0] == each.kind[1] for each in group) / count, 4),
        "kind_wrong": round(kinds_wrong / count, 4),
        "steps_right": round(sum(each.has_right_steps for each in group) / count, 4),
        "micro_batches_right": round(sum(each.has_right_micro_batches for each in group) / count, 4),
        "snapshots_with_untraced_steps": sum(each.untraced_steps > 0 for each in group),
        "phases_confused": {name: round(share, 4) for name, share in confused.most_common(_MAX_CONFUSED)},
        "kinds_confused": dict(kinds.most_common(_MAX_CONFUSED)),
    }


def format_phases(summary: dict[str, dict[str, Any]]) -> str:
    """Return a table by group, and what is confused with what."""
    lines = [
        f"{'':24}{'':4}{'phase, % of entries':>21}{'kind of window, %':>20}{'right, %':>14}",
        f"{'passes and steps':24}{'n':>4}" + "".join(f"{title:>10}" for title in _TITLES),
    ]
    for name, row in summary.items():
        shares = "".join(f"{100 * row[share]:10.1f}" for share in _SHARES)
        lines.append(f"{name:24}{row['snapshots']:4}{shares}")
    confused = summary["all"]["phases_confused"].items()
    lines += [f"  {100 * share:5.2f} % of entries: {name}" for name, share in confused]
    lines += [f"  {n:5} windows: {name}" for name, n in summary["all"]["kinds_confused"].items()]
    return "\n".join(lines)
