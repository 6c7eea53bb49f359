"""The plugin on real training, in the test's process and on two ranks: limits that hold and that do not."""

import re
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.pytest_suites import ROOT, Suite, said_by_zprof

pytestmark = pytest.mark.ranks

ON_RANKS = """
import functools
import os
import signal
import threading
import time

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import zprof

STEPS = zprof.steps(skip=1, memory=1, time=2)

def train(record, *, sharded, fault=None):
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64))
    if sharded:
        for layer in (model[0], model[2], model):
            fully_shard(layer)
    else:
        model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters())
    with record(model=model, optimizer=optimizer) as recording:
        for step in range(4):
            if step == 1 and dist.get_rank() == 1:
                go_wrong(fault)
            model(torch.ones(8, 64)).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            recording.step()
    if not sharded:
        dist.destroy_process_group()  # as programs do at their end

def go_wrong(fault):
    if fault == "raise":
        raise ValueError("of the program")
    if fault == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "hang":
        threading.Event().wait()

@pytest.mark.zprof_limit(peak="1 MiB", parameters="16 KiB", activations="+0%")
def test_here(zprof_run):
    model = torch.nn.Linear(64, 64)
    optimizer = torch.optim.AdamW(model.parameters())

    def step():
        model(torch.ones(8, 64)).mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    run = zprof_run(step, model=model, optimizer=optimizer, steps=STEPS)
    assert (run.report.run.memory_steps, run.report.run.steps) == ((1,), (2, 3))

@pytest.mark.zprof_limit(peak="1 MiB", parameters="+0%", bytes="3Ψ", count="+0%")
def test_fsdp2(zprof_run):
    run = zprof_run(functools.partial(train, sharded=True), ranks=2, steps=STEPS)
    assert run.manifest.world_size == 2
    assert run.report.run.engine == "fsdp2"

@pytest.mark.zprof_limit(parameters="16.25 KiB", bytes="1Ψ")
def test_ddp(zprof_run, record_property):
    began = time.monotonic()
    zprof_run(functools.partial(train, sharded=False), ranks=2, steps=STEPS)
    hanging = functools.partial(train, sharded=False, fault="hang")
    with pytest.raises(pytest.fail.Exception) as failed:
        zprof_run(hanging, ranks=2, steps=STEPS, timeout_s=2 * (time.monotonic() - began))
    record_property("hung", str(failed.value))

@pytest.mark.parametrize("fault", ["raise", "kill"])
def test_fails(zprof_run, fault):
    zprof_run(functools.partial(train, sharded=False, fault=fault), ranks=2, steps=STEPS)
"""


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Suite:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return Suite(pytester, monkeypatch)


def messages(path: Path) -> Mapping[str, str]:
    """What each test says in a JUnit file: empty where it passed."""
    cases = ET.parse(path).iter("testcase")
    return {case.get("name", ""): "".join(fail.text or "" for fail in case.iter("failure")) for case in cases}


def properties(path: Path) -> list[ET.Element]:
    return list(ET.parse(path).iter("property"))


def processes_of(folder: Path) -> list[str]:
    """Command lines of what still runs and was given something of the folder."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            line = file.read_bytes().replace(b"\0", b" ").decode(errors="replace")
            found += [line] if str(folder) in line else []
    return found


def test_training_in_the_process_and_on_two_ranks(suite: Suite) -> None:
    suite.write(ON_RANKS)
    # In this mode the module of a test is in no folder from which another process could import it.
    result = suite.alone(
        "--import-mode=importlib", "--junitxml=j.xml", "--zprof-update-baseline", "-k", "here or fsdp2"
    )
    result.assert_outcomes(passed=1, failed=1, deselected=3)
    told = messages(suite.folder / "j.xml")
    assert told["test_fsdp2"] == ""
    assert told["test_here"].startswith("peak_memory.parameters: 16.2 KiB ")
    (said,) = said_by_zprof(result)
    assert said.endswith("zprof-baselines/test_cost.test_fsdp2.json")


@pytest.mark.slow
def test_ranks_that_break_a_limit_raise_die_or_hang(suite: Suite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(suite.folder))
    suite.write(ON_RANKS)
    result = suite.alone("--import-mode=importlib", "--junitxml=j.xml", "-k", "ddp or fails")
    result.assert_outcomes(failed=3, deselected=2)
    told = messages(suite.folder / "j.xml")
    parameters, volume = told["test_ddp"].splitlines()
    assert parameters.startswith("peak_memory.parameters: 32.5 KiB on rank ")
    assert volume.startswith("collective_bytes_law: 2Ψ ")
    assert "rank 1 of 2: ValueError: of the program (test_cost.py:" in told["test_fails[raise]"]
    assert "rank 1 of 2 was killed by SIGKILL" in told["test_fails[kill]"]
    (hung,) = [p.get("value", "") for p in properties(suite.folder / "j.xml") if p.get("name") == "hung"]
    assert "ranks 0, 1 of 2" in hung
    assert re.search(
        r"rank 0 is at test_cost.py:\d+ in train; rank 1 is at test_cost.py:\d+ in go_wrong", hung
    )
    assert not processes_of(suite.folder)
