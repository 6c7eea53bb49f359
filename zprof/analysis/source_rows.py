"""Find the analysis rows behind a number in the report, most relevant first."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from msgspec.structs import asdict

from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.columns import Columns, Groups, Mask, OptionalInts
from zprof.analysis.tables import pick_most_exposed, select_rows
from zprof.model.collectives import CollectiveKind
from zprof.model.memory import Allocation, RankMemory
from zprof.model.quantities import EVERY, Path
from zprof.model.tenants import DISPLAY_ORDER
from zprof.model.time import LEDGER_TERMS, LateReason, LinkFit, MessageSizes, UnitTime

#: A leaf's indices, ``EVERY`` for all entries.
Indices = tuple[int, ...]
#: Returns a number's source rows, given an analysis and its leaf's indices: at most a few dozen, most
#: relevant first.
Rows = Callable[[RunAnalysis, Indices], Columns]
_MAX_ROWS = 20
Entry = TypeVar("Entry")


def find_source_rows(leaf: Path, analysis: RunAnalysis) -> Columns | None:
    """Return the rows behind a leaf, most relevant first; None if there are none."""
    rows = _ROWS.get(leaf.pattern)
    return rows(analysis, leaf.indices) if rows else None


def _find_entry(entries: Sequence[Entry], indices: Indices) -> Entry | None:
    """Return the entry at the first index; None for ``[*]`` or an index out of range."""
    index = indices[0] if indices else EVERY
    return entries[index] if index != EVERY and index < len(entries) else None


def _pick_top_rows(rows: Columns, names: Sequence[str], by: str) -> Columns:
    """Return the `_MAX_ROWS` rows with the largest values of ``by``, with only those columns that exist."""
    if by in rows:
        rows = rows.at(np.argsort(-rows.floats(by), kind="stable")[:_MAX_ROWS])
    return rows.pick(name for name in names if name in rows).at(slice(_MAX_ROWS))


_COLLECTIVE_COLUMNS = (
    "step", "rank", "kind", "unit", "bytes", "exposed_wait_ns", "exposed_transfer_ns", "hidden_ns", "group",
)  # fmt: skip
_HOST_COLUMNS = (
    "step", "rank", "idle_ns", "launch_ns", "unseen_ns", "loader_ns", "allocator_ns", "limiter_ns", "sync_ns",
    "optimizer_ns", "copy_ns", "other_ns",
)  # fmt: skip


def _select_rank(rows: Columns, analysis: RunAnalysis, at: Indices) -> Columns:
    """Return the rows of the rank at this index in the report; all rows for ``[*]``."""
    entry = _find_entry(analysis.time.per_rank, at)
    return rows if not len(rows) or entry is None else rows.at(rows.ints("rank") == entry.rank)


def _make_step_rows(term: str) -> Rows:
    """Select the steps with the largest values of a ledger term."""

    def rows(analysis: RunAnalysis, at: Indices) -> Columns:
        names = tuple(dict.fromkeys(("step", "rank", term, "wall_ns", *LEDGER_TERMS)))
        return _pick_top_rows(_select_rank(analysis.steps, analysis, at), names, term)

    return rows


def _make_rank_collectives(column: str) -> Rows:
    """Select the collectives with the largest values of a column."""

    def rows(analysis: RunAnalysis, at: Indices) -> Columns:
        return _pick_top_rows(_select_rank(analysis.collectives, analysis, at), _COLLECTIVE_COLUMNS, column)

    return rows


def _select_host_rows(analysis: RunAnalysis, at: Indices) -> Columns:
    """Return the host's activity during idle time, or the steps if host activity was not recorded."""
    rows = _select_rank(analysis.host, analysis, at)
    return (
        _pick_top_rows(rows, _HOST_COLUMNS, "idle_ns")
        if len(rows)
        else _make_step_rows("idle_ns")(analysis, at)
    )


_STEP_COLLECTIVE_COLUMNS = ["kind", "unit", "bytes", "last_rank"]


