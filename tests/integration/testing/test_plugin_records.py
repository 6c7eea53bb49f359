"""The plugin on real training, in the test's process and on two ranks: limits that hold, and that do not."""

import re
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.pytest_suites import ROOT, Suite, said_by_zprof

pytestmark = pytest.mark.ranks

HERE = """
import torch
import zprof

STEPS = zprof.steps(skip=1, memory=1, time=2)

def recorded(zprof_run, width):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, width), torch.nn.ReLU(), torch.nn.Linear(width, 64))
    optimizer = torch.optim.AdamW(model.parameters())

    def step():
        model(torch.ones(2048, 64)).mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return zprof_run(step, model=model, optimizer=optimizer, steps=STEPS)

@pytest.mark.zprof_limit(peak="+2%", untagged="5%", parameters="32.5 KiB", activations="exact")
def test_step(zprof_run):
    run = recorded(zprof_run, WIDTH)
    assert run.report.run.memory_steps == (1,)
    assert run.report.run.steps == (2, 3)

@pytest.mark.zprof_limit(peak="1 MiB")
def test_whole(zprof_run):
    def train(record):
        model = torch.nn.Linear(64, 64)
        with record(model=model) as recording:
            for _ in range(4):
                model(torch.ones(8, 64)).mean().backward()
                recording.step()
    assert zprof_run(train, steps=STEPS).ranks == (0,)

@pytest.mark.zprof_limit(peak="1 MiB")
def test_raises(zprof_run):
    def step():
        raise ValueError("of the program")
    zprof_run(step, steps=STEPS)

def test_forgets_record(zprof_run):
    zprof_run(lambda record: None)
"""
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


@pytest.mark.slow
def test_training_in_the_process_of_the_test(suite: Suite) -> None:
    suite.write(HERE.replace("WIDTH", "64"))
    first = suite.alone("--zprof-update-baseline", "-k", "step or whole")
    first.assert_outcomes(passed=2)
    (said,) = said_by_zprof(first)
    assert said.endswith("wrote: zprof-baselines/test_cost.test_step.json")
    suite.write(HERE.replace("WIDTH", "72"))
    suite.alone("--junitxml=j.xml").assert_outcomes(passed=1, failed=3)
    told = messages(suite.folder / "j.xml")
    peak, parameters, activations = told["test_step"].splitlines()
    assert peak.startswith("peak_memory: ")
    assert "above the baseline's" in peak
    assert "temporary buffers grew most, +128.0 KiB" in peak
    assert parameters.startswith("peak_memory.parameters: 36.5 KiB on rank 0")
    assert "allowed at most 32.5 KiB" in parameters
    assert activations.startswith("peak_memory.activations: ")
    assert "above the baseline's" in activations
    assert told["test_whole"] == ""
    assert "ValueError: of the program" in told["test_raises"]
    assert "zprof/testing" not in told["test_raises"]
    assert told["test_forgets_record"].startswith("zprof_run: nothing was recorded; ")


def test_training_on_two_ranks(suite: Suite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(suite.folder))
    suite.write(ON_RANKS)
    # In this mode the module of a test is in no folder from which another process could import it.
    result = suite.alone("--import-mode=importlib", "--junitxml=j.xml", "--zprof-update-baseline")
    result.assert_outcomes(passed=1, failed=3)
    told = messages(suite.folder / "j.xml")
    assert told["test_fsdp2"] == ""
    assert [line.partition(": ")[2] for line in said_by_zprof(result)] == [
        "wrote: zprof-baselines/test_cost.test_fsdp2.json"
    ]
    parameters, volume = told["test_ddp"].splitlines()
    assert parameters.startswith("peak_memory.parameters: 32.5 KiB on rank ")
    assert volume.startswith("collective_bytes_law: 2Ψ ")
    raised = "zprof_run: rank 1 of 2: ValueError: of the program (test_cost.py:"
    assert told["test_fails[raise]"].startswith(raised)
    assert told["test_fails[kill]"] == "zprof_run: rank 1 of 2 was killed by SIGKILL"
    (hung,) = [p.get("value", "") for p in properties(suite.folder / "j.xml") if p.get("name") == "hung"]
    said = (r"zprof_run: ranks 0, 1 of 2 did not end within [\d.e+]+ s \(timeout_s\); "
            r"rank 0 is at test_cost.py:\d+ in train; rank 1 is at test_cost.py:\d+ in go_wrong")  # fmt: skip
    assert re.fullmatch(said, hung), hung
    assert not processes_of(suite.folder)
