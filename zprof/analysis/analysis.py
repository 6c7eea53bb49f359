"""Analyse one run: the summed leaves that the report shows, and the tables that the rules read."""

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, TypeVar

from msgspec import Struct, field

from zprof.analysis.columns import Columns
from zprof.analysis.facts import describe_run, find_engine
from zprof.analysis.hang.flight import has_flight
from zprof.analysis.memory.analyse import analyse_memory
from zprof.analysis.time.analyse import analyse_time
from zprof.analysis.time.ledger import RankTracks
from zprof.analysis.time.passes import NO_PASSES
from zprof.model.endings import RankEnd
from zprof.model.gaps import Gap
from zprof.model.hang import Hang
from zprof.model.memory import Memory
from zprof.model.report import RunFacts, Volume
from zprof.model.time import Time, WindowPolicy
from zprof.model.training import Engine, TrainingFacts
from zprof.run.endings import find_endings
from zprof.run.manifest import FLIGHT_RECORDER
from zprof.run.reader import Run

Result = TypeVar("Result")


class RunAnalysis(Struct, frozen=True, kw_only=True, dict=True):
    """All results of the analysis of one run.

    ``steps`` has one row per (rank, step) with the ledger terms in nanoseconds. ``collectives`` has one row
    per collective and rank, on the common clock. ``host`` has one row per rank and step: what the host did
    while its device was idle. ``kernels`` sums the kernels of a device by name. ``passes`` lists the pass and
    unit of each gather. ``limiter`` has one row per gather that the host delayed, ``waits`` one per
    wait of a host for its device. Tables are empty if the
    recording does not contain the data. ``hosts``: host name of each rank, if known. ``tracks``: the
    intervals that make up the sums of each timed rank, for drawing. ``source``: the run itself, for access to
    single events. ``engine``: as declared, or else as the events show; None if neither tells. ``hang``: what
    the flight recorders of the ranks show; None if there are none. ``endings``: how the ranks of a job ended
    that failed. ``expected_bus_bytes_per_s``: what the user says that the link gives large messages.
    """

    run: RunFacts
    training: TrainingFacts
    time: Time
    memory: Memory
    volume: Volume | None
    steps: Columns
    collectives: Columns
    gaps: tuple[Gap, ...]
    host: Columns = field(default_factory=lambda: Columns({}))
    kernels: Columns = field(default_factory=lambda: Columns({}))
    passes: Columns = NO_PASSES
    limiter: Columns = field(default_factory=lambda: Columns({}))
    waits: Columns = field(default_factory=lambda: Columns({}))
    hosts: Mapping[int, str] = field(default_factory=dict)
    tracks: tuple[RankTracks, ...] = ()
    source: Run | None = None
    engine: Engine | None = None
    hang: Hang | None = None
    endings: tuple[RankEnd, ...] = ()
    expected_bus_bytes_per_s: float | None = None

    @cached_property
    def _results(self) -> dict[Callable[["RunAnalysis"], Any], Any]:
        return {}

    def compute_once(self, compute: Callable[["RunAnalysis"], Result]) -> Result:
        """Return ``compute(self)``; several rules that need the same value share it.

        A changed copy (``msgspec.structs.replace``) starts without results.
        """
        if compute not in self._results:
            self._results[compute] = compute(self)
        return self._results[compute]


def analyse(run: Run, policy: WindowPolicy = WindowPolicy.STEP) -> RunAnalysis:
    """Measure memory and time of a run, per step or as a single interval.

    Raises:
        BadInput: a table of the run is damaged.
    """
    if run.manifest.source == FLIGHT_RECORDER:
        return _analyse_hang(run)
    time, memory = analyse_time(run, policy), analyse_memory(run)
    return RunAnalysis(
        run=describe_run(run),
        training=run.manifest.training,
        time=time.time,
        memory=memory.memory,
        volume=time.volume,
        steps=time.steps,
        collectives=time.collectives,
        gaps=(*run.gaps(), *time.gaps, *memory.gaps),
        host=time.host,
        kernels=time.kernels,
        passes=time.passes,
        limiter=time.limiter,
        waits=time.waits,
        hosts=_list_hosts(run),
        tracks=time.tracks,
        source=run,
        engine=find_engine(run),
        hang=_find_hang(run),
        endings=find_endings(run),
    )


def analyse_memory_only(run: Run) -> RunAnalysis:
    """Measure only the memory of a run.

    Raises:
        BadInput: a table of the run is damaged.
    """
    memory = analyse_memory(run)
    return RunAnalysis(
        run=describe_run(run),
        training=run.manifest.training,
        time=Time(),
        memory=memory.memory,
        volume=None,
        steps=Columns({}),
        collectives=Columns({}),
        gaps=(*run.gaps(), *memory.gaps),
        engine=find_engine(run),
        endings=find_endings(run),
    )


def analyse_time_only(run: Run, policy: WindowPolicy = WindowPolicy.STEP) -> RunAnalysis:
    """Measure only the time of a run.

    Raises:
        BadInput: a table of the run is damaged.
    """
    time = analyse_time(run, policy)
    return RunAnalysis(
        run=describe_run(run),
        training=run.manifest.training,
        time=time.time,
        memory=Memory(),
        volume=time.volume,
        steps=time.steps,
        collectives=time.collectives,
        gaps=(*run.gaps(), *time.gaps),
        host=time.host,
        kernels=time.kernels,
        passes=time.passes,
        limiter=time.limiter,
        waits=time.waits,
        hosts=_list_hosts(run),
        tracks=time.tracks,
        source=run,
        engine=find_engine(run),
        endings=find_endings(run),
    )


def _analyse_hang(run: Run) -> RunAnalysis:
    """Return the analysis of flight-recorder dumps and logs, which have neither times nor memory."""
    from zprof.analysis.hang.find_hang import list_hang_gaps

    hang = _find_hang(run)
    return RunAnalysis(
        run=describe_run(run),
        training=run.manifest.training,
        time=Time(),
        memory=Memory(),
        volume=None,
        steps=Columns({}),
        collectives=Columns({}),
        gaps=(*run.gaps(), *list_hang_gaps(hang)),
        source=run,
        hang=hang,
    )


def _find_hang(run: Run) -> Hang | None:
    if not has_flight(run):
        return None
    from zprof.analysis.hang.find_hang import find_hang

    return find_hang(run)


def _list_hosts(run: Run) -> dict[int, str]:
    return {rank: manifest.host for rank, manifest in run.rank_manifests.items() if manifest.host}
