"""The step without a cause: which kernels and collectives of the measured step a fix changes."""

import numpy as np
import pytest

from tests.support.diagnoses import Diagnosed, base, planted
from tests.support.rule_runs import claim
from zprof.model.findings import Cause
from zprof.rules.counterfactual.fixes import EDITS
from zprof.rules.counterfactual.pricing import Replay
from zprof.simulator.causes import Cause as Planted


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Diagnosed:
    return planted(Planted.FP32_REDUCE, base(0), tmp_path_factory.mktemp("job"), 0.5)


@pytest.mark.parametrize(
    ("cause", "copies"), [(Cause.FP32_REDUCE, set()), (Cause.FP32_GATHER, {"split_with_sizes_copy"})]
)
def test_half_of_the_bytes_halves_only_their_own_copies(
    job: Diagnosed, cause: Cause, copies: set[str]
) -> None:
    """The gradients of this job are reduced without a copy."""
    graph = Replay(analysis=job.analysis).graph
    assert graph is not None
    for changed in EDITS[cause](job.analysis, graph, claim(cause)):
        for before, after in zip(graph.ranks, changed.ranks, strict=True):
            halved = after.work_ns < before.work_ns
            assert after.work_ns[halved] == pytest.approx(before.work_ns[halved] / 2)
            names = {name for name in np.array(before.tasks.kernel)[halved].tolist() if "nccl" not in name}
            assert {
                copy for copy in ("split_with_sizes_copy", "chunk_cat") if copy in " ".join(names)
            } == copies
