"""The recorded programs, each run once."""

import pytest
from recording_programs import Recorded


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    return Recorded(tmp_path_factory.mktemp("programs"))
