"""The few arguments of trace events that zprof reads; whatever else stands there is skipped unparsed."""

from collections.abc import Iterator
from typing import Any

import msgspec

#: How traces write the fields of ``Arguments``, where it is not the field's own name.
FILE_NAMES = {
    "dims": "Input Dims",
    "types": "Input type",
    "values": "Concrete Inputs",
    "external_id": "External id",
    "collective": "Collective name",
    "elements_in": "In msg nelems",
    "elements_out": "Out msg nelems",
    "split_in": "In split size",
    "split_out": "Out split size",
    "group": "Process Group Name",
    "group_id": "Process Group ID",
    "group_description": "Process Group Description",
    "group_ranks": "Process Group Ranks",
    "group_size": "Group size",
    "sequence": "Seq",
    "rank": "Rank",
    "source_rank": "Src Rank",
    "destination_rank": "Dst Rank",
    "first_global_rank": "Global rank start",
    "global_rank_stride": "Global rank stride",
    "sync_kind": "cuda_sync_kind",
    "sync_stream": "wait_on_stream",
    "sync_record": "wait_on_cuda_event_record_corr_id",
    "sync_event": "wait_on_cuda_event_id",
}


class Arguments(msgspec.Struct, gc=False, rename=FILE_NAMES):
    """Arguments of one event as they stand in the file: any of them may be of any type.

    ``kind`` is the direction of a copy as ROCm writes it; ``grid`` is that of a kernel.
    """

    name: Any = None
    dims: Any = None
    types: Any = None
    values: Any = None
    stream: Any = None
    correlation: Any = None
    external_id: Any = None
    collective: Any = None
    elements_in: Any = None
    elements_out: Any = None
    split_in: Any = None
    split_out: Any = None
    group: Any = None
    group_id: Any = None
    group_description: Any = None
    group_ranks: Any = None
    group_size: Any = None
    sequence: Any = None
    dtype: Any = None
    rank: Any = None
    source_rank: Any = None
    destination_rank: Any = None
    first_global_rank: Any = None
    global_rank_stride: Any = None
    grid: Any = None
    kind: Any = None
    bytes: Any = None
    sync_kind: Any = None
    sync_stream: Any = None
    sync_record: Any = None
    sync_event: Any = None


#: What the profiler calls the type of an argument that is no tensor.
_NO_TENSORS = ("", "Scalar", "ScalarList", "GenericList", "TensorList")


def number(value: object) -> int | None:
    """A whole number that an int64 column can hold, else None."""
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    return value if abs(value) < 1 << 62 else None


def elements(dims: Any, argument: int | None = None, types: Any = None) -> int | None:
    """Elements of one argument of an operator, or of all tensors; a list of tensors is summed.

    ``[[6, 10], []]`` has 60 elements in argument 0; ``[[[8], [8]]]``, a tensor list, has 16.  A scalar has no
    extents, as arguments that are no tensors: in a list of tensors it has 1, and beside them where ``types``
    names its type.
    """
    types = types if isinstance(types, list) else []
    if not isinstance(dims, list):
        return None
    chosen = range(len(dims)) if argument is None else range(argument, min(argument + 1, len(dims)))
    named = [row < len(types) and types[row] not in _NO_TENSORS for row in chosen]
    counts = [
        count
        for row, scalar in zip(chosen, named, strict=True)
        for count in _tensor_elements(dims[row], scalar)
    ]
    return sum(counts) if counts else None


def _tensor_elements(entry: Any, scalar: bool) -> Iterator[int]:
    """Elements of the tensors of one argument; ``scalar``: without extents it is one of one element."""
    if not isinstance(entry, list) or not (entry or scalar):
        return
    if all(isinstance(extent, int) for extent in entry):
        yield _product(entry)
        return
    for inner in entry:
        yield from _tensor_elements(inner, True)


def _product(extents: list[int]) -> int:
    product = 1
    for extent in extents:
        product *= max(0, min(extent, 1 << 40))
    return product
