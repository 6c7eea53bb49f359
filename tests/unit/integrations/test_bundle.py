"""Nothing leaves in a bundle that its owner did not mean to give; what support needs does."""

import gzip
import io
import json
import re
import shutil
import zipfile
from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import Path
from string import Formatter
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec import Struct
from msgspec.structs import fields, replace

from tests.support.diagnoses import base
from zprof.cli import main
from zprof.collectors.read.imports.import_paths import import_paths
from zprof.diagnosis.diagnose import diagnose
from zprof.integrations.redaction import AllowList, OwnWords, Pseudonyms, collect_own_words, redact_group
from zprof.integrations.support_bundle import Bundle, collect_bundle, redact_collectives, write_bundle
from zprof.model.doctor import CheckStatus, Doctor, DoctorCheck
from zprof.model.gap_texts import make_gap, read_all_texts
from zprof.model.report import Report
from zprof.run.manifest import RunManifest, to_json
from zprof.run.reader import Run, load
from zprof.simulator.ground_truth import write_job
from zprof.simulator.regular import plant

TOKEN = "hf_QwErTyUiOpAsDfGhJkLzXcVb"
#: One letter, two, three, with digits, beyond ASCII, of several words, as a name, a path, a token.
SECRETS = (
    "Q", "zq", "Xj", "vQz", "k7", "\u0416\u0436", "zq xk", "Xj::zq_k<vQz>", "/xk dir/zq.x", TOKEN,
)  # fmt: skip
PLANTED = "{} Q at zq, (Xj) 'vQz' \"k7\": \u0416\u0436=zq xk; Xj::zq_k<vQz>(Q) of /xk dir/zq.x\nQ. " + TOKEN
#: In the name of a kernel that is a copy all the same, and in those of modules.
RENAMED = {"split_with_sizes_copy_out_contiguous_no_cast_kernel": "split_with_sizes_copy_zq"}
RENAMED |= {"layers.": "zq.Q "}
#: What a run cannot be read without.
KEPT = ("schema", "run_id", "sha256", "status")
KNOWN = ("python", "torch", "NCCL_ALGO", "PYTORCH_CUDA_ALLOC_CONF", "machine")


