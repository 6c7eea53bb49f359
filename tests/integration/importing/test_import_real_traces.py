"""Public traces, as far as they are beside the checkout."""

import shutil
from pathlib import Path

import pytest

from tests.support.real_traces import TRACES as DATA
from zprof.integrations.imports.import_paths import import_paths
from zprof.run.reader import load

needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="the public traces are not there")


@needs_data
def test_two_of_128_ranks(tmp_path: Path) -> None:
    folder = shutil.copytree(DATA / "hta_trace_filter_2of128", tmp_path / "t")
    made = import_paths([folder], tmp_path / "r.zprof")
    run = load(made.run)
    assert run.ranks == (0, 1)
    assert (run.manifest.world_size, run.manifest.backend, run.manifest.device) == (128, "nccl", "cuda")
    assert run.rank_manifests[0].time_steps == (551, 552)
    assert "no file of 126 of 128 ranks was given" in [gap.reason for gap in run.gaps()]
    assert made.notes == ()


#: File: rank, ranks of the job, device, numbers of the steps.
TRACES = {
    "hta_cpu_only_gloo_rank-34.pt.trace.json.gz": (34, 300, "cpu", 1),
    "hta_df_index_resolver.json.gz": (1, 2, "cuda", 5),
    "hta_mi250_minitoy.json.gz": (0, 1, "hip", 1),
    "hta_nccl_data.json.gz": (0, 2, "cuda", 3),
    "hta_rank_non_gpu.json.gz": (0, 1, "cpu", 1),
    "kineto_2021_resnet50.pt.trace.json.gz": (0, 1, "cuda", 6),
    "tracelens_mi210_gpu_only.json.gz": (0, 1, "hip", 1),
    "tracelens_b200_eager.json.gz": (0, 8, "cuda", 1),
}


@needs_data
@pytest.mark.parametrize("name", TRACES)
def test_a_public_trace(name: str, tmp_path: Path) -> None:
    path = shutil.copy(DATA / name, tmp_path)
    run = load(import_paths([Path(path)], tmp_path / "r.zprof").run)
    (rank,) = run.ranks
    found = rank, run.manifest.world_size, run.manifest.device, len(run.rank_manifests[rank].time_steps)
    assert found == TRACES[name]
