"""Make the baseline of a report, write and read its file (``zprof.baseline/1``), and compare two baselines.

Every value is a leaf of the report, or the sum or mean of a list of leaves:

    memory        the rank with the highest peak, the first one on a tie
    collectives   per kind, data type and group size: the sum over groups of mean * group size / world size
    time          per step, the mean over the ranks that ran it

The file is JSON meant for code review: stable keys, each list of numbers on one line. It is
untrusted input, so it must be a regular file of at most 1 MiB, of this schema, with plausible values.
"""

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from zprof.base.errors import BadInput, suggest_path
from zprof.base.formatting import printable, shorten
from zprof.model.baseline import (
    BASELINE_SCHEMA,
    Baseline,
    CollectiveBaseline,
    Conditions,
    MemoryBaseline,
    TimeBaseline,
)
from zprof.model.collectives import CollectiveKind
from zprof.model.comparison import ComparedRow, ComparedValue
from zprof.model.json_format import to_tree
from zprof.model.memory import RankMemory
from zprof.model.quantities import Bound
from zprof.model.report import Report
from zprof.model.tenants import BACKEND_SCRATCH, UNTAGGED_NAME, Tenant
from zprof.model.time import LEDGER_NAMES, CollectiveTime, StepTime, bound_over_ranks, has_unsplit_wait
from zprof.run.files import open_plain
from zprof.version import __version__

#: Minimum number of steps for an interval of their mean.
MIN_STEPS = 5
#: Maximum columns of a name from a run; data type and device names are shorter.
_MAX_NAME_COLUMNS = 100
_MAX_BYTES = 1 << 20
#: Maximum plausible size, time, count and number of ranks of a run.
_MAX_AMOUNT = 1 << 60
_MAX_COUNT = 1e9
_MAX_RANKS = 1 << 24
_MAX_NAME_LENGTH = 400
#: Maximum plausible number of modelled properties of a run.
_MAX_MODELLED = 16
_SAVE_AGAIN = "save it again: zprof baseline save RUN"
_T = TypeVar("_T")
_UPPER, _LOWER = "an upper bound", "a lower bound"
_ONLY, _WITHOUT = "only", "without"
#: Prefixes of ``modelled`` entries for planted faults; a check should detect these, so they are not
#: conditions.
_PLANTED = ("planted ", "straggler:")
#: Maximum columns of a condition in a sentence; the comparison uses the full text.
_MAX_CONDITION_COLUMNS = 120
_WINDOWS = {"step": "step by step", "trace": "as one interval"}


def make_baseline(report: Report, environment: Mapping[str, str], name: str) -> Baseline:
    """Return the baseline that later runs are judged against; ``environment`` is from the run's manifest."""
    return Baseline(
        zprof_version=__version__,
        name=_clean_name(name),
        conditions=read_conditions(report, environment),
        memory=_make_memory(report),
        collectives=_make_collectives(report),
        time=_make_time(report),
    )


def read_conditions(report: Report, environment: Mapping[str, str]) -> Conditions:
    """Return the conditions under which the run was recorded; unknown strings are empty."""
    run = report.run
    return Conditions(
        device=_clean_name(run.device),
        backend=_clean_name(run.backend),
        world_size=run.world_size,
        engine=_clean_name(run.engine),
        stage=run.stage,
        torch=_clean_name(environment.get("torch", "")),
        modelled=tuple(_clean_name(description) for description in run.modelled[:_MAX_MODELLED]),
        window="trace" if report.time.is_whole else "step",
    )


def find_highest_peak(ranks: Sequence[RankMemory]) -> int:
    """Return the index of the rank with the highest peak, the first one on a tie; ``ranks`` is not empty."""
    return max(range(len(ranks)), key=lambda index: (ranks[index].peak_bytes, -index))


