"""Define the names of kernels, operators and collectives in traces, and a collective's metadata."""

from msgspec import Struct

from zprof.model.collectives import CollectiveKind
from zprof.simulator.engine.schedule import ExecutedInstruction
from zprof.simulator.plan import DType
from zprof.simulator.program.instructions import CollectiveLaunch, Groups, KernelWork

_K = CollectiveKind


class KernelName(Struct, frozen=True, kw_only=True):
    """Names of a kernel.  ``cuda``, ``hip``: by vendor; ``module``: True if HIP launches it from a module."""

    operator: str
    backward: str
    cuda: str
    hip: str
    grid: int
    block: int
    registers: int
    module: bool = False


_BF16 = "c10::BFloat16"
_ELEMENTWISE = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::BFloat16>, "
    "std::array<char*, 3ul> >(int, at::native::CUDAFunctor_add<c10::BFloat16>, std::array<char*, 3ul>)"
)
_ADAM = (
    "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::"
    "FusedOptimizerTensorListMetadata<4>, at::native::(anonymous namespace)::FusedAdamMathFunctor<float, 4, "
    "(at::native::ADAM_MODE)1, false> >(at::native::(anonymous namespace)::"
    "FusedOptimizerTensorListMetadata<4>)"
)
KERNELS = {
    KernelWork.GEMM: KernelName(
        operator="aten::mm",
        backward="MmBackward0",
        cuda="nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NNT",
        hip="Cijk_Ailk_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT256x256x64_MI16x16x1_SN",
        grid=132,
        block=384,
        registers=168,
        module=True,
    ),
    KernelWork.ATTENTION: KernelName(
        operator="aten::_flash_attention_forward",
        backward="aten::_flash_attention_backward",
        cuda="void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<128, 128, 64, 4> >",
        hip="attn_fwd",
        grid=1024,
        block=128,
        registers=255,
        module=True,
    ),
    KernelWork.NORM: KernelName(
        operator="aten::native_layer_norm",
        backward="aten::native_layer_norm_backward",
        cuda="void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<c10::BFloat16, float>",
        hip="void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<c10::BFloat16, float>",
        grid=8192,
        block=128,
        registers=32,
    ),
    KernelWork.ELEMENTWISE: KernelName(
        operator="aten::add", backward="AddBackward0", cuda=_ELEMENTWISE, hip=_ELEMENTWISE,
        grid=16384, block=128, registers=28,
    ),
    KernelWork.OPTIMIZER: KernelName(
        operator="aten::_fused_adamw_", backward="", cuda=_ADAM, hip=_ADAM, grid=320, block=512, registers=40
    ),
    KernelWork.SPLIT: KernelName(
        operator="fsdp::split_with_sizes_copy",
        backward="",
        cuda="void at::native::(anonymous namespace)::split_with_sizes_copy_out_contiguous_no_cast_kernel",
        hip="void at::native::(anonymous namespace)::split_with_sizes_copy_out_contiguous_no_cast_kernel",
        grid=2048,
        block=128,
        registers=24,
    ),
    KernelWork.PAD: KernelName(
        operator="fsdp::chunk_cat",
        backward="",
        cuda="void at::native::detail::chunk_cat_cuda_kernel<c10::BFloat16, c10::BFloat16>",
        hip="void at::native::detail::chunk_cat_cuda_kernel<c10::BFloat16, c10::BFloat16>",
        grid=2048,
        block=128,
        registers=24,
    ),
}  # fmt: skip


class CollectiveName(Struct, frozen=True, kw_only=True):
    """Names of a collective at each layer."""

    operator: str
    metadata: str
    annotation: str
    kernel: str
    old_kernel: str
    gloo: str


COLLECTIVES = {
    _K.ALL_GATHER: CollectiveName(
        operator="c10d::_allgather_base_",
        metadata="_allgather_base",
        annotation="nccl:_all_gather_base",
        kernel="ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        old_kernel="ncclKernel_AllGather_RING_LL_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)",
        gloo="gloo:all_gather",
    ),
    _K.REDUCE_SCATTER: CollectiveName(
        operator="c10d::_reduce_scatter_base_",
        metadata="_reduce_scatter_base",
        annotation="nccl:_reduce_scatter_base",
        kernel="ncclDevKernel_ReduceScatter_Sum_{}_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        old_kernel="ncclKernel_ReduceScatter_RING_LL_Sum_{}(ncclDevComm*, unsigned long, ncclWork*)",
        gloo="gloo:all_reduce",
    ),
    _K.ALL_REDUCE: CollectiveName(
        operator="c10d::allreduce_",
        metadata="allreduce",
        annotation="nccl:all_reduce",
        kernel="ncclDevKernel_AllReduce_Sum_{}_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        old_kernel="ncclKernel_AllReduce_RING_LL_Sum_{}(ncclDevComm*, unsigned long, ncclWork*)",
        gloo="gloo:all_reduce",
    ),
}
RCCL_KERNEL = "ncclDevKernel_Generic(ncclDevComm*, channelMasks, ncclWork*)"


class TypeName(Struct, frozen=True, kw_only=True):
    """Names of a type in metadata, in kernel names and in shapes."""

    metadata: str
    kernel: str
    shape: str


TYPES = {
    DType.FLOAT32: TypeName(metadata="Float", kernel="f32", shape="float"),
    DType.BFLOAT16: TypeName(metadata="BFloat16", kernel="bf16", shape=_BF16),
}


def count_elements(collective: CollectiveLaunch, group_size: int) -> tuple[int, int]:
    """Return the input and output elements of one rank."""
    full = collective.elements
    shard = max(1, full // group_size)
    if collective.kind is CollectiveKind.ALL_GATHER:
        return shard, full
    return full, shard if collective.kind is CollectiveKind.REDUCE_SCATTER else full


def list_collective_ranks(line: ExecutedInstruction, rank: int) -> list[int]:
    """Return the ranks of the collective's group that contains ``rank``."""
    assert line.groups is not None
    return list_group_ranks(line.groups, rank)


def list_group_ranks(groups: Groups, rank: int) -> list[int]:
    """Return the sorted ranks of the group of ``rank``."""
    row = groups.members[(groups.members == rank).any(axis=1)][0]
    return [int(member) for member in sorted(row)]


def format_metadata(line: ExecutedInstruction, ranks: list[int], sequence: bool) -> list[str]:
    """Return the metadata of a collective's kernel; with ``sequence``, the last entry is a placeholder."""
    collective, groups = line.instruction, line.groups
    assert isinstance(collective, CollectiveLaunch)
    assert groups is not None
    input_elements, output_elements = count_elements(collective, groups.size)
    return [
        f'"Collective name": "{COLLECTIVES[collective.kind].metadata}"',
        f'"In msg nelems": {input_elements}',
        f'"Out msg nelems": {output_elements}',
        f'"Group size": {groups.size}',
        f'"dtype": "{TYPES[collective.dtype].metadata}"',
        '"In split size": "[]"',
        '"Out split size": "[]"',
        f'"Process Group Name": "{groups.name}"',
        f'"Process Group Description": "{groups.description}"',
        f'"Process Group Ranks": "{format_ranks(ranks)}"',
        *(['"Seq": %s'] if sequence else []),
    ]


def format_ranks(ranks: list[int]) -> str:
    """Format ranks as PyTorch does, which truncates long lists."""
    max_ranks = 30
    if len(ranks) <= max_ranks:
        return "[" + ", ".join(map(str, ranks)) + "]"
    return "[" + ", ".join(map(str, ranks[:max_ranks])) + ", ...]"
