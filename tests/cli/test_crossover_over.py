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
