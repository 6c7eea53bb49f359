"""Why the CUDA kernel cannot be used, and that asking costs no import of cuda.core."""

import subprocess
import sys
from enum import IntEnum
from types import ModuleType
from typing import Any

import pytest
import torch

from zprof.reference_engine.optimizer.cuda import unavailable


class Result(IntEnum):
    SUCCESS = 0
    FAILED = 1


class Machine:
    """CUDA as seen from Python: what a test changes, ``unavailable`` meets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.nvrtc: tuple[Any, ...] = (Result.SUCCESS, 13, 0)
        self.driver: tuple[Any, ...] = (Result.SUCCESS, 13000)
        self.archs: tuple[Any, ...] = (Result.SUCCESS, [75, 80, 90, 100])
        self.capability = (9, 0)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: self.capability)
        cuda, core, bindings = (ModuleType(name) for name in ("cuda", "cuda.core", "cuda.bindings"))
        nvrtc: Any = ModuleType("cuda.bindings.nvrtc")
        driver: Any = ModuleType("cuda.bindings.driver")
        nvrtc.nvrtcVersion = self._version
        nvrtc.nvrtcGetSupportedArchs = lambda: self.archs
        driver.cuDriverGetVersion = lambda: self.driver
        for parent, name, child in (
            (cuda, "core", core),
            (cuda, "bindings", bindings),
            (bindings, "nvrtc", nvrtc),
            (bindings, "driver", driver),
        ):
            setattr(parent, name, child)
        for module in (cuda, core, bindings, nvrtc, driver):
            monkeypatch.setitem(sys.modules, module.__name__, module)

    def _version(self) -> tuple[Any, ...]:
        if isinstance(self.nvrtc[0], Exception):
            raise self.nvrtc[0]
        return self.nvrtc


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


@pytest.mark.parametrize("driver", [13000, 14010])
def test_a_whole_machine_lacks_nothing(machine, driver):
    machine.driver = (Result.SUCCESS, driver)
    assert unavailable() is None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"nvrtc": (RuntimeError("no libnvrtc.so.13\nhere"),)}, ("libnvrtc.so.13", "zprof[cuda]")),
        ({"driver": (Result.SUCCESS, 12080)}, ("12.8", "13.0", "zprof[cuda12]")),
        ({"driver": (Result.SUCCESS, 11040)}, ("11.4", "13.0", "driver")),
        ({"driver": (Result.FAILED, 0)}, ("FAILED",)),
        ({"capability": (7, 0)}, ("13.0", "sm_70")),
    ],
)
def test_what_does_not_fit_is_named_in_one_line(machine, change, words):
    vars(machine).update(change)
    reason = unavailable()
    assert reason is not None
    assert "\n" not in reason
    assert all(word in reason for word in words)


@pytest.mark.parametrize("name", ["cuda.core", "cuda.bindings"])
def test_without_the_extra_it_names_the_extra(machine, monkeypatch, name):
    monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delattr(sys.modules["cuda"], name.partition(".")[2])
    assert "zprof[cuda]" in str(unavailable())


def test_without_a_gpu_of_nvidia_it_says_so(machine, monkeypatch):
    monkeypatch.setattr(torch.version, "hip", "6.4")
    assert "ROCm" in str(unavailable())
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "CUDA device" in str(unavailable())


@pytest.mark.skipif(torch.cuda.is_available(), reason="with a GPU, unavailable() does import it")
def test_the_engine_does_not_import_cuda_core():
    code = (
        "import sys, zprof.reference_engine, zprof.reference_engine.optimizer.cuda as kernel; "
        "kernel.unavailable(); print([name for name in sys.modules if name.startswith('cuda.core')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
