"""Models side by side: numbers by hand, the same as of single reports, and a figure."""

import json
import re

import pytest

from attnprof.models.comparison import PHASES, comparison
from attnprof.models.report import model_report
from attnprof.models.sources import subject_of
from attnprof.record import ComparedRecord, Report
from attnprof.render.formats import print_tables, render
from attnprof.render.plots import plot_report
from tests.models.tiny import SIZES

_SIZES = {**SIZES, "tie_word_embeddings": False, "num_hidden_layers": 2}
PLAIN = {"model_type": "llama", **_SIZES}
#: One of two layers sees 8 tokens.
WINDOWED = {**_SIZES, "sliding_window": 8, "full_attention_layers": 1}
#: One that is no configuration, and one that has learned positions of 64 tokens.
ODD = {"architectures": []}
SHORT = {"model_type": "gpt2", "n_embd": 32, "n_head": 4, "n_layer": 2, "n_positions": 64}
#: Bytes that a token adds to the cache of a layer, in float32: keys and values.
_LAYER = 2 * 2 * 8 * 4
N = 40


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    for name, fields in {"plain": PLAIN, "windowed": WINDOWED, "odd": ODD, "short": SHORT}.items():
        (folder / f"{name}.json").write_text(json.dumps(fields), "utf-8")
    return folder


@pytest.fixture(scope="module")
def reports(files):
    subjects = [subject_of(str(files / f"{name}.json")) for name in ("plain", "windowed")]
    return [model_report(subject, PHASES, {"B": 2, "N": N}) for subject in subjects]


@pytest.fixture(scope="module")
def compared(reports):
    return comparison(reports)


def values(report):
    return {(row.model, row.phase, row.quantity): row.value for row in report.of(ComparedRecord)}


def test_numbers_are_those_of_arithmetic_and_of_single_reports(compared, reports):
    """A cache grows by the layers that see all tokens; FLOPs a token are the prompt's by tokens."""
    numbers, layer = values(compared), 2 * 32 * 8 * (4 + 2) + 3 * 32 * 48 + 2 * 32
    assert numbers["plain", "decode", "cache_bytes_per_token"] == 2 * _LAYER
    assert numbers["windowed", "decode", "cache_bytes_per_token"] == _LAYER
    assert numbers["plain", "decode", "cache_bytes"] == 2 * N * 2 * _LAYER
    for name in ("plain", "windowed"):
        for quantity in ("parameters", "active_parameters"):
            assert numbers[name, "", quantity] == 2 * layer + 2 * 96 * 32 + 32
    for report in reports:
        whole = next(
            row for row in report.records
            if (row.part, row.phase, row.quantity) == ("total", "prefill", "flops")
        )  # fmt: skip
        name = report.summary["name"]
        assert numbers[name, "prefill", "flops_per_token"] == round(whole.value / (2 * N))
        assert numbers[name, "prefill", "flops"] == whole.value


def test_the_report_can_be_stored_and_its_table_fits_80_columns(compared, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    again = Report.from_json(json.loads(render(compared, "json")), "kept.json")
    assert values(again) == values(compared)
    print_tables(compared)
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    assert len(re.findall(r"^(?:plain|windowed) ", text, re.MULTILINE)) == 2  # one table


def test_the_figure_has_a_panel_for_the_cache_and_one_for_flops(compared, tmp_path):
    path = tmp_path / "compared.svg"
    plot_report(compared, path, "column")
    text = path.read_text("utf-8")
    for word in ("cache", "FLOPs a prompt", "plain", "windowed"):
        assert f"<!-- {word}" in text, word


def test_models_without_formulas_are_compared_without_growth_and_not_drawn(files, tmp_path):
    subject = subject_of(str(files / "plain.json"))
    report = comparison([model_report(subject, PHASES, {"B": 1, "N": N}, limit_s=0)])
    assert values(report)["plain", "decode", "cache_bytes_per_token"] is None
    with pytest.raises(Exception, match="no model has a formula in N"):
        plot_report(report, tmp_path / "none.svg", "column")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--compare lama-3.1-8b", "did you mean llama-3.1-8b"),
        ("--compare gpt2 --phase train", "--phase is for one model"),
        ("--compare gpt2 --memory 8GB", "--memory is for one model"),
        ("--compare {}/odd.json", "odd.json is no model's configuration"),
        ("--compare vit --logits last", "vit has no such choice"),
        ("--compare {}/short.json --seq 200", "short takes at most 64 tokens"),
    ],
)
def test_wrong_requests_are_refused_before_anything_runs(
    files, attnprof, monkeypatch, arguments, message
):
    def run(subject, *request, **options):
        assert subject.name != "plain"
        return model_report(subject, *request, **options)

    monkeypatch.setattr("attnprof.models.report.model_report", run)
    ended = attnprof(f"model {files}/plain.json {arguments.format(files)}")
    assert ended.code == 2
    assert message in ended.err


def test_the_command_compares_and_names_each_model_in_json(files, attnprof):
    compared = f"--compare {files}/windowed.json --seq 12 --limit 0 --format json"
    ended = attnprof(f"model {files}/plain.json {compared}")
    assert not ended.code
    assert ended.json["command"] == "model --compare"
    assert {row["model"] for row in ended.json["records"]} == {"plain", "windowed"}