def _select_step(analysis: RunAnalysis, at: Indices) -> Columns:
    """Return this step's row in the step table."""
    rows, entry = analysis.steps, _find_entry(analysis.time.steps, at)
    if entry is None:
        return rows.at(slice(_MAX_ROWS))
    return rows.at((rows.ints("rank") == entry.rank) & (rows.ints("step") == entry.step))


def _make_step_collectives(by: Sequence[str]) -> Rows:
    """Select this rank's collectives of this step, largest value of ``by[0]`` first."""

    def rows(analysis: RunAnalysis, at: Indices) -> Columns:
        rows, entry = analysis.collectives, _find_entry(analysis.time.steps, at)
        if entry is None:
            return rows.at(slice(0))
        own_rows = rows.at((rows.ints("rank") == entry.rank) & (rows.ints("step") == entry.step))
        return _pick_top_rows(own_rows, (*by, *_STEP_COLLECTIVE_COLUMNS), by[0])

    return rows


_LEDGER: Mapping[str, Rows] = {
    **{term: _make_step_rows(term) for term in ("wall_ns", *LEDGER_TERMS, "collective_ns", "memcpy_ns")},
    **dict.fromkeys(("wall_median_ns", "steps"), _make_step_rows("wall_ns")),
    **{term: _make_rank_collectives(term) for term in ("exposed_wait_ns", "exposed_transfer_ns")},
    **dict.fromkeys(("overlapped_ns", "overlap_ratio"), _make_rank_collectives("hidden_ns")),
    "first_wait_ns": _make_rank_collectives("exposed_wait_ns"),
    "unsplit_ns": _make_rank_collectives("exposed_transfer_ns"),
    "idle_ns": _select_host_rows,
}
_LOST: Mapping[str, Rows] = {
    term: _select_host_rows if term == "idle_ns" else _make_step_rows(term) for term in LEDGER_TERMS
}
_STEPS: Mapping[str, Rows] = {
    **dict.fromkeys(("wall_ns", *LEDGER_TERMS), _select_step),
    "exposed_transfer_ns": _make_step_collectives(("exposed_transfer_ns", "transfer_ns", "hidden_ns")),
    "exposed_wait_ns": _make_step_collectives(("exposed_wait_ns", "wait_ns")),
    "overlapped_ns": _make_step_collectives(("hidden_ns", "exposed_transfer_ns", "exposed_wait_ns")),
}
_STEP_TIMES = ("time.step_noise_ns", "comparison.step_time.b_ns", "comparison.step_time.ci95[]")
_TIME_ROWS: Mapping[str, Rows] = {
    **{
        f"{stem}.{name}": rows
        for stem in ("time.per_rank[]", "comparison.baseline_time[]")
        for name, rows in _LEDGER.items()
    },
    **{f"time.steps[].{name}": rows for name, rows in _STEPS.items()},
    **{f"unclaimed.{term}": rows for term, rows in _LOST.items() if term != "compute_ns"},
    **{f"comparison.ledger_delta.{term}": rows for term, rows in _LOST.items()},
    **dict.fromkeys(_STEP_TIMES, _make_step_rows("wall_ns")),
}


_WAIT_COLUMNS = (
    "step",
    "kind",
    "group",
    "unit",
    "rank",
    "lateness_ns",
    "wait_ns",
    "exposed_wait_ns",
    "late_reason",
)


def _select_late_rows(analysis: RunAnalysis, at: Indices) -> Columns:
    """Return this rank's matched collectives in this step, largest lateness first."""
    rows, entry = analysis.collectives, _find_entry(analysis.time.lateness, at)
    if entry is not None:
        rows = rows.at((rows.ints("rank") == entry.rank) & (rows.ints("step") == entry.step))
    return _pick_top_rows(rows.at(rows.bools("matched")), _WAIT_COLUMNS, "lateness_ns")


def _select_caused_waits(analysis: RunAnalysis, at: Indices) -> Columns:
    """Return the waits that this rank caused, longest first."""
    rows, rank = analysis.collectives, _find_blamed_rank(analysis, at)
    blamed = rows.ints("blamed_rank")
    return _pick_longest(rows.at(blamed >= 0 if rank is None else blamed == rank))


