"""Define the slowdown of a pipeline-parallel job: its replayed step over its ideal step, and who explains it.

The definitions are those of "Understanding Stragglers in Large Model Training Using What-if Analysis" (OSDI
2025). A timeline is replayed with its own durations (the replayed step), and with one duration per type of
operation (the ideal step).
"""

from collections.abc import Mapping
from enum import StrEnum

from msgspec import Struct

#: A job with at least this slowdown suffers from stragglers, and a part of the job that explains at least
#: this share of the lost time is its cause.
MIN_SLOWDOWN, MIN_SHARE = 1.1, 0.5


class SlowdownCause(StrEnum):
    """What explains most of a slowdown."""

    LAST_STAGE = "last_stage"
    SLOW_WORKERS = "slow_workers"
    OPERATION = "operation"
    NONE = "none"


class PipelineWorker(Struct, frozen=True, kw_only=True):
    """A worker of the job: one pipeline stage of one replica; ``rank`` is its first global rank."""

    rank: int
    dp_rank: int
    stage: int


class Slowdown(Struct, frozen=True, kw_only=True):
    """Slowdown of the steps of a timeline, means over its steps.

    ``s``: replayed step / ideal step. ``by_operation``: S_t, the step in which only operations of this type
    keep their own durations / ideal step. ``by_dp_rank`` and ``by_stage``: the same for the operations of a
    replica and of a stage. ``by_worker``: S_w by global rank, the smaller of the values of its replica and
    its stage. ``m_w``: share of the lost time that is gained if the slowest 3 % of the workers
    (``slowest_ranks``) are ideal; ``m_s``: the same for the last stage. Both are None if no time is lost;
    they are below 0 or above 1 if the change costs time, or gains more than was lost. The recorded step also
    has the delays between operations that the replay leaves out.
    """

    s: float
    by_operation: Mapping[str, float]
    by_dp_rank: Mapping[int, float]
    by_stage: Mapping[int, float]
    by_worker: Mapping[int, float]
    m_s: float | None
    m_w: float | None
    slowest_ranks: tuple[int, ...]
    workers: tuple[PipelineWorker, ...]
    recorded_step_ns: int
    replayed_step_ns: int
    ideal_step_ns: int
    steps: int
    micro_batches: int

    @property
    def cause(self) -> SlowdownCause:
        """Return what explains most of the slowdown.

        A few slow workers come before the last stage, which may be slow because they are in it. Without
        replicas a slow worker is a slow stage.
        """
        if self.s < MIN_SLOWDOWN:
            return SlowdownCause.NONE
        is_of_workers, is_of_stage = ((share or 0.0) >= MIN_SHARE for share in (self.m_w, self.m_s))
        if is_of_workers and not (is_of_stage and len(self.by_dp_rank) == 1):
            return SlowdownCause.SLOW_WORKERS
        return SlowdownCause.LAST_STAGE if is_of_stage else SlowdownCause.OPERATION

    def share(self, slowdown: float) -> float | None:
        """Return the share of the lost time that a part with this slowdown explains alone; None without
        lost time.
        """
        return (slowdown - 1) / (self.s - 1) if self.s > 1 else None
