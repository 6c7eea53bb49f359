"""The engine's benchmark runs to its end on real ranks, and compares what does the same work."""

import json
from pathlib import Path

import pytest

from benchmarks.engine import main
from benchmarks.steps.launch import FLOAT32, list_pairs

pytestmark = pytest.mark.ranks


@pytest.mark.slow
def test_the_quick_benchmark_gives_the_whole_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "engine.json"
    assert main(["--quick", "--output", str(output)]) == 0
    result = json.loads(output.read_text())
    assert result["disagreements"] == []
    printed = capsys.readouterr().out
    for pair in list_pairs(FLOAT32):
        assert f"{pair.subject} / {pair.peer}" in printed
    ratios = {(pair["subject"], pair["peer"]): pair["bytes_moved_ratio"] for pair in result["pairs"]}
    if result["ranks"]["counted"] is None:
        pytest.skip(result["memory"])
    # 2 psi for stages 0 to 2 and DDP; 3 psi for ZRO, stage 3 and FSDP2.
    assert ratios["zero0", "ddp"] == pytest.approx(1, abs=0.01)
    assert ratios["zero1", "ddp + zro"] == pytest.approx(2 / 3, abs=0.01)
    assert ratios["zero3", "fsdp2"] == pytest.approx(1, abs=0.01)
    assert {"torch", "cpu", "load_average", "commit"} <= set(result["conditions"])
