"""What a program does between two backward passes: it clips, updates the parameters, and drops gradients."""

from collections.abc import Sequence
from contextlib import AbstractContextManager

from benchmarks.snapshot_truth.codebase import Codebase
from benchmarks.snapshot_truth.device import Tensor, TracedDevice
from benchmarks.snapshot_truth.frames import TORCH, PythonFrame
from benchmarks.snapshot_truth.optimizers import TEMPORARY, WRAPPER, OptimizerRule, StateStore
from benchmarks.snapshot_truth.parameters import SimulatedParameter
from benchmarks.snapshot_truth.variants import ProgramOptions
from zprof.model.tenants import Tenant

_CLIP = (
    PythonFrame(f"{TORCH}nn/utils/clip_grad.py", 43, "_no_grad_wrapper"),
    PythonFrame(f"{TORCH}nn/utils/clip_grad.py", 218, "clip_grad_norm_"),
    PythonFrame(f"{TORCH}nn/utils/clip_grad.py", 95, "_get_total_norm"),
)


class ParameterUpdate:
    """The optimizer of a program. ``masters`` are updated in place of ``trained`` if there are any."""

    def __init__(
        self,
        options: ProgramOptions,
        code: Codebase,
        device: TracedDevice,
        rule: OptimizerRule,
        *,
        state: StateStore,
        trained: Sequence[SimulatedParameter],
        masters: Sequence[SimulatedParameter],
    ) -> None:
        self._options, self._code, self._device, self._rule = options, code, device, rule
        self._state, self._trained, self._masters = state, trained, masters

    def step(self) -> None:
        """Clip the gradients, and update the parameters; on the host if they are offloaded."""
        options, device, rule = self._options, self._device, self._rule
        if options.is_offloaded:
            return
        if options.clips:
            self._clip()
        updated = self._masters or [each for each in self._trained if each.grad is not None]
        grads: list[Tensor] = []
        if options.masters == "user" and not options.main_grad:
            with device.call(PythonFrame(self._code.own_module("mixed_precision.py"), 61, "step")):
                grads = [
                    device.alloc(each.numel * 4, Tenant.GRADIENTS, "master_grad", "_to_copy")
                    for each in updated
                ]
        with self._annotate("step"), device.call(WRAPPER, *rule.frames):
            rule.update(self._state, updated)
        for each in grads:
            device.drop(each)
        if options.has_ema:
            with device.call(PythonFrame(self._code.own_file, 140, "update_ema")):
                for parameter in self._trained:
                    device.drop(device.alloc(parameter.bytes, TEMPORARY, "optimizer_temp", "mul"))

    def _clip(self) -> None:
        device = self._device
        with device.call(*_CLIP):
            norms = [device.alloc(4, TEMPORARY, "clip", "_foreach_norm") for _ in self._list_gradients()]
            total = device.alloc(4 * max(1, len(norms)), TEMPORARY, "clip", "stack")
        for each in (*norms, total):
            device.drop(each)

    def zero_grad(self) -> None:
        """Drop the gradients, or keep them and fill them with zeros."""
        with self._annotate("zero_grad"):
            if self._options.sets_to_none and not self._options.main_grad:
                self.drop_gradients()

    def drop_gradients(self) -> None:
        """Drop the gradients of all parameters."""
        for parameter in self._list_gradients():
            assert parameter.grad is not None
            self._device.drop(parameter.grad)
            parameter.grad = None

    def _list_gradients(self) -> list[SimulatedParameter]:
        return [each for each in self._trained if each.grad is not None]

    def _annotate(self, function: str) -> AbstractContextManager[None]:
        return self._device.annotation(f"Optimizer.{function}#{self._rule.class_name}.{function}")
