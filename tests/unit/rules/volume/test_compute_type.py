"""The names of matrix products say in what type a model computes."""

from dataclasses import replace

import pandas as pd
import pytest

from tests.support.analyses import Scenario, analysis_of
from zprof.rules.volume.half_precision import ComputeType, read_compute_type

HALF = [
    "fmha_cutlassF_bf16_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel<Sm80>::Params)",
    "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NNT",
    "nvjet_hsh_192x192_64x4_2x1_v_bz_coopB_TNN",
    "ampere_bf16_s16816gemm_bf16_128x256_ldg8_f2f_stages_64x3_tn",
    "sm80_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_stage4_warpsize2x2x1",
    "volta_h884gemm_256x128_ldg8_nn",
    "cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_256x128_32x3_nn_align8",
    "Cijk_Ailk_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT256x256x64_MI16x16x1_SN",
    "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<128, 128, 64, 4> >",
]
FULL = [
    "ampere_sgemm_128x64_nn",
    "fmha_cutlassF_f32_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel<float, Sm80>::Params)",
    "nvjet_sss_128x128_32x4_1x2_h_bz_NNN",
    "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize32x32x8_stage3",
    "void cutlass::Kernel2<cutlass_80_simt_sgemm_128x64_8x5_nt_align1>(Params)",
    "sm80_xmma_gemm_f32f32_tf32f32_f32_nn_n_tilesize128x128x16_stage4",
]
NEITHER = [
    "aten::mm",
    "aten::_scaled_dot_product_flash_attention_for_cpu",
    "void at::native::elementwise_kernel<c10::BFloat16>",
    "Memcpy DtoD",
    "gemv",
]


def measured(*names: str, device: str = "NVIDIA H100") -> ComputeType:
    table = pd.DataFrame({"rank": 0, "name": list(names), "total_ns": 10})
    analysis = analysis_of(Scenario(steps=1))
    return read_compute_type(replace(analysis, kernels=table, run=replace(analysis.run, device=device)))


@pytest.mark.parametrize("name", HALF)
def test_half(name: str) -> None:
    seen = measured(name)
    assert (seen.half_ns, seen.full_ns, seen.is_half) == (10, 0, True)
    assert name.startswith(seen.example)


@pytest.mark.parametrize("name", FULL)
def test_full(name: str) -> None:
    seen = measured(name)
    assert (seen.half_ns, seen.full_ns, seen.is_half, seen.is_known) == (0, 10, False, True)


@pytest.mark.parametrize("name", NEITHER)
def test_neither(name: str) -> None:
    assert not measured(name).is_known


def test_the_larger_part_decides() -> None:
    assert measured(HALF[0], FULL[0]).is_half
    assert not measured(HALF[0], FULL[0], FULL[1]).is_half
    assert not read_compute_type(analysis_of(Scenario(steps=1))).is_known


def test_operators_of_a_cpu_say_nothing() -> None:
    assert not measured("fused_flash_attention_bf16", device="cpu").is_known


def test_a_name_from_a_file_is_shown_on_one_line() -> None:
    assert "\n" not in measured("nvjet_tst_\x1b[2J\nfine").example


def test_so_many_letters_of_a_name_are_read_and_shown() -> None:
    assert measured("x" * 330 + "_sgemm").is_known
    assert not measured("x" * 405 + "_sgemm").is_known
    assert len(measured("nvjet_tst_" + "x" * 100).example) == 60
