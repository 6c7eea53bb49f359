"""Secrets of one letter and more, in every text of a run and of its report: none is in a bundle."""

import gzip
import io
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.support.diagnoses import base
from zprof.integrations.imports.import_paths import import_paths
from zprof.integrations.support_bundle import Bundle, collect_bundle
from zprof.model.doctor import Check, CheckStatus, Doctor
from zprof.rules.diagnose import diagnose
from zprof.run.manifest import to_json
from zprof.run.reader import Run, load
from zprof.simulator.causes import Cause, plant
from zprof.simulator.simulate import simulate

#: One letter, two, three, with digits, beyond ASCII, of several words, as a name, a path, a token.
SECRETS = (
    "Q", "zq", "Xj", "vQz", "k7", "\u0416\u0436", "zq xk", "Xj::zq_k<vQz>", "/xk dir/zq.x", "hf_zqXjvQz",
)  # fmt: skip
PLANTED = "{} Q at zq, (Xj) 'vQz' \"k7\": \u0416\u0436=zq xk; Xj::zq_k<vQz>(Q) of /xk dir/zq.x\nQ hf_zqXjvQz."
#: In the name of a kernel that is a copy all the same, and in those of modules.
RENAMED = {
    "split_with_sizes_copy_out_contiguous_no_cast_kernel": "split_with_sizes_copy_zq",
    "layers.": "zq.Q ",
}
#: What a run cannot be read without.
KEPT = ("schema", "run_id", "sha256", "status")
KNOWN = ("python", "torch", "NCCL_ALGO", "PYTORCH_CUDA_ALLOC_CONF", "machine")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A job whose copies around collectives are the first finding: its sentence names a kernel."""
    folder = tmp_path_factory.mktemp("secrets")
    simulate(plant(replace(base(2), steps=3, units=4), Cause.COPY_OVERHEAD), folder / "traces")
    for path in (folder / "traces").glob("rank*"):
        trace = gzip.decompress(path.read_bytes()).decode()
        for name, secret in RENAMED.items():
            trace = trace.replace(name, secret)
        path.write_bytes(gzip.compress(trace.encode()))
    import_paths([folder / "traces"], folder / "zq Xj.zprof")
    return load(folder / "zq Xj.zprof")


def test_a_kernel_in_a_sentence_is_hidden(run: Run) -> None:
    report = diagnose(run)
    assert report.findings[0].cause.value == "copy_overhead"
    assert "copy_zq" in report.findings[0].sentence
    bundle = collect_bundle(run, report, doctor("2.13.0"))
    assert_no_secret(bundle)
    sentence = tree_of(bundle, "report.json")["findings"][0]["sentence"]
    assert sentence.startswith("copies around collectives take ")
    assert sentence.endswith(" of it), most of it (hidden)")


def test_no_text_of_run_or_report_lets_a_secret_through(run: Run) -> None:
    for rank, manifest in run.rank_manifests.items():
        (run.path / f"rank{rank:05d}" / "rank.json").write_text(to_json(spoiled(manifest, KEPT)))
    manifest = spoiled(run.manifest, KEPT)
    manifest = replace(manifest, environment={**dict.fromkeys(KNOWN, PLANTED), "zq": "Q", "k7 Q": PLANTED})
    (run.path / "manifest.json").write_text(to_json(manifest))
    report = spoiled(diagnose(run))
    bundle = collect_bundle(load(run.path), report, doctor(PLANTED))
    assert_no_secret(bundle)
    kept = tree_of(bundle, "report.json")
    assert kept["findings"][0]["saving_ns"] == list(report.findings[0].saving_ns)
    assert "environment.zq" in bundle.left_out  # told to the owner, and not in the file


def doctor(found: str) -> Doctor:
    check = Check(name="torch", status=CheckStatus.OK, found=found, without=found, remedy=found)
    return Doctor(zprof_version="0", checks=(check,))


def spoiled(value: Any, keep: tuple[str, ...] = ()) -> Any:
    """The same value with the secrets behind each of its texts, and among the keys of its mappings."""
    if isinstance(value, Enum):
        return value
    if is_dataclass(value) and not isinstance(value, type):
        old = {field.name: getattr(value, field.name) for field in fields(value) if field.name not in keep}
        return replace(value, **{name: spoiled(each, keep) for name, each in old.items()})
    if isinstance(value, tuple | list):
        return type(value)(spoiled(each, keep) for each in value)
    if isinstance(value, Mapping):
        odd = {"zq": 1, "k7 Q": 2} if all(isinstance(each, int) for each in value.values()) else {}
        return {**{key: spoiled(each, keep) for key, each in value.items()}, **odd}
    return PLANTED.format(value) if isinstance(value, str) else value


def assert_no_secret(bundle: Bundle) -> None:
    for part in bundle.parts:
        for text in (part.name, part.says, *texts_of(part.name, part.content)):
            for secret in SECRETS:
                bounded = rf"(?<!\w){secret}(?!\w)" if len(secret) == 1 else re.escape(secret)
                assert not re.search(bounded, text), (part.name, secret, text)


def texts_of(name: str, content: bytes) -> Iterator[str]:
    if name.endswith(".json"):
        yield from strings(json.loads(content))
        return
    table = pq.read_table(io.BytesIO(content))
    yield from map(str, (table.schema.metadata or {}).items())
    yield from strings(table.to_pydict())


def strings(tree: Any) -> Iterator[str]:
    if isinstance(tree, str):
        yield tree
    elif isinstance(tree, Mapping):
        yield from map(str, tree)
        for each in tree.values():
            yield from strings(each)
    elif isinstance(tree, list):
        for each in tree:
            yield from strings(each)


def tree_of(bundle: Bundle, name: str) -> Any:
    return json.loads(next(part.content for part in bundle.parts if part.name == name))
