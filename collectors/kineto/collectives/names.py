"""What operators and metadata call a collective.

``_allgather_base``, ``all_gather_into_tensor_coalesced`` and ``nccl:_all_gather_base`` alike are an
all-gather: underscores and case do not count, and the beginning decides.  Another spelling is one more row.
"""

import re
from functools import lru_cache

from zprof.model.collectives import CollectiveKind

#: Rows stand before those that begin them.
_BEGINNINGS: tuple[tuple[str, CollectiveKind | None], ...] = (
    ("allreducebarrier", CollectiveKind.BARRIER),
    ("allgather", CollectiveKind.ALL_GATHER),
    ("reducescatter", CollectiveKind.REDUCE_SCATTER),
    ("allreduce", CollectiveKind.ALL_REDUCE),
    ("sparseallreduce", CollectiveKind.ALL_REDUCE),
    ("alltoall", CollectiveKind.ALL_TO_ALL),
    ("broadcast", CollectiveKind.BROADCAST),
    ("reduce", CollectiveKind.REDUCE),
    ("gather", CollectiveKind.GATHER),
    ("scatter", CollectiveKind.SCATTER),
    ("barrier", CollectiveKind.BARRIER),
    ("monitoredbarrier", CollectiveKind.BARRIER),
    ("sendrecv", CollectiveKind.OTHER),
    ("send", CollectiveKind.SEND),
    ("recv", CollectiveKind.RECV),
    ("batchisendirecv", CollectiveKind.OTHER),
    ("coalesced", CollectiveKind.OTHER),
    # entries that move no data
    ("wait", None),
    ("init", None),
    ("abort", None),
    ("shutdown", None),
    ("finalize", None),
    ("split", None),
    ("commsplit", None),
    ("startcoalescing", None),
)
_PREFIXES = re.compile(
    r"(?:c10d|symm_mem|_c10d_functional)::|(?:nccl|gloo):|(?:multimem_|one_shot_|two_shot_|_low_contention_)"
)


def kind_of(name: object) -> CollectiveKind | None:
    """The kind that a name says, OTHER where it is a collective of no known kind, None where it is none."""
    return _kind_of(name) if isinstance(name, str) else None


@lru_cache(maxsize=1 << 10)
def _kind_of(name: str) -> CollectiveKind | None:
    plain = _PREFIXES.sub("", name).replace("_", "").lower()
    if not plain:
        return None
    for beginning, kind in _BEGINNINGS:
        if plain.startswith(beginning):
            return kind
    return CollectiveKind.OTHER
