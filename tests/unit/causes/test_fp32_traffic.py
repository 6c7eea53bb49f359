"""fp32_reduce and fp32_gather: types on the wire and in kernels, and what two bytes would save."""

from collections.abc import Mapping

import numpy as np
import pytest
from msgspec.structs import replace

from tests.support.analyses import MS, ORIGIN, Scenario
from tests.support.rule_runs import (
    Run,
    judged,
    run_of,
    without_collectives,
)
from tests.support.tables import changed
from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.columns import Columns, OptionalInts
from zprof.causes.fp32_gather import CAUSE as fp32_gather
from zprof.causes.fp32_reduce import CAUSE as fp32_reduce
from zprof.step.needless_bytes import ComputeType, measure_half_bytes, read_compute_type

IN_HALF = [
    "fmha_cutlassF_bf16_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel<Sm80>::Params)",
    "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NNT",
    "sm80_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_stage4_warpsize2x2x1",
    "volta_h884gemm_256x128_ldg8_nn",
    "Cijk_Ailk_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT256x256x64_MI16x16x1_SN",
    "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<128, 128, 64, 4> >",
]
IN_FULL = [
    "ampere_sgemm_128x64_nn",
    "fmha_cutlassF_f32_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel<float, Sm80>::Params)",
    "nvjet_sss_128x128_32x4_1x2_h_bz_NNN",
    "void cutlass::Kernel2<cutlass_80_simt_sgemm_128x64_8x5_nt_align1>(Params)",
    "sm80_xmma_gemm_f32f32_tf32f32_f32_nn_n_tilesize128x128x16_stage4",
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
    table = Columns.from_rows([{"name": name, "total_ns": 10} for name in names], ("name", "total_ns"))
    analysis = run_of(Scenario(steps=1))
    return read_compute_type(replace(analysis, kernels=table, run=replace(analysis.run, device=device)))


@pytest.mark.parametrize(
    ("names", "times_ns"),
    [(IN_HALF, (10, 0)), (IN_FULL, (0, 10)), (NEITHER, (0, 0))],
    ids=["half", "full", "neither"],
)
def test_kernel_names_tell_the_type(names: list[str], times_ns: tuple[int, int]) -> None:
    for name in names:
        seen = computed(name)
        assert (seen.half_ns, seen.full_ns) == times_ns, name
        assert (seen.is_half, seen.is_known) == (times_ns[0] > 0, sum(times_ns) > 0), name


def test_the_larger_part_decides_and_a_cpu_says_nothing() -> None:
    assert computed(IN_HALF[0], IN_FULL[0]).is_half
    assert not computed(IN_HALF[0], IN_FULL[0], IN_FULL[1]).is_half
    assert not computed("fused_flash_attention_bf16", device="cpu").is_known
    assert not read_compute_type(run_of(Scenario(steps=1))).is_known


FP32, BF16 = "float32", "bfloat16"
KERNELS = {
    "half": "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NNT",
    "full": "ampere_sgemm_128x64_nn",
    "other": "void at::native::elementwise<c10::BFloat16>",
}


def with_types(rows: Columns, types: Mapping[str, str]) -> Columns:
    """Return the collectives with these types on the wire, by kind."""
    return rows.with_columns(dtype=rows.texts("kind").map(types.__getitem__))


def job(
    gathered: str, reduced: str, *, bytes_per_s: float = 120e6, stage: int = 3, **facts: int
) -> RunAnalysis:
    """A job with these types on the wire; its program states only these facts."""
    analysis = run_of(Scenario(bytes_per_s=bytes_per_s, engine="FSDP2", stage=stage))
    types = {"all_gather": gathered, "reduce_scatter": reduced, "all_reduce": reduced}
    unknown = {"parameter_bytes": None, "communication_bytes": None}
    return replace(
        analysis,
        collectives=with_types(analysis.collectives, types),
        training=replace(analysis.training, **(unknown | facts)),
    )


def computing(analysis: RunAnalysis, **total_ns: int) -> RunAnalysis:
    rows = [{"name": KERNELS[name], "total_ns": total} for name, total in total_ns.items()]
    return replace(
        analysis,
        kernels=Columns.from_rows(rows, ("name", "total_ns")),
        run=replace(analysis.run, device="cuda"),
    )


def autocast(half: int, full: int) -> RunAnalysis:
    """Both travel in float32; matrix products name the type in which the model computes."""
    return computing(job(FP32, FP32), half=half, full=full, other=10**9)


def partly_reduced_in_half(share: float) -> RunAnalysis:
    """Some gradients, of norms, are reduced in float32 by healthy programs too: this share of them."""
    analysis = job(BF16, FP32)
    rows = analysis.collectives
    scattered = np.flatnonzero(rows.texts("kind").equals("reduce_scatter"))
    in_half = np.zeros(len(rows), dtype=np.bool_)
    in_half[scattered[: round((1 - share) * len(scattered))]] = True
    return replace(analysis, collectives=changed(rows, in_half, dtype=BF16))


@pytest.mark.parametrize(
    ("run", "reduce", "gather"),
    [
        (lambda: job(BF16, FP32), "high", None),  # gathered in half
        (lambda: job(FP32, BF16), None, "high"),  # reduced in half
        (lambda: job(FP32, FP32), None, "gap"),  # a CPU program that states nothing
        (lambda: job(BF16, BF16), None, None),  # both in half
        (lambda: partly_reduced_in_half(0.55), "high", None),  # more than half of the bytes
        (lambda: autocast(51, 49), "medium", "high"),  # kernels in half
        (lambda: autocast(49, 51), None, None),  # kernels in full
        (lambda: computing(job(FP32, BF16), full=10), None, None),  # compressed gradients
        (lambda: job(FP32, FP32, stage=0), "gap", None),  # replicated
        (lambda: job(FP32, FP32, stage=0, communication_bytes=2, reduction_bytes=4), "high", None),  # stated
        (lambda: job(FP32, FP32, parameter_bytes=2), None, "medium"),  # stated parameters
        (lambda: run_of(bytes_per_s=120e6), None, None),  # the reference engine
        (lambda: run_of(bytes_per_s=120e6, stage=0), None, None),  # the engine replicated
        (lambda: without_collectives(job(BF16, FP32)), "gap", "gap"),  # no collectives
        (lambda: run_of(ranks=1), None, None),  # one rank
    ],
)
def test_what_proves_that_two_bytes_would_do(run: Run, reduce: str | None, gather: str | None) -> None:
    analysis = run()
    assert (judged(fp32_reduce, analysis), judged(fp32_gather, analysis)) == (reduce, gather)


def one_step(*rows: tuple[float, float, float]) -> RunAnalysis:
    """One step of one rank: (start, transfer, of it exposed) of each collective, in ms."""
    analysis = run_of(steps=1)
    starts = [ORIGIN + int(start * MS) for start, _, _ in rows]
    made = [
        {
            "rank": 0, "step": 0, "kind": "reduce_scatter", "group": "0,1", "bytes": 1_000, "matched": True,
            "bound": False, "start_ns": begin, "end_ns": ORIGIN + int((start + transfer) * MS),
            "launch_start_ns": begin, "transfer_ns": int(transfer * MS),
            "exposed_transfer_ns": int(exposed * MS), "exposed_wait_ns": 0,
        }
        for begin, (start, transfer, exposed) in zip(starts, rows, strict=True)
    ]  # fmt: skip
    table = Columns.from_rows(made, made[0]).with_columns(wait_start_ns=OptionalInts.of([None] * len(rows)))
    return replace(analysis, collectives=table, steps=analysis.steps.at(slice(1)))


@pytest.mark.parametrize(
    ("rows", "halved", "lost_ms"),
    [
        ([(0, 10, 2)], 1, 2),  # no more than shows
        ([(0, 6, 4), (40, 6, 4)], 2, 6),  # at most half of the transfer
        ([(0, 10, 2), (40, 10, 10)], 1, 5),  # others start sooner
    ],
)
def test_half_of_the_bytes_is_lost(
    rows: list[tuple[float, float, float]], halved: int, lost_ms: float
) -> None:
    analysis = one_step(*rows)
    lost_ns = measure_half_bytes(analysis, analysis.collectives.at(slice(halved))).lost_ns
    assert lost_ns / MS == pytest.approx(lost_ms)
