"""Collective kernels by their names, and names that only look like them."""

import pytest

from zprof.model.collectives import CollectiveKind as Kind
from zprof.model.communication_kernels import (
    KERNELS,
    identify_kernel,
    is_collective_kernel,
    parse_function_name,
)

FUSED = "flashinfer::trtllm_allreduce_fusion"
REDUCE, GATHER, SCATTER = Kind.ALL_REDUCE, Kind.ALL_GATHER, Kind.REDUCE_SCATTER
#: By library: name, kind, and if all ranks of its group wait for each other in it.
KNOWN: dict[str, list[tuple[str, Kind | None, bool]]] = {
    "nccl": [
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", REDUCE, True),
        ("ncclKernel_Broadcast_RING_LL_Sum_int8_t(ncclDevComm*, unsigned long)", Kind.BROADCAST, False),
        ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*)", None, False),
        ("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", GATHER, True),
        ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(args)", SCATTER, True),
        ("ncclDevKernel_Reduce_Sum_f32_RING_LL(args)", Kind.REDUCE, False),
        ("ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>) [clone .kd]", None, False),
        ("ncclDevKernel_Generic.kd", None, False),
        ("_Z23ncclDevKernel_Generic_424ncclDevKernelArgsStorageILm4096EE", None, False),
        ("ncclSymDevKernel_AllReduce_RSxLD_AGxST_sum_bf16(ncclSymDevArgs)", REDUCE, True),
        ("ncclSymkDevKernel_AllGather_STMC(ncclSymkDevWorkArgs4K)", GATHER, True),
        ("ncclReduceScatterRingLL128Kernel_sum_f16(ncclColl)", SCATTER, True),
    ],
    "rccl": [("rcclGenericKernel<1, false>(ncclDevComm*)", None, False)],
    "msccl": [("mscclKernel_Sum_half_Simple_false(ncclDevComm*, mscclAlgo*)", None, False)],
    "mscclpp": [("mscclpp::collective::allreduceRsAg<float>(float*)", REDUCE, True)],
    "symm_mem": [
        ("void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(x*)", REDUCE, True),
        ("multimem_all_gather_kernel", GATHER, True),
        ("void two_shot_all_reduce_kernel_inplace<float, 16, 2>(float**)", REDUCE, True),
        ("c10d::symmetric_memory::barrier_kernel(unsigned int**)", Kind.BARRIER, True),
    ],
    "custom_all_reduce": [
        ("void vllm::cross_device_reduce_1stage<float, 8>(v*)", REDUCE, True),
        ("_ZN4vllm26cross_device_reduce_1stageIfLi8EEEvPNS_8RankDataE", REDUCE, True),
    ],
    "flashinfer": [
        (f"void {FUSED}::allreduce_fusion_kernel_oneshot_lamport<({FUSED}::P)1>(x)", REDUCE, True)
    ],
    "deep_ep": [
        ("void deep_ep::intranode::combine<__nv_bfloat16, 8, 768>(int)", Kind.ALL_TO_ALL, False),
        ("void deep_ep::internode::cached_notify<true>(int)", Kind.BARRIER, True),
    ],
    "nvshmem": [
        ("allToAllV(void*, void*, long*)", Kind.ALL_TO_ALL, False),
        ("void rdxn_on_stream_kernel<float, (rdxn_ops)4, 2>(int, float*)", REDUCE, True),
    ],
    "oneccl": [("_ZTS22Allreduce_small_kernelIfLi16EE", REDUCE, True)],
    "hccl": [
        ("hcom_reduceScatter__063_1_1", SCATTER, True),
        ("hcom_send__447_18_1", Kind.SEND, False),
        ("hcom_batchSendRecv__128_5_1", None, False),
    ],
}
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
    "triton_per_fused__fused_rms_norm_all_gather_into_tensor_wait_tensor_3",
    "mscclpp::collective::fp8NvlsSupportProbeKernel(int*)",
    "void deep_ep::elastic::combine_reduce_epilogue_impl<8>(__nv_bfloat16*)",
    "void dpsk::ep::cuda::get_dispatch_layout<256, 32, 8>(long const*, int*)",
    "typeinfo name for Kernel_compute<float, 16>",
    "chcom_kernel",
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


@pytest.mark.parametrize("library", KNOWN)
def test_known_kernels(library):
    for name, kind, full_sync in KNOWN[library]:
        found = identify_kernel(name)
        assert found is not None, name
        assert (found.library, found.kind, found.full_sync) == (library, kind, full_sync), name


@pytest.mark.parametrize("row", KERNELS, ids=lambda row: row.example[:60])
def test_the_example_of_a_row_is_found_by_that_row(row):
    assert identify_kernel(row.example) is row
    assert ": " in row.source


@pytest.mark.parametrize("name", COMPUTE)
def test_a_word_in_a_name_makes_no_collective(name):
    assert identify_kernel(name) is None
    assert not is_collective_kernel(name)


def test_the_function_is_found_in_its_signature():
    assert parse_function_name("void a::(anonymous namespace)::f<nccl::T<int>, (b)2>(c::d)") == "a::f"
    assert parse_function_name("std::enable_if<A<1>::b, void>::type g<4>(int)") == "g"
    assert parse_function_name("void f<&g<int>::operator()>(int)") == "f"
    assert parse_function_name("_ZN1a1b3cccEv") == "a::b::ccc"


@pytest.mark.parametrize("text", ["<" * 10**6, "a<" * 2000 + ">" * 2000, "_Z" + "9" * 50, "nccl" * 1500])
def test_hostile_names_are_no_collectives(text):
    assert identify_kernel(text) is None
