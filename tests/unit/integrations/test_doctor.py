"""The checks of a machine: each library probed by itself, absent is not broken."""

import json

import pytest

from zprof.base.errors import Extra
from zprof.cli import main
from zprof.integrations.doctor import ProbeAnswer, examine, run_probe
from zprof.model.doctor import CheckStatus, DoctorCheck

TORCH = {"version": "2.13.0", "cuda": "13.0", "hip": None, "devices": ["H200", "H200"], "backends": ["gloo"]}
NOTHING = ProbeAnswer(value=None, failure="not there")


def hide(monkeypatch: pytest.MonkeyPatch, *extras: Extra) -> None:
    """As if these were not installed."""
    monkeypatch.setattr("zprof.integrations.doctor.is_installed", lambda extra: extra not in extras)


def checks(**answers: ProbeAnswer) -> dict[str, DoctorCheck]:
    def probe(code: str) -> ProbeAnswer:
        return next((answers[word] for word in answers if f"import {word}" in code), NOTHING)

    return {check.name: check for check in examine(probe).checks}


def test_a_machine_without_a_gpu_is_well(monkeypatch: pytest.MonkeyPatch) -> None:
    hide(monkeypatch, Extra.HTA)
    found = checks(torch=ProbeAnswer(value={**TORCH, "devices": [], "cuda": None}))
    assert found["torch"].status is CheckStatus.OK
    for optional in ("gpu", "nvml", "hta", "cuda kernel"):
        assert found[optional].status is CheckStatus.ABSENT
        assert found[optional].without
        assert found[optional].remedy
    unseen = checks(torch=ProbeAnswer(value={**TORCH, "devices": []}))
    assert unseen["gpu"].remedy != found["gpu"].remedy, "a torch for GPUs that sees none is another case"


def test_devices_and_driver_are_counted() -> None:
    found = checks(torch=ProbeAnswer(value=TORCH), pynvml=ProbeAnswer(value=["580.1", 2]))
    assert found["gpu"].found == "2 x H200"
    assert "580.1" in found["nvml"].found


def test_a_torch_that_cannot_be_imported_is_broken_with_its_reason() -> None:
    found = checks(torch=ProbeAnswer(value=None, failure="ImportError: libcudart.so.13"))
    assert found["torch"].status is CheckStatus.BROKEN
    assert found["torch"].found == "ImportError: libcudart.so.13"
    assert "gpu" not in found


def test_an_extra_that_is_not_installed_is_absent_with_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    hide(monkeypatch, Extra.RECORD, Extra.HTA)
    found = checks()
    for name, extra in {"torch": "record", "hta": "hta"}.items():
        assert found[name].status is CheckStatus.ABSENT
        assert found[name].remedy == f"pip install 'zprof[{extra}]'"


@pytest.mark.parametrize(
    ("code", "failure"),
    [
        ("raise ValueError('no such library')", "ValueError: no such library"),
        ("import os; os._exit(7)", "7"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "-11"),
        ("answer = [", "SyntaxError"),
        ("import threading; threading.Event().wait(); answer = 0", "TimeoutExpired"),
    ],
)
def test_a_crash_and_a_hang_are_answers_too(code: str, failure: str) -> None:
    answer = run_probe(code, seconds=0.5 if "Event" in code else 60)
    assert answer.value is None
    assert failure in answer.failure


def test_output_of_a_library_is_not_the_answer() -> None:
    assert run_probe("print('{}'); answer = {'a': [1]}").value == {"a": [1]}


def test_the_command_writes_json(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zprof.integrations.doctor.examine", lambda: examine(lambda code: NOTHING))
    assert main(["doctor", "--json"]) == 1  # torch is broken
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == "zprof.doctor/1"
    assert {check["status"] for check in found["checks"]} == {"ok", "absent", "broken"}
    assert main(["doctor"]) == 1
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80