def _select_suffered_waits(analysis: RunAnalysis, at: Indices) -> Columns:
    """Return the waits that this rank suffered, longest first."""
    rows, rank = analysis.collectives, _find_blamed_rank(analysis, at)
    return _pick_longest(rows if rank is None else rows.at(rows.ints("rank") == rank))


def _pick_longest(rows: Columns) -> Columns:
    return _pick_top_rows(rows, (*_WAIT_COLUMNS, "blamed_rank", "origin_rank"), "exposed_wait_ns")


def _find_blamed_rank(analysis: RunAnalysis, at: Indices) -> int | None:
    blame = analysis.time.blame
    entry = _find_entry(blame.per_rank, at) if blame is not None else None
    return entry.rank if entry is not None else None


_CAUSED = (
    "wait_ns", "exposed_wait_ns", "exposed_wait_per_rank_ns", "wait_per_rank_ns", "waiting_ranks",
    "last_ratio", *(f"reasons.{reason.value}" for reason in LateReason),
)  # fmt: skip
_RANK_ROWS: Mapping[str, Rows] = {
    **{f"time.lateness[].{name}": _select_late_rows for name in ("mean_ns", "largest_ns")},
    **{f"time.blame.per_rank[].{name}": _select_caused_waits for name in _CAUSED},
    "time.blame.per_rank[].own_wait_ns": _select_suffered_waits,
}


_MAX_MESSAGES = 30
_ID_COLUMNS = ("rank", "step", "unit")
_VOLUME_COLUMNS = ("kind", "group", "dtype", "count", "bytes")


def _make_collective_rows(columns: Sequence[str], by: str) -> Rows:
    """Select rows of ``time.collectives[i]``, largest ``by`` first; all collectives for ``[*]``."""

    def rows(analysis: RunAnalysis, at: Indices) -> Columns:
        if not at or at[0] == EVERY:
            return _pick_messages(analysis.collectives, columns, by)
        entry = _find_entry(analysis.time.collectives, at)
        return _pick_messages(select_rows(analysis, entry), columns, by) if entry is not None else Columns({})

    return rows


def _make_unit_rows(columns: Sequence[str], by: str) -> Rows:
    """Select rows of ``time.units[i]``, largest ``by`` first."""

    def rows(analysis: RunAnalysis, at: Indices) -> Columns:
        table, entry = analysis.collectives, _find_entry(analysis.time.units, at)
        if entry is None:
            return Columns({})
        is_unit = _is_same_group(table, entry) & table.texts("unit").equals(entry.unit)
        return _pick_messages(table.at(is_unit), columns, by)

    return rows


def _make_message_rows(columns: Sequence[str], by: str) -> Rows:
    """Select rows of ``time.messages[i]``, largest ``by`` first."""

    def rows(analysis: RunAnalysis, at: Indices) -> Columns:
        table, entry = analysis.collectives, _find_entry(analysis.time.messages, at)
        if entry is None:
            return Columns({})
        size = table.ints("bytes")
        is_in_bin = (size >= entry.at_least_bytes) & (size < entry.below_bytes)
        return _pick_messages(table.at(_is_same_group(table, entry) & is_in_bin), columns, by)

    return rows


def _select_fit_rows(analysis: RunAnalysis, at: Indices) -> Columns:
    """Return the data points of ``time.fits[i]``: number and median time of the messages of each size."""
    table, entry = analysis.collectives, _find_entry(analysis.time.fits, at)
    if entry is None:
        return Columns({})
    is_usable = ~table.bools("first_of_window") & (table.ints("instance") >= 0)
    messages = table.at(_is_same_group(table, entry) & is_usable)
    messages = messages.at(Groups(messages.ints("instance")).first)
    sizes, time = Groups(messages.ints("bytes")), messages.floats("intrinsic_ns")
    known = messages.known("intrinsic_ns")
    timed = Groups(sizes.codes[known])
    median = np.full(len(sizes), np.nan)
    median[sizes.codes[known][timed.first]] = timed.median(time[known])
    return Columns(
        {
            "bytes": messages.ints("bytes")[sizes.first],
            "messages": sizes.sum(known.astype(np.int64)),
            "intrinsic_ns": median,
        }
    ).at(slice(-_MAX_MESSAGES, None))


