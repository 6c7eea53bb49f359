"""Define the kernels that communicate between ranks, by library, each with its source and a real name.

The name of a kernel is parsed as a C++ signature: return type, template arguments and parameters are dropped,
so a word in them (a user's type, a functor) never turns a compute kernel into a collective. A row's pattern
must match the full function name, or its end after a ``::``. To support another library, add a row; specific
rows come before general ones. Tests check that the example of each row matches that row and no earlier one.

Collectives without a kernel have no row: NCCL's zero-CTA policy (``src/ce_coll.cc`` of NVIDIA/nccl since
2.28) and torch's ``_low_contention_all_gather`` move data with copies only. The copies belong to the host's
record of the collective (``collectors/read/kineto/device/rows.py``).
"""

import re
from collections.abc import Iterator
from functools import lru_cache

from msgspec import Struct

from zprof.model.collectives import FULL_SYNC, CollectiveKind

#: Function names are short; longer names are not searched.
_MAX_NAME, _MAX_FUNCTION, _MAX_NESTING = 4096, 200, 64
#: ``_ZTS`` is the name of a type: SYCL names a kernel by its class.
_MANGLED = re.compile(r"_Z(?:TS)?(NK?)?(?=\d)", re.ASCII)
_ANONYMOUS = re.compile(r"\(anonymous namespace\)|<unnamed>|\{anonymous\}")
_INNERMOST = re.compile(r"<[^<>]*>")


class KnownKernel(Struct, frozen=True, kw_only=True):
    """Kernels of one library that match one pattern.

    ``kind`` is None if the name does not determine it. ``full_sync``: no rank can leave before all ranks have
    entered. ``source`` is the repository and path that defines or shows the name, ``example`` a real name.
    """

    library: str
    pattern: str
    kind: CollectiveKind | None
    full_sync: bool
    source: str
    example: str


def _make_row(
    library: str,
    pattern: str,
    kind: CollectiveKind | None,
    *,
    source: str,
    example: str,
    full_sync: bool | None = None,
) -> KnownKernel:
    """Return a row; by default, ``full_sync`` is True if the kind is in ``FULL_SYNC``."""
    return KnownKernel(
        library=library,
        pattern=pattern,
        kind=kind,
        full_sync=kind in FULL_SYNC if full_sync is None else full_sync,
        source=source,
        example=example,
    )


_AG, _RS, _AR = CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER, CollectiveKind.ALL_REDUCE
_A2A, _BARRIER, _BROADCAST = CollectiveKind.ALL_TO_ALL, CollectiveKind.BARRIER, CollectiveKind.BROADCAST
_SEND, _RECV = CollectiveKind.SEND, CollectiveKind.RECV
_NCCL = "NVIDIA/nccl: src/device/generate.py"
_SYMMETRIC = "NVIDIA/nccl: src/device/symmetric/generate.py"
_OLD_NCCL = "NVIDIA/nccl v2.6: src/collectives/device/common.h"
_NCCL_EP = "NVIDIA/nccl: contrib/nccl_ep/device"
_UBX = "NVIDIA/nccl: contrib/nccl_ubx/csrc/ubx.cu"
_TORCH = "pytorch/pytorch: torch/csrc/distributed/c10d/symm_mem"
_SYMM_MEM = f"{_TORCH}/CUDASymmetricMemoryOps.cu"
_SIGNALS = f"{_TORCH}/CUDASymmetricMemory.cu"
_NVSHMEM = "NVIDIA/nvshmem: src/host/stream"
_DEEP_EP = "deepseek-ai/DeepEP: csrc/kernels/legacy"
_ELASTIC = "deepseek-ai/DeepEP: deep_ep/include/deep_ep/impls"
_DUAL_PIPE = "deepseek-ai/profile-data: train.json"
_MSCCLPP = "microsoft/mscclpp: src/ext/collectives"
_ONECCL = "oneapi-src/oneCCL: src/coll/algorithms"
_ONECCL_ZE = "oneapi-src/oneCCL: src/kernels/kernels.cl"
_HCCL = "Ascend/msprof: analysis/csrc/application/timeline/hccl_assembler.cpp"
_HCCL_NAMES = "Ascend/mstt: profiler/msprof_analyze"
_TORCH_NCCL = "c10d::nccl_extension::"

