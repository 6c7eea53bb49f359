"""Find 16-bit parameters that were edited through ``.data``, which does not bump their version counters.

The next step would overwrite such an edit with the rounded fp32 master weights.
"""

from collections.abc import Sequence

import torch

from zprof.reference_engine.flat_unit import FlatUnit

#: Elements compared of each parameter, about: an edit of half of them at random is missed once in 2^32.
SAMPLE_ELEMENTS = 32


def make_edit_sample(units: Sequence[FlatUnit]) -> "EditSample | None":
    """Choose the elements; None if there are none, as in fp32 and in stage 3, which releases parameters.

    Fake tensors, with which a plan is verified, have no values to compare.
    """
    at_rest = [
        unit
        for unit in units
        if unit.low_precision is not None
        and not unit.policy.shard_parameters
        and type(unit.low_precision) is torch.Tensor
    ]
    return EditSample(at_rest) if at_rest else None


class EditSample:
    """Compares a sample of the 16-bit parameters with their master weights, before each training forward.

    Parameters are their rounded master weights until somebody edits them, so that one differing element is an
    edit.  The sample is about 32 evenly spaced elements of each parameter, as views that need no memory: an
    edit of an entire parameter is found, one of a few elements is usually missed.

    On a GPU the host does not wait for the comparison when it is launched, but at the end of the step.  All
    that the device waits for then, this step's forward and backward, has been launched by that time.
    """

    def __init__(self, units: Sequence[FlatUnit]) -> None:
        self._samples = [
            (unit, _sample_parameters(unit, weights.detach()), _sample_parameters(unit, low_precision))
            for unit in units
            if (weights := unit.weights) is not None and (low_precision := unit.low_precision) is not None
        ]
        self._differs: torch.Tensor | bool = False
        self._copied: torch.cuda.Event | None = None

    @torch.no_grad()
    def compare(self) -> None:
        """Compare the sample; on a GPU only launch the comparison.

        Units whose all-gather is in flight are left out: whoever takes a parameter's ``.data`` waits for it.
        """
        at_rest = [sample for sample in self._samples if not sample[0].is_in_flight]
        weights = [view for _, views, _ in at_rest for view in views]
        stored = [view for _, _, views in at_rest for view in views]
        if not weights:
            return
        rounded = torch.cat(weights).to(stored[0].dtype)
        differs = (rounded != torch.cat(stored)).any()
        if differs.device.type == "cpu":
            self._differs = bool(differs)
            return
        self._differs = differs.to("cpu", non_blocking=True)
        self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._copied.record()

    def take_result(self) -> bool:
        """Return True once if the last comparison found a difference."""
        if self._copied is not None:
            self._copied.synchronize()
            self._copied = None
        differs, self._differs = bool(self._differs), False
        return differs


def _sample_parameters(unit: FlatUnit, owned: torch.Tensor) -> list[torch.Tensor]:
    """Return a view of about 32 elements of each parameter; ``owned`` is the unit's ``owned_range``.

    The stride is odd, so that the sample of a matrix is not one of its columns.
    """
    parts = [unit.find_owned_part(index) for index in range(len(unit.layout.slots))]
    values = [owned[part] for part in parts if part is not None]
    return [part[:: (part.numel() // SAMPLE_ELEMENTS) | 1] for part in values]
