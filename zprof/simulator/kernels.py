# ruff: noqa: E501
"""Name the kernels of simulated jobs after those of real traces (H100, A100; eager PyTorch)."""

from __future__ import annotations

from typing import Final, NamedTuple


class KernelKind(NamedTuple):
    """Name, launch shape, and the operators that launch it in forward and in backward."""

    name: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    registers: int
    shared: int
    operator: str
    node: str


_ELEMENTWISE: Final = "void at::native::vectorized_elementwise_kernel<4, at::native::{0}, std::array<char*, {1}ul> >(int, at::native::{0}, std::array<char*, {1}ul>)"
_MULTI: Final = "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::{0}>({0})"

KINDS: Final[tuple[KernelKind, ...]] = (
    KernelKind(
        "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off_kernel__5x_cublas",
        (132, 1, 1),
        (384, 1, 1),
        168,
        231424,
        "aten::mm",
        "autograd::engine::evaluate_function: MmBackward0",
    ),
    KernelKind(
        "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NNT",
        (132, 1, 1),
        (384, 1, 1),
        168,
        213248,
        "aten::addmm",
        "autograd::engine::evaluate_function: AddmmBackward0",
    ),
    KernelKind(
        "ampere_sgemm_128x64_tn",
        (96, 32, 1),
        (128, 1, 1),
        122,
        12544,
        "aten::mm",
        "autograd::engine::evaluate_function: MmBackward0",
    ),
    KernelKind(
        "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<128, 128, 64, 4, false, false, cutlass::bfloat16_t> >(pytorch_flash::Flash_fwd_params)",
        (32, 8, 32),
        (128, 1, 1),
        255,
        81920,
        "aten::_scaled_dot_product_flash_attention",
        "autograd::engine::evaluate_function: ScaledDotProductFlashAttentionBackward0",
    ),
    KernelKind(
        "void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<pytorch_flash::Flash_bwd_kernel_traits<128, 64, 128, 8, 2, 4, 2, false, false, cutlass::bfloat16_t> >(pytorch_flash::Flash_bwd_params)",
        (16, 8, 32),
        (256, 1, 1),
        255,
        147456,
        "aten::_scaled_dot_product_flash_attention",
        "autograd::engine::evaluate_function: ScaledDotProductFlashAttentionBackward0",
    ),
    KernelKind(
        _ELEMENTWISE.format(
            "BinaryFunctor<c10::BFloat16, c10::BFloat16, c10::BFloat16, at::native::binary_internal::MulFunctor<float> >",
            3,
        ),
        (17888, 1, 1),
        (128, 1, 1),
        24,
        0,
        "aten::mul",
        "autograd::engine::evaluate_function: MulBackward0",
    ),
    KernelKind(
        _ELEMENTWISE.format("CUDAFunctor_add<c10::BFloat16>", 3),
        (17888, 1, 1),
        (128, 1, 1),
        24,
        0,
        "aten::add",
        "autograd::engine::evaluate_function: AddBackward0",
    ),
    KernelKind(
        "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<c10::BFloat16, float>(int, float, c10::BFloat16 const*, c10::BFloat16 const*, c10::BFloat16 const*, float*, float*, c10::BFloat16*)",
        (8192, 1, 1),
        (32, 4, 1),
        40,
        24,
        "aten::native_layer_norm",
        "autograd::engine::evaluate_function: NativeLayerNormBackward0",
    ),
    KernelKind(
        "void at::native::(anonymous namespace)::indexSelectLargeIndex<c10::BFloat16, long, unsigned int, 2, 2, -2, true>(at::cuda::detail::TensorInfo<c10::BFloat16, unsigned int>)",
        (1056, 1, 1),
        (128, 1, 1),
        32,
        0,
        "aten::embedding",
        "autograd::engine::evaluate_function: EmbeddingBackward0",
    ),
    KernelKind(
        "void (anonymous namespace)::softmax_warp_forward<float, float, float, 10, true, false>(float*, float const*, int, int, int, bool const*, int, bool)",
        (4096, 1, 1),
        (32, 4, 1),
        48,
        0,
        "aten::_log_softmax",
        "autograd::engine::evaluate_function: LogSoftmaxBackward0",
    ),
    KernelKind(
        "void at::native::(anonymous namespace)::CatArrayBatchedCopy_aligned16_contig<at::native::(anonymous namespace)::OpaqueType<2u>, unsigned int, 1, 128, 1>(at::native::(anonymous namespace)::OpaqueType<2u>*)",
        (264, 2, 1),
        (512, 1, 1),
        25,
        0,
        "fsdp::all_gather_copy_in",
        "fsdp::all_gather_copy_in",
    ),
    KernelKind(
        "void at::native::(anonymous namespace)::split_with_sizes_copy_out_contiguous_no_cast_kernel(char**, char**, long*, long*, long*, long)",
        (4224, 1, 1),
        (512, 1, 1),
        32,
        0,
        "fsdp::split_with_sizes_copy",
        "fsdp::split_with_sizes_copy",
    ),
    KernelKind(
        "void at::native::(anonymous namespace)::chunk_cat_cuda_kernel<c10::BFloat16, float>(c10::BFloat16**, float*, long*, long*, long*, long*, long*, long, long)",
        (2112, 1, 1),
        (128, 1, 1),
        32,
        0,
        "fsdp::chunk_cat",
        "fsdp::chunk_cat",
    ),
    KernelKind(
        _ELEMENTWISE.format(
            "AUnaryFunctor<float, float, float, at::native::binary_internal::MulFunctor<float> >", 2
        ),
        (8944, 1, 1),
        (128, 1, 1),
        18,
        0,
        "aten::div_",
        "aten::div_",
    ),
    KernelKind(
        _MULTI.format(
            "FusedOptimizerTensorListMetadata<4>, at::native::(anonymous namespace)::FusedAdamMathFunctor<float, 4, (at::native::ADAM_MODE)1, false>"
        ),
        (640, 1, 1),
        (512, 1, 1),
        64,
        0,
        "aten::_fused_adamw_",
        "aten::_fused_adamw_",
    ),
    KernelKind(
        _MULTI.format(
            "TensorListMetadata<1>, at::native::(anonymous namespace)::LpNormFunctor<float, (at::native::NormType)1, float>"
        ),
        (320, 1, 1),
        (512, 1, 1),
        40,
        2048,
        "aten::_foreach_norm",
        "aten::_foreach_norm",
    ),
    KernelKind(
        _ELEMENTWISE.format("CUDAFunctor_add<float>", 3),
        (8944, 1, 1),
        (128, 1, 1),
        22,
        0,
        "aten::add_",
        "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad",
    ),
    KernelKind(
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::ArgMaxOps<float>, unsigned int, long, 4> >(at::native::ReduceOp<float, at::native::ArgMaxOps<float>, unsigned int, long, 4>)",
        (16, 1, 1),
        (32, 16, 1),
        32,
        16,
        "aten::argmax",
        "aten::argmax",
    ),
)

