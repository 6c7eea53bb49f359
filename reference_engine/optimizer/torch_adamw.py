"""AdamW by torch's fused kernel: on a CPU, and on a GPU where the engine's own kernel cannot be had.

The kernel wants weights and gradient of one type, and where it unscales it writes the gradient back.  So a
gradient of 16 bits, or one that has to be divided, is copied to fp32 first, piece by piece.
"""

from collections.abc import Sequence

import torch

from zprof.reference_engine.optimizer.update import AdamWNumbers, Shard, StepControl, control_with_skip

#: Elements whose squares are summed at a time: their float64 copy (2 MiB) stays in a CPU's cache.
NORM_PIECE_ELEMENTS = 2**18


class TorchAdamW:
    """See :class:`~zprof.reference_engine.optimizer.update.Update`."""

    #: A call is one kernel for each shard, and each unit's gather can start when its own is done.
    joins_units = False

    def __init__(self, piece_elements: int | None = None) -> None:
        """Copy at most ``piece_elements`` of a gradient at a time; None: a whole shard."""
        self._piece_elements = piece_elements

    def sum_of_squares(self, gradients: Sequence[torch.Tensor]) -> torch.Tensor:
        """Add the squares of all gradients; one float64 element, inf or nan where an element is.

        Squares and sum are float64: no finite gradient overflows it, and the largest fp32 number does not.
        """
        start = torch.zeros(1, dtype=torch.float64, device=gradients[0].device)
        return torch.cat([start, *(self._squares(gradient).reshape(1) for gradient in gradients)]).sum()

    def adamw(self, shards: Sequence[Shard], numbers: AdamWNumbers, control: StepControl | None) -> None:
        """Update shards in place.  No ``control`` means divisor 1 and no skipping."""
        for shard in shards:
            of_shard = control_with_skip(control, shard.skip)
            if of_shard is None and shard.gradient.dtype == torch.float32:
                _fused(shard, shard.gradient, slice(None), numbers, None)
            else:
                self._on_copies(shard, numbers, of_shard)
            if shard.low_precision is not None:
                shard.low_precision.copy_(shard.weights)

    def _squares(self, gradient: torch.Tensor) -> torch.Tensor:
        elements = min(self._piece_elements or NORM_PIECE_ELEMENTS, NORM_PIECE_ELEMENTS)
        parts = torch.split(gradient, elements)
        norms = [torch.linalg.vector_norm(part, dtype=torch.float64) for part in parts]
        return torch.stack(norms).square().sum()

    def _on_copies(self, shard: Shard, numbers: AdamWNumbers, control: StepControl | None) -> None:
        total = shard.gradient.numel()
        elements = self._piece_elements or max(total, 1)
        for start in range(0, total, elements):
            part = slice(start, min(start + elements, total))
            _fused(shard, shard.gradient[part].to(torch.float32, copy=True), part, numbers, control)


def _fused(
    shard: Shard, gradient: torch.Tensor, part: slice, numbers: AdamWNumbers, control: StepControl | None
) -> None:
    torch._fused_adamw_(
        [shard.weights[part]],
        [gradient],
        [shard.exp_avg[part]],
        [shard.exp_avg_sq[part]],
        [],
        [shard.step],
        lr=numbers.learning_rate,
        beta1=numbers.beta1,
        beta2=numbers.beta2,
        weight_decay=numbers.weight_decay,
        eps=numbers.eps,
        amsgrad=False,
        maximize=False,
        grad_scale=None if control is None else control.divisor,
        found_inf=None if control is None else control.found_inf,
    )