def _make_memory(report: Report) -> MemoryBaseline | None:
    ranks = report.memory.per_rank
    if not ranks:
        return None
    rank = ranks[find_highest_peak(ranks)]
    tenant_peaks = None
    if all(entry.tenant_peaks is not None for entry in ranks):
        unknown = {tenant.value for entry in ranks for tenant in entry.unknown}
        names = sorted({name for entry in ranks for name in entry.tenant_peaks or {}} - unknown)
        tenant_peaks = {
            name: max((entry.tenant_peaks or {}).get(name, 0) for entry in ranks) for name in names
        }
    return MemoryBaseline(
        peak_bytes=rank.peak_bytes,
        untagged_bytes=rank.untagged_bytes,
        tenants={tenant.value: size for tenant, size in rank.tenants.items()},
        backend_scratch_bytes=sum(part.bytes for part in rank.parts if part.sub == BACKEND_SCRATCH),
        tenant_peaks=tenant_peaks,
        program_buffers_peak_bytes=max(
            (entry.program_buffers_peak_bytes or 0 for entry in ranks), default=None
        )
        if all(entry.program_buffers_peak_bytes is not None for entry in ranks)
        else None,
        upper_bound=rank.upper_bound,
        lower_bound=any(entry.lower_bound for entry in ranks),
        missing_ranks=_list_missing_ranks(report, {entry.rank for entry in ranks}),
    )


def _list_missing_ranks(report: Report, present: set[int]) -> tuple[int, ...]:
    return tuple(rank for rank in range(report.run.world_size) if rank not in present)


def _make_collectives(report: Report) -> tuple[CollectiveBaseline, ...] | None:
    """Return the means per rank; None if no step was timed or if several ranks recorded no collective.

    A single group of all ranks is unchanged, several groups are weighted by their size.
    """
    entries, world = report.time.collectives, report.run.world_size
    if not report.time.per_rank or (not entries and world > 1):
        return None
    groups: defaultdict[tuple[str, str, int], list[CollectiveTime]] = defaultdict(list)
    for entry in entries:
        groups[(_clean_name(entry.kind), _clean_name(entry.dtype), max(0, entry.group_size))].append(entry)
    baselines = []
    for (kind, dtype, size), group in sorted(groups.items(), key=lambda item: item[0]):
        is_single_group = len(group) == 1 and size >= world
        weight, total = (1, 1) if is_single_group or not size else (size, max(1, world))
        has_bytes = kind != CollectiveKind.BARRIER
        baselines.append(
            CollectiveBaseline(
                kind=kind,
                dtype=dtype,
                group_size=size,
                count=sum(entry.count for entry in group) * weight / total,
                bytes=round(sum(entry.bytes for entry in group) * weight / total),
                lower_bound=has_bytes and any(entry.bytes == 0 for entry in group),
            )
        )
    return tuple(baselines)


def _make_time(report: Report) -> TimeBaseline | None:
    steps: defaultdict[int, list[StepTime]] = defaultdict(list)
    for entry in report.time.steps:
        steps[entry.step].append(entry)
    ranks = report.time.per_rank
    if not steps or not ranks:
        return None
    means = []  # mean of a step over its ranks
    for step in sorted(steps):
        rows = [
            (
                rank.wall_ns,
                rank.exposed_wait_ns + rank.exposed_transfer_ns,
                rank.collective_ns,
                *(int(getattr(rank, term)) for term in LEDGER_NAMES),
            )
            for rank in steps[step]
        ]
        means.append([round(sum(column) / len(rows)) for column in zip(*rows, strict=True)])
    wall, exposed, collective, *terms = (tuple(column) for column in zip(*means, strict=True))
    ledger = {
        term: round(sum(column) / len(column)) for term, column in zip(LEDGER_NAMES, terms, strict=True)
    }
    bounds = {term: bound_over_ranks(ranks, term) for term in LEDGER_NAMES}
    return TimeBaseline(
        wall_ns=wall,
        exposed_ns=exposed,
        exposed_ratio=clamp_ratio(sum(exposed), sum(wall)),
        overlap_ratio=clamp_ratio(sum(collective) - sum(exposed), sum(collective)),
        exposed_wait_ns=ledger["exposed_wait_ns"],
        collective_ns=collective,
        ledger=ledger,
        ledger_bounds={term: bound for term, bound in bounds.items() if bound is not Bound.EXACT},
        upper_bound=any(rank.upper_bound for rank in ranks),
        wait_lower_bound=has_unsplit_wait(ranks),
        missing_ranks=_list_missing_ranks(report, {rank.rank for rank in ranks}),
    )


