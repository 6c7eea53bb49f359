"""Define what an allocator's history adds to the memory of a rank: the stacks at its peak, and its steps.

Sizes are integer bytes.
"""

from enum import StrEnum

from msgspec import Struct


class StackNodeKind(StrEnum):
    """What a node of the tree of stacks stands for.

    Frames; everything; several branches too small to show; blocks from before the history; blocks without a
    stack.
    """

    FRAMES = "frames"
    ROOT = "root"
    MERGED = "merged"
    BEFORE = "before"
    NO_STACK = "no_stack"


class StackNode(Struct, frozen=True, kw_only=True):
    """One node of the tree of the stacks that are live at a rank's peak; ``parent`` is its caller.

    ``parent`` is a position in the tree, -1 for the root. ``bytes`` and ``blocks`` include everything below.
    ``tenant`` owns most of the bytes. Frames that call nothing else form one node: ``chain`` has them all,
    outermost first, and ``frame`` is the one to show; ``operator`` is what the innermost of them called.
    ``branches``: number of merged branches.
    """

    frame: str
    parent: int
    bytes: int
    blocks: int
    tenant: str
    kind: StackNodeKind = StackNodeKind.FRAMES
    operator: str = ""
    chain: tuple[str, ...] = ()
    branches: int = 0


class StackTree(Struct, frozen=True, kw_only=True):
    """Stacks at the peak of one rank, outermost frames first; small branches are merged."""

    rank: int
    device: str
    nodes: tuple[StackNode, ...]


class WindowKind(StrEnum):
    """What an allocator's history shows of a program.

    Steps with a backward; an optimizer alone; a forward that keeps its tensors for a backward; one that does
    not; nothing that can be told.
    """

    TRAINING = "training"
    OPTIMIZER = "optimizer"
    FORWARD = "forward"
    INFERENCE = "inference"
    UNKNOWN = "unknown"


class HistoryWindow(Struct, frozen=True, kw_only=True):
    """The steps in one rank's history: ``steps`` optimizer steps with ``micro_batches`` backward passes each.

    ``micro_batches`` is None if no whole step is in it.
    """

    rank: int
    kind: WindowKind
    steps: int
    micro_batches: int | None
