"""Operators of a model's forward: what they allocate, what they save, and what their backward does.

A tape has one function per operator; the backward calls them in reverse, each with the gradient of its
output, which it drops, and each returns the gradient of its input.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

from benchmarks.snapshot_truth.codebase import Codebase
from benchmarks.snapshot_truth.device import Tensor, TracedDevice
from benchmarks.snapshot_truth.gradients import GradientSink
from benchmarks.snapshot_truth.parameters import SimulatedParameter
from zprof.model.tenants import Tenant

Backward = Callable[[Tensor], Tensor]
TEMPORARY = Tenant.TEMPORARY_BUFFERS
ACTIVATIONS = Tenant.ACTIVATIONS


class Operators:
    """One forward; ``tape`` is None without gradients.

    ``act_bytes`` is the size of an element of activations; weights of another size are cast, once per forward
    (autocast's cache).
    """

    def __init__(
        self, device: TracedDevice, code: Codebase, sink: GradientSink, *, act_bytes: int, has_workspace: bool
    ) -> None:
        self.device, self.code, self.act_bytes = device, code, act_bytes
        self.tape: list[Backward] | None = []
        self.has_autocast = False
        self._sink = sink
        self._casts: dict[SimulatedParameter, Tensor] = {}
        self._residuals: list[Tensor] = []
        self._workspaces: dict[str, Tensor] = {}
        self._has_workspace = has_workspace
        self._workspace_bytes = device.chance.choice((8_519_680, 4_194_304, 33_554_432))

    def temporary(self, elements: int, op: str, sub: str = "op_output", line: int | None = None) -> Tensor:
        """Allocate an output that nothing has saved yet."""
        return self.device.alloc(elements * self.act_bytes, TEMPORARY, sub, op, line=line)

    def save(self, *tensors: Tensor, sub: str = "saved") -> list[Tensor]:
        """Save tensors for the backward; nothing is saved without gradients."""
        if self.tape is None:
            return []
        for tensor in tensors:
            tensor.references += 1
            if tensor.lifetime.tenant == TEMPORARY:
                tensor.lifetime.tenant, tensor.lifetime.sub = ACTIVATIONS, sub
        return list(tensors)

    def save_extra(self, size: int, op: str, sub: str = "saved") -> list[Tensor]:
        """Allocate what only the backward uses (means, masks, states of generators)."""
        if self.tape is None:
            return []
        return [self.device.alloc(size, ACTIVATIONS, sub, op)]

    def drop(self, *tensors: Tensor) -> None:
        for tensor in tensors:
            self.device.drop(tensor)

    def push(self, backward: Backward) -> None:
        """Add the backward of an operator to the tape."""
        if self.tape is not None:
            self.tape.append(backward)

    def grad(self, incoming: Tensor, elements: int, op: str) -> Tensor:
        """Return the gradient of an input in place of that of the output."""
        outgoing = self.device.alloc(elements * self.act_bytes, TEMPORARY, "act_grad", op)
        self.device.drop(incoming)
        return outgoing

    def linear(
        self, x: Tensor, weight: SimulatedParameter, bias: SimulatedParameter | None, tokens: int,
        *, called: AbstractContextManager[None] | None = None,
    ) -> Tensor:  # fmt: skip
        """Apply a linear layer."""
        wide, deep = weight.shape.shape
        with called or self.device.call(*self.code.leaf("linear")):
            cast = [self._cast(each) for each in (weight, bias) if each is not None]
            self._use_workspace("main")
            workspace = None
            if bias is not None and self._has_workspace:
                workspace = self.device.alloc(1 << 20, TEMPORARY, "op_workspace", "cublaslt_workspace")
            out = self.temporary(tokens * wide, "addmm" if bias is not None else "mm")
            if workspace is not None:
                self.device.drop(workspace)
        saved = self.save(
            *([x] if weight.is_trained else []), *[each for each in cast[:1] if each is not None]
        )

        def backward(incoming: Tensor) -> Tensor:
            self._use_workspace("engine")
            outgoing = self.device.alloc(tokens * deep * self.act_bytes, TEMPORARY, "act_grad", "mm")
            self._deliver(weight, "mm")
            self._deliver(bias, "sum")
            self.drop(*saved, incoming)
            return outgoing

        self.push(backward)
        return out

    def norm(self, x: Tensor, parameters: Sequence[SimulatedParameter], tokens: int, hidden: int) -> Tensor:
        """Apply a layer norm or RMS norm; the statistics are in fp32."""
        with self.device.call(*self.code.leaf("norm")):
            if self.code.has_own_layers:
                square = self.temporary(tokens * hidden, "pow", line=55)
                statistics = self.save_extra(tokens * 4, "mean")
                scaled = self.temporary(tokens * hidden, "mul", line=57)
                self.drop(square)
                out = self.temporary(tokens * hidden, "mul", line=58)
                saved = self.save(x, scaled) + statistics
                self.drop(scaled)
            else:
                out = self.temporary(tokens * hidden, "native_layer_norm")
                each_statistic = [self.save_extra(tokens * 4, "native_layer_norm") for _ in parameters]
                saved = self.save(x) + [each for some in each_statistic for each in some]

        def backward(incoming: Tensor) -> Tensor:
            written = self.code.norm_backward if self.code.has_own_layers else ()
            with self.device.call(*written):
                outgoing = self.grad(incoming, tokens * hidden, "native_layer_norm_backward")
                grads = [self._make_grad(each, "native_layer_norm_backward") for each in parameters]
            for parameter, grad in zip(parameters, grads, strict=True):
                self._accumulate(parameter, grad)
            self.drop(*saved)
            return outgoing

        self.push(backward)
        return out

    def pointwise(self, x: Tensor, elements: int, op: str, *, saves: Sequence[Tensor] = ()) -> Tensor:
        """Apply an elementwise function that saves its inputs; drops ``x``."""
        out = self.temporary(elements, op)
        saved = self.save(x, *saves)
        self.device.drop(x)

        def backward(incoming: Tensor) -> Tensor:
            outgoing = self.grad(incoming, elements, f"{op}_backward")
            self.drop(*saved)
            return outgoing

        self.push(backward)
        return out

    def dropout(self, x: Tensor, elements: int) -> Tensor:
        """Apply dropout, which saves a mask of one byte per element; drops ``x``."""
        with self.device.call(*self.code.leaf("dropout")):
            out = self.temporary(elements, "native_dropout")
            saved = self.save_extra(elements, "native_dropout", "dropout_mask")
            if self.tape is None:
                self.device.drop(self.device.alloc(elements, TEMPORARY, "dropout_mask", "native_dropout"))
        self.device.drop(x)

        def backward(incoming: Tensor) -> Tensor:
            outgoing = self.grad(incoming, elements, "native_dropout_backward")
            self.drop(*saved)
            return outgoing

        self.push(backward)
        return out

    def branch(self) -> None:
        """Mark where a residual branch leaves: its gradient is added here in the backward."""

        def backward(incoming: Tensor) -> Tensor:
            other = self._residuals.pop()
            if other.references == 1:
                self.device.drop(incoming)
                return other
            total = self.device.alloc(other.bytes, TEMPORARY, "act_grad", "accumulate_input")
            self.drop(incoming, other)
            return total

        self.push(backward)

    def add_residual(self, x: Tensor, branch: Tensor, elements: int) -> Tensor:
        """Add a branch to the residual stream; drops both."""
        out = self.temporary(elements, "add")
        self.drop(branch, x)

        def backward(incoming: Tensor) -> Tensor:
            incoming.references += 1
            self._residuals.append(incoming)
            return incoming

        self.push(backward)
        return out

    def embedding(self, ids: Tensor, weight: SimulatedParameter, tokens: int) -> Tensor:
        """Look up rows of a table."""
        hidden = weight.shape.shape[1]
        with self.device.call(*self.code.leaf("embedding")):
            out = self.device.alloc(
                tokens * hidden * (weight.element_bytes if self.has_autocast else self.act_bytes),
                TEMPORARY, "op_output", "embedding",
            )  # fmt: skip
        saved = self.save(ids, sub="input") if weight.is_trained else []

        def backward(incoming: Tensor) -> Tensor:
            if weight.is_trained:
                scratch = self.device.alloc(tokens * 8, TEMPORARY, "op_workspace", "embedding_dense_backward")
                self._deliver(weight, "embedding_dense_backward", weight.element_bytes)
                self.device.drop(scratch)
            self.drop(*saved)
            return incoming

        self.push(backward)
        return out

    def end_autocast(self) -> None:
        """Drop the cache of casts."""
        self.drop(*self._casts.values())
        self._casts = {}

    def run_backward(self, incoming: Tensor) -> None:
        """Run the tape in reverse, and drop the last gradient."""
        for function in reversed(self.tape or []):
            incoming = function(incoming)
        self.device.drop(incoming)
        self.tape = []

    def _deliver(
        self, parameter: SimulatedParameter | None, op: str, element_bytes: int | None = None
    ) -> None:
        self._accumulate(parameter, self._make_grad(parameter, op, element_bytes))

    def _make_grad(
        self, parameter: SimulatedParameter | None, op: str, element_bytes: int | None = None
    ) -> Tensor | None:
        if parameter is None or not parameter.is_trained:
            return None
        size = parameter.numel * (element_bytes or self._grad_element_bytes(parameter))
        return self.device.alloc(size, TEMPORARY, "grad_temporary", op)

    def _accumulate(self, parameter: SimulatedParameter | None, grad: Tensor | None) -> None:
        if parameter is not None and grad is not None:
            self._sink.deliver(parameter, grad)

    def _grad_element_bytes(self, parameter: SimulatedParameter) -> int:
        return (
            self.act_bytes
            if self.has_autocast and parameter.shape.module == "linear"
            else parameter.element_bytes
        )

    def _cast(self, parameter: SimulatedParameter) -> Tensor | None:
        if not self.has_autocast or parameter.element_bytes == self.act_bytes:
            return None
        known = self._casts.get(parameter)
        if known is None:
            size = parameter.numel * self.act_bytes
            known = self._casts[parameter] = self.device.alloc(size, TEMPORARY, "cast", "_to_copy")
        return known

    def _use_workspace(self, thread: str) -> None:
        if self._has_workspace and thread not in self._workspaces:
            size = self._workspace_bytes
            self._workspaces[thread] = self.device.alloc(size, TEMPORARY, "workspace", "cublas_workspace")

    def no_grad(self) -> AbstractContextManager[None]:
        """Run without a tape."""
        return _NoGrad(self) if self.tape is not None else nullcontext()


class _NoGrad(AbstractContextManager[None]):
    def __init__(self, operators: Operators) -> None:
        self._operators, self._tape = operators, operators.tape

    def __enter__(self) -> None:
        self._operators.tape = None

    def __exit__(self, *error: object) -> None:
        self._operators.tape = self._tape