def _clean_name(text: str) -> str:
    return shorten(printable(text), _MAX_NAME_COLUMNS)


def to_json(baseline: Baseline) -> str:
    """Format the baseline as the text of its file.

    Raises:
        BadInput: The text is too large to be read back.
    """
    text = "\n".join(_format_lines(to_tree(baseline), "")) + "\n"
    if len(text) > _MAX_BYTES:  # ASCII, so characters are bytes
        raise BadInput(
            f"{_clip_text(baseline.name)}: the baseline would be larger than 1 MiB",
            hint="record fewer time steps (--time-steps)",
        )
    return text


def read_baseline(path: Path) -> Baseline:
    """Read and check a baseline.

    Raises:
        BadInput: The file is missing, damaged, not a baseline, from a newer zprof, or has impossible values.
    """
    try:
        with open_plain(path) as file:
            content = file.read(_MAX_BYTES + 1)
    except FileNotFoundError:
        hint = suggest_path(path) or f"create one: {_SAVE_AGAIN[15:]}"
        raise BadInput(f"{printable(path)}: no such baseline", hint=hint) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "invalid file name"
        raise BadInput(f"{printable(path)}: cannot be read ({reason})", hint=_SAVE_AGAIN) from None
    if len(content) > _MAX_BYTES:
        raise BadInput(
            f"{printable(path)}: larger than 1 MiB, the maximum size of a baseline", hint=_SAVE_AGAIN
        )
    schema = _decode(content, _Versioned, path).schema
    if not schema.startswith("zprof.baseline/"):
        raise BadInput(f"{printable(path)}: not a zprof baseline", hint=_SAVE_AGAIN)
    if schema != BASELINE_SCHEMA:
        raise BadInput(
            f'{printable(path)}: schema is "{_clip_text(schema)}", this zprof reads "{BASELINE_SCHEMA}"',
            hint=f"upgrade zprof, or {_SAVE_AGAIN}",
        )
    baseline = _decode(content, Baseline, path)
    try:
        key = _find_duplicate_key(content)
    except (ValueError, RecursionError):
        raise BadInput(f"{printable(path)}: not a baseline (invalid JSON)", hint=_SAVE_AGAIN) from None
    if key is not None:
        raise BadInput(f'{printable(path)}: has the key "{_clip_text(key)}" twice', hint=_SAVE_AGAIN)
    problem = next(_find_problems(baseline), None)
    if problem is not None:
        raise BadInput(f"{printable(path)}: not a valid baseline ({problem})", hint=_SAVE_AGAIN)
    return baseline


class _Versioned(Struct, frozen=True, kw_only=True):
    """The field that all versions of the schema have."""

    schema: str = ""


def clamp_ratio(part: int, whole: int) -> float | None:
    """Return ``part / whole``, clamped to 0 to 1, None if ``whole`` is not positive."""
    return min(1.0, max(0.0, part / whole)) if whole > 0 else None


def _format_lines(value: Any, indent: str) -> list[str]:
    """Format ``value`` as lines; the first one is not indented."""
    if isinstance(value, dict) and value:
        inner = []
        for key, entry in value.items():
            first, *rest = _format_lines(entry, f"{indent}  ")
            inner.append("\n".join([f"{indent}  {json.dumps(key)}: {first}", *rest]))
        return ["{", *_with_commas(inner), f"{indent}}}"]
    if isinstance(value, list) and any(isinstance(item, dict) for item in value):
        inner = [f"{indent}  {json.dumps(item, allow_nan=False)}" for item in value]
        return ["[", *_with_commas(inner), f"{indent}]"]
    return [json.dumps(value, allow_nan=False)]


