"""Find the sharding groups, the messages that carry the model, and their cost per step.

Each rank's sharding group is the group that moves the most bytes by all_gather; by reduce_scatter if no rank
gathers, and by all_reduce if none reduce-scatters. A message carries a part of the model if it is larger than
1/1024 of the largest message in its direction (gathers or reductions), unlike norms, losses and flags.
All_gathers that are tiny compared with the reductions are flags, and all_reduces that all stay below 1 KiB
are scalars: neither makes a group a sharding group.

The units and their order are derived from these messages in :mod:`zprof.step.units`.
"""

import numpy as np
from msgspec import Struct

from zprof.analysis.analysis import RunAnalysis, select_state_rows
from zprof.analysis.columns import Columns, Floats, Groups, Mask, find_places
from zprof.analysis.time.decomposition import select_kind
from zprof.model.collectives import BYTES_PER_ELEMENT, CollectiveKind
from zprof.step.links import estimate_kind_latency_ns, measure_transfers

GATHERS = (CollectiveKind.ALL_GATHER,)
REDUCTIONS = (CollectiveKind.REDUCE_SCATTER, CollectiveKind.ALL_REDUCE)
#: Messages up to this share of the largest message in their direction carry no part of the model.
_SMALL_RATIO = 1 / 1024
#: Gathers with fewer bytes than this share of the reductions' bytes carry no parameters.
_MIN_GATHERED_RATIO = 1 / 64
_MIN_REDUCED_BYTES = 1024
_HALF = ("bfloat16", "float16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz")
_FULL = "float32"
#: Minimum share of a direction's bytes to assign it a type: norms stay in float32 next to bfloat16.
_MOSTLY_RATIO = 0.5
#: Messages of a step with one unit: one for the forward, one for the backward pass.
_MAX_ONE_UNIT_MESSAGES = 2
#: Messages of at least this share of the largest message are large.
_LARGE_RATIO = 0.5


class Sharding(Struct, frozen=True, kw_only=True):
    """The model-carrying messages of each rank's sharding group, as collective rows.

    ``reductions`` have one kind, the kind that moves the most bytes.
    """

    gathers: Columns
    reductions: Columns


def find_sharding(analysis: RunAnalysis) -> Sharding:
    """Return the messages of the sharding groups; both tables are empty without such messages or without
    bytes.
    """
    return analysis.compute_once(_find_sharding)


def _find_sharding(analysis: RunAnalysis) -> Sharding:
    rows = select_state_rows(analysis, analysis.collectives)
    rows = rows.at(rows.ints("group_size") > 1)
    is_reduced = rows.texts("kind").equals(CollectiveKind.ALL_REDUCE)
    if rows.ints("bytes")[is_reduced].max(initial=0) < _MIN_REDUCED_BYTES:
        rows = rows.at(~is_reduced)
    gathers, reductions = select_kind(rows, *GATHERS), select_kind(rows, *REDUCTIONS)
    if gathers.ints("bytes").sum() < _MIN_GATHERED_RATIO * reductions.ints("bytes").sum():
        gathers = gathers.at(slice(0))
    for candidates in (gathers, *(select_kind(reductions, kind) for kind in REDUCTIONS)):
        if candidates.ints("bytes").any():
            groups = candidates.group_by("rank", "group")
            rank = candidates.ints("rank")[groups.first]
            order = np.lexsort((-groups.sum(candidates.ints("bytes")), rank))
            most = groups.first[order[Groups(rank[order]).first]]
            keys = (candidates.ints("rank")[most], candidates.texts("group").codes[most])
            gathers, reductions = (
                select_large(each.at(find_places((each.ints("rank"), each.texts("group").codes), keys) >= 0))
                for each in (gathers, reductions)
            )
            kinds = reductions.group_by("kind")
            if len(kinds) > 1:
                main = reductions.texts("kind")[kinds.first[kinds.sum(reductions.ints("bytes")).argmax()]]
                reductions = reductions.at(reductions.texts("kind").equals(main))
            return Sharding(gathers=gathers, reductions=reductions)
    return Sharding(gathers=gathers.at(slice(0)), reductions=reductions.at(slice(0)))


def select_large(rows: Columns) -> Columns:
    """Return the multi-rank rows that are large enough to carry a part of the model.

    Without recorded sizes, transfer time is compared with the sum of a typical step: a single message can be
    delayed, and even the smallest message takes the latency.
    """
    rows = rows.at(rows.ints("group_size") != 1)
    weights = weigh_rows(rows)
    rows, weights = rows.at(weights > 0), weights[weights > 0]
    if not len(rows):
        return rows
    if not rows.ints("bytes").any():
        return rows.at(weights > _SMALL_RATIO * np.median(rows.group_by("rank", "step").sum(weights)))
    directions = Groups(rows.texts("kind").equals(*REDUCTIONS))
    return rows.at(weights > _SMALL_RATIO * directions.max(weights)[directions.codes])


