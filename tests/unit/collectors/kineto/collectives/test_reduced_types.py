"""The type that a reduction was compiled for, in the names that ages of NCCL and RCCL gave its kernels."""

import pytest

from zprof.collectors.kineto.collectives import parse_reduced_type


@pytest.mark.parametrize(
    ("kernel", "name"),
    [
        ("ncclKernel_ReduceScatter_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)", "float32"),
        ("ncclKernel_AllReduce_TREE_LL128_Sum___nv_bfloat16(ncclWorkElem)", "bfloat16"),
        ("ncclDevKernel_ReduceScatter_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "float32"),
        ("ncclDevKernel_AllReduce_Sum_bf16_TREE_LL", "bfloat16"),
        ("ncclKernel_AllGather_RING_LL_Sum_int8_t(ncclDevComm*)", None),
        ("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", None),
        ("ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)", None),
        ("ncclDevKernel_AllReduce_" + "A_" * 10_000 + "Sum_f32", None),
    ],
)
def test_a_reduction_is_made_for_its_type(kernel: str, name: str | None) -> None:
    found = parse_reduced_type(kernel)
    assert (found[0] if found else None) == name
