"""The table of collective kernels: what is in it, and what only looks like it."""

import gzip
import json

import pytest

from tests.support.real_traces import TRACES
from zprof.model import kernels
from zprof.model.collectives import CollectiveKind as Kind
from zprof.model.kernels import KERNELS, identify_kernel, is_collective_kernel, parse_function_name

FUSED = "flashinfer::trtllm_allreduce_fusion"
KNOWN = [
    ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", "nccl", Kind.ALL_REDUCE, True),
    ("ncclKernel_Broadcast_RING_LL_Sum_int8_t(ncclDevComm*, unsigned long)", "nccl", Kind.BROADCAST, False),
    ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*)", "nccl", None, False),
    ("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "nccl", Kind.ALL_GATHER, True),
    ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(args)", "nccl", Kind.REDUCE_SCATTER, True),
    ("ncclDevKernel_Reduce_Sum_f32_RING_LL(args)", "nccl", Kind.REDUCE, False),
    ("ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>) [clone .kd]", "nccl", None, False),
    ("ncclDevKernel_Generic.kd", "nccl", None, False),
    ("_Z23ncclDevKernel_Generic_424ncclDevKernelArgsStorageILm4096EE", "nccl", None, False),
    ("ncclSymDevKernel_AllReduce_RSxLD_AGxST_sum_bf16(ncclSymDevArgs)", "nccl", Kind.ALL_REDUCE, True),
    ("ncclSymkDevKernel_AllGather_STMC(ncclSymkDevWorkArgs4K)", "nccl", Kind.ALL_GATHER, True),
    ("ncclAllReduceRingLLKernel_sum_f32(ncclColl)", "nccl", Kind.ALL_REDUCE, True),
    ("ncclReduceScatterRingLL128Kernel_sum_f16(ncclColl)", "nccl", Kind.REDUCE_SCATTER, True),
    ("rcclGenericKernel<1, false>(ncclDevComm*)", "rccl", None, False),
    ("mscclKernel_Sum_half_Simple_false(ncclDevComm*, mscclAlgo*)", "msccl", None, False),
    (
        "void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*)",
        "symm_mem",
        Kind.ALL_REDUCE,
        True,
    ),
    ("multimem_all_gather_kernel", "symm_mem", Kind.ALL_GATHER, True),
    ("void two_shot_all_reduce_kernel_inplace<float, 16, 2>(float**)", "symm_mem", Kind.ALL_REDUCE, True),
    ("c10d::symmetric_memory::barrier_kernel(unsigned int**)", "symm_mem", Kind.BARRIER, True),
    ("void vllm::cross_device_reduce_1stage<float, 8>(v*)", "custom_all_reduce", Kind.ALL_REDUCE, True),
    (
        "_ZN4vllm26cross_device_reduce_1stageIfLi8EEEvPNS_8RankDataE",
        "custom_all_reduce",
        Kind.ALL_REDUCE,
        True,
    ),
    (
        f"void {FUSED}::allreduce_fusion_kernel_oneshot_lamport<({FUSED}::Pattern)1, __half>({FUSED}::P<x>)",
        "flashinfer",
        Kind.ALL_REDUCE,
        True,
    ),
    ("void deep_ep::intranode::combine<__nv_bfloat16, 8, 768>(int)", "deep_ep", Kind.ALL_TO_ALL, False),
    ("void deep_ep::internode::cached_notify<true>(int)", "deep_ep", Kind.BARRIER, True),
    ("allToAllV(void*, void*, long*)", "nvshmem", Kind.ALL_TO_ALL, False),
    ("mscclpp::collective::allreduce<float>(float*)", "mscclpp", None, False),
]
COMPUTE = [
    "gemm_dma_copy_kernel",
    "void SyncBatchNorm_forward(float*)",
    "Memcpy_like_transpose",
    "void at::native::elementwise_kernel<128, 4, my::ncclDevKernel_AllGather>(int, float*)",
    "void user::apply<rcclThing>(ncclKernel_AllReduce_RING)",
    "my_nccl_gemm(float*)",
    "user_ncclDevKernel_AllGather(float*)",
    "ncclLikeNorm(float*)",
    "triton_poi_fused_all_reduce_0",
    "triton_red_fused_one_shot_all_reduce_1",
    "barrier_kernel(int*)",
    "void dispatch<float>(float*)",
    "void mine::combine(float*)",
    "_Z10gemm_ncclPf",
    "",
    "<",
    "(((",
    "_Z99",
    "Memcpy PtoP (Device -> Device)",
]


@pytest.mark.parametrize(("name", "library", "kind", "full_sync"), KNOWN)
def test_known_kernels(name, library, kind, full_sync):
    found = identify_kernel(name)
    assert found is not None
    assert (found.library, found.kind, found.full_sync) == (library, kind, full_sync)


@pytest.mark.parametrize("name", COMPUTE)
def test_a_word_in_a_name_makes_no_collective(name):
    assert identify_kernel(name) is None
    assert not is_collective_kernel(name)


def test_the_function_is_found_in_its_signature():
    assert parse_function_name("void a::(anonymous namespace)::f<nccl::T<int>, (b)2>(c::d)") == "a::f"
    assert parse_function_name("std::enable_if<A<1>::b, void>::type g<4>(int)") == "g"
    assert parse_function_name("void f<&g<int>::operator()>(int)") == "f"
    assert parse_function_name("_ZN1a1b3cccEv") == "a::b::ccc"


@pytest.mark.parametrize("text", ["<" * 5000, "a<" * 2000 + ">" * 2000, "_Z" + "9" * 50, "nccl" * 1500])
def test_hostile_names_are_read_in_time(text):
    assert identify_kernel(text) is None


def test_a_name_that_all_ranks_have_is_read_once_and_long_ones_are_not_kept(monkeypatch):
    read = []

    def reading(name):
        read.append(name)
        return parse_function_name(name)

    monkeypatch.setattr(kernels, "parse_function_name", reading)
    for _ in range(100):
        assert identify_kernel("".join(["ncclDevKernel_AllGather_", "read_once"])) is not None
        assert identify_kernel("x" * 1_000_000) is None
    assert [len(name) for name in read] == [33, 4096]


def test_every_row_says_who_waits():
    """A kind that the name does not say cannot be known to synchronise."""
    assert all(row.kind is not None for row in KERNELS if row.full_sync)


@pytest.mark.skipif(not TRACES.is_dir(), reason="no real traces here")
def test_kernels_of_real_traces():
    found = {name for name in kernels_of_real_traces() if is_collective_kernel(name)}
    assert {parse_function_name(name) for name in found} == {
        "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t",
        "ncclKernel_Broadcast_RING_LL_Sum_int8_t",
        "ncclKernel_AllReduce_RING_LL_Sum_float",
        "ncclDevKernel_AllGather_RING_LL",
        "multimem_all_reduce_kernel",
    }


def kernels_of_real_traces():
    for path in sorted(TRACES.rglob("*.json.gz")):
        trace = json.loads(gzip.decompress(path.read_bytes()), strict=False)
        events = trace["traceEvents"] if isinstance(trace, dict) else trace
        yield from {e["name"] for e in events if str(e.get("cat")).lower() == "kernel" and e["ph"] == "X"}