def weigh_rows(rows: Columns) -> Floats:
    """Return the rows' weights: their bytes, or their transfer if no bytes were recorded."""
    known = bool((rows.ints("bytes") > 0).any())
    return rows.floats("bytes" if known else "transfer_ns")


class Direction(Struct, frozen=True, kw_only=True):
    """Gathers or reductions: ``rows`` of the collective table."""

    rows: Columns

    @property
    def is_full(self) -> bool:
        """True if most of the bytes are sent in float32."""
        return self._ratio(self.rows.texts("dtype").equals(_FULL)) >= _MOSTLY_RATIO

    @property
    def is_half(self) -> bool:
        """True if most of the bytes are sent in types of one or two bytes."""
        return self._ratio(self.rows.texts("dtype").equals(*_HALF)) >= _MOSTLY_RATIO

    @property
    def full_rows(self) -> Columns:
        """Rows in float32."""
        return self.rows.at(self.rows.texts("dtype").equals(_FULL))

    @property
    def types(self) -> str:
        """Types of these rows, most bytes first."""
        if not len(self.rows):
            return ""
        types = self.rows.texts("dtype")
        by_type = Groups(types)
        order = np.argsort(-by_type.sum(weigh_rows(self.rows)), kind="stable")
        return ", ".join(types.at(by_type.first[order]))

    def _ratio(self, chosen: Mask) -> float:
        sizes = weigh_rows(self.rows)
        whole = float(sizes.sum())
        return float(sizes[chosen].sum()) / whole if whole else 0.0


class ModelTraffic(Struct, frozen=True, kw_only=True):
    """The collectives of all groups that carry parameters, and those that carry gradients."""

    gathers: Direction
    reductions: Direction


def read_model_traffic(analysis: RunAnalysis) -> ModelTraffic:
    """Return the multi-rank collectives that are large enough to carry a part of the model."""
    return analysis.compute_once(_read_model_traffic)


def _read_model_traffic(analysis: RunAnalysis) -> ModelTraffic:
    rows = select_large(analysis.collectives)
    return ModelTraffic(
        gathers=Direction(rows=select_kind(rows, *GATHERS)),
        reductions=Direction(rows=select_kind(rows, *REDUCTIONS)),
    )


def has_known_sizes(rows: Columns) -> bool:
    """Return True if the recording has the sizes of more than 90 % of the collectives."""
    several = (rows.ints("group_size") != 1) & ~rows.texts("kind").equals(CollectiveKind.BARRIER.value)
    return bool(several.any()) and float((rows.ints("bytes")[several] > 0).mean()) > 0.9


def count_elements(rows: Columns) -> float:
    """Return the number of elements in all rows; bytes of unknown type count as 4-byte floats."""
    types = rows.texts("dtype")
    sizes = np.array([*(BYTES_PER_ELEMENT.get(name, 4) for name in types.words), 4])[types.codes]
    return float((rows.ints("bytes") / sizes).sum())


def surely_moving_ns(analysis: RunAnalysis) -> Floats:
    """Return a lower bound of each collective's transfer, in ns.

    If ranks are missing, apparent transfer may be waiting. The fastest collective of the same kind and size
    gives the bound.
    """
    rows = analysis.collectives
    seen = rows.floats("transfer_ns")
    alike = rows.group_by("kind", "group", "bytes")
    fastest = alike.min(rows.ints("end_ns") - rows.ints("start_ns"))[alike.codes]
    return np.where(are_bounds(rows), np.minimum(seen, fastest), seen)


def are_bounds(rows: Columns) -> Mask:
    """Return a mask of rows not recorded on all ranks: waits are lower bounds, transfers upper bounds."""
    return rows.bools("bound") if "bound" in rows else ~rows.bools("matched")


def are_mostly_bounds(rows: Columns) -> bool:
    """Return True if most of the transfer of ``rows`` was not recorded on all ranks, so it may be waiting."""
    transfer = rows.ints("transfer_ns")
    return bool(transfer[are_bounds(rows)].sum() > transfer.sum() / 2)


class Messages(Struct, frozen=True, kw_only=True):
    """Messages of one kind. ``count``, ``exposed_ns`` and ``launch_ns`` are per step, other values are
    medians.

    ``exposed_ns``: exposed transfer. ``launch_ns``: time that a CPU rank's main thread spends on launching
    them. ``latency_ns``: time of a zero-byte message, None if unknown.
    """

    kind: CollectiveKind
    count: float
    bytes: float
    each_ns: float
    exposed_ns: float
    launch_ns: float
    latency_ns: float | None
    rows: Columns

    def sized(self, times: float) -> float:
        """Return the time of a message with ``times`` the bytes; without a known latency, all of it
        scales.
        """
        latency = self.latency_ns or 0.0
        return latency + times * (self.each_ns - latency)


