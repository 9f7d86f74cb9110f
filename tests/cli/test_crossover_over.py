"""``crossover --over``: the table, JSON, the figure, and requests that are wrong."""

import json

import pytest

from attnprof.cli.app import main


def ran(capsys, *args):
    with pytest.raises(SystemExit) as ended:
        main(["crossover", *args])
    streams = capsys.readouterr()
    return ended.value.code, streams.out, streams.err


def test_the_answer_comes_first_and_fits_in_80_columns(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = ran(capsys, "standard", "longformer", "--over", "window", "--seq", "256,1024")
    assert code == 0
    assert all(len(line) <= 80 for line in out.splitlines())
    said = " ".join(out.split("\n\n")[0].split())
    assert said.startswith("At 256 and 1,024 tokens, standard needs fewer FLOPs than longformer")
    assert "from window 191 (at 256) to 812 (at 1,024) on" in said
    assert "over window" in out


def test_json_names_what_varies_and_keeps_keys_of_lengths_for_lengths(capsys):
    _, out, _ = ran(capsys, "standard", "linear", "--over", "batch", "--format", "json")
    for row in json.loads(out)["records"]:
        assert (row["over"], row["seq_len"], row["head_dim"], row["num_heads"]) == (
            "batch", 1024, 64, 1,
        )  # fmt: skip
        assert row["batch_size"] is row["crossover_seq_len"] is row["first_seq_len"] is None
    _, out, _ = ran(capsys, "standard", "linear", "--format", "json")
    for row in json.loads(out)["records"]:
        assert (row["over"], row["seq_len"]) == ("seq", None)
        assert row["crossover_value"] == row["crossover_seq_len"]
        assert row["first_value"] == row["first_seq_len"]


def test_heads_share_a_models_width_unless_theirs_is_typed(capsys):
    asked = ("taylor-direct", "taylor-efficient", "--over", "heads", "--format", "json")
    _, out, _ = ran(capsys, *asked, "--d-model", "256", "--kind", "formula")
    shared = json.loads(out)["records"]
    assert {(row["d_model"], row["head_dim"]) for row in shared} == {(256, None)}
    assert all(256 % row["first_value"] == 0 for row in shared)
    _, out, _ = ran(capsys, *asked, "--d", "32", "--kind", "formula")
    own = json.loads(out)["records"]
    assert {(row["d_model"], row["head_dim"], row["verdict"]) for row in own} <= {
        (None, 32, "never"), (None, 32, "always"),
    }  # fmt: skip


def test_decoding_compares_a_cache_with_a_fixed_state(capsys):
    _, out, _ = ran(
        capsys, "standard", "linear", "--phase", "decode", "--d", "32", "--format", "json"
    )
    (state,) = [row for row in json.loads(out)["records"] if row["metric"] == "state"]
    # two rows of d a token against d² + d sums
    assert state["crossover_seq_len"] == (32 * 32 + 32) / (2 * 32)
    assert (state["unit"], state["cheaper_above"]) == ("bytes", "linear")


@pytest.mark.parametrize("over", ["d", "heads", "window"])
def test_a_figure_is_drawn_over_the_values(over, tmp_path, capsys):
    path = tmp_path / "over.png"
    code, _, _ = ran(capsys, "standard", "longformer", "--over", over, "--plot", str(path))
    assert code == 0
    assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        (["--over", "windw"], "did you mean window?"),
        (["--over", "bias"], "possible: seq, d, heads"),
        (["--over", "d", "--d", "32"], "leave --d out"),
        (["--over", "heads", "--heads", "4"], "leave --heads out"),
        (["--over", "batch", "--batch", "3"], "leave --batch out"),
        (["--over", "window", "--set", "window=8"], "leave --set window out"),
        (["--seq", "128"], "leave --seq out"),
        (["--range", "1:64"], "--range is for another --over"),
        (["--d-model", "64"], "--d-model is for another --over"),
        (["--over", "d", "--d-model", "64"], "for --over heads alone"),
        (["--over", "heads", "--d", "8", "--d-model", "64"], "the model's width varies"),
        (["--over", "heads", "--range", "600:700"], "no more than 512 heads"),
        (["--over", "d", "--range", "64"], "like 1:512"),
        (["--over", "d", "--range", "64:8"], "ends before it starts"),
        (["--over", "kv_heads"], "like --heads 32"),
        (["--over", "d", "--kind", "derived"], "leave --over d out"),
        (["--over", "batch", "--kind", "published"], "over batch; use --kind formula"),
        (["--metric", "state"], "add --phase decode"),
        (["--model", "config.json", "--over", "d"], "leave out --over"),
    ],
)
def test_wrong_requests_end_with_2_and_one_sentence(typed, told, capsys):
    code, out, err = ran(capsys, "standard", "longformer", *typed)
    assert (code, out) == (2, "")
    assert told in err
    assert sum(line.startswith("attnprof: -") for line in err.splitlines()) <= 1
