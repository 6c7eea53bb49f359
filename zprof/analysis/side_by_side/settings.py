"""How both runs were made: facts of the run, of its training program and of the machine."""

from dataclasses import fields

from zprof.model.side_by_side import Setting
from zprof.run.reader import Run

_RUN = ("zprof_version", "source", "world_size", "device", "backend")
_MOST_LISTED = 12
#: Of a variable that a recording of the environment does not hold.
_NOT_SET = "not set"


def settings(a: Run, b: Run) -> tuple[Setting, ...]:
    """Every setting of either; None where a run does not say it."""
    sides = (_settings(a), _settings(b))
    absent = [_NOT_SET if run.manifest.environment else None for run in (a, b)]
    return tuple(
        Setting(
            where=where,
            name=name,
            a=sides[0].get((where, name), absent[0]),
            b=sides[1].get((where, name), absent[1]),
        )
        for where, name in dict.fromkeys([*sides[0], *sides[1]])
    )


def _settings(run: Run) -> dict[tuple[str, str], str | None]:
    manifest = run.manifest
    steps = sorted({step for rank in run.rank_manifests.values() for step in rank.time_steps})
    found: dict[tuple[str, str], str | None] = {
        ("run", name): _text(getattr(manifest, name)) for name in _RUN
    }
    found["run", "ranks loaded"] = _listed(run.ranks)
    found["run", "timed steps"] = _listed(steps)
    training = manifest.training
    found |= {("training", field.name): _text(getattr(training, field.name)) for field in fields(training)}
    return found | {("environment", name): value for name, value in sorted(manifest.environment.items())}


def _text(value: object) -> str | None:
    if isinstance(value, tuple):
        return "; ".join(map(str, value)) or "nothing"
    return None if value is None or value in ("", "unknown") else str(value)


def _listed(numbers: "tuple[int, ...] | list[int]") -> str | None:
    """``0-7``, or the numbers where some are left out."""
    if not numbers:
        return None
    low, high = min(numbers), max(numbers)
    if len(numbers) == high - low + 1:
        return str(low) if low == high else f"{low}-{high}"
    shown = ",".join(map(str, numbers[:_MOST_LISTED]))
    return shown if len(numbers) <= _MOST_LISTED else f"{shown},.. ({len(numbers)})"