def doctor(found: str) -> Doctor:
    check = DoctorCheck(name="torch", status=CheckStatus.OK, found=found, without=found, remedy=found)
    return Doctor(zprof_version="0", checks=(check,))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A job whose copies around collectives are the first finding: its sentence names a kernel."""
    folder = tmp_path_factory.mktemp("secrets")
    write_job(plant(base(2, steps=3, units=4), "copy_overhead"), folder / "traces")
    for path in (folder / "traces").glob("rank*"):
        trace = gzip.decompress(path.read_bytes()).decode()
        for name, secret in RENAMED.items():
            trace = trace.replace(name, secret)
        path.write_bytes(gzip.compress(trace.encode()))
    import_paths([folder / "traces"], folder / "zq Xj.zprof")
    return load(folder / "zq Xj.zprof")


@pytest.fixture(scope="module")
def report(run: Run) -> Report:
    return diagnose(run)


@pytest.fixture(scope="module")
def bundle(run: Run, report: Report) -> Bundle:
    return collect_bundle(run, report, doctor("2.13.0"))


@pytest.fixture(scope="module")
def spoiled_bundle(run: Run, report: Report, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """A bundle of the same run with secrets behind each text of manifests, report and doctor."""
    path = tmp_path_factory.mktemp("spoiled") / run.path.name
    shutil.copytree(run.path, path)
    for rank, manifest in run.rank_manifests.items():
        (path / f"rank{rank:05d}" / "rank.json").write_text(to_json(spoil(manifest, KEPT)))
    environment = {**dict.fromkeys(KNOWN, PLANTED), "zq": "Q", "k7 Q": PLANTED}
    manifest = replace(spoil(run.manifest, KEPT), environment=environment)
    (path / "manifest.json").write_text(to_json(manifest))
    return collect_bundle(load(path), spoil(report), doctor(PLANTED))


def spoil(value: Any, keep: tuple[str, ...] = ()) -> Any:
    """Return the value with the secrets behind each of its texts, and among the keys of its mappings."""
    if isinstance(value, Enum):
        return value
    if isinstance(value, Struct):
        old = {field.name: getattr(value, field.name) for field in fields(value) if field.name not in keep}
        return replace(value, **{name: spoil(each, keep) for name, each in old.items()})
    if isinstance(value, tuple | list):
        return type(value)(spoil(each, keep) for each in value)
    if isinstance(value, Mapping):
        odd = {"zq": 1, "k7 Q": 2} if value and all(isinstance(each, int) for each in value.values()) else {}
        return {**{key: spoil(each, keep) for key, each in value.items()}, **odd}
    return PLANTED.format(value) if isinstance(value, str) else value


def texts_in(bundle: Bundle) -> Iterator[str]:
    for part in bundle.parts:
        yield from (part.name, part.description)
        if part.name.endswith(".json"):
            yield from strings(json.loads(part.content))
        else:
            table = pq.read_table(io.BytesIO(part.content))
            yield from map(str, (table.schema.metadata or {}).items())
            yield from strings(table.to_pydict())


def strings(tree: Any) -> Iterator[str]:
    if isinstance(tree, str):
        yield tree
    elif isinstance(tree, Mapping):
        yield from map(str, tree)
        yield from (text for each in tree.values() for text in strings(each))
    elif isinstance(tree, list):
        yield from (text for each in tree for text in strings(each))


def tree_of(bundle: Bundle, name: str) -> Any:
    return json.loads(next(part.content for part in bundle.parts if part.name == name))


def test_no_secret_is_in_any_part(bundle: Bundle, spoiled_bundle: Bundle, run: Run) -> None:
    assert "environment.zq" in spoiled_bundle.left_out
    assert sum(part.name.endswith(".parquet") for part in spoiled_bundle.parts) == len(run.ranks)
    for text in (*texts_in(bundle), *texts_in(spoiled_bundle)):
        for secret in SECRETS:
            bounded = rf"(?<!\w){secret}(?!\w)" if len(secret) == 1 else re.escape(secret)
            assert not re.search(bounded, text), (secret, text)


def test_only_the_kernel_in_a_sentence_is_hidden(bundle: Bundle, report: Report) -> None:
    assert report.findings[0].cause == "copy_overhead"
    original = report.findings[0].sentence
    assert "copy_zq" in original
    kept = tree_of(bundle, "report.json")["findings"][0]["sentence"].replace("(hidden)", "").split()
    assert set(kept) <= set(original.replace(",", ", ").split()) | {","}
    assert len(kept) >= len(original.split()) // 2


def test_figures_and_own_texts_stay(bundle: Bundle, report: Report, run: Run) -> None:
    tree = tree_of(bundle, "report.json")
    finding = report.findings[0]
    assert (tree["findings"][0]["cause"], tree["findings"][0]["fix"]) == ("copy_overhead", finding.fix)
    assert tree["findings"][0]["saving_ns"] == list(finding.saving_ns)
    assert tree["time"]["per_rank"][0]["wall_ns"] == report.time.per_rank[0].wall_ns
    times = pq.read_table(io.BytesIO(bundle.parts[-1].content)).column("start_ns").to_pylist()
    assert times == run.table(run.ranks[-1], "collectives").column("start_ns").to_pylist()


def test_the_same_name_has_the_same_stand_in_everywhere(bundle: Bundle) -> None:
    stand_in = next(given for name, given in bundle.names.items() if name.startswith("zq.Q "))
    assert stand_in.startswith("module-")
    assert stand_in in pq.read_table(io.BytesIO(bundle.parts[-1].content)).column("unit").to_pylist()
    assert len(set(bundle.names.values())) == len(bundle.names)


def test_the_same_bundle_gives_the_same_file(bundle: Bundle) -> None:
    files = [io.BytesIO(), io.BytesIO()]
    for file in files:
        write_bundle(bundle, file)
    assert files[0].getvalue() == files[1].getvalue()
    with zipfile.ZipFile(files[0]) as archive:
        assert archive.namelist() == [part.name for part in bundle.parts]
        assert json.loads(archive.read("bundle.json"))["schema"] == "zprof.bundle/1"
        assert msgspec.json.decode(archive.read("run.json"), type=RunManifest).world_size == 4


@pytest.fixture(scope="module")
def own() -> OwnWords:
    return collect_own_words()


def test_keys_that_nobody_has_reviewed_are_dropped(own: OwnWords) -> None:
    allowed = AllowList(Pseudonyms(own))
    seen = allowed.filter_tree(
        {"rank": 1, "novelty": "text", "remark": {"a": 1}, "zq": 1, "3": 2, "status": "ok"}
    )
    assert seen == {"rank": 1, "3": 2, "status": "ok"}
    assert allowed.dropped == {"novelty", "remark", "zq"}


@pytest.mark.parametrize(
    ("text", "redact_text"),
    [
        ("took 50.0 GB/s of 12.5 ms (38 % of it) [+60.0, +69.3]",) * 2,
        ("see /data/run.json then", "see (hidden) then"),
        ("see /da ta/zq run.x", "see (hidden)"),
        (r"at C:\users\ada with ada@example.org, and 10.0.0.7", "at (hidden) with (hidden) and (hidden)"),
        (f"with {TOKEN} in it", "with (hidden) in it"),
        ("'zq' waits for \"Q\"", "(hidden) waits for (hidden)"),
        ("step=zq and rank 3", "(hidden) and rank 3"),
        ("ms of s", "(hidden) of (hidden)"),
        ("torch 2.13.0+cpu, 2.13.0+zq", "torch 2.13.0+cpu, (hidden)"),
        ("cuda (NVIDIA H200)", "cuda (NVIDIA H200)"),
        ("customer 4915112345678", "(hidden)"),
        ("the\u00a0step\tzq", "(hidden)"),
    ],
)
def test_only_own_words_numbers_and_units_stay(own: OwnWords, text: str, redact_text: str) -> None:
    assert Pseudonyms(own).redact_text(text) == redact_text


def test_a_text_of_a_table_is_kept_and_its_values_are_replaced(own: OwnWords) -> None:
    names = Pseudonyms(own)
    module = names.replace_name("encoder.zq", "module")
    gap = make_gap("model_by_size", models=["encoder.zq", "{Q}", "Xj"])
    assert names.redact_text(gap.remedy) == gap.remedy
    kept, _, values = names.redact_text(gap.reason).partition(": ")
    assert (kept, values) == (gap.reason.partition(": ")[0], f"{module}, (hidden)")
    for key, text in read_all_texts().items():
        for template in text[1:]:
            fields = {field for _, field, _, _ in Formatter().parse(template) if field}
            if not fields:
                assert names.redact_text(template) == template, key


def test_an_endless_text_is_cut(own: OwnWords) -> None:
    assert len(Pseudonyms(own).redact_text("a@a." * 300_000)) < 3000


def test_names_are_translated_whole_and_stand_ins_are_not_taken_for_names(own: OwnWords) -> None:
    names = Pseudonyms(own)
    given = [names.replace_name(name, "module") for name in ("encoder.zq block", "q1", "waits", "module-9")]
    assert given == ["module-1", "module-2", "module-3", "module-4"]
    assert names.redact_text("encoder.zq block waits for q1") == "module-1 waits for module-2"
    assert names.redact_text("(module-9), module-7") == "(module-4), (hidden)"
    assert names.redact_text("my-encoder.zq block-x") == "(hidden)"


def test_groups_keep_their_ranks(run: Run) -> None:
    names = Pseudonyms()
    given = [redact_group(text, names) for text in ("0,1,2", "0,1#secret mesh", "pg:secret")]
    assert given == ["0,1,2", "0,1#group-1", "group-2"]
    table = run.table(0, "collectives")
    groups = pa.array(["0,1#secret mesh"] * len(table)).dictionary_encode()
    table = table.set_column(table.column_names.index("group"), "group", groups)
    named = cast(Run, SimpleNamespace(table=lambda *_: table))
    written = pq.read_table(io.BytesIO(redact_collectives(named, 0, names)))
    assert set(written.column("group").to_pylist()) == {"0,1#group-1"}


def test_the_command_lists_the_parts_and_overwrites_nothing(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zprof.integrations.doctor.examine", lambda: doctor("2.13.0"))
    target, names = tmp_path / "ticket.zip", tmp_path / "names.json"
    command = ["bundle", str(run.path), "-o", str(target)]
    assert main([*command, "--list"]) == 0
    listed = capsys.readouterr().out
    assert "report.json" in listed
    assert not target.exists()
    assert main([*command, "--names", str(names)]) == 0
    assert capsys.readouterr().out == listed
    assert json.loads(names.read_text())["zq Xj.zprof"].startswith("run-")
    before = target.read_bytes()
    assert main(command) == 2
    (tmp_path / "x").mkdir()
    same = tmp_path / "x" / ".." / "ticket.zip"
    assert main([*command, "--names", str(same), "--force"]) == 2, "names do not go where the bundle goes"
    assert target.read_bytes() == before
