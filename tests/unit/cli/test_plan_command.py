"""``zprof plan``: the paper's figures in the first lines, every option reaches the job, what is refused."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from zprof.cli import main
from zprof.cli.plan_options import choose_element_bytes
from zprof.cli.quantities import parse_parameter_count

PROBE = """
import sys
from zprof.cli import main
code = main(sys.argv[1:])
heavy = {"torch", "pandas", "pyarrow", "hta", "textual", "plotly"}
print(sorted(heavy & set(sys.modules)), file=sys.stderr)
sys.exit(code)
"""
SHAPED = ["--layers", "4", "--hidden", "256", "--heads", "4", "--vocabulary", "512", "--context", "64"]
BATCH = ["--micro-batch", "2", "--sequence", "64"]


def planned(capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, Any]:
    assert main(["plan", *options, "-f", "json"]) == 0
    tree: dict[str, Any] = json.loads(capsys.readouterr().out)
    return tree


def test_the_figure_of_the_paper_stands_in_the_first_lines(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--params", "7.5e9", "--dp", "64"]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    first = " ".join(printed.out.split("\n\n")[0].split())
    assert "DP / ZeRO-1 / ZeRO-2 / ZeRO-3 need 120 / 31.4 / 16.6 / 1.9 GB" in first
    lines = printed.out.split("MEMORY OF A DEVICE")[1].splitlines()[2:10]
    rows = {line.split("  ")[1].strip("= "): line.split()[-7:] for line in lines}
    assert rows["parameters"][:4] == ["15.0", "15.0", "15.0", "0.23"]
    assert rows["optimizer state"][:4] == ["90.0", "1.4", "1.4", "1.4"]


def test_every_option_reaches_the_job(capsys: pytest.CaptureFixture[str]) -> None:
    job = planned(
        capsys, *SHAPED, "--untied", *BATCH, "--micro-batches", "3", "--dp", "8", "--mp", "2", "--pp", "2",
        "--checkpointing", "--partition-activations", "--offload-activations", "--constant-buffers", "5e5",
        "--defragment", "--prefetch", "2", "--keep-last", "--backend", "gloo", "--hardware", "v100",
        "--device-memory", "16GB", "--bandwidth", "50GB/s", "--latency", "20us", "--intra-bandwidth",
        "200GB/s", "--intra-latency", "3us",
    )["job"]  # fmt: skip
    assert job["shape"] == {
        "layers": 4, "hidden": 256, "vocabulary": 512, "context": 64, "heads": 4, "tied": False,
    }  # fmt: skip
    assert job["degrees"] == {"dp": 8, "mp": 2, "pp": 2}
    assert job["batch"] == {"samples": 2, "sequence": 64, "micro_batches": 3}
    assert job["residual"] == {
        "checkpointing": True, "partition": True, "offload": True, "constant_buffer_elements": 500_000,
        "defragment": True,
    }  # fmt: skip
    assert (job["overlap"]["prefetch"], job["overlap"]["keep_last"], job["backend"]) == (2, True, "gloo")
    hardware = job["hardware"]
    assert hardware["name"] == "v100, changed"
    assert hardware["memory_bytes"] == 16 * 10**9
    assert (hardware["node_bytes_per_s"], hardware["inter_latency_ns"]) == (50e9, 20_000)
    assert (hardware["intra_bytes_per_s"], hardware["intra_latency_ns"]) == (200e9, 3_000)
    assert hardware["flops_per_s"] == 125e12, "the rest is the preset's"


@pytest.mark.parametrize(
    ("precision", "optimizer", "states", "copy"),
    [
        ("bf16", "adam", 16, 4),
        ("fp16", "adam", 16, 4),
        ("fp32", "adam", 16, 0),
        ("bf16", "momentum", 12, 4),
        ("bf16", "sgd", 8, 4),
        ("fp32", "sgd", 8, 0),
    ],
)
def test_bytes_of_a_parameter(precision: str, optimizer: str, states: int, copy: int) -> None:
    """arXiv 1910.02054, section 3.1: 2 + 2 + 12 for Adam; fp32 master weights where there are 16 bits."""
    made = choose_element_bytes(precision, optimizer)
    assert made.parameter + made.gradient + made.optimizer_state == states
    assert made.gradient_copy == copy
    assert made.gathered == made.reduced == made.parameter


def test_one_stage_is_one_row(capsys: pytest.CaptureFixture[str]) -> None:
    rows = planned(capsys, "--params", "7.5e9", "--dp", "64", "--stage", "3")["rows"]
    assert [row["scheme"] for row in rows] == ["zero_3"]
    assert rows[0]["state_bytes"] == 1_875_000_000
    assert len(planned(capsys, "--params", "7.5B")["rows"]) == 7


def test_a_preset_brings_its_shape_and_a_sequence_is_the_context(capsys: pytest.CaptureFixture[str]) -> None:
    assert planned(capsys, "--preset", "7.5b")["job"]["shape"]["layers"] == 36
    shape = planned(capsys, "--layers", "4", "--hidden", "256", "--sequence", "128")["job"]["shape"]
    assert shape["context"] == 128


def test_a_preset_grows_to_the_sequence_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    short, long = (planned(capsys, "--preset", "7.5b", "--sequence", n)["job"] for n in ("1024", "4096"))
    assert (short["name"], short["shape"]["context"]) == ("7.5b", 1024)
    assert (long["name"], long["shape"]["context"]) == ("7.5b with context 4,096", 4096)
    assert long["parameters"] - short["parameters"] == 3072 * 4096, "a row of positions for each"


@pytest.mark.parametrize(("said", "elements"), [("7.642B", 7_642_000_000), ("0.35e9", 350_000_000), ("2", 2)])
def test_elements_are_whole(said: str, elements: int) -> None:
    assert parse_parameter_count(said) == elements


def test_keeping_the_last_unit_is_of_stage_3(capsys: pytest.CaptureFixture[str]) -> None:
    for stage in ([], ["--stage", "3"]):
        assert planned(capsys, "--params", "1B", *stage, "--keep-last")["job"]["overlap"]["keep_last"]


def test_hardware_from_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "ours.toml").write_text('base = "h100"\nname = "ours"\nmemory_gb = 90\n')
    found = planned(capsys, "--params", "1B", "--hardware", str(tmp_path / "ours.toml"))["job"]["hardware"]
    assert (found["name"], found["memory_bytes"], found["devices_per_node"]) == ("ours", 90 * 10**9, 8)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "no model is named"),
        (["--params", "1B", "--preset", "1t"], "said twice: --params and --preset"),
        (["--layers", "4"], "--layers and --hidden"),
        (["--params", "many"], "such as 7.5e9"),
        (["--params", "1B", "--dp", "0"], "must be 1 or more"),
        (["--params", "1B", "--dp", "-4"], "not a count"),
        (["--params", "1B", "--stage", "4"], "invalid choice"),
        (["--params", "1B", "--bandwidth", "100"], "such as 100GB/s"),
        (["--params", "1B", "--bandwidth", "100GB/s"], "add --hardware"),
        (["--params", "1B", "--dp", "2000000"], "up to 1,000,000"),
        (["--params", "1.5"], "no whole number of elements"),
        (
            ["--preset", "7.5b", "--vocabulary", "0"],
            "--vocabulary would change nothing: the model is said by",
        ),
        (["--params", "1B", "--heads", "4", "--untied"], "--heads and --untied would change nothing"),
        (["--params", "1B", "--context", "64"], "say the shape instead: --layers and --hidden"),
        (["--model", "no.such:thing", "--context", "64"], "--context would change nothing"),
        ([*SHAPED, "--micro-batch", "1", "--sequence", "65"], "--sequence 65 is longer than --context 64"),
        (["--params", "1B", "--stage", "1", "--keep-last"], "--stage 1 gathers no units"),
        (["--params", "1B", "--hardware", "abacus"], "v100"),
        (["--params", "1B", "--hardware", "/no/such.toml"], "cannot be read"),
        (["--preset", "nothing"], "known:"),
        (["--layers", "5", "--hidden", "256", "--heads", "3"], "heads"),
        (["--params", "1B", "--verify"], "--verify needs a model"),
        (["--params", "1B", "-f", "svg"], "formats: text, json, md, html"),
    ],
)
def test_what_cannot_be_is_refused_in_a_line(
    capsys: pytest.CaptureFixture[str], options: list[str], words: str
) -> None:
    assert main(["plan", *options]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("zprof: ")
    assert printed.err.count("\n") == 1
    assert words in printed.err


def test_a_plan_needs_neither_torch_nor_pandas() -> None:
    options = ["plan", *SHAPED, *BATCH, "--dp", "4", "--hardware", "v100", "-f", "html"]
    done = subprocess.run(
        [sys.executable, "-c", PROBE, *options], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.strip() == "[]"


@pytest.mark.parametrize(
    ("suffix", "begin"), [("md", "## "), ("html", "<!DOCTYPE"), ("txt", "?"), ("json", "{")]
)
def test_the_suffix_of_a_file_chooses_the_format(tmp_path: Path, suffix: str, begin: str) -> None:
    target = tmp_path / f"plan.{suffix}"
    assert main(["plan", "--params", "1B", "-o", str(target)]) == 0
    assert target.read_text().lstrip().startswith(begin)


def test_assumptions_in_full_have_their_source(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--params", "7.5e9", "--dp", "64"]) == 0
    short = capsys.readouterr().out
    assert main(["plan", "--params", "7.5e9", "--dp", "64", "--assumptions"]) == 0
    full = capsys.readouterr().out
    assert "source" not in short.split("FIGURES REST ON")[1]
    assert "    source: " in full.split("FIGURES REST ON")[1]
    assert "1910.02054" in full
