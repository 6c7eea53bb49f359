"""The training log: known figures with their bounds, nothing for the unknown, no error for the loop."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace

from tests.support.check_runs import MS
from tests.support.framework_stubs import (
    WrappedOptimizer,
    backward,
    small_model,
    stubbed,
    trainer_arguments,
    transformers_stub,
)
from tests.support.judged_checks import MIB, RUN, UNTIMED
from zprof.base.errors import BadInput
from zprof.integrations.training_log import LOG_NAME, TrainingLog, make_entry, write_jsonl, write_scalars


class Writer:
    """As TensorBoard's."""

    def __init__(self) -> None:
        self.scalars: dict[str, tuple[float, int]] = {}

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> None:
        self.scalars[tag] = (scalar_value, global_step)


def lines(folder: Path) -> list[dict[str, Any]]:
    path = folder / LOG_NAME
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_figures_are_those_of_the_run(tmp_path: Path) -> None:
    entry, writer = make_entry(41, RUN.baseline), Writer()
    write_jsonl(entry, tmp_path / LOG_NAME)
    write_jsonl(entry, tmp_path / LOG_NAME)
    write_scalars(entry, writer)
    first, second = lines(tmp_path)
    assert first == second
    assert (first["step"], first["world_size"], first["missing_ranks"], first["bounds"]) == (41, 2, [], {})
    figures = first["figures"]
    assert figures["wall_ns"] == 391_200_000
    assert (figures["exposed_ns"], figures["exposed_wait_ns"]) == (18 * MS, 8_900_000)
    assert figures["peak_bytes"] == int(21.4 * MIB)
    assert figures["peak_bytes/communication_buffers"] == 4 * MIB + 512
    assert writer.scalars["zprof/exposed_wait_ms"] == (8.9, 41)
    assert writer.scalars["zprof/peak_mib/activations"][0] == pytest.approx(
        figures["peak_bytes/activations"] / MIB
    )
    assert len(writer.scalars) == len(figures)


def test_what_is_unknown_is_absent_and_a_bound_is_named(tmp_path: Path) -> None:
    no_time, no_memory = (
        make_entry(1, made.baseline).figures for made in (UNTIMED, replace(RUN, memory=False))
    )
    assert all(name.startswith("peak_bytes") for name in no_time)
    assert not any(name.startswith("peak_bytes") for name in no_memory)
    partial, writer = replace(RUN, timed=(0,), unsplit=18 * MS, upper_time=True), Writer()
    entry = make_entry(1, partial.baseline)
    write_jsonl(entry, tmp_path / LOG_NAME)
    write_scalars(entry, writer)
    (line,) = lines(tmp_path)
    assert line["missing_ranks"] == [1]
    assert line["bounds"]["exposed_ns"] == "at_most"
    assert line["bounds"]["exposed_wait_ns"] == "unknown"
    assert "zprof/exposed_ms_at_most" in writer.scalars
    assert "zprof/exposed_ms" not in writer.scalars


def test_a_window_that_is_too_dense_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="every=3"):
        TrainingLog(tmp_path, every=3)


def test_the_trainer_logs_with_one_callback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On one rank: the whole way, through the recorder and the analysis."""
    writer, model = Writer(), small_model()
    optimizer = torch.optim.AdamW(model.parameters())
    given = {"model": model, "optimizer": WrappedOptimizer(optimizer)}
    args = trainer_arguments(output_dir=str(tmp_path), report_to=[])
    with stubbed("huggingface", {"transformers": transformers_stub()}, monkeypatch) as bridge:
        callback = bridge.ZprofLogCallback(every=5, tensorboard=writer)
        callback.on_train_begin(args, None, None, **given)
        for _ in range(9):
            backward(model)
            optimizer.step()
            optimizer.zero_grad()
            callback.on_step_end(args, None, None, **given)
        callback.on_train_end(args, None, None, **given)
    (line,) = lines(tmp_path)
    assert line["step"] == 7
    sizes = 4 * sum(parameter.numel() for parameter in model.parameters())
    assert line["figures"]["peak_bytes/parameters"] == sizes
    tenants = sum(size for name, size in line["figures"].items() if name.startswith("peak_bytes/"))
    assert tenants == line["figures"]["peak_bytes"]
    assert line["figures"]["wall_ns"] > 0
    assert {step for _, step in writer.scalars.values()} == {7}
    assert not (tmp_path / "windows").exists()


@pytest.mark.parametrize("disabled", [False, True])
def test_no_failure_reaches_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, disabled: bool
) -> None:
    """A file where the folder should be: a warning, or nothing if the log is off."""
    (tmp_path / "file").write_text("")
    if disabled:
        monkeypatch.setenv("ZPROF", "0")
    with TrainingLog(tmp_path / "file", model=small_model(), every=4) as log:
        for _ in range(10):
            log.step()
    assert bool(caplog.records) is not disabled
