"""The recorded programs, each run once."""

from collections.abc import Iterator

import pytest
from recording_programs import Recorded


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recorded]:
    recorded = Recorded(tmp_path_factory.mktemp("programs"))
    yield recorded
    recorded.close()