class StepTraffic(Struct, frozen=True, kw_only=True):
    """A step's gathers and reductions.

    ``before``: gathers serve the passes; False if there are none or if they follow the update.
    """

    gathers: Messages | None
    reduces: Messages | None
    compute_ns: float
    before: bool

    @property
    def both(self) -> tuple[Messages, ...]:
        """Gathers and reductions, if any."""
        return tuple(messages for messages in (self.gathers, self.reduces) if messages)

    @property
    def exposed_ns(self) -> float:
        """Exposed transfer per step."""
        return sum(messages.exposed_ns for messages in self.both)

    @property
    def launch_ns(self) -> float:
        """Launch time per step on a CPU rank's main thread."""
        return sum(messages.launch_ns for messages in self.both)

    @property
    def latency_ratio(self) -> float | None:
        """Share of the messages' time that is latency, None if unknown for gathers or reductions."""
        known = [messages for messages in self.both if messages.latency_ns is not None]
        if len(known) < len(self.both):
            return None
        total_ns = sum(messages.count * messages.each_ns for messages in known)
        return sum(messages.count * (messages.latency_ns or 0.0) for messages in known) / total_ns


def read_step_traffic(analysis: RunAnalysis) -> StepTraffic | None:
    """Return the sharding messages per step as means over ranks and steps, None if none was timed."""
    return analysis.compute_once(_read_step_traffic)


def _read_step_traffic(analysis: RunAnalysis) -> StepTraffic | None:
    sharding = find_sharding(analysis)
    gathers, reduces = (
        _measure_messages(analysis, rows) if len(rows) else None
        for rows in (sharding.gathers, sharding.reductions)
    )
    if gathers is None and reduces is None:
        return None
    compute = float(analysis.steps.ints("compute_ns").mean()) if len(analysis.steps) else 0.0
    before = gathers is not None and (reduces is None or _first_launch(gathers) < _first_launch(reduces))
    return StepTraffic(gathers=gathers, reduces=reduces, compute_ns=compute, before=before)


def _first_launch(messages: Messages) -> float:
    """Return the launch time of a step's first message: the median over ranks and steps, in ns."""
    rows = messages.rows
    starts = np.where(rows.known("launch_start_ns"), rows.ints("launch_start_ns"), rows.ints("start_ns"))
    return float(np.median(rows.group_by("rank", "step").min(starts)))


def _measure_messages(analysis: RunAnalysis, rows: Columns) -> Messages | None:
    """Return the cost of messages of one kind, None if none was recorded on all of its ranks."""
    times = measure_transfers(analysis, rows).floats("elapsed_ns")
    if not len(times):
        return None
    kind, each, steps = CollectiveKind(rows.texts("kind")[0]), float(np.median(times)), len(analysis.steps)
    latency = estimate_kind_latency_ns(analysis, rows, kind)
    launch_ns = 0  # a device does not launch them on the thread that computes
    if analysis.run.device == "cpu":
        timed = rows.known("launch_start_ns") & rows.known("launch_end_ns")
        launches_ns = (rows.ints("launch_end_ns") - rows.ints("launch_start_ns"))[timed]
        launch_ns = int(np.maximum(0, launches_ns).sum())
    return Messages(
        kind=kind,
        count=len(rows) / max(1, steps),
        bytes=float(np.median(rows.ints("bytes"))),
        each_ns=each,
        exposed_ns=float(rows.ints("exposed_transfer_ns").sum()) / max(1, steps),
        launch_ns=launch_ns / max(1, steps),
        latency_ns=min(latency, each) if latency is not None else None,
        rows=rows,
    )


def is_one_message(messages: Messages, min_ratio: float) -> bool:
    """Return True if one message carries more than this share of a pass's bytes."""
    rows = messages.rows
    steps = rows.group_by("rank", "step")
    if float(np.median(steps.sizes)) > _MAX_ONE_UNIT_MESSAGES:
        return False
    unit, sizes = rows.texts("unit"), rows.ints("bytes")
    # a message without a unit is grouped with others of its size
    once = Groups(steps.codes, unit.codes, np.where(unit.known, 0, sizes)).first
    passes = Groups(steps.codes[once])
    return float(np.median(passes.max(sizes[once]) / passes.sum(sizes[once]))) > min_ratio


def measure_exposed_end_ratio(messages: Messages, *, first: bool) -> float:
    """Return the exposed share of a step's first, or last, large message."""
    rows, sizes = messages.rows, messages.rows.ints("bytes")
    rows = rows.at(sizes >= sizes.max() * _LARGE_RATIO)
    steps = rows.group_by("rank", "step")
    order = np.lexsort((rows.ints("start_ns"), steps.codes))
    chosen = rows.at(order[steps.starts if first else steps.starts + steps.sizes - 1])
    return float(np.median(chosen.ints("exposed_transfer_ns") / np.maximum(1, chosen.ints("transfer_ns"))))
