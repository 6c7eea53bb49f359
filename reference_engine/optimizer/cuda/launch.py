"""The update by the engine's own CUDA kernel: 28 bytes a parameter with 16-bit gradients and parameters.

One kernel reads g, w, m, v and writes w, m, v and the low-precision copy; a second one, for the norm, reads g
once (2 bytes).  Nothing here waits for the GPU.
"""

import torch

from zprof.reference_engine.optimizer.cuda.runtime import THREADS, CudaRuntime, Runtime
from zprof.reference_engine.optimizer.update import AdamWNumbers, Shard, StepControl

#: Elements that a thread takes at a time: what ``PACK`` says in the source.
PACK = 8
#: Of the first pass of a sum.  A constant, so that the order of the sum is the same on every GPU.
MAX_PARTIALS = 1024

_TYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}
_STATE_TYPES = {torch.float32: "float32"}
_LOW_TYPES = {torch.bfloat16: "bfloat16", torch.float16: "float16"}


class CudaAdamW:
    """See :class:`~zprof.reference_engine.optimizer.update.Update`.

    Raises:
        KernelError: the kernels cannot be compiled or loaded for the device.
    """

    def __init__(self, device: torch.device, runtime: Runtime | None = None) -> None:
        """``runtime`` stands in for the GPU; None: ``device`` itself."""
        if device.type == "cuda" and device.index is None:
            device = torch.device("cuda", torch.cuda.current_device())
        self._device = device
        self._runtime = CudaRuntime(device) if runtime is None else runtime
        self._resident: dict[str, int] = {}

    def sum_of_squares(self, gradient: torch.Tensor) -> torch.Tensor:
        """Of a gradient of any supported type, in one float64 element; inf or nan where an element is.

        Squares and sum are float64, in an order that depends on length and alignment only.
        """
        kernel = f"sum_of_squares_{_name(gradient, _TYPES, 'gradient')}"
        self._check(gradient, "gradient", gradient.numel())
        blocks = min(_blocks_of(gradient.numel()), MAX_PARTIALS)
        partials = torch.empty(blocks, dtype=torch.float64, device=self._device)
        result = torch.empty((), dtype=torch.float64, device=self._device)
        self._runtime.launch(kernel, blocks, gradient.data_ptr(), gradient.numel(), partials.data_ptr())
        self._runtime.launch("sum_partials", 1, partials.data_ptr(), blocks, result.data_ptr())
        return result

    def adamw(self, shard: Shard, numbers: AdamWNumbers, control: StepControl | None) -> None:
        """Update a shard in place.  No ``control`` means divisor 1 and no skipping."""
        kernel = self._kernel_for(shard)
        if control is not None:
            self._check_scalar(control.divisor, "divisor")
            self._check_scalar(control.found_inf, "found_inf")
        elements = shard.weights.numel()
        if elements == 0:
            return
        self._runtime.launch(
            kernel,
            min(_blocks_of(elements), self._resident_blocks(kernel)),
            shard.weights.data_ptr(),
            shard.gradient.data_ptr(),
            shard.exp_avg.data_ptr(),
            shard.exp_avg_sq.data_ptr(),
            0 if shard.low_precision is None else shard.low_precision.data_ptr(),
            elements,
            float(numbers.learning_rate),
            float(numbers.beta1),
            float(numbers.beta2),
            float(numbers.eps),
            float(numbers.weight_decay),
            0 if control is None else control.divisor.data_ptr(),
            0 if control is None else control.found_inf.data_ptr(),
            shard.step.data_ptr(),
        )

    def _kernel_for(self, shard: Shard) -> str:
        elements = shard.weights.numel()
        for name in ("weights", "gradient", "exp_avg", "exp_avg_sq"):
            self._check(getattr(shard, name), name, elements)
        for name in ("weights", "exp_avg", "exp_avg_sq"):
            _name(getattr(shard, name), _STATE_TYPES, name)
        self._check_scalar(shard.step, "step")
        low = "none"
        if shard.low_precision is not None:
            self._check(shard.low_precision, "low_precision", elements)
            low = _name(shard.low_precision, _LOW_TYPES, "low_precision")
        return f"adamw_{_name(shard.gradient, _TYPES, 'gradient')}_{low}"

    def _check(self, tensor: torch.Tensor, name: str, elements: int) -> None:
        """The kernel sees bare pointers: anything else than this would read or write beyond them."""
        if tensor.device != self._device or tensor.numel() != elements or not tensor.is_contiguous():
            found = f"{tensor.numel()} elements on {tensor.device}, strides {tensor.stride()}"
            raise ValueError(f"{name} is {found}; it must be {elements} contiguous ones on {self._device}")

    def _check_scalar(self, tensor: torch.Tensor, name: str) -> None:
        self._check(tensor, name, 1)
        _name(tensor, _STATE_TYPES, name)

    def _resident_blocks(self, kernel: str) -> int:
        if kernel not in self._resident:
            self._resident[kernel] = self._runtime.resident_blocks(kernel)
        return self._resident[kernel]


def _blocks_of(elements: int) -> int:
    return max(1, -(-elements // (THREADS * PACK)))


def _name(tensor: torch.Tensor, names: dict[torch.dtype, str], what: str) -> str:
    if tensor.dtype not in names:
        allowed = ", ".join(str(dtype) for dtype in names)
        raise ValueError(f"{what} is {tensor.dtype}; the CUDA kernel takes {allowed}")
    return names[tensor.dtype]
