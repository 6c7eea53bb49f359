"""Why the CUDA kernel cannot be used, and that asking costs no import of cuda.core."""

import sys
from enum import IntEnum
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch

from zprof.reference_engine.optimizer.cuda import explain_unavailable


class Result(IntEnum):
    SUCCESS = 0
    FAILED = 1


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """CUDA as seen from Python: what the calls of a whole machine return, or raise."""
    made = SimpleNamespace(
        nvrtc=Mock(return_value=(Result.SUCCESS, 13, 0)),
        driver=Mock(return_value=(Result.SUCCESS, 13000)),
        capability=Mock(return_value=(9, 0)),
    )
    archs = Mock(return_value=(Result.SUCCESS, [75, 80, 90, 100]))
    nvrtc = SimpleNamespace(nvrtcVersion=made.nvrtc, nvrtcGetSupportedArchs=archs)
    driver = SimpleNamespace(cuDriverGetVersion=made.driver)
    bindings, core = SimpleNamespace(nvrtc=nvrtc, driver=driver), SimpleNamespace()
    modules = {"": SimpleNamespace(bindings=bindings, core=core), ".core": core, ".bindings": bindings}
    for name, module in (modules | {".bindings.nvrtc": nvrtc, ".bindings.driver": driver}).items():
        monkeypatch.setitem(sys.modules, f"cuda{name}", module)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", made.capability)
    return made


@pytest.mark.parametrize("driver", [13000, 14010])
def test_a_whole_machine_lacks_nothing(machine, driver):
    machine.driver.return_value = (Result.SUCCESS, driver)
    assert explain_unavailable() is None


@pytest.mark.parametrize(
    ("call", "answer", "words"),
    [
        ("nvrtc", [RuntimeError("no libnvrtc.so.13\nhere")], ("libnvrtc.so.13", "zprof[cuda]")),
        ("driver", [(Result.SUCCESS, 12080)], ("12.8", "13.0", "zprof[cuda12]")),
        ("driver", [(Result.SUCCESS, 11040)], ("11.4", "13.0", "driver")),
        ("driver", [(Result.FAILED, 0)], ("FAILED",)),
        ("capability", [(7, 0)], ("13.0", "sm_70")),
    ],
)
def test_what_does_not_fit_is_named_in_one_line(machine, call, answer, words):
    getattr(machine, call).side_effect = answer * 9
    reason = explain_unavailable()
    assert reason is not None
    assert "\n" not in reason
    assert all(word in reason for word in words)


@pytest.mark.parametrize("name", ["cuda.core", "cuda.bindings"])
def test_without_the_extra_it_names_the_extra(machine, monkeypatch, name):
    monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delattr(sys.modules["cuda"], name.partition(".")[2])
    assert "zprof[cuda]" in str(explain_unavailable())


def test_without_a_gpu_of_nvidia_it_says_so(machine, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "CUDA device" in str(explain_unavailable())
    monkeypatch.setattr(torch.version, "hip", "6.4")
    assert "ROCm" in str(explain_unavailable())
