"""Launch the engine's CUDA kernels: AdamW, and the sum of squares for the norm.

AdamW moves 28 bytes per parameter with 16-bit gradients and parameters.  One launch updates all shards of a
call that have the same dtypes; the host never waits for the GPU.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Any, Protocol

import torch

from zprof.reference_engine.optimizer.adamw import AdamWHyperparameters, Shard, StepControl
from zprof.reference_engine.optimizer.cuda.compilation import (
    KernelError,
    get_cache_folder,
    load_cubin,
    read_first_line,
)

#: Threads per block of every kernel; must equal ``THREADS`` in the source.
THREADS = 256

#: Elements that a thread processes per tile; must equal ``PACKS`` x ``PACK`` in the source.
THREAD_ELEMENTS = 2 * 4
#: Squares that a thread adds in fp32, with a relative error of at most 2^-17.  A constant, so that the order
#: of summation is the same on every GPU.
MAX_SQUARES = 128
#: Tiles that a block sums: each is ``THREAD_ELEMENTS`` squares per thread, plus one in the first tile of an
#: array for an element outside of the packs.
MAX_SUM_TILES = MAX_SQUARES // (THREAD_ELEMENTS + 1)
#: Size of the table cache.  An optimizer needs one table per list of shards that it updates together, and one
#: for the norm.
MAX_TABLES = 1024

_TYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}
_STATE_TYPES = {torch.float32: "float32"}
_LOW_TYPES = {torch.bfloat16: "bfloat16", torch.float16: "float16"}

#: Pointers and length of an array, in the order of ``Shard`` and ``GradientPart`` in the source.
_Row = tuple[int, ...]


class Runtime(Protocol):
    """Launches kernels by name.  Arguments: ``int`` for a pointer or a 64-bit count, ``float`` for a double.

    ``threads``  threads per block
    """

    threads: int

    def stream(self) -> int:
        """Return the handle of torch's current stream."""

    def resident_blocks(self, kernel: str) -> int:
        """Return the number of blocks that can be resident on the device at the same time."""

    def launch(self, kernel: str, blocks: int, *arguments: int | float) -> None:
        """Launch asynchronously on torch's current stream."""


class CudaRuntime:
    """Launches kernels on a CUDA device; see :class:`Runtime`.

    Raises:
        KernelError: the kernels cannot be compiled or loaded for the device.
    """

    threads = THREADS

    def __init__(self, device: torch.device) -> None:
        """Compile the kernels for ``device``, or load them from the cache."""
        from cuda.core import Device, ObjectCode

        self._device = device
        major, minor = torch.cuda.get_device_capability(device)
        code = load_cubin(f"sm_{major}{minor}", get_cache_folder())
        self._processors = torch.cuda.get_device_properties(device).multi_processor_count
        self._kernels: dict[str, Any] = {}
        with torch.cuda.device(device):
            self._cuda_device = Device(device.index)
            self._cuda_device.set_current()
            try:
                self._code = ObjectCode.from_cubin(code, name="adamw")
            except Exception as error:  # cuda.core's error types
                raise KernelError(
                    f"the kernel cannot be loaded on {device}: {read_first_line(error)}"
                ) from error

    def stream(self) -> int:
        """Return the handle of torch's current stream."""
        return int(torch.cuda.current_stream(self._device).cuda_stream)

    def resident_blocks(self, kernel: str) -> int:
        """Return the number of resident blocks, so that a launch runs in a single wave."""
        with torch.cuda.device(self._device):
            self._cuda_device.set_current()
            occupancy = self._kernel(kernel).occupancy
            return int(occupancy.max_active_blocks_per_multiprocessor(THREADS, 0)) * self._processors

    def launch(self, kernel: str, blocks: int, *arguments: int | float) -> None:
        """Launch asynchronously on torch's current stream."""
        from cuda.core import LaunchConfig, launch

        with torch.cuda.device(self._device):
            self._cuda_device.set_current()  # a thread without earlier CUDA calls has no context
            stream = TorchStreamAdapter(torch.cuda.current_stream(self._device))
            launch(stream, LaunchConfig(grid=blocks, block=THREADS), self._kernel(kernel), *arguments)

    def _kernel(self, name: str) -> Any:
        if name not in self._kernels:
            try:
                self._kernels[name] = self._code.get_kernel(name)
            except Exception as error:  # cuda.core's error types
                raise KernelError(
                    f"kernel {name} cannot be loaded on {self._device}: {read_first_line(error)}"
                ) from error
        return self._kernels[name]