def _with_commas(lines: Sequence[str]) -> list[str]:
    return [*(f"{line}," for line in lines[:-1]), lines[-1]]


def _decode(content: bytes, kind: type[_T], path: Path) -> _T:
    try:
        return msgspec.json.decode(content, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise BadInput(
            f"{printable(path)}: not a baseline ({_clip_text(reason)})", hint=_SAVE_AGAIN
        ) from None


def _find_duplicate_key(content: bytes) -> str | None:
    """Return a key that occurs twice in one object; which value wins would depend on the parser."""
    duplicates: list[str] = []

    def collect(pairs: list[tuple[str, object]]) -> None:
        counts = Counter(name for name, _ in pairs)
        duplicates.extend(name for name, count in counts.items() if count > 1)

    json.loads(content, object_pairs_hook=collect, parse_int=float)
    return duplicates[0] if duplicates else None


def _find_problems(baseline: Baseline) -> Iterator[str]:
    """Yield implausible values, in the order of the file."""
    conditions = baseline.conditions
    names = (baseline.name, baseline.zprof_version, conditions.device, conditions.backend)
    more_names = (conditions.engine, conditions.torch, conditions.window, *conditions.modelled)
    if any(len(text) > _MAX_NAME_LENGTH for text in (*names, *more_names)):
        yield f"a name of more than {_MAX_NAME_LENGTH} characters"
    if len(conditions.modelled) > _MAX_MODELLED:
        yield f"more than {_MAX_MODELLED} modelled properties"
    if not 1 <= conditions.world_size <= _MAX_RANKS:
        yield "world_size"
    if baseline.memory is not None:
        yield from _find_problems_in_memory(baseline.memory)
    entries = baseline.collectives or ()
    for entry in entries:
        if entry.kind not in set(CollectiveKind) or len(entry.dtype) > _MAX_NAME_LENGTH:
            yield f'collective "{_clip_text(entry.kind)}"'
        if not _are_plausible((entry.bytes, entry.group_size)) or not 0 <= entry.count <= _MAX_COUNT:
            yield f'amounts of "{_clip_text(entry.kind)}"'
    if len({(entry.kind, entry.dtype, entry.group_size) for entry in entries}) < len(entries):
        yield "a duplicate collective"
    if baseline.time is not None:
        yield from _find_problems_in_time(baseline.time)
    missing_ranks = [part.missing_ranks for part in (baseline.memory, baseline.time) if part is not None]
    if not all(0 <= rank < _MAX_RANKS for ranks in missing_ranks for rank in ranks):
        yield "missing_ranks"


def _find_problems_in_memory(memory: MemoryBaseline) -> Iterator[str]:
    if not _are_plausible((memory.peak_bytes, memory.untagged_bytes, *memory.tenants.values())):
        yield "bytes of memory"
    communication_bytes = memory.tenants.get(Tenant.COMMUNICATION_BUFFERS.value, 0)
    if not 0 <= (memory.backend_scratch_bytes or 0) <= communication_bytes:
        yield "backend_scratch_bytes"
    if sum(memory.tenants.values()) + memory.untagged_bytes != memory.peak_bytes:
        yield "tenants that do not sum to the peak"
    peaks = memory.tenant_peaks or {}
    if not _are_plausible((*peaks.values(), memory.program_buffers_peak_bytes or 0)):
        yield "bytes of memory"
    known = {*Tenant, UNTAGGED_NAME}
    if any(peaks.get(name, size) < size for name, size in memory.tenants.items()):
        yield "a tenant whose own peak is below its bytes at the peak"
    names = [*(name for name in memory.tenants if name not in set(Tenant)), *(set(peaks) - known)]
    yield from (f'tenant "{_clip_text(name)}"' for name in names)


def _find_problems_in_time(time: TimeBaseline) -> Iterator[str]:
    lists = (time.wall_ns, time.exposed_ns, time.collective_ns or time.wall_ns)
    if not time.wall_ns or len({len(entries) for entries in lists}) > 1:
        yield "step lists of unequal length"
    waits = () if time.exposed_wait_ns is None else (time.exposed_wait_ns,)
    if not _are_plausible((*waits, *(value for entries in lists for value in entries))):
        yield "times"
    terms = time.ledger or {}
    unknown_terms = {*terms, *time.ledger_bounds} - set(LEDGER_NAMES)
    yield from (f'term "{_clip_text(name)}" of the step' for name in sorted(unknown_terms))
    if not _are_plausible(tuple(terms.values())):
        yield "times"
    if any(exposed > wall for exposed, wall in zip(time.exposed_ns, time.wall_ns, strict=False)):
        yield "a step whose exposed time exceeds its duration"
    ratios = [ratio for ratio in (time.exposed_ratio, time.overlap_ratio) if ratio is not None]
    if not all(math.isfinite(ratio) and 0 <= ratio <= 1 for ratio in ratios):
        yield "a ratio outside 0 to 1"
    wall, exposed, collective = (
        sum(entries) for entries in (time.wall_ns, time.exposed_ns, time.collective_ns)
    )
    if not (
        _is_close(time.exposed_ratio, clamp_ratio(exposed, wall))
        and _is_close(time.overlap_ratio, clamp_ratio(collective - exposed, collective))
    ):
        yield "ratios that do not match the steps"


def _is_close(stated: float | None, computed: float | None) -> bool:
    if stated is None or computed is None:
        return stated is computed
    return math.isclose(stated, computed, rel_tol=1e-9, abs_tol=1e-9)


def _are_plausible(values: Sequence[int]) -> bool:
    return all(0 <= value <= _MAX_AMOUNT for value in values)


def _clip_text(text: str) -> str:
    return shorten(printable(text), 120)


def compare_figures(before: Baseline, after: Baseline) -> tuple[ComparedRow, ...]:
    """Return all figures of both baselines, named like the gates; None where one lacks a figure."""
    a, b = dict(_list_figures(before)), dict(_list_figures(after))
    absent = (None, None)
    return tuple(
        ComparedRow(
            name=name,
            unit=(b.get(name) or a[name])[0],
            a=a.get(name, absent)[1],
            b=b.get(name, absent)[1],
        )
        for name in dict.fromkeys([*b, *a])
    )


def list_bounds(baseline: Baseline) -> tuple[str, ...]:
    """Return one line for each figure that is missing, a bound, or lacks ranks, which weakens a check."""
    parts = (("memory", baseline.memory), ("times", baseline.time), ("collectives", baseline.collectives))
    missing = [f"no {name}" for name, part in parts if part is None]
    steps = 0 if baseline.time is None else len(baseline.time.wall_ns)
    if 0 < steps < MIN_STEPS:
        missing.append(
            f"{steps} timed step{'' if steps == 1 else 's'}, {MIN_STEPS} are needed for an interval"
        )
    suffixes = tuple(f", {word}" for word in (_ONLY, _WITHOUT))
    bounds = [f"{name} {value}" for name, (_, value) in _list_figures(baseline) if name.endswith(suffixes)]
    return (*missing, *bounds)


def _list_figures(baseline: Baseline) -> Iterator[tuple[str, tuple[str, ComparedValue]]]:
    """Yield name, unit and value of each figure; bounds and missing ranks are separate figures."""
    conditions, memory, time = baseline.conditions, baseline.memory, baseline.time
    yield "device", ("text", conditions.device)
    yield "backend", ("text", conditions.backend)
    yield "world size", ("count", conditions.world_size)
    yield "engine", ("text", conditions.engine)
    yield "stage", ("count", conditions.stage)
    yield "torch", ("text", conditions.torch)
    yield "modelled", ("text", "; ".join(conditions.modelled) or None)
    yield "window", ("text", conditions.window)
    if memory is not None:
        yield "peak_memory", ("bytes", memory.peak_bytes)
        for tenant, size in (memory.tenant_peaks or {}).items():
            yield f"peak_memory.{tenant}", ("bytes", size)
        for tenant, size in memory.tenants.items():
            yield f"{tenant} at the peak", ("bytes", size)
        yield "untagged at the peak", ("bytes", memory.untagged_bytes)
        bounds = ((_UPPER, memory.upper_bound), (_LOWER, memory.lower_bound))
        yield from _list_bound_figures("peak_memory", [name for name, applies in bounds if applies])
        yield from _list_missing_figures("peak_memory", memory.missing_ranks)
    for entry in baseline.collectives or ():
        ranks = f"{entry.group_size} ranks" if entry.group_size else ""
        kind = ", ".join(part for part in (entry.dtype, ranks) if part)
        kind = f" ({kind})" if kind else ""
        yield f"{entry.kind} bytes{kind}", ("bytes", entry.bytes)
        yield f"{entry.kind} count{kind}", ("count", entry.count)
        yield from _list_bound_figures(f"{entry.kind} bytes{kind}", [_LOWER] if entry.lower_bound else [])
    if time is not None:
        steps = len(time.wall_ns)
        yield "timed steps", ("count", steps)
        yield "step_time", ("ns", round(sum(time.wall_ns) / steps) if steps else None)
        yield "exposed_ratio", ("ratio", time.exposed_ratio)
        yield "overlap_ratio", ("ratio", time.overlap_ratio)
        yield "exposed_wait", ("ns", time.exposed_wait_ns)
        yield from _list_bound_figures("exposed times", [_UPPER] if time.upper_bound else [])
        yield from _list_bound_figures("exposed_wait", [_LOWER] if time.wait_lower_bound else [])
        yield from _list_missing_figures("timed steps", time.missing_ranks)


def _list_bound_figures(name: str, bounds: Sequence[str]) -> Iterator[tuple[str, tuple[str, str]]]:
    if bounds:
        yield f"{name}, {_ONLY}", ("text", " and ".join(bounds))


def _list_missing_figures(name: str, ranks: Sequence[int]) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield all missing ranks without shortening, so the figure changes with each rank."""
    if ranks:
        shown = f"{'rank' if len(ranks) == 1 else 'ranks'} {', '.join(map(str, ranks))}"
        yield f"{name}, {_WITHOUT}", ("text", shown)


def find_condition_differences(baseline: Conditions, run: Conditions) -> tuple[str, ...]:
    """Describe each difference: ``world size 4, the baseline has 2``; empty if there is none."""
    before, current = _describe_conditions(baseline), _describe_conditions(run)
    shown = {
        name: [shorten(side[name], _MAX_CONDITION_COLUMNS) for side in (current, before)] for name in before
    }
    return tuple(
        f"{name} {texts[0]}, the baseline has {texts[1]}"
        for name, texts in shown.items()
        if before[name] != current[name]
    )


def _describe_conditions(conditions: Conditions) -> dict[str, str]:
    """Return each condition that must be equal; the build part of a torch version is omitted."""
    modelled = [part for part in conditions.modelled if not part.startswith(_PLANTED)]
    texts = {
        "device": conditions.device,
        "backend": conditions.backend,
        "world size": str(conditions.world_size),
        "engine": conditions.engine,
        "stage": "" if conditions.stage is None else str(conditions.stage),
        "torch": conditions.torch.partition("+")[0],
        "modelled": printable("; ".join(modelled)) or "nothing",
        "time measured": _WINDOWS.get(conditions.window, conditions.window),
    }
    return {name: printable(text) or "unknown" for name, text in texts.items()}
