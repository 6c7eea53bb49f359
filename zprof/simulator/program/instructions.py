"""The instructions of a host.  Each refers to earlier ones by key; a key names the latest with it."""

from dataclasses import dataclass, field
from enum import StrEnum

from zprof.model.collectives import CollectiveKind
from zprof.model.time import LateReason
from zprof.simulator.knobs import DType
from zprof.simulator.program.mesh import Axis


class Lane(StrEnum):
    """A stream of the device."""

    COMPUTE = "compute"
    WORLD = "world"
    GATHER = "gather"
    REDUCE = "reduce"
    REPLICATE = "replicate"
    TENSOR = "tensor"
    COPY = "copy"


class Direction(StrEnum):
    """Of a copy between host and device."""

    TO_DEVICE = "HtoD"
    TO_HOST = "DtoH"


class Shape(StrEnum):
    """What a kernel computes, which gives it its name and its operator."""

    GEMM = "gemm"
    ATTENTION = "attention"
    NORM = "norm"
    ELEMENTWISE = "elementwise"
    OPTIMIZER = "optimizer"
    SPLIT = "split"
    PAD = "pad"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """Compute.  ``backward``: its operator belongs to autograd."""

    key: str
    shape: Shape
    work_ns: int
    after: tuple[str, ...] = ()
    unit: int | None = None
    backward: bool = False
    lane: Lane = Lane.COMPUTE


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """``elements``: of the full tensor."""

    key: str
    kind: CollectiveKind
    axis: Axis
    lane: Lane
    elements: int
    dtype: DType
    after: tuple[str, ...] = ()
    unit: int | None = None

    @property
    def bytes(self) -> int:
        """Of the full tensor."""
        return self.elements * self.dtype.size_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """A copy between host and device."""

    key: str
    direction: Direction
    bytes: int
    rate_bytes_per_s: float
    lane: Lane = Lane.COPY
    after: tuple[str, ...] = ()
    unit: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HostWork:
    """The host is busy with something that is no launch.  ``ranks``: which (None: all)."""

    ns: int
    reason: LateReason
    name: str
    ranks: frozenset[int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sync:
    """The host blocks until these are done (none: everything is).

    ``reads``: by reading a scalar back, else by an event.
    """

    after: tuple[str, ...] = ()
    reads: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Reallocate:
    """An allocator retry: free, which waits for the device, then allocate."""

    free_ns: int
    malloc_ns: int
    ranks: frozenset[int] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Begin:
    """An annotation of the host begins."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """The innermost open annotation ends."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """A CPU rank blocks until a collective is done."""

    key: str


Instruction = Kernel | Collective | Copy | HostWork | Sync | Reallocate | Begin | End | Wait


@dataclass(slots=True)
class Listing:
    """A program as it grows."""

    lines: list[Instruction] = field(default_factory=list)

    def add(self, *instructions: Instruction) -> None:
        """Append."""
        self.lines.extend(instructions)

    def annotated(self, name: str, *instructions: Instruction) -> None:
        """Append within an annotation."""
        self.lines.extend((Begin(name=name), *instructions, End(name=name)))