class TorchStreamAdapter:
    """A torch stream with ``__cuda_stream__``, the protocol by which CUDA libraries exchange streams."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        """Wrap the stream, which torch keeps alive."""
        self._stream = stream

    def __cuda_stream__(self) -> tuple[int, int]:
        """Return the protocol version and the ``cudaStream_t``."""
        return 0, self._stream.cuda_stream


@dataclass(frozen=True, slots=True, kw_only=True)
class _Table:
    """Work list of one launch in device memory: rows, and the first row of each block."""

    rows: tuple[_Row, ...]
    stream: int
    memory: torch.Tensor
    tiles: int
    blocks: int

    @property
    def arguments(self) -> tuple[int, int, int]:
        """The first kernel arguments: rows, first row of each block, number of tiles."""
        start = self.memory.data_ptr()
        return start, start + (self.memory.numel() - self.blocks) * self.memory.element_size(), self.tiles


class CudaAdamW:
    """The engine's CUDA AdamW; see :class:`~zprof.reference_engine.optimizer.adamw.Update`.

    Caches a table per list of shards (80 bytes per shard, 8 per block) and rebuilds it when the list changes.

    Raises:
        KernelError: the kernels cannot be compiled or loaded for the device.
    """

    joins_units = True

    def __init__(self, device: torch.device, runtime: Runtime | None = None) -> None:
        """Run on ``device``; tests pass a ``runtime`` that replaces the GPU."""
        if device.type == "cuda" and device.index is None:
            device = torch.device("cuda", torch.cuda.current_device())
        self._device = device
        self._runtime = CudaRuntime(device) if runtime is None else runtime
        self._resident: dict[str, int] = {}
        self._tables: dict[tuple[str, int], _Table] = {}

    def sum_of_squares(self, gradients: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the sum of squares of all gradients as one float64 element; inf or nan if one is.

        A thread adds at most ``MAX_SQUARES`` in fp32.  All other sums are float64, in an order that depends
        only on lengths and alignments.
        """
        rows: dict[str, list[_Row]] = {}
        for gradient in gradients:
            kernel = f"sum_of_squares_{_get_type_name(gradient, _TYPES, 'gradient')}"
            self._check(gradient, "gradient", gradient.numel())
            if gradient.numel() > 0:
                rows.setdefault(kernel, []).append((gradient.data_ptr(), gradient.numel()))
        if not rows:
            return torch.zeros((), dtype=torch.float64, device=self._device)
        # Gradients often have other addresses in the next step: keep only one table per dtype.
        tables = {kernel: self._get_table((kernel, 0), kernel_rows) for kernel, kernel_rows in rows.items()}
        blocks = sum(table.blocks for table in tables.values())
        partials = torch.empty(blocks, dtype=torch.float64, device=self._device)
        result = torch.empty((), dtype=torch.float64, device=self._device)
        first_block = 0
        for kernel, table in tables.items():
            self._runtime.launch(kernel, table.blocks, *table.arguments, partials[first_block:].data_ptr())
            first_block += table.blocks
        self._runtime.launch("sum_partials", 1, partials.data_ptr(), blocks, result.data_ptr())
        return result

    def adamw(
        self, shards: Sequence[Shard], hyperparameters: AdamWHyperparameters, control: StepControl | None
    ) -> None:
        """Update shards in place.  Without ``control`` the divisor is 1 and nothing is skipped."""
        if control is not None:
            self._check_scalar(control.divisor, "divisor")
            self._check_scalar(control.found_inf, "found_inf")
        rows: dict[str, list[_Row]] = {}
        for shard in shards:
            kernel = self._select_kernel(shard)
            if shard.weights.numel() > 0:
                rows.setdefault(kernel, []).append(
                    (
                        shard.weights.data_ptr(),
                        shard.gradient.data_ptr(),
                        shard.exp_avg.data_ptr(),
                        shard.exp_avg_sq.data_ptr(),
                        0 if shard.low_precision is None else shard.low_precision.data_ptr(),
                        shard.step.data_ptr(),
                        0 if shard.skip is None else shard.skip.data_ptr(),
                        shard.weights.numel(),
                    )
                )
        for kernel, kernel_rows in rows.items():
            # Weights never move, so the first pointer identifies a list of shards.
            if kernel not in self._resident:
                self._resident[kernel] = self._runtime.resident_blocks(kernel)
            table = self._get_table((kernel, kernel_rows[0][0]), kernel_rows, self._resident[kernel])
            self._runtime.launch(
                kernel,
                table.blocks,
                *table.arguments,
                float(hyperparameters.learning_rate),
                float(hyperparameters.beta1),
                float(hyperparameters.beta2),
                float(hyperparameters.eps),
                float(hyperparameters.weight_decay),
                0 if control is None else control.divisor.data_ptr(),
                0 if control is None else control.found_inf.data_ptr(),
            )

    def _get_table(self, key: tuple[str, int], rows: Sequence[_Row], max_blocks: int | None = None) -> _Table:
        """Return the table of ``rows``, rebuilt if they changed; without ``max_blocks`` it is for a sum."""
        new_rows, stream = tuple(rows), self._runtime.stream()
        table = self._tables.get(key)
        if table is None or table.rows != new_rows or table.stream != stream:
            if len(self._tables) >= MAX_TABLES:
                self._tables.clear()
            table = self._tables[key] = self._make_table(new_rows, stream, max_blocks)
        return table

    def _make_table(self, rows: tuple[_Row, ...], stream: int, max_blocks: int | None) -> _Table:
        tile = self._runtime.threads * THREAD_ELEMENTS
        ends = list(accumulate(-(-row[-1] // tile) for row in rows))
        firsts, tiles = [0, *ends[:-1]], ends[-1]
        blocks = -(-tiles // MAX_SUM_TILES) if max_blocks is None else min(tiles, max_blocks)
        starts = (bisect_right(ends, tiles * block // blocks) for block in range(blocks))
        entries = ((*row, first, end) for row, first, end in zip(rows, firsts, ends, strict=True))
        # Pinned memory makes the copy asynchronous.  torch caches the allocation and does not reuse it before
        # the copy is done.  Only the first allocation may wait for the GPU.
        pin = self._device.type == "cuda"
        values = torch.tensor([*chain.from_iterable(entries), *starts], dtype=torch.int64, pin_memory=pin)
        memory = values.to(self._device, non_blocking=True)
        return _Table(rows=rows, stream=stream, memory=memory, tiles=tiles, blocks=blocks)

    def _select_kernel(self, shard: Shard) -> str:
        elements = shard.weights.numel()
        for name in ("weights", "gradient", "exp_avg", "exp_avg_sq"):
            self._check(getattr(shard, name), name, elements)
        for name in ("weights", "exp_avg", "exp_avg_sq"):
            _get_type_name(getattr(shard, name), _STATE_TYPES, name)
        self._check_scalar(shard.step, "step")
        if shard.skip is not None:
            self._check_scalar(shard.skip, "skip")
        low = "none"
        if shard.low_precision is not None:
            self._check(shard.low_precision, "low_precision", elements)
            low = _get_type_name(shard.low_precision, _LOW_TYPES, "low_precision")
        return f"adamw_{_get_type_name(shard.gradient, _TYPES, 'gradient')}_{low}"

    def _check(self, tensor: torch.Tensor, name: str, elements: int) -> None:
        """Check the tensor, because the kernel gets raw pointers and would access memory out of bounds."""
        if tensor.device != self._device or tensor.numel() != elements or not tensor.is_contiguous():
            actual = f"{tensor.numel()} elements on {tensor.device}, strides {tensor.stride()}"
            raise ValueError(
                f"{name} is {actual}; it must be {elements} contiguous elements on {self._device}"
            )

    def _check_scalar(self, tensor: torch.Tensor, name: str) -> None:
        self._check(tensor, name, 1)
        _get_type_name(tensor, _STATE_TYPES, name)


def _get_type_name(tensor: torch.Tensor, names: dict[torch.dtype, str], what: str) -> str:
    if tensor.dtype not in names:
        allowed = ", ".join(str(dtype) for dtype in names)
        raise ValueError(f"{what} is {tensor.dtype}; the CUDA kernel supports {allowed}")
    return names[tensor.dtype]
