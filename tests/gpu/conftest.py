"""Tests that need a CUDA device: marked ``gpu``, and skipped where there is none."""

from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent
REASON = "not measured: no CUDA device"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = [item for item in items if HERE in item.path.parents]
    for item in here:
        item.add_marker(pytest.mark.gpu)
        if not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason=REASON))