#: NCCL's names are ``ncclKernel_``, since 2.19 ``ncclDevKernel_``, of symmetric kernels ``ncclSymDevKernel_``
#: (2.27), then ``ncclSymkDevKernel_``, until 2.6 ``ncclAllReduceRingLLKernel_sum_f32``. RCCL has the same.
_NCCL_PREFIX = r"nccl(?:Dev|SymDev|SymkDev|Symk)?Kernel_"
_OLD_SUFFIX = r"(?:Ring|Tree|CollNet)[A-Z0-9]*Kernel(?:_\w+)?"
_NCCL_ROWS = (
    _make_row(
        "nccl", rf"{_NCCL_PREFIX}AllGather(?:V)?(?:_\w+)?|ncclAllGather{_OLD_SUFFIX}", _AG,
        source=_SYMMETRIC, example="ncclSymkDevKernel_AllGather_RailRing_LsaSTMC(ncclSymkDevWorkArgs4K)",
    ),
    _make_row(
        "nccl", rf"{_NCCL_PREFIX}ReduceScatter(?:V)?(?:_\w+)?|ncclReduceScatter{_OLD_SUFFIX}", _RS,
        source=_SYMMETRIC, example="ncclSymkDevKernel_ReduceScatter_LL_sum_f8e4m3(ncclSymkDevWorkArgs4K)",
    ),
    _make_row(
        "nccl", rf"{_NCCL_PREFIX}AllReduce(?:_\w+)?|ncclAllReduce{_OLD_SUFFIX}", _AR,
        source=_NCCL, example="ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    ),
    _make_row(
        "nccl", rf"{_NCCL_PREFIX}All[Tt]oAll(?:V|Pivot)?(?:_\w+)?", _A2A,
        source="ROCm/rccl: src/device/generate.py",
        example="ncclKernel_AllToAllPivot_RING_SIMPLE_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)",
    ),
    _make_row(
        "nccl", rf"{_NCCL_PREFIX}Broadcast(?:_\w+)?|ncclBroadcast{_OLD_SUFFIX}", _BROADCAST,
        source=_OLD_NCCL, example="ncclBroadcastRingLLKernel_copy_i8(ncclColl)",
    ),
    _make_row(
        "nccl", rf"{_NCCL_PREFIX}Reduce(?:_\w+)?|ncclReduce{_OLD_SUFFIX}", CollectiveKind.REDUCE,
        source=_NCCL, example="ncclDevKernel_Reduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    ),
    # SendRecv (also of all-to-all) and Generic: kind and synchronization are only in the metadata
    _make_row(
        "nccl", rf"{_NCCL_PREFIX}\w+|nccl(?:SendRecv|Send|Recv)[A-Za-z0-9]*Kernel(?:_\w+)?", None,
        source=_NCCL, example="ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
    ),
    _make_row(
        "nccl", r"reduce_scatter_offset(?:_rocm)?_kernel", _RS,
        source=f"{_TORCH}/ops/nccl_reduce_scatter_offset.cu",
        example=f"void {_TORCH_NCCL}reduce_scatter_offset_kernel<float, true>(ncclWindow_vidmem*)",
    ),
    _make_row(
        "nccl", r"all_gather_offset_(?:push|mm)_kernel", _AG,
        source=f"{_TORCH}/ops/nccl_all_gather_offset.cu",
        example=f"{_TORCH_NCCL}all_gather_offset_push_kernel(ncclWindow_vidmem*, unsigned long)",
    ),
    _make_row(
        "nccl", r"all_to_all_lsa_kernel", _A2A, source=f"{_TORCH}/ops/nccl_all_to_all_nd.cu",
        example=f"{_TORCH_NCCL}all_to_all_lsa_kernel(ncclWindow_vidmem*, unsigned long)",
    ),
    # all-to-all with uneven splits: a rank need not wait for a rank from which it receives nothing
    _make_row(
        "nccl_ep", r"nccl_ep_jit_ht_(?:dispatch|combine)_kernel", _A2A, full_sync=False,
        source=f"{_NCCL_EP}/jit/dispatch_jit.cuh", example="nccl_ep_jit_ht_dispatch_kernel",
    ),
    _make_row(
        "nccl_ubx", r"ubx_kernel_allreduce_\w+", _AR, source=_UBX,
        example="ubx_kernel_allreduce_2shot_mc_lamport(int, int, int)",
    ),
    _make_row(
        "nccl_ubx", r"ubx_kernel_allgather_\w+", _AG, source=_UBX,
        example="ubx_kernel_allgather_mc(int, int, int)",
    ),
    _make_row(
        "nccl_ubx", r"ubx_kernel_(?:a2av?|alltoall|combine)(?:_\w+)?", _A2A, full_sync=False,
        source=_UBX, example="ubx_kernel_a2av_token_bf16_mxfp8(int, int)",
    ),
    _make_row("nccl_ubx", r"ubx_kernel_barrier", _BARRIER, source=_UBX, example="ubx_kernel_barrier(int)"),
    _make_row(
        "rccl", r"rccl[A-Z]\w*", None,
        source="ROCm/rccl: src/device/common.cu",
        example="void rcclGenericKernel<1, false>(ncclDevKernelArgsStorage<4096ul>)",
    ),
    _make_row(
        "msccl", r"mscclKernel_\w+", None, source="ROCm/rccl: src/device/msccl_kernel_impl.h",
        example="mscclKernel_Sum_half_Simple_false(ncclDevComm*, mscclAlgo*, mscclWork*)",
    ),
)  # fmt: skip
#: torch's symmetric memory, kernels derived from it, and all-reduces of inference engines
_SYMMETRIC_ROWS = (
    _make_row(
        "symm_mem", r"_?multimem_all_gather\w*", _AG, source=_SYMM_MEM,
        example="void (anonymous namespace)::multimem_all_gather_kernel<16>(char*, char*, unsigned long)",
    ),
    _make_row(
        "symm_mem", r"_?(?:multimem|one_shot|two_shot)_reduce_scatter\w*", _RS,
        source="NVIDIA/Megatron-LM: megatron/core/inference/communication/torch_symm_triton",
        example="_multimem_reduce_scatter_kernel",
    ),
    _make_row(
        "symm_mem", r"multimem_one_shot_reduce_kernel", CollectiveKind.REDUCE, source=_SYMM_MEM,
        example="void (anonymous namespace)::multimem_one_shot_reduce_kernel<float, 16>(float*, float*)",
    ),
    _make_row(
        "symm_mem", r"multimem_(?:one_shot_|two_shot_)?(?:all_)?reduce\w*", _AR, source=_SYMM_MEM,
        example="void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*)",
    ),
    # also torch's reduce_scatter_out, which differs in the template arguments only
    _make_row(
        "symm_mem", r"(?:one|two)_shot_all_reduce\w*", _AR, source=_SYMM_MEM,
        example="void (anonymous namespace)::two_shot_all_reduce_kernel_inplace<float, 16, 8>(float**)",
    ),
    # the barriers around copy-engine gathers and the pipelines of fused_all_gather_matmul
    _make_row(
        "symm_mem", r"symmetric_memory::barrier_kernel", _BARRIER, source=_SIGNALS,
        example="c10d::symmetric_memory::barrier_kernel(unsigned int**, int, int, int, unsigned long)",
    ),
    _make_row(
        "symm_mem", r"symmetric_memory::put_signal_kernel", _SEND, source=_SIGNALS,
        example="c10d::symmetric_memory::put_signal_kernel(unsigned int**, int, int, int, int)",
    ),
    _make_row(
        "symm_mem", r"symmetric_memory::wait_signal_kernel", _RECV, source=_SIGNALS,
        example="c10d::symmetric_memory::wait_signal_kernel(unsigned int**, int, int, int, int)",
    ),
    _make_row(
        "custom_all_reduce", r"cross_device_reduce_\w+", _AR,
        source="vllm-project/vllm: csrc/custom_all_reduce.cuh",
        example="_ZN5aiter26cross_device_reduce_2stageIDF16bLi8ELb0EEEv",
    ),
    _make_row(
        "custom_all_reduce", r"reduce_scatter_cross_device_store\w*", _RS,
        source="ROCm/aiter: csrc/include/custom_all_reduce.cuh",
        example="void aiter::reduce_scatter_cross_device_store<float>(aiter::RankData*)",
    ),
    _make_row(
        "quick_reduce", r"allreduce_prototype(?:_\w+)?", _AR,
        source="ROCm/aiter: csrc/include/quick_all_reduce.cuh",
        example="quickreduce::allreduce_prototype_twoshot"
        "<AllReduceTwoshot<__half, CodecQ4<__half, 4>, true>, __half>",
    ),
    _make_row(
        "flashinfer", r"allreduce_fusion_kernel_(?:one|two)shot\w*", _AR,
        source="flashinfer-ai/flashinfer: include/flashinfer/comm/trtllm_allreduce_fusion.cuh",
        example="void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport"
        "<(flashinfer::trtllm_allreduce_fusion::AllReduceFusionPattern)1, __nv_bfloat16, 8, false, false>(x)",
    ),
    _make_row(
        "tensorrt_llm", r"(?:one|two)[Ss]hotAll[Rr]educe(?:Fusion)?Kernel", _AR,
        source="NVIDIA/TensorRT-LLM: cpp/tensorrt_llm/kernels/customAllReduceKernels.cu",
        example="void flashinfer::trtllm_mnnvl_allreduce::twoshotAllreduceKernel<(unsigned char)2, float>(x)",
    ),
    _make_row(
        "userbuffers", r"k?userbuffers_\w+", None,
        source="NVIDIA/TransformerEngine: transformer_engine/common/comm_gemm_overlap/userbuffers",
        example="kuserbuffers_pushsend(int*, int*, int4*, int4*, int)",
    ),
)  # fmt: skip
_EXPERT_ROWS = (
    _make_row(
        "nvshmem", r"exchangeSplitAndOffset(?:_2d)?", _A2A, source=f"{_TORCH}/nvshmem_extension.cu",
        example="c10d::nvshmem_extension::exchangeSplitAndOffset(long*, int, int)",
    ),
    _make_row(
        "nvshmem", r"allToAllV(?:_2d)?", _A2A, full_sync=False, source=f"{_TORCH}/nvshmem_extension.cu",
        example="c10d::nvshmem_extension::allToAllV_2d(void*, void*, long*, long*, unsigned long, int, int)",
    ),
    _make_row(
        "nvshmem", r"(?:barrier(?:_all)?|sync)_on_stream_kernel(?:_\w+)?|(?:nv|roc)shmemx?i?_barrier\w*",
        _BARRIER,
        source=f"{_NVSHMEM}/coll/barrier", example="void barrier_on_stream_kernel_threadgroup<2>(int, int)",
    ),
    _make_row(
        "nvshmem", r"alltoall_on_stream_kernel", _A2A, source=f"{_NVSHMEM}/coll/alltoall",
        example="void alltoall_on_stream_kernel<char, 2>(int, char*, char const*, unsigned long)",
    ),
    _make_row(
        "nvshmem", r"broadcast_on_stream_kernel", _BROADCAST, source=f"{_NVSHMEM}/coll/broadcast",
        example="void broadcast_on_stream_kernel<char, 2>(int, char*, char const*, unsigned long, int)",
    ),
    _make_row(
        "nvshmem", r"fcollect_on_stream_kernel", _AG, source=f"{_NVSHMEM}/coll/fcollect",
        example="void fcollect_on_stream_kernel<char, 2>(int, char*, char const*, unsigned long)",
    ),
    _make_row(
        "nvshmem", r"rdxn_on_stream_kernel", _AR, source=f"{_NVSHMEM}/coll/rdxn",
        example="void rdxn_on_stream_kernel<float, (rdxn_ops)4, 2>(int, float*, float const*, unsigned long)",
    ),
    _make_row(
        "nvshmem", r"reducescatter_on_stream_kernel", _RS, source=f"{_NVSHMEM}/coll/reducescatter",
        example="void reducescatter_on_stream_kernel<float, (rdxn_ops)4, 2>(int, float*, float const*)",
    ),
    _make_row(
        "nvshmem", r"(?:nv|roc)shmemx?i?_\w+", None, source=f"{_NVSHMEM}/comm",
        example="nvshmemi_proxy_rma_entrypoint(void*, void*, rma_bytesdesc_t)",
    ),
    _make_row(
        "deep_ep", r"(?:intranode|internode|internode_ll)::(?:barrier\w*|clean_low_latency_buffer)", _BARRIER,
        source=f"{_DEEP_EP}/internode_ll.cu",
        example="void deep_ep::legacy::internode_ll::clean_low_latency_buffer<256>(int*, int, int*, int)",
    ),
    _make_row(
        "deep_ep", r"(?:intranode|internode|internode_ll)::(?:cached_)?notify(?:_\w+)?", _BARRIER,
        source=_DUAL_PIPE,
        example="void dpsk::ep::internode::notify_dispatch<false, 8>(int const*, long*, int, int const*)",
    ),
    _make_row(
        "deep_ep", r"(?:intranode|internode|internode_ll)::(?:dispatch|combine)", _A2A, full_sync=False,
        source=_DUAL_PIPE,
        example="void dpsk::ep::internode::combine<false, 8, __nv_bfloat16, 8, 2, 16, 24>(int4*, float*)",
    ),
    _make_row(
        "deep_ep", r"elastic::(?:hybrid_)?(?:dispatch|combine)_impl", _A2A, full_sync=False,
        source=f"{_ELASTIC}/hybrid_dispatch.cuh",
        example="void deep_ep::elastic::hybrid_dispatch_impl<true, 24>(void*)",
    ),
    _make_row(
        "deep_ep", r"elastic::barrier_impl", _BARRIER, source=f"{_ELASTIC}/barrier.cuh",
        example="void deep_ep::elastic::barrier_impl<8>(ncclDevComm const*, ncclWindow_vidmem*, void*)",
    ),
    _make_row(
        "deep_ep", r"elastic::pp_send_impl", _SEND, source=f"{_ELASTIC}/pp_send_recv.cuh",
        example="void deep_ep::elastic::pp_send_impl<2>(ncclDevComm const*, ncclWindow_vidmem*)",
    ),
    _make_row(
        "deep_ep", r"elastic::pp_recv_impl", _RECV, source=f"{_ELASTIC}/pp_send_recv.cuh",
        example="void deep_ep::elastic::pp_recv_impl<2>(ncclDevComm const*, ncclWindow_vidmem*)",
    ),
)  # fmt: skip
_OTHER_ROWS = (
    _make_row(
        "mscclpp", r"mscclpp::(?:\w+::)*allreduce\w*", _AR, source=f"{_MSCCLPP}/allreduce",
        example="void mscclpp::collective::allreduceNvlsBlockPipeline<__half>(void const*, void*, void*)",
    ),
    _make_row(
        "mscclpp", r"mscclpp::(?:\w+::)*allgather\w*", _AG, source=f"{_MSCCLPP}/allgather",
        example="mscclpp::collective::allgatherFullmesh2(void*, mscclpp::MemoryChannelDeviceHandle*)",
    ),
    _make_row(
        "mscclpp", r"mscclpp::executionKernel\w*", None,
        source="microsoft/mscclpp: src/core/include/execution_kernel.hpp",
        example="void mscclpp::executionKernel<float, mscclpp::LL16Packet, false>(int, float*, float*)",
    ),
    # oneCCL, which torch calls xccl: parts of a collective are kernels of their own. Parts with common names
    # (Kernel_compute, Kernel_all_sum) have no row.
    _make_row(
        "oneccl", r"Allreduce_small_kernel(?:_\w+)?", _AR, source=f"{_ONECCL}/allreduce/sycl",
        example="typeinfo name for Allreduce_small_kernel_scalar<sycl::_V1::ext::oneapi::bfloat16, 4>",
    ),
    _make_row(
        "oneccl", r"Allreduce(?:Medium|Large)Kernel_\w+", _AR, full_sync=False,
        source=f"{_ONECCL}/allreduce/sycl",
        example="typeinfo name for AllreduceLargeKernel_GlobalSync<float>",
    ),
    _make_row(
        "oneccl", r"Allgatherv?(?:MediumKernel|_small_kernel)(?:_\w+)?", _AG, full_sync=False,
        source=f"{_ONECCL}/allgatherv/sycl",
        example="typeinfo name for AllgatherMediumKernel_read_write<float, 16>",
    ),
    _make_row(
        "oneccl", r"Reduce_?[Ss]catter(?:MediumKernel|Large(?:NoCopy)?Kernel|_small_kernel)(?:_\w+)?", _RS,
        full_sync=False, source=f"{_ONECCL}/reduce_scatter/sycl",
        example="_ZTS24ReduceScatterLargeKernelIfLi16EE",
    ),
    _make_row(
        "oneccl", r"alltoallv_kernel_\d+_\w+_custom", _A2A, full_sync=False, source=_ONECCL_ZE,
        example="alltoallv_kernel_8_bfloat16_custom",
    ),
    _make_row(
        "oneccl", r"allreduce_kernel_(?:u?int\d+|float\d+|bfloat16)_(?:sum|prod|min|max)", _AR,
        full_sync=False, source=_ONECCL_ZE, example="allreduce_kernel_float32_sum",
    ),
    # HCCL: msprof names an operation by communicator and number. AicpuKernel is the same operation's task.
    _make_row(
        "hccl", r"hcom_allReduce_\w+", _AR, source=_HCCL_NAMES, example="hcom_allReduce__275_237_1"
    ),
    _make_row(
        "hccl", r"hcom_allGather_\w+", _AG, source=_HCCL_NAMES, example="hcom_allGather__063_2_1"
    ),
    _make_row(
        "hccl", r"hcom_reduceScatter_\w+", _RS, source=_HCCL_NAMES, example="hcom_reduceScatter__063_1_1"
    ),
    _make_row(
        "hccl", r"hcom_alltoallv?_\w+", _A2A, full_sync=False, source=_HCCL_NAMES,
        example="hcom_alltoallv__648_83_1",
    ),
    _make_row(
        "hccl", r"hcom_broadcast_\w+", _BROADCAST, source=_HCCL, example="hcom_broadcast__674_0_1"
    ),
    _make_row("hccl", r"hcom_send_\w+", _SEND, source=_HCCL_NAMES, example="hcom_send__447_18_1"),
    _make_row("hccl", r"hcom_receive_\w+", _RECV, source=_HCCL_NAMES, example="hcom_receive__964_40_1"),
    _make_row(
        "hccl", r"hcom_\w+", None, source=_HCCL_NAMES, example="hcom_BatchSendRecv__101_0_1"
    ),
)  # fmt: skip
#: The table. If several rows match, the first one wins.
KERNELS: tuple[KnownKernel, ...] = (*_NCCL_ROWS, *_SYMMETRIC_ROWS, *_EXPERT_ROWS, *_OTHER_ROWS)
#: All rows as one pattern; each row is a group named after its index.
_ROWS = "|".join(f"(?P<r{index}>{row.pattern})" for index, row in enumerate(KERNELS))
_ANY = re.compile(rf"(?:\w+::)*(?:{_ROWS})(?:\.kd)?", re.ASCII)


def is_collective_kernel(name: str) -> bool:
    """Return True if a kernel belongs to a communication library."""
    return identify_kernel(name) is not None


def identify_kernel(name: str) -> KnownKernel | None:
    """Return the table row of a kernel by its name, or None if it is not from a communication library."""
    return _identify_cached(name[:_MAX_NAME])


@lru_cache(maxsize=1 << 12)
def _identify_cached(name: str) -> KnownKernel | None:
    """Return the table row of a name, cached: thousands of ranks run the same few hundred kernels."""
    function = parse_function_name(name)
    match = _ANY.fullmatch(function) if len(function) <= _MAX_FUNCTION else None
    return KERNELS[int((match.lastgroup or "r0")[1:])] if match is not None else None


def parse_function_name(name: str) -> str:
    """Return the qualified function name of a kernel whose name may be mangled.

    ``void a::(anonymous namespace)::f<nccl::T>(int)`` becomes ``a::f``.
    """
    name = name[:_MAX_NAME].strip()
    mangled = _MANGLED.match(name)
    if mangled is not None:
        return "::".join(_split_mangled(name[mangled.end() :], nested=mangled[1] is not None))
    name, passes = _ANONYMOUS.sub("", name), 0
    while passes < _MAX_NESTING and (shorter := _INNERMOST.sub("", name)) != name:
        name, passes = shorter, passes + 1
    words = re.split(r"[(<]", name, maxsplit=1)[0].split()
    return re.sub(r":{3,}", "::", words[-1]).strip(":") if words else ""


def _split_mangled(text: str, *, nested: bool) -> Iterator[str]:
    """Yield the parts of a mangled name: ``4vllm3foo`` has two; a name without nesting has one."""
    while (digits := re.match(r"\d{1,4}", text)) is not None:
        end = digits.end() + int(digits[0])
        yield text[digits.end() : end]
        text = text[end:]
        if not nested:
            return
