"""The extras that commands name are those of pyproject.toml, and a missing one says what to type."""

import pickle
import tomllib
from pathlib import Path

import pytest

from zprof.base.errors import (
    BadInput,
    Extra,
    MissingPackage,
    get_install_command,
    is_installed,
    require_extra,
)

EXTRAS = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text(encoding="utf-8"))["project"][
    "optional-dependencies"
]


@pytest.mark.parametrize("extra", Extra)
def test_an_extra_that_is_named_can_be_installed(extra: Extra) -> None:
    assert EXTRAS[extra]
    assert is_installed(extra), "the development environment has everything"


@pytest.mark.parametrize("extra", Extra)
def test_a_missing_package_is_an_error_with_the_command_to_type(
    extra: Extra, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zprof.base.errors.find_spec", lambda name: None)
    with pytest.raises(MissingPackage) as raised:
        require_extra(extra, "some command")
    error = raised.value
    assert isinstance(error, BadInput)
    assert isinstance(error, ImportError)
    assert error.hint == get_install_command(extra)
    assert error.hint in str(error), "a traceback shows it, once"
    assert not error.__notes__
    (package,) = [
        one for one in EXTRAS[extra] if one.startswith(error.message.split("needs ")[1].split(",")[0])
    ]
    assert package
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
