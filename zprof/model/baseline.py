"""Define a baseline: the values of a run, small enough to keep in a repository (``zprof.baseline/1``)."""

from collections.abc import Mapping

from msgspec import Struct, field

from zprof.model.quantities import Bound, Unit, Value, combine_bounds
from zprof.model.tenants import DISPLAY_ORDER, UNTAGGED_NAME
from zprof.model.time import LEDGER_NAMES

BASELINE_SCHEMA = "zprof.baseline/1"


class Conditions(Struct, frozen=True, kw_only=True):
    """Conditions under which a run was recorded; a baseline with different conditions is rejected.

    ``window``: steps, or the entire recording as one interval (values of WindowPolicy).
    """

    device: str
    backend: str
    world_size: int
    engine: str
    stage: int | None
    torch: str
    modelled: tuple[str, ...] = ()
    window: str = "step"


class MemoryBaseline(Struct, frozen=True, kw_only=True):
    """Peak of the rank with the highest peak; its tenants and untagged bytes sum to it.

    ``upper_bound`` and ``lower_bound`` apply to the peak (:class:`~zprof.model.memory.RankMemory`).
    ``missing_ranks``: ranks of the job whose memory was not recorded. ``backend_scratch_bytes``: the part of
    the communication buffers that the collective backend copied for itself; None if unknown.
    ``tenant_peaks``: per tenant, the maximum over the ranks of its own maxima, None if unknown;
    ``program_buffers_peak_bytes``: the same for the communication buffers without the backend's copies.
    """

    peak_bytes: int
    untagged_bytes: int
    tenants: Mapping[str, int] = field(default_factory=dict)
    backend_scratch_bytes: int | None = None
    tenant_peaks: Mapping[str, int] | None = None
    program_buffers_peak_bytes: int | None = None
    upper_bound: bool = False
    lower_bound: bool = False
    missing_ranks: tuple[int, ...] = ()

    def list_figures(self) -> dict[str, Value]:
        """Return ``peak_bytes`` and the bytes of each tenant at the peak; None if the tenant is unknown."""
        is_at_least = self.lower_bound or bool(self.missing_ranks)
        ends = (
            Bound.AT_MOST if self.upper_bound else Bound.EXACT,
            Bound.AT_LEAST if is_at_least else Bound.EXACT,
        )
        figures = {"peak_bytes": Value(self.peak_bytes, Unit.BYTES, bound=combine_bounds(ends))}
        sizes = {**self.tenants, UNTAGGED_NAME: self.untagged_bytes}
        for tenant in (*(tenant.value for tenant in DISPLAY_ORDER), UNTAGGED_NAME):
            size = sizes.get(tenant)
            is_unknown = size == 0 and self.tenant_peaks is not None and tenant not in self.tenant_peaks
            figures[tenant] = Value(None if is_unknown else size, Unit.BYTES)
        return figures


class CollectiveBaseline(Struct, frozen=True, kw_only=True):
    """One kind of collective with one data type and group size: per step and rank, mean over all ranks.

    ``lower_bound``: the number of bytes is unknown for some of the collectives.
    """

    kind: str
    dtype: str
    group_size: int
    count: float
    bytes: int
    lower_bound: bool = False


class TimeBaseline(Struct, frozen=True, kw_only=True):
    """Timed steps in order, each a mean over its ranks.

      exposed_ratio = sum(exposed) / sum(wall)          overlap_ratio = 1 - sum(exposed) / sum(collective)

    ``exposed_wait_ns``: mean per step. ``upper_bound``: the exposed times are upper bounds.
    ``wait_lower_bound``: the waits are lower bounds. ``missing_ranks`` were not timed. ``ledger``: terms of
    the mean step by name (``compute_ns``, …), None in files of an older zprof; ``ledger_bounds``: of the
    terms that are not exact.
    """

    wall_ns: tuple[int, ...]
    exposed_ns: tuple[int, ...]
    exposed_ratio: float | None
    overlap_ratio: float | None
    exposed_wait_ns: int | None
    collective_ns: tuple[int, ...] = ()
    ledger: Mapping[str, int] | None = None
    ledger_bounds: Mapping[str, Bound] = field(default_factory=dict)
    upper_bound: bool = False
    wait_lower_bound: bool = False
    missing_ranks: tuple[int, ...] = ()

    def list_figures(self) -> dict[str, Value]:
        """Return ``wall_ns`` and the terms of the mean step; of an old file only the exposed wait."""
        figures = {"wall_ns": Value(sum(self.wall_ns) / len(self.wall_ns), Unit.NS)}
        if self.ledger is None:
            wait = Bound.AT_LEAST if self.wait_lower_bound else Bound.EXACT
            wait = combine_bounds((wait, Bound.AT_MOST if self.upper_bound else Bound.EXACT))
            return {**figures, "exposed_wait_ns": Value(self.exposed_wait_ns, Unit.NS, bound=wait)}
        for term in LEDGER_NAMES:
            bound = self.ledger_bounds.get(term, Bound.EXACT)
            figures[term] = Value(self.ledger.get(term), Unit.NS, bound=bound)
        return figures


class Baseline(Struct, frozen=True, kw_only=True):
    """Values to compare later runs with; None if not measured."""

    schema: str = BASELINE_SCHEMA
    zprof_version: str
    name: str
    conditions: Conditions
    memory: MemoryBaseline | None
    collectives: tuple[CollectiveBaseline, ...] | None
    time: TimeBaseline | None
