"""Public traces, as far as they are beside the checkout."""

from pathlib import Path

import pytest

from tests.support.real_traces import TRACES as DATA
from zprof.collectors.read.imports.import_paths import import_paths
from zprof.run.reader import load

slow = pytest.mark.slow
#: File or folder: ranks, ranks of the job, device, numbers of the first one's steps.
TRACES = [
    ("hta_cpu_only_gloo_rank-34.pt.trace.json.gz", (34,), 300, "cpu", 1),
    ("hta_mi250_minitoy.json.gz", (0,), 1, "hip", 1),
    ("hta_rank_non_gpu.json.gz", (0,), 1, "cpu", 1),
    ("hta_nccl_data.json.gz", (0,), 2, "cuda", 3),
    ("hta_trace_filter_2of128", (0, 1), 128, "cuda", 2),
    pytest.param("hta_df_index_resolver.json.gz", (1,), 2, "cuda", 5, marks=slow),
    pytest.param("kineto_2021_resnet50.pt.trace.json.gz", (0,), 1, "cuda", 6, marks=slow),
    pytest.param("tracelens_mi210_gpu_only.json.gz", (0,), 1, "hip", 1, marks=slow),
    pytest.param("tracelens_b200_eager.json.gz", (0,), 8, "cuda", 1, marks=slow),
]


@pytest.mark.skipif(not DATA.is_dir(), reason="the public traces are not there")
@pytest.mark.parametrize(("name", "ranks", "world_size", "device", "steps"), TRACES)
def test_a_public_trace(
    name: str, ranks: tuple[int, ...], world_size: int, device: str, steps: int, tmp_path: Path
) -> None:
    run = load(import_paths([DATA / name], tmp_path / "r.zprof").run)
    family = run.manifest.device.partition(" (")[0]
    assert (run.ranks, run.manifest.world_size, family) == (ranks, world_size, device)
    assert len(run.rank_manifests[ranks[0]].time_steps) == steps
    assert [gap.what for gap in run.gaps() if gap.what == "ranks missing"] == ["ranks missing"] * (
        world_size > len(ranks)
    )
