"""Model what the split matrices of model parallelism add to a block: sums over the ranks.

Megatron-LM, arXiv 1909.08053, section 3.
"""

from collections.abc import Iterator

from zprof.planner.model_shapes import ModelSizes
from zprof.planner.unit_moments import OperatorStep


def row_parallel(operator: str, name: str, sizes: ModelSizes) -> Iterator[OperatorStep]:
    """Yield a row-parallel product: the sum over the ranks, then the bias add, which allocates its result."""
    if sizes.ranks == 1:
        yield OperatorStep(operator=operator, makes={name: sizes.stream_bytes})
        return
    yield OperatorStep(operator=operator, makes={"summed": sizes.stream_bytes})
    yield OperatorStep(operator="add_bias", makes={name: sizes.stream_bytes}, drops=("summed",))


def copy_gradient(sizes: ModelSizes) -> Iterator[OperatorStep]:
    """Yield the all-reduce of a column-parallel layer's input gradient, which runs on a copy."""
    if sizes.ranks > 1:
        yield OperatorStep(operator="all_reduce", makes={"copy": sizes.stream_bytes}, drops=("copy",))
