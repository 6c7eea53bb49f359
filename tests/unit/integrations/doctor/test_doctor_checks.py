"""What the doctor says of a machine: each library asked by itself, absent is not broken."""

import json

import pytest

from zprof.cli import main
from zprof.integrations.doctor import Answer, examine, run_probe
from zprof.model.doctor import Check, CheckStatus

TORCH = {"version": "2.13.0", "cuda": "13.0", "hip": None, "devices": ["H200", "H200"], "backends": ["gloo"]}


def checks(**answers: Answer) -> dict[str, Check]:
    def asked(code: str) -> Answer:
        for word, answer in answers.items():
            if f"import {word}" in code:
                return answer
        return Answer(value=None, failure="not there")

    return {check.name: check for check in examine(asked).checks}


def test_a_machine_without_a_gpu_is_well() -> None:
    found = checks(torch=Answer(value={**TORCH, "devices": [], "cuda": None}))
    assert found["torch"].status is CheckStatus.OK
    for optional in ("gpu", "nvml", "hta", "cuda kernel"):
        assert found[optional].status is CheckStatus.ABSENT
        assert found[optional].without
        assert found[optional].remedy
    assert "built for CPUs" in found["gpu"].found


def test_a_gpu_that_torch_does_not_see_is_another_thing_than_a_torch_for_cpus() -> None:
    found = checks(torch=Answer(value={**TORCH, "devices": []}))
    assert found["gpu"].found == "torch sees no device"
    assert "nvidia-smi" in found["gpu"].remedy


def test_devices_and_driver_are_counted() -> None:
    found = checks(torch=Answer(value=TORCH), pynvml=Answer(value=["580.1", 2]))
    assert found["gpu"].found == "2 x H200"
    assert found["nvml"].found == "driver 580.1, 2 devices"


def test_a_torch_that_cannot_be_imported_is_broken_and_says_why() -> None:
    found = checks(torch=Answer(value=None, failure="ImportError: libcudart.so.13"))
    assert found["torch"].status is CheckStatus.BROKEN
    assert found["torch"].found == "ImportError: libcudart.so.13"
    assert "gpu" not in found


@pytest.mark.parametrize(
    ("code", "failure"),
    [
        ("raise ValueError('no such library')", "ValueError: no such library"),
        ("import os; os._exit(7)", "it ended with 7"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "it ended with -11"),
        ("answer = [", "SyntaxError"),
    ],
)
def test_what_crashes_is_an_answer_too(code: str, failure: str) -> None:
    answer = run_probe(code)
    assert answer.value is None
    assert failure in answer.failure


def test_what_a_library_prints_is_not_the_answer() -> None:
    assert run_probe("print('{}'); answer = {'a': [1]}").value == {"a": [1]}


def test_what_hangs_is_ended() -> None:
    assert (
        "no answer"
        in run_probe("import threading; threading.Event().wait(); answer = 0", seconds=0.5).failure
    )


def test_the_command_writes_json(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "zprof.integrations.doctor.examine",
        lambda: examine(lambda code: Answer(value=None, failure="not there")),
    )
    assert main(["doctor", "--json"]) == 1  # torch is broken
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == "zprof.doctor/1"
    assert {check["status"] for check in found["checks"]} == {"ok", "absent", "broken"}
    assert main(["doctor"]) == 1
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    assert "1 broken" in text.splitlines()[0]
