"""The recorded cases; each job trains when one of its cases is first asked for."""

import pytest
from recorded_memory import Recorded

from tests.support import exact_counter


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    if exact_counter.compiler() is None:
        pytest.skip("no C compiler: the exact counter cannot be built")
    return Recorded(tmp_path_factory.mktemp("memory"))
