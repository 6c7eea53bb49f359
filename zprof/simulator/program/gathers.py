"""The gathers of stage 3 in a step: each unit's parameters, some phases ahead of their use."""

from collections.abc import Sequence

from zprof.simulator.knobs import Limiter
from zprof.simulator.plan import Plan
from zprof.simulator.program.instructions import (
    Begin,
    Copy,
    Direction,
    End,
    Instruction,
    Listing,
    Sync,
)
from zprof.simulator.program.kernels import split_kernel
from zprof.simulator.program.messages import gather_unit
from zprof.simulator.program.phases import Pass, Phase


class Gathers:
    """Launches the gathers in order, no further ahead than the plan allows."""

    def __init__(self, plan: Plan, phases: Sequence[Phase], out: Listing) -> None:
        self._plan = plan
        self._phases = [phase for phase in phases if phase.gathers]
        self._out = out
        self._launched = 0

    def needed(self, phase: Phase) -> bool:
        """Whether a phase's parameters must come from somewhere."""
        return phase.gathers and self._plan.shard_size > 1

    def launch(self, phase: Phase, ahead: int) -> None:
        """Launch the gather of this phase and of so many ahead, where they are not yet."""
        if not self.needed(phase):
            return
        own = self._phases.index(phase)
        until = min(own + ahead + 1, len(self._phases))
        while self._launched < until and not self._held(own, self._launched):
            self._launch(self._launched, ahead=self._launched > own)
            self._launched += 1

    def ready(self, phase: Phase) -> tuple[str, ...]:
        """What the first kernel of a phase waits for; what was gathered is copied into place before."""
        if not self.needed(phase):
            return ()
        if not self._plan.compute.copy_ns:
            return (phase.gather_key,)
        kernel = split_kernel(self._plan, phase)
        self._out.annotated(f"FSDP::all_gather_copy_out ({self._plan.unit_name(phase.unit)})", kernel)
        return ()

    def _held(self, own: int, position: int) -> bool:
        """Whether a pass that has not ended holds the unit: it is gathered again once it was dropped."""
        unit = self._phases[position].unit
        return any(phase.unit == unit for phase in self._phases[own:position])

    def _launch(self, position: int, *, ahead: bool) -> None:
        target = self._phases[position]
        after = self._limit(position)
        if self._plan.offload.enabled:
            self._out.add(self._fetch(target))
            after.append(f"fetch.{target.key}")
        unit = self._plan.unit_name(target.unit)
        gather: list[Instruction] = [
            Begin(name=f"FSDP::all_gather ({unit})"),
            gather_unit(self._plan, target, tuple(after)),
            End(name=f"FSDP::all_gather ({unit})"),
        ]
        if ahead:
            way = "forward" if target.kind is Pass.FORWARD else "backward"
            self._out.annotated(f"FSDP::{way}_prefetch for {unit}", *gather)
        else:
            self._out.add(*gather)

    def _limit(self, position: int) -> list[str]:
        """Keep memory bounded: what was gathered before must have been used."""
        after = ["optimizer"] if position == 0 else []
        freed = position - 1 - self._plan.prefetch
        if freed < 0:
            return after
        used, limiter = self._phases[freed].key, self._plan.gathering.limiter
        if limiter is Limiter.EVENT:
            after.append(used)
        if limiter is Limiter.HOST:
            self._out.annotated("FullyShardedDataParallel.rate_limiter", Sync(after=(used,)))
        return after

    def _fetch(self, phase: Phase) -> Copy:
        owned = self._plan.padded_unit_elements // self._plan.shard_size
        return Copy(
            key=f"fetch.{phase.key}",
            direction=Direction.TO_DEVICE,
            bytes=owned * self._plan.precision.gather.size_bytes,
            rate_bytes_per_s=self._plan.offload.pcie_bytes_per_s,
            unit=phase.unit,
        )
