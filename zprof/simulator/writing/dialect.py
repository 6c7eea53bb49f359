"""What differs between the traces of NVIDIA's and AMD's devices.

Values of a template: of kernels, copies and calls the external id and the correlation, in that order.
"""

from collections.abc import Sequence
from typing import Protocol

from zprof.model.collectives import CollectiveKind
from zprof.simulator.knobs import DType
from zprof.simulator.program.instructions import Copy
from zprof.simulator.writing.names import KernelName


class Dialect(Protocol):
    """How one vendor's profiler writes."""

    def pid(self, rank: int) -> int:
        """The process number that the device's rows carry: the device."""

    def streams(self) -> Sequence[int]:
        """Stream numbers: of compute, of copies, then of each communication stream."""

    def kernel(self, name: KernelName) -> str:
        """A kernel's name."""

    def collective(self, kind: CollectiveKind, dtype: DType, metadata: bool) -> str:
        """The name of a collective's kernel."""

    def kernel_arguments(self, rank: int, stream: int, grid: int, block: int, registers: int) -> list[str]:
        """Arguments of a kernel."""

    def copy(self, rank: int, copy: Copy, stream: int) -> tuple[str, list[str]]:
        """Name and arguments of a copy of the device."""

    def launch(self, name: str, shape: KernelName | None) -> tuple[str, list[str]]:
        """Name and arguments of the call that launches a kernel."""

    def call(self, what: str) -> tuple[str, list[str]]:
        """Name and arguments of another call of the runtime, by its name without a prefix."""

    def sees_synchronisation(self) -> bool:
        """Whether the profiler records waits of streams and of the host as events of the device."""

    def properties(self) -> str:
        """The devices of a host, as JSON."""

    def extras(self) -> list[str]:
        """Further keys at the top of a file."""
