"""The file of a baseline (``zprof.baseline/1``): JSON that a person can review, and that may be hostile.

Written with stable keys, indented, each list of numbers and each kind of collective on one line.  Read
strictly: a plain file of at most 1 MiB, of this schema, with values that a run can have.
"""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from zprof.model.baseline import BASELINE_SCHEMA, Baseline, CollectiveBaseline, MemoryBaseline, TimeBaseline
from zprof.model.collectives import CollectiveKind
from zprof.model.errors import BadInput
from zprof.model.json_tree import to_tree
from zprof.model.printable import printable, shorten
from zprof.model.tenants import Tenant
from zprof.run.plain_file import open_plain

_MAX_BYTES = 1 << 20
#: More is no size, time, count or number of ranks of a run.
_MOST = 1 << 60
_MOST_COUNT = 1e9
_MOST_RANKS = 1 << 24
_LONGEST = 400
#: More is modelled of no run.
MOST_MODELLED = 16
_AGAIN = "save it again: zprof baseline save RUN"
_T = TypeVar("_T")


def to_json(baseline: Baseline) -> str:
    """The baseline as it stands in a repository.

    Raises:
        BadInput: it is so large that it would not be read.
    """
    text = "\n".join(_lines(to_tree(baseline), "")) + "\n"
    if len(text) > _MAX_BYTES:  # of ASCII
        raise BadInput(
            f"{_short(baseline.name)}: its baseline is larger than one can be (1 MiB)",
            hint="record fewer time steps (--time-steps)",
        )
    return text


def read_baseline(path: Path) -> Baseline:
    """Read and check a baseline.

    Raises:
        BadInput: it is not there, no baseline, damaged, from a newer zprof, or holds what no run can.
    """
    content = _read(path)
    _check_schema(_decode(content, _Versioned, path).schema, path)
    baseline = _decode(content, Baseline, path)
    wrong = next(_wrong(baseline), None)
    if wrong is not None:
        raise BadInput(f"{_shown(path)}: no baseline that a run can have ({wrong})", hint=_AGAIN)
    return baseline


@dataclass(frozen=True, slots=True, kw_only=True)
class _Versioned:
    """What a baseline of any version has."""

    schema: str = ""


def share_of(part: int, whole: int) -> float | None:
    """A ratio of sums as a baseline keeps it, from 0 to 1; None of nothing."""
    return min(1.0, max(0.0, part / whole)) if whole > 0 else None


def _lines(value: Any, indent: str) -> list[str]:
    """``value`` as lines; the first one is not indented."""
    if isinstance(value, dict) and value:
        return _block(value, indent)
    if isinstance(value, list) and any(isinstance(item, dict) for item in value):
        inner = [f"{indent}  {json.dumps(item, allow_nan=False)}" for item in value]
        return ["[", *_with_commas(inner), f"{indent}]"]
    return [json.dumps(value, allow_nan=False)]


def _block(value: dict[str, Any], indent: str) -> list[str]:
    inner = []
    for key, entry in value.items():
        first, *rest = _lines(entry, f"{indent}  ")
        inner.append("\n".join([f"{indent}  {json.dumps(key)}: {first}", *rest]))
    return ["{", *_with_commas(inner), f"{indent}}}"]


def _with_commas(lines: Sequence[str]) -> list[str]:
    return [*(f"{line}," for line in lines[:-1]), lines[-1]]


def _read(path: Path) -> bytes:
    try:
        with open_plain(path) as file:
            content = file.read(_MAX_BYTES + 1)
    except FileNotFoundError:
        raise BadInput(f"{_shown(path)}: no such baseline", hint=f"make one: {_AGAIN[15:]}") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "its name is none"
        raise BadInput(f"{_shown(path)}: cannot be read ({reason})", hint=_AGAIN) from None
    if len(content) > _MAX_BYTES:
        raise BadInput(f"{_shown(path)}: larger than a baseline can be (1 MiB)", hint=_AGAIN)
    return content


