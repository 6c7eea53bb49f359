"""Whether a job would leave a dump, by its environment."""

from pathlib import Path

import pytest

from zprof.integrations.doctor import check_flight_recorder
from zprof.model.doctor import CheckStatus


def test_defaults_and_good_settings_leave_a_dump(tmp_path: Path) -> None:
    assert check_flight_recorder({}).status is CheckStatus.OK
    settings = {"TORCH_FR_BUFFER_SIZE": "4000", "TORCH_FR_DUMP_TEMP_FILE": str(tmp_path / "rank_")}
    check = check_flight_recorder(settings | {"TORCH_NCCL_DUMP_ON_TIMEOUT": "True"})
    assert check.status is CheckStatus.OK
    assert "4000" in check.found
    assert str(tmp_path) in check.found


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TORCH_FR_BUFFER_SIZE", "0"),
        ("TORCH_FR_BUFFER_SIZE", "many"),
        ("TORCH_NCCL_TRACE_BUFFER_SIZE", "0"),
        ("TORCH_NCCL_DUMP_ON_TIMEOUT", "0"),
        ("TORCH_NCCL_DUMP_ON_TIMEOUT", "perhaps"),
        ("TORCH_NCCL_ENABLE_MONITORING", "false"),
        ("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", "soon"),
        ("TORCH_FR_DUMP_TEMP_FILE", "/no/such/folder/rank_"),
        ("TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "/no/such/folder/rank_"),
    ],
)
def test_what_prevents_a_dump_is_named_with_a_remedy(name: str, value: str) -> None:
    check = check_flight_recorder({name: value})
    assert check.status is CheckStatus.ABSENT
    assert name in check.found
    assert check.without
    assert "=" in check.remedy


def test_the_newer_name_goes_first() -> None:
    both = {"TORCH_FR_BUFFER_SIZE": "2000", "TORCH_NCCL_TRACE_BUFFER_SIZE": "0"}
    assert check_flight_recorder(both).status is CheckStatus.OK
    assert check_flight_recorder(dict.fromkeys(both, "0")).status is CheckStatus.ABSENT


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TORCH_INCLUDE_STACK_TRACE", "0"),
        ("TORCH_INCLUDE_ONLY_ACTIVE", "1"),
        ("TORCH_FR_BUFFER_SIZE", "10"),
    ],
)
def test_what_a_dump_would_lack_is_said(name: str, value: str) -> None:
    check = check_flight_recorder({name: value})
    assert check.status is CheckStatus.OK
    assert name in check.found