def _is_same_group(table: Columns, entry: UnitTime | MessageSizes | LinkFit) -> Mask:
    """Mark the collectives with the entry's kind and group."""
    return table.texts("kind").equals(entry.kind) & table.texts("group").equals(entry.group)


def _select_volume_rows(analysis: RunAnalysis, at: Indices) -> Columns:
    """Return count and bytes per step of the kinds and groups with the most bytes."""
    entries = sorted(analysis.time.collectives, key=lambda entry: -entry.bytes)[:_MAX_MESSAGES]
    rows = [
        {
            **{name: getattr(entry, name) for name in _VOLUME_COLUMNS},
            "counted_times": 2 if entry.kind == CollectiveKind.ALL_REDUCE else 1,
        }
        for entry in entries
    ]
    return Columns.from_rows(rows, (*_VOLUME_COLUMNS, "counted_times"))


def _select_clock_rows(analysis: RunAnalysis, at: Indices) -> Columns:
    """Return each rank's offset to the common clock, most uncertain first."""
    alignment = analysis.time.alignment
    if alignment is None:
        return Columns({})
    ranks = sorted(alignment.offsets_ns, key=lambda rank: -alignment.rank_uncertainty_ns.get(rank, 0))
    rows = [
        {
            "rank": rank,
            "offset_ns": alignment.offsets_ns[rank],
            "uncertainty_ns": alignment.rank_uncertainty_ns.get(rank, alignment.uncertainty_ns),
        }
        for rank in ranks[:_MAX_MESSAGES]
    ]
    return Columns.from_rows(rows, ("rank", "offset_ns", "uncertainty_ns"))


def _select_matching_rows(analysis: RunAnalysis, at: Indices) -> Columns:
    """Return the number of collectives matched across ranks by each matching method."""
    alignment = analysis.time.alignment
    rungs = alignment.rungs if alignment is not None else {}
    rows = [{"matched by": rung, "collectives": count} for rung, count in rungs.items()]
    return Columns.from_rows(rows, ("matched by", "collectives"))


def _pick_messages(rows: Columns, columns: Sequence[str], by: str) -> Columns:
    if not len(rows):
        return Columns({})
    start = rows.ints("start_ns")
    full = rows.with_columns(
        duration_ns=rows.ints("end_ns") - start,
        launch_delay_ns=OptionalInts(start - rows.ints("launch_start_ns"), rows.known("launch_start_ns")),
        exposed_ns=rows.ints("exposed_wait_ns") + rows.ints("exposed_transfer_ns"),
    )
    if by == "exposed_ns":
        top_rows = pick_most_exposed(full, _MAX_MESSAGES)
    else:
        top_rows = full.at(np.argsort(-full.floats(by), kind="stable")[:_MAX_MESSAGES])
    return top_rows.pick((*_ID_COLUMNS, *(name for name in columns if name not in _ID_COLUMNS)))


