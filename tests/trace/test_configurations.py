"""Configurations are made of what is given and guessed; inputs may be tuples, lists and dicts.

Sizes of a request: functions and exact quotients on ints and on torch's symbolic sizes.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Optional

import pytest
import torch
from torch import nn

from attnprof.errors import RequestError
from attnprof.trace.events import totals
from attnprof.trace.request.lookup import target_of
from attnprof.trace.request.target import folded, parsed
from attnprof.trace.request.texts import parse_inputs, symbols_in
from attnprof.trace.run.runs import record
from attnprof.trace.solve.derive import derived
from tests.trace.checks import counted_at

SIZES = {"B": 2, "N": 6, "h": 3, "d": 4}


@dataclass
class OwnConfig:
    hidden_size: int
    num_attention_heads: int = 8
    num_key_value_heads: int | None = None
    vocab_size: int = 100
    act: str = "gelu"
    more: dict[str, int] = field(default_factory=dict)

    def __post_init__(self):
        self.num_key_value_heads = self.num_key_value_heads or self.num_attention_heads


class Projected(nn.Module):
    def __init__(self, config: OwnConfig, layer_idx: int):
        super().__init__()
        self.config, self.layer_idx = config, layer_idx
        heads = config.num_key_value_heads * config.hidden_size // config.num_attention_heads
        self.map = nn.Linear(config.hidden_size, heads)

    def forward(self, hidden_states, attention_mask):
        return self.map(hidden_states)


class Optionally(Projected):
    def __init__(self, config: Optional[OwnConfig] = None):  # noqa: UP045 - as people write it
        super().__init__(config, 0)


class Beside(Projected):
    def __init__(self, cfg):
        super().__init__(cfg, 0)


class ModelArgs:
    dim = 32
    n_heads = 4


class Plain(nn.Module):
    def __init__(self, args: ModelArgs):
        super().__init__()
        self.map = nn.Linear(args.dim, args.dim // args.n_heads)

    def forward(self, tokens_embeds):
        return self.map(tokens_embeds)


def parameters(target):
    sizes = {name: SIZES[name] for name in target.symbols}
    return counted_at(target, sizes, "forward")["parameters"]


@pytest.mark.parametrize("layer", [Projected, Optionally, Beside])
def test_a_configuration_is_built_of_usual_names(layer):
    target = target_of(layer)
    assert "hidden_size=h*d, " in target.notes[0]
    assert "num_attention_heads=h, " in target.notes[0]
    assert "vocab" not in target.notes[0]
    assert parameters(target) == 12 * 12 + 12


def test_a_configuration_takes_symbols():
    forms = derived(target_of(Projected), ("forward",)).phases["forward"]
    assert forms.method == "symbolic"


@dataclass
class StateSpaceConfig:
    hidden_size: int = 64
    mamba_n_heads: int = 4
    mamba_d_head: int = 32
    mamba_d_ssm: int = 128
    mamba_expand: int = 2


class Mixer(nn.Module):
    def __init__(self, config: StateSpaceConfig):
        super().__init__()
        assert config.mamba_n_heads * config.mamba_d_head == config.mamba_d_ssm
        self.map = nn.Linear(config.hidden_size, config.mamba_d_ssm)

    def forward(self, hidden_states):
        return self.map(hidden_states) * self.scale


class MixerModel(Mixer):
    def __init__(self, config: StateSpaceConfig):
        super().__init__(config)
        self.register_buffer("scale", torch.ones(1))


def test_state_spaces_have_sizes_that_fit_and_what_a_model_sets_is_its_to_derive():
    with pytest.raises(RequestError, match=r"MixerModel sets scale of it: attnprof derive .*Model"):
        derived(target_of(Mixer), ("forward",))
    assert "config.mamba_d_ssm=2*h*d" in target_of(MixerModel).notes[0]


@dataclass
class IndexerConfig:
    """One whose indexer is left out by default."""

    hidden_size: int = 64
    index_budget: int | None = None
    index_ratio: int | None = None
    window: int | None = None


class Indexer(nn.Module):
    """A layer that cannot do without an indexer."""

    def __init__(self, config: IndexerConfig):
        super().__init__()
        self.blocks = config.index_budget // config.index_ratio
        self.map = nn.Linear(config.hidden_size, self.blocks)

    def forward(self, hidden_states):
        return self.map(hidden_states)


def test_fields_that_code_cannot_leave_at_none_are_asked_for_by_name():
    says = "None by default: add --arg config.index_budget=… --arg config.index_ratio=… \\("
    with pytest.raises(RequestError, match=says):
        derived(target_of(Indexer), ("forward",))
    target = target_of(Indexer, ["config.index_budget=64", "config.index_ratio=16"])
    assert parameters(target) == (12 + 1) * 4


def test_fields_are_given_by_name():
    fields = ["config.num_key_value_heads=1", "config.hidden_size=5*h", "layer_idx=3"]
    target = target_of(Projected, fields)
    assert target.spelled_inputs[0] == "hidden_states: B, N, 5*h"
    assert parameters(target) == (15 + 1) * 5
    with pytest.raises(RequestError, match=r"--arg confg: .*did you mean config"):
        target_of(Projected, ["confg.hidden_size=5"])


def test_class_attributes_are_fields():
    assert parameters(target_of(Plain)) == (12 + 1) * 4
    assert parameters(target_of(Plain, ["args.dim=9*h"])) == (27 + 1) * 9


@pytest.mark.parametrize("ending", ["json", "toml"])
def test_a_file_gives_the_fields_and_arguments_free_them(tmp_path, ending):
    fields = {"hidden_size": 24, "num_attention_heads": 4}
    toml = "".join(f"{name} = {value}\n" for name, value in fields.items())
    file = tmp_path / f"own.{ending}"
    file.write_text(json.dumps(fields) if ending == "json" else toml)
    target = target_of(Projected, [f"config={file}"])
    assert target.symbols == ("B", "N")
    assert parameters(target) == 24 * 24 + 24
    freed = target_of(Projected, [f"config={file}", "config.hidden_size=4*d"])
    assert freed.symbols == ("B", "N", "d")
    linear = tmp_path / "arguments.json"
    linear.write_text('{"in_features": 5, "out_features": 7}')
    assert parameters(target_of("torch.nn:Linear", [f"config={linear}"])) == 42


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[1]", "holds no names"),
        ("{}", "holds no names"),
        ("{", "is not readable"),
        (None, "No such file"),
    ],
)
def test_a_file_that_is_no_configuration_is_refused(tmp_path, text, words):
    if text is not None:
        (tmp_path / "own.json").write_text(text)
    with pytest.raises(RequestError, match=words):
        target_of(Projected, [f"config={tmp_path}/own.json"])


class Structured(nn.Module):
    def forward(self, pair, batch, several=None):
        scores = pair[0] @ pair[1].mT + batch["x"].sum() + batch["ids"].sum()
        assert isinstance(pair, tuple)
        assert several is None or isinstance(several, list)
        return scores if several is None else scores + several[1]


def test_inputs_are_tuples_lists_and_dicts_of_unlike_shapes():
    def products(inputs):
        trace = record(target_of(Structured, inputs=inputs), SIZES, training=True)
        return totals(trace, "forward")["matmul_flops"]

    texts = ["pair: (B, N, d), (B, 2*N, d)", "batch.x: N, d", "batch.ids: B, N int64"]
    assert products(texts) == 4 * 2 * 6 * 6 * 4
    spelled = target_of(Structured, inputs=texts).spelled_inputs
    assert spelled[:2] == ["pair.0: B, N, d", "pair.1: B, 2*N, d"]
    assert products([*spelled, "several: [(1, 1), (1, 2*N)]"]) == 4 * 2 * 6 * 6 * 4
    mapping = {"pair": (("B", 3, 4), ("B", "N", 4)), "batch": {"x": (2,), "ids": "2, int64"}}
    assert target_of(Structured, inputs=mapping).symbols == ("B", "N")


def test_names_fold_into_what_a_call_takes():
    flat = {"x.0": 1, "x.1": 2, "y": 3, "z[0]": 4, "z[1].k": 5, "b.x.0": 6}
    assert folded(flat) == {"x": (1, 2), "y": 3, "z": [4, {"k": 5}], "b": {"x": (6,)}}


@pytest.mark.parametrize("text", ["x.: B", "1x: B", "x[a]: B", ".x: B", "x..y: B"])
def test_names_that_are_none_are_refused(text):
    with pytest.raises(RequestError, match="type a name, a colon and sizes"):
        target_of(nn.Identity, inputs=[text])


class Ids(nn.Module):
    def __init__(self, vocab_size, d_model):
        super().__init__()
        self.table = nn.Embedding(vocab_size, d_model)

    def forward(self, input_ids=None, attention_mask=None):
        return self.table(input_ids)


def test_ids_are_whole_numbers_and_come_first():
    target = target_of(Ids)
    assert target.spelled_inputs == ["input_ids: B, N int64"]
    assert parameters(target) == 1000 * 12
    assert target.call_inputs(SIZES)[0][0].dtype == torch.int64


def rotated(q, freqs_cis):
    pairs = torch.view_as_complex(q.float().reshape(*q.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * freqs_cis[:, None]).flatten(3)


def test_a_rotation_by_complex_numbers_is_symbolic():
    target = target_of(rotated, inputs={"q": "B, N, h, d", "freqs_cis": "N, d/2 complex64"})
    forms = derived(target, ("forward",)).phases["forward"]
    assert forms.method == "symbolic"
    assert "2 divides d" in forms.domain


def test_a_factory_that_takes_a_configuration_is_called_for_the_module():
    from attnprof.models import build

    fields = {"d_model": "h*d", "num_heads": "h", "num_layers": 1, "vocab_size": 7, "seq_len": "N"}
    fields = {f"config.{name}": size for name, size in fields.items()}
    target = target_of(build, fields, ["x: B, N int64"])
    assert target.symbols == ("B", "N", "h", "d")


#: Sizes, and the same in Python.
WIDTHS = {
    "max(h, d)": max,
    "ceil(h*d/3)": lambda h, d: -(-h * d // 3),
    "h*d/2": lambda h, d: h * d // 2,
    "h*d - d % 5": lambda h, d: h * d - d % 5,
    "0.5*h*4*d": lambda h, d: 2 * h * d,
}


def test_sizes_are_computed_where_torch_knows_them_by_symbol():
    def doubled(*tensors):
        return [x * 2.0 for x in tensors]

    inputs = {f"x{place}": f"B, {text}" for place, text in enumerate(WIDTHS)}
    derivation = derived(target_of(doubled, inputs=inputs), ("forward",))
    for h, d in ((4, 6), (6, 34)):
        entries = 2 * sum(width(h, d) for width in WIDTHS.values())
        assert derivation.at("multiplications", B=2, h=h, d=d) == entries


def test_quotients_are_exact_or_refused_where_a_size_must_be_whole():
    half = parsed("N/2", "x")
    assert half.at({"N": 8}) == half.whole_at({"N": 8}, "x") == 4
    assert half.at({"N": 7}) == 3.5
    with pytest.raises(RequestError, match=r"'N/2' is 3.5 at N=7; sizes are whole.*N//2"):
        half.whole_at({"N": 7}, "x")
    for text in ("N - 9", "2**41", "10**99"):
        with pytest.raises(RequestError, match="whole numbers up to"):
            parsed(text, "x").whole_at({"N": 8}, "x")


def test_shapes_are_cut_at_commas_outside_of_brackets():
    shape = parse_inputs(["x: (B, max(N, 2), h*d) float64", "y: (B + 1)*(N + 1),", "s: ()"])
    assert [dim.text for dim in shape["x"].dims] == ["B", "max(N, 2)", "h*d"]
    assert shape["x"].dtype == "float64"
    assert [dim.text for dim in shape["y"].dims] == ["(B + 1)*(N + 1)"]
    assert shape["s"].dims == ()
    assert symbols_in(parse_inputs(["x: ℓ, l"]).values()) == ("l",)


@pytest.mark.parametrize(
    "text", ["x: N, None", "x: N, 'x'", "x: N, True", "x: N, [1]", "x: " + "N," * 99]
)
def test_what_is_no_size_is_refused(text):
    with pytest.raises(RequestError, match="size"):
        parse_inputs([text])
