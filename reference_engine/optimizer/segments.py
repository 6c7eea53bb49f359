"""Parts of a shard that have one step count: parameters whose count is their own are parts by themselves.

A unit has one step count, and is one part, as long as each of its parameters has a gradient on this rank in
every step.  From the first step in which one has none, it has a count of its own (4 bytes), which steps
without a gradient on any rank do not advance.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from zprof.reference_engine.gradients.unit_gradients import UnitGradients
from zprof.reference_engine.optimizer.update import StepControl, control_with_skip
from zprof.reference_engine.units.flat_unit import FlatUnit

_OWN_STEP = "step."


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A part of what this rank owns of a unit.

    ``own``      whether ``step`` counts for this part alone
    ``lacking``  1.0 if no rank had a gradient in this step, else 0.0; None: this rank had one
    """

    part: slice
    step: torch.Tensor
    own: bool = False
    lacking: torch.Tensor | None = None

    def control(self, of_all: StepControl | None) -> StepControl | None:
        """Return what the step does with this part: without a gradient, nothing."""
        return control_with_skip(of_all, self.lacking)


def split_shard(unit: FlatUnit, gradients: UnitGradients, state: dict[str, Any]) -> list[Segment]:
    """Cut this rank's part of a unit, when its gradients are reduced; may add step counts to ``state``."""
    elements = unit.owned_range.stop - unit.owned_range.start
    lacking = {}
    for index in gradients.presence.lacking_here():
        part = _owned_part(unit, index)
        if part is not None:
            lacking[index] = gradients.presence.lacking_everywhere(index, gradients.owned[part.start])
            state.setdefault(_OWN_STEP + unit.layout.slots[index].name, state["step"].clone())
    segments = []
    done = 0
    for index in _with_own_step(unit, state):
        part = _owned_part(unit, index)
        if part is None:
            continue
        if done < part.start:
            segments.append(Segment(part=slice(done, part.start), step=state["step"]))
        step = state[_OWN_STEP + unit.layout.slots[index].name]
        segments.append(Segment(part=part, step=step, own=True, lacking=lacking.get(index)))
        done = part.stop
    if done < elements:
        segments.append(Segment(part=slice(done, elements), step=state["step"]))
    return segments


def own_steps(unit: FlatUnit, state: Mapping[str, Any]) -> dict[str, int]:
    """Return step counts of parameters that differ from the unit's (waits for the device)."""
    common = int(state["step"])
    found = {
        unit.layout.slots[index].name: int(state[_OWN_STEP + unit.layout.slots[index].name])
        for index in _with_own_step(unit, state)
    }
    return {name: count for name, count in found.items() if count != common}


def set_steps(unit: FlatUnit, state: dict[str, Any], common: int, own: Mapping[str, int]) -> None:
    """Set the unit's count, and those of parameters whose count differs from it; the inverse of own_steps."""
    state["step"].fill_(common)
    for key in [key for key in state if key.startswith(_OWN_STEP)]:
        del state[key]
    for index, slot in enumerate(unit.layout.slots):
        if slot.name in own and _owned_part(unit, index) is not None:
            state[_OWN_STEP + slot.name] = torch.full_like(state["step"], own[slot.name])


def _with_own_step(unit: FlatUnit, state: Mapping[str, Any]) -> list[int]:
    if not any(key.startswith(_OWN_STEP) for key in state):
        return []
    return [index for index, slot in enumerate(unit.layout.slots) if _OWN_STEP + slot.name in state]


def _owned_part(unit: FlatUnit, index: int) -> slice | None:
    """Where a parameter lies in what this rank owns; None: nowhere."""
    owned, slot = unit.owned_range, unit.layout.slots[index]
    first, last = max(slot.offset, owned.start), min(slot.offset + slot.numel, owned.stop)
    return slice(first - owned.start, last - owned.start) if first < last else None