_SPLIT = ("exposed_wait_ns", "exposed_transfer_ns")
_WAIT = ("lateness_ns", "last_rank", "late_reason")
_SIZES = _make_message_rows(("bytes", "duration_ns", *_SPLIT), "exposed_ns")
#: Columns of a collective's rows, and the column by which they are sorted, largest first.
_COLLECTIVES: Mapping[str, tuple[tuple[str, ...], str]] = {
    "count": (("bytes", "duration_ns"), "duration_ns"),
    "bytes": (("bytes", "dtype", "duration_ns"), "bytes"),
    "total_ns": (("duration_ns", "wait_ns", "transfer_ns", *_SPLIT), "duration_ns"),
    "exposed_ns": ((*_SPLIT, "hidden_ns", "duration_ns"), "exposed_ns"),
    "exposed_wait_ns": (("exposed_wait_ns", "wait_ns", *_WAIT), "exposed_wait_ns"),
    "exposed_transfer_ns": (
        ("exposed_transfer_ns", "transfer_ns", "bytes", "hidden_ns"),
        "exposed_transfer_ns",
    ),
    "wait_ns": (("wait_ns", "duration_ns", *_WAIT), "wait_ns"),
    "transfer_ns": (("transfer_ns", "bytes", "duration_ns", "intrinsic_ns"), "transfer_ns"),
    "launch_delay_ns": (("launch_delay_ns", "dependency_ns"), "launch_delay_ns"),
    "dependency_ns": (("dependency_ns", "launch_delay_ns"), "dependency_ns"),
    "tail_ns": (("tail_ns", "duration_ns"), "tail_ns"),
    "intrinsic_ns": (("intrinsic_ns", "bytes", "duration_ns"), "intrinsic_ns"),
    "algbw_bytes_per_s": (("bytes", "intrinsic_ns"), "bytes"),
    "busbw_bytes_per_s": (("bytes", "intrinsic_ns"), "bytes"),
}
_MESSAGES: Mapping[str, Rows] = {
    **dict.fromkeys(("at_least_bytes", "below_bytes", "count", "exposed_ns"), _SIZES),
    "busbw_bytes_per_s": _make_message_rows(("bytes", "intrinsic_ns"), "bytes"),
}
_UNITS: Mapping[str, Rows] = {
    "count": _make_unit_rows(("bytes", "duration_ns"), "duration_ns"),
    "bytes": _make_unit_rows(("bytes", "duration_ns"), "bytes"),
    "exposed_wait_ns": _make_unit_rows(
        ("exposed_wait_ns", "wait_ns", "last_rank", "late_reason"), "exposed_wait_ns"
    ),
    "exposed_transfer_ns": _make_unit_rows(
        ("exposed_transfer_ns", "transfer_ns", "bytes"), "exposed_transfer_ns"
    ),
}
_FITS = (
    "messages", "sizes", "latency_ns", "algbw_bytes_per_s", "busbw_bytes_per_s", "latency_share_ratio",
    "residual_ratio",
)  # fmt: skip
_COMMUNICATION_ROWS: Mapping[str, Rows] = {
    **{f"time.collectives[].{name}": _make_collective_rows(*wanted) for name, wanted in _COLLECTIVES.items()},
    **{f"time.messages[].{name}": rows for name, rows in _MESSAGES.items()},
    **{f"time.units[].{name}": rows for name, rows in _UNITS.items()},
    **{f"time.fits[].{name}": _select_fit_rows for name in _FITS},
    **{f"volume.{name}": _select_volume_rows for name in ("seen_bytes", "expected_bytes", "ratio")},
    "time.exposed_in_collectives.wait_ns": _make_collective_rows(
        ("group", "exposed_wait_ns", "last_rank", "late_reason"), "exposed_wait_ns"
    ),
    "time.exposed_in_collectives.transfer_ns": _make_collective_rows(
        ("group", "exposed_transfer_ns", "bytes"), "exposed_transfer_ns"
    ),
    "time.alignment.uncertainty_ns": _select_clock_rows,
    "time.alignment.matched": _select_matching_rows,
    "time.alignment.unmatched": _select_matching_rows,
}


def _make_kind_rows(tenant: str = "") -> Rows:
    """Select the parts of a rank's peak by kind, for all tenants or one."""

    def rows(analysis: RunAnalysis, at: Indices) -> Columns:
        rank = _find_entry(analysis.memory.per_rank, at)
        parts = [part for part in (rank.parts if rank else ()) if part.tenant == tenant or not tenant]
        parts.sort(key=lambda part: -part.bytes)
        return Columns.from_rows(
            [asdict(part) for part in parts[:_MAX_ROWS]], ("tenant", "sub", "bytes", "basis")
        )

    return rows


