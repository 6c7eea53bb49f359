"""Real CUDA snapshots of other projects: what they hold, to the byte, and what the page says first.

The truths are the sizes of the blocks themselves (NOTICE.md of the data): gradients, parameters and each
moment of the optimizer have one multiset of sizes.
"""

from dataclasses import dataclass
from pathlib import Path

import pytest

import zprof
from tests.support.real_traces import TRACES
from zprof.analysis.analysis import RunAnalysis
from zprof.cli import main
from zprof.model.memory import RankMemory, WindowKind
from zprof.model.tenants import Tenant

SNAPSHOTS = TRACES.with_name("snapshots")
SMALL = 16 * 1_048_576 + 12 * 2_752_512 + 9 * 2_048 + 2 * 20_480_000
MEDIUM = 72 * 16_777_216 + 96 * 4_194_304 + 2 * 40_960_000 + 49 * 4_096
LARGE = 36 * 9_437_184 + 48 * 2_359_296 + 2 * 30_720_000 + 25 * 3_072


@dataclass(frozen=True)
class Held:
    """Bytes at the peak; ``new_state`` were made by a step that has not freed their predecessors yet."""

    kind: WindowKind
    parameters: int
    gradients: int
    state: int
    new_state: int = 0


FILES = {
    "small_100_forward_backward": Held(WindowKind.TRAINING, SMALL, 0, 2 * SMALL),
    "medium_128_training": Held(WindowKind.TRAINING, MEDIUM, MEDIUM, 2 * MEDIUM, new_state=2 * 40_960_000),
    "medium_512_training": Held(WindowKind.TRAINING, MEDIUM, 0, 2 * MEDIUM),
    "medium_1024_inference": Held(WindowKind.INFERENCE, MEDIUM, 0, 0),
    "large_bf16_128_forward": Held(WindowKind.INFERENCE, LARGE, 0, 0),
}
pytestmark = pytest.mark.skipif(not SNAPSHOTS.is_dir(), reason="the real files are not here")


def analysed(name: str) -> RunAnalysis:
    return zprof.load(SNAPSHOTS / f"{name}.pickle").analysis


def peak_of(name: str) -> RankMemory:
    (memory,) = analysed(name).memory.per_rank
    return memory


@pytest.mark.parametrize("name", FILES)
def test_model_states_have_the_bytes_of_their_blocks(name: str) -> None:
    held, memory = FILES[name], peak_of(name)
    found = [memory.tenants[t] for t in (Tenant.PARAMETERS, Tenant.GRADIENTS, Tenant.OPTIMIZER_STATE)]
    assert found == [held.parameters, held.gradients, held.state + held.new_state]
    assert memory.untagged_bytes <= 0.01 * memory.peak_bytes
    assert [window.kind for window in analysed(name).memory.windows] == [held.kind]


def test_states_of_a_whole_file_agree_at_its_end() -> None:
    phases = {phase.phase: phase.tenants for phase in analysed("small_100_forward_backward").memory.phases}
    at_the_step = phases["optimizer"]
    assert at_the_step[Tenant.GRADIENTS] == SMALL
    assert at_the_step[Tenant.PARAMETERS] in (SMALL, 2 * SMALL)


def test_random_data_has_no_owner() -> None:
    memory = peak_of("mosaic_output")
    assert memory.untagged_bytes >= 0.99 * memory.peak_bytes


@pytest.mark.parametrize("name", FILES)
def test_the_page_leads_with_what_holds_the_memory_and_what_to_change(
    name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "80")
    main(["diagnose", str(SNAPSHOTS / f"{name}.pickle")])
    first = "\n".join(capsys.readouterr().out.splitlines()[:10])
    (memory,) = analysed(name).memory.per_rank
    largest = max(memory.tenants, key=lambda tenant: memory.tenants[tenant])
    assert largest.value.replace("_", " ") in first
    assert "ZP2" in first