def _decode(content: bytes, kind: type[_T], path: Path) -> _T:
    try:
        return msgspec.json.decode(content, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise BadInput(f"{_shown(path)}: no baseline ({_short(reason)})", hint=_AGAIN) from None


def _check_schema(schema: str, path: Path) -> None:
    if schema == BASELINE_SCHEMA:
        return
    if schema.startswith("zprof.baseline/"):
        raise BadInput(
            f'{_shown(path)}: schema "{_short(schema)}", this zprof reads "{BASELINE_SCHEMA}"',
            hint=f"upgrade zprof, or {_AGAIN}",
        )
    raise BadInput(f"{_shown(path)}: no baseline of zprof", hint=_AGAIN)


def _wrong(baseline: Baseline) -> Iterator[str]:
    """What no run can have, the first of it in the order of the file."""
    conditions = baseline.conditions
    texts = (baseline.name, baseline.zprof_version, conditions.device, conditions.backend)
    more = (conditions.engine, conditions.torch, conditions.window, *conditions.modelled)
    if any(len(text) > _LONGEST for text in (*texts, *more)):
        yield f"a name of more than {_LONGEST} characters"
    if len(conditions.modelled) > MOST_MODELLED:
        yield f"more than {MOST_MODELLED} things modelled"
    if not 1 <= conditions.world_size <= _MOST_RANKS:
        yield "world_size"
    if baseline.memory is not None:
        yield from _wrong_memory(baseline.memory)
    yield from _wrong_collectives(baseline.collectives or ())
    if baseline.time is not None:
        yield from _wrong_time(baseline.time)


def _wrong_memory(memory: MemoryBaseline) -> Iterator[str]:
    if not _all_sizes((memory.peak_bytes, memory.untagged_bytes, *memory.tenants.values())):
        yield "bytes of memory"
    if sum(memory.tenants.values()) + memory.untagged_bytes != memory.peak_bytes:
        yield "tenants that do not sum to the peak"
    yield from (f'tenant "{_short(name)}"' for name in memory.tenants if name not in set(Tenant))
    yield from _wrong_ranks(memory.missing_ranks)


def _wrong_collectives(entries: Sequence[CollectiveBaseline]) -> Iterator[str]:
    for entry in entries:
        if entry.kind not in set(CollectiveKind) or len(entry.dtype) > _LONGEST:
            yield f'collective "{_short(entry.kind)}"'
        if not _all_sizes((entry.bytes, entry.group_size)) or not 0 <= entry.count <= _MOST_COUNT:
            yield f'amounts of "{_short(entry.kind)}"'
    if len({(entry.kind, entry.dtype, entry.group_size) for entry in entries}) < len(entries):
        yield "a collective that stands there twice"


def _wrong_time(time: TimeBaseline) -> Iterator[str]:
    lists = (time.wall_ns, time.exposed_ns, time.collective_ns or time.wall_ns)
    if not time.wall_ns or len({len(entries) for entries in lists}) > 1:
        yield "lists of steps of unequal length"
    waits = () if time.exposed_wait_ns is None else (time.exposed_wait_ns,)
    if not _all_sizes((*waits, *(value for entries in lists for value in entries))):
        yield "times"
    if any(exposed > wall for exposed, wall in zip(time.exposed_ns, time.wall_ns, strict=False)):
        yield "a step that is exposed for longer than it takes"
    ratios = [ratio for ratio in (time.exposed_ratio, time.overlap_ratio) if ratio is not None]
    if not all(math.isfinite(ratio) and 0 <= ratio <= 1 for ratio in ratios):
        yield "a ratio beyond 0 to 1"
    wall, exposed, collective = (
        sum(entries) for entries in (time.wall_ns, time.exposed_ns, time.collective_ns)
    )
    if not (
        _is_same(time.exposed_ratio, share_of(exposed, wall))
        and _is_same(time.overlap_ratio, share_of(collective - exposed, collective))
    ):
        yield "ratios that are not those of its steps"
    yield from _wrong_ranks(time.missing_ranks)


def _wrong_ranks(ranks: Sequence[int]) -> Iterator[str]:
    if not all(0 <= rank < _MOST_RANKS for rank in ranks):
        yield "missing_ranks"


def _is_same(stated: float | None, found: float | None) -> bool:
    if stated is None or found is None:
        return stated is found
    return math.isclose(stated, found, rel_tol=1e-9, abs_tol=1e-9)


def _all_sizes(values: Sequence[int]) -> bool:
    return all(0 <= value <= _MOST for value in values)


def _short(text: str) -> str:
    return shorten(printable(text), 120)


def _shown(path: Path) -> str:
    return printable(path)
