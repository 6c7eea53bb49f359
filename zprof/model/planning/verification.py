"""A plan held against one rank of the same job that ran on tensors without memory."""

from dataclasses import dataclass

from zprof.model.gaps import Gap
from zprof.model.tenants import Tenant


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedTenant:
    """One tenant at the peak: by the plan and as it was counted.

    ``difference_ratio``: planned / verified - 1; None where either is not known, or nothing was counted.
    """

    tenant: Tenant
    planned_bytes: int | None
    verified_bytes: int
    difference_ratio: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedStage:
    """One stage of ZeRO (0: plain data parallelism).

    The tenants stand in the order in which they are shown, and what was counted sums to
    ``verified_peak_bytes``.  ``peak_at``: the phase of the step and the unit in which the peak was counted.
    ``difference_ratio``: planned / verified - 1, of the peak.
    """

    stage: int
    tenants: tuple[VerifiedTenant, ...]
    planned_peak_bytes: int | None
    verified_peak_bytes: int
    difference_ratio: float | None
    peak_at: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanVerification:
    """What ran, how, and how far the plan is off, by stage.

    ``ranks``: of the fake process group.  ``program``: what ran, in words; ``how``: the way it was counted.
    ``seconds``: how long that took, None where it shall not count (a stored answer).
    """

    ranks: int
    program: str
    how: str
    stages: tuple[VerifiedStage, ...]
    gaps: tuple[Gap, ...] = ()
    seconds: float | None = None
