"""Whether a run may be held against a baseline: only what was recorded under the same conditions."""

from collections.abc import Sequence

from zprof.model.baseline import Conditions
from zprof.model.printable import printable, shorten

_UNKNOWN = "unknown"
#: What of ``modelled`` is planted on purpose: that is what a check is to see, and no condition.
_PLANTED = ("planted ", "straggler:")
#: Of a condition in a sentence; compared is all of it.
_COLUMNS = 120
_WINDOWS = {"step": "by steps", "trace": "as one stretch"}


def differences(of_baseline: Conditions, of_run: Conditions) -> tuple[str, ...]:
    """What is not the same, each a phrase: ``world size 4, the baseline has 2``; empty where all is."""
    pairs = zip(_said(of_baseline), _said(of_run), strict=True)
    return tuple(
        f"{what} {shorten(now, _COLUMNS)}, the baseline has {shorten(before, _COLUMNS)}"
        for (what, before), (_, now) in pairs
        if before != now
    )


def torch_release(version: str) -> str:
    """``2.13.0+cpu`` as ``2.13.0``: the local part says how it was built, not what it does."""
    return version.partition("+")[0]


def _said(conditions: Conditions) -> tuple[tuple[str, str], ...]:
    return (
        ("device", _text(conditions.device)),
        ("backend", _text(conditions.backend)),
        ("world size", str(conditions.world_size)),
        ("engine", _text(conditions.engine)),
        ("stage", _text("" if conditions.stage is None else str(conditions.stage))),
        ("torch", _text(torch_release(conditions.torch))),
        ("modelled", _modelled(conditions.modelled)),
        ("time measured", _WINDOWS.get(conditions.window, _text(conditions.window))),
    )


def _modelled(said: Sequence[str]) -> str:
    return printable("; ".join(part for part in said if not part.startswith(_PLANTED))) or "nothing"


def _text(said: str) -> str:
    return printable(said) or _UNKNOWN