def _make_allocation_rows(tenant: str) -> Rows:
    """Select the rank's largest allocations at its peak, for all tenants or one."""

    def rows(analysis: RunAnalysis, at: Indices) -> Columns:
        memory = analysis.memory
        entries: Sequence[RankMemory | Allocation] = memory.per_rank if tenant else memory.top
        selected = _find_entry(entries, at)
        allocations = [
            asdict(entry)
            for entry in memory.top
            if selected is not None
            and entry.rank == selected.rank
            and entry.tenant in (tenant or entry.tenant,)
        ]
        return Columns.from_rows(
            allocations[:_MAX_ROWS],
            ("bytes", "count", "total_bytes", "tenant", "sub", "module", "where", "operator"),
        )

    return rows


def _select_phase_rows(analysis: RunAnalysis, at: Indices) -> Columns:
    """Return the rank's phases."""
    phases = _select_rank_entries(analysis.memory.phases, at)
    return Columns.from_rows(
        [asdict(entry) for entry in phases[:_MAX_ROWS]], ("phase", "step", "peak_bytes", "untagged_bytes")
    )


def _select_module_rows(analysis: RunAnalysis, at: Indices) -> Columns:
    """Return the rank's modules, most live bytes at its peak first."""
    modules = sorted(
        _select_rank_entries(analysis.memory.modules, at), key=lambda entry: -entry.at_rank_peak_bytes
    )
    return Columns.from_rows(
        [asdict(entry) for entry in modules[:_MAX_ROWS]], ("module", "at_rank_peak_bytes", "peak_bytes")
    )


def _select_formula_rows(analysis: RunAnalysis, at: Indices) -> Columns:
    """Return this model state's row on every rank, largest unexplained bytes first."""
    formulas = analysis.memory.formulas
    state = _find_entry(formulas, at)
    checks = [entry for entry in formulas if state is not None and entry.tenant == state.tenant]
    checks.sort(key=lambda entry: -abs(entry.unexplained_bytes))
    terms = ("formula_bytes", "measured_bytes", "padding_bytes", "scalar_bytes", "unexplained_bytes")
    return Columns.from_rows([asdict(entry) for entry in checks[:_MAX_ROWS]], ("rank", *terms, "cause"))


def _select_fact_rows(analysis: RunAnalysis, at: Indices) -> Columns:
    """Return the inputs of the ZeRO formula."""
    sizes = ("stage", "parameters", "shard_ranks", "parameter_bytes", "gradient_bytes")
    extras = ("optimizer_state_bytes", "padding_elements", "step_counters")
    return Columns.from_rows([asdict(analysis.training)], (*sizes, *extras))


def _select_rank_entries(entries: Sequence[Any], at: Indices) -> list[Any]:
    selected = _find_entry(entries, at)
    return [entry for entry in entries if selected is not None and entry.rank == selected.rank]


_PEAK_PARTS = ("peak_bytes", *(f"tenants.{tenant.value}" for tenant in DISPLAY_ORDER))
_MEMORY_ROWS: Mapping[str, Rows] = {
    "memory.per_rank[].peak_bytes": _make_kind_rows(),
    **{
        f"memory.per_rank[].tenants.{tenant.value}": _make_kind_rows(tenant.value) for tenant in DISPLAY_ORDER
    },
    "memory.per_rank[].untagged_bytes": _make_allocation_rows("untagged"),
    **dict.fromkeys((f"memory.phases[].{part}" for part in _PEAK_PARTS), _select_phase_rows),
    **dict.fromkeys(
        (f"memory.formulas[].{name}" for name in ("formula_bytes", "padding_bytes", "scalar_bytes")),
        _select_fact_rows,
    ),
    **dict.fromkeys(
        (f"memory.formulas[].{name}" for name in ("measured_bytes", "unexplained_bytes")),
        _select_formula_rows,
    ),
    **dict.fromkeys((f"memory.top[].{name}" for name in ("bytes", "total_bytes")), _make_allocation_rows("")),
    **dict.fromkeys(
        (f"memory.modules[].{name}" for name in ("at_rank_peak_bytes", "peak_bytes")), _select_module_rows
    ),
}
_ROWS: Mapping[str, Rows] = {**_TIME_ROWS, **_RANK_ROWS, **_COMMUNICATION_ROWS, **_MEMORY_ROWS}