GEMM, GEMM2, SGEMM, FLASH, FLASH_BACKWARD, MUL, ADD, NORM, EMBEDDING, SOFTMAX = range(10)
COPY_IN, COPY_OUT, CHUNK_CAT, DIVIDE, ADAM, LP_NORM, ACCUMULATE, ARGMAX = range(10, 18)

FORWARD_STYLES: Final[dict[str, tuple[tuple[int, float], ...]]] = {
    "full": ((NORM, 2), (GEMM, 18), (MUL, 3), (FLASH, 14), (GEMM, 7), (ADD, 2), (NORM, 2), (GEMM2, 30),
             (MUL, 4), (GEMM, 16), (ADD, 2)),
    "medium": ((NORM, 3), (GEMM, 20), (FLASH, 15), (GEMM2, 8), (NORM, 3), (GEMM2, 32), (GEMM, 19)),
    "fused": ((GEMM, 25), (FLASH, 16), (GEMM2, 35), (GEMM, 24)),
}  # fmt: skip
"""Kernels of a transformer block and their shares of its time (attention 10-20 %, GEMMs 65-75 %)."""

BACKWARD_STYLES: Final[dict[str, tuple[tuple[int, float], ...]]] = {
    "full": ((ADD, 2), (GEMM, 15), (GEMM, 16), (MUL, 4), (GEMM2, 27), (GEMM2, 29), (NORM, 4), (ADD, 2),
             (GEMM, 7), (GEMM, 7), (FLASH_BACKWARD, 35), (MUL, 4), (GEMM, 17), (GEMM, 17), (NORM, 4)),
    "medium": ((GEMM, 18), (GEMM, 18), (GEMM2, 29), (GEMM2, 30), (NORM, 5), (GEMM, 8), (GEMM, 8),
               (FLASH_BACKWARD, 36), (GEMM, 19), (GEMM, 19)),
    "fused": ((GEMM, 40), (GEMM2, 62), (FLASH_BACKWARD, 38), (GEMM, 60)),
}  # fmt: skip
"""Backward costs about twice the forward: a data and a weight gradient for each GEMM, attention 2.5 times."""


_REDUCED_OR_GATHERED: Final = {
    "all_gather": "AllGather", "reduce_scatter": "ReduceScatter", "all_reduce": "AllReduce",
}  # fmt: skip


def name_collective(operation: str, itemsize: int, era: str) -> str:
    """Return the NCCL kernel's name: 2.19 and later name it ncclDevKernel, earlier ncclKernel.

    All-to-all, send and receive are one kernel.
    """
    if operation not in _REDUCED_OR_GATHERED:
        if era == "old":
            return "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)"
        return "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
    kind = _REDUCED_OR_GATHERED[operation]
    if era == "old":
        number = {2: "half", 4: "float"}[itemsize] if operation != "all_gather" else "int8_t"
        return f"ncclKernel_{kind}_RING_LL_Sum_{number}(ncclDevComm*, unsigned long, ncclWork*)"
    number = {2: "bf16", 4: "f32"}[itemsize]
    middle = "RING_LL" if operation == "all_gather" else f"Sum_{number}_RING_LL"
    return f"ncclDevKernel_{kind}_{middle}(ncclDevKernelArgsStorage<4096ul>)"
