"""Which collectives carry the model, in which type, and in what type the kernels compute."""

from dataclasses import replace

import pandas as pd
import pytest

from tests.support.analyses import Scenario
from tests.support.rule_runs import run_of
from zprof.rules.volume.half_precision import ComputeType, read_compute_type
from zprof.rules.volume.model_traffic import Direction, count_elements, has_known_sizes, select_large

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
    "x" * 330 + "_sgemm",
]
NEITHER = [
    "aten::mm",
    "aten::_scaled_dot_product_flash_attention_for_cpu",
    "void at::native::elementwise_kernel<c10::BFloat16>",
    "Memcpy DtoD",
    "gemv",
    "x" * 405 + "_sgemm",
]


def computed(*names: str, device: str = "NVIDIA H100") -> ComputeType:
    table = pd.DataFrame({"rank": 0, "name": list(names), "total_ns": 10})
    analysis = run_of(Scenario(steps=1))
    return read_compute_type(replace(analysis, kernels=table, run=replace(analysis.run, device=device)))


@pytest.mark.parametrize(
    ("names", "times_ns"),
    [(HALF, (10, 0)), (FULL, (0, 10)), (NEITHER, (0, 0))],
    ids=["half", "full", "neither"],
)
def test_kernel_names_tell_the_type(names: list[str], times_ns: tuple[int, int]) -> None:
    for name in names:
        seen = computed(name)
        assert (seen.half_ns, seen.full_ns) == times_ns, name
        assert (seen.is_half, seen.is_known) == (times_ns[0] > 0, sum(times_ns) > 0), name


def test_the_larger_part_decides_and_a_cpu_says_nothing() -> None:
    assert computed(HALF[0], FULL[0]).is_half
    assert not computed(HALF[0], FULL[0], FULL[1]).is_half
    assert not computed("fused_flash_attention_bf16", device="cpu").is_known
    assert not read_compute_type(run_of(Scenario(steps=1))).is_known


def test_an_example_is_short_and_on_one_line() -> None:
    assert "\n" not in computed("nvjet_tst_\x1b[2J\nfine").example
    assert len(computed("nvjet_tst_" + "x" * 100).example) == 60


def rows(*sizes: int, dtype: str = "float32") -> pd.DataFrame:
    """Collectives of one step of one rank."""
    made = pd.DataFrame({"bytes": sizes})
    return made.assign(rank=0, step=0, kind="all_gather", group_size=2, dtype=dtype)


@pytest.mark.parametrize(
    ("dtype", "size"),
    [("float64", 8), ("float32", 4), ("bfloat16", 2), ("float16", 2), ("float8_e4m3fn", 1),
     ("float8_e5m2fnuz", 1), ("int64", 8), ("uint8", 1), ("unknown", 4)],
)  # fmt: skip
def test_elements_are_counted_by_the_size_of_their_type(dtype: str, size: int) -> None:
    assert count_elements(rows(840, 1680, dtype=dtype)) == 2520 / size


@pytest.mark.parametrize(("small", "kept"), [(1000, True), (999, False)])
def test_a_thousandth_of_the_step_carries_a_part_of_the_model(small: int, *, kept: bool) -> None:
    assert (small in set(select_large(rows(999_000, small))["bytes"])) is kept


def test_without_bytes_transfer_times_weigh() -> None:
    silent = rows(0, 0, 0).assign(transfer_ns=[1_000_000, 0, 900])
    assert select_large(silent)["transfer_ns"].tolist() == [1_000_000]


@pytest.mark.parametrize(("full", "half"), [(60, 40), (50, 50), (40, 60)])
def test_half_of_the_bytes_is_most_of_them(full: int, half: int) -> None:
    both = Direction(rows=pd.concat([rows(full), rows(half, dtype="bfloat16")], ignore_index=True))
    assert (both.is_full, both.is_half) == (full >= 50, half >= 50)


@pytest.mark.parametrize(("known", "is_known"), [(18, False), (19, True)])
def test_nearly_all_must_state_their_bytes(known: int, *, is_known: bool) -> None:
    assert has_known_sizes(rows(*[8] * known, *[0] * (20 - known))) is is_known
