"""What operators and annotations around a launch say where no metadata does: kind, elements, type.

``c10d::_allgather_base_`` and the like show the shapes of their tensors, ``nccl:all_reduce`` that of its
input.
"""

from zprof.collectors.kineto.arguments import Arguments, elements
from zprof.collectors.kineto.collectives.element_types import element_type
from zprof.collectors.kineto.collectives.names import kind_of
from zprof.collectors.kineto.device.metadata import Described
from zprof.model.collectives import CollectiveKind

_OPERATORS = ("c10d::", "symm_mem::")
ANNOTATIONS = "nccl:"
_MOST_TENSORS = 1 << 10


def is_operator(name: str) -> bool:
    """Whether a host's operator is one that launches collectives."""
    return name.startswith(_OPERATORS) and kind_of(name) not in (None, CollectiveKind.OTHER)


def is_annotation(name: str) -> bool:
    """Whether a range is one that torch writes around a collective of NCCL."""
    return name.startswith(ANNOTATIONS) and kind_of(name) is not None


def described_by(name: str, arguments: Arguments | None) -> Described:
    """What the name of an operator and the shapes of its tensors say."""
    kind = kind_of(name)
    dtype, element_bytes = _type(arguments)
    return Described(
        kind=kind, dtype=dtype, element_bytes=element_bytes, elements=_elements(name, kind, arguments)
    )


def _type(arguments: Arguments | None) -> tuple[str | None, int | None]:
    types = arguments.types if arguments is not None and isinstance(arguments.types, list) else []
    found = (element_type(text) for text in types[:_MOST_TENSORS])
    return next((known for known in found if known is not None), (None, None))


def _elements(name: str, kind: CollectiveKind | None, arguments: Arguments | None) -> int | None:
    """The largest tensor; of an all-to-all the input.  An annotation shows inputs only."""
    if kind is CollectiveKind.BARRIER:
        return 0
    dims = arguments.dims if arguments is not None and isinstance(arguments.dims, list) else []
    if name.startswith(ANNOTATIONS):
        return None if kind is CollectiveKind.ALL_GATHER else elements(dims)
    if kind is CollectiveKind.ALL_TO_ALL:
        return elements(dims, 1)
    counts = (elements(dims, argument) for argument in range(min(len(dims), _MOST_TENSORS)))
    return max((count for count in counts if count is not None), default=None)
