"""Elements that collectives carry, by the size of their type."""

import pandas as pd
import pytest

from zprof.rules.volume.model_traffic import count_elements

SIZES = {
    "float64": 8, "float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3fn": 1, "float8_e4m3fnuz": 1,
    "float8_e5m2": 1, "float8_e5m2fnuz": 1, "int64": 8, "int32": 4, "int8": 1, "uint8": 1, "unknown": 4,
}  # fmt: skip


@pytest.mark.parametrize(("dtype", "size"), SIZES.items())
def test_an_element_of_each_type(dtype: str, size: int) -> None:
    assert count_elements(pd.DataFrame({"dtype": [dtype] * 2, "bytes": [840, 1680]})) == 2520 / size
