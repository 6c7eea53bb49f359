"""The variables that a watched program gets, unless its user has set them."""

import pytest

from zprof.collectors.record.launch.session import turn_on_flight_recorder


def test_the_flight_recorder_is_on_by_default() -> None:
    environment: dict[str, str] = {}
    turn_on_flight_recorder(environment)
    assert int(environment["TORCH_FR_BUFFER_SIZE"]) > 0
    assert environment["TORCH_NCCL_DUMP_ON_TIMEOUT"] == "1"
    assert "TORCH_NCCL_TRACE_BUFFER_SIZE" not in environment, "torch warns about the older name"


@pytest.mark.parametrize("name", ["TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"])
def test_the_user_decides(name: str) -> None:
    environment = {name: "0", "TORCH_NCCL_DUMP_ON_TIMEOUT": "0"}
    before = dict(environment)
    turn_on_flight_recorder(environment)
    assert environment == before
