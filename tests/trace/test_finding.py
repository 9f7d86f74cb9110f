"""Targets: what is typed, what is guessed, and what a wrong request is told."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from attnprof import registry
from attnprof.errors import CannotRunError, RequestError
from attnprof.trace.events import totals
from attnprof.trace.request.lookup import target_of
from attnprof.trace.run.runs import record
from attnprof.trace.run.worlds import fake_world
from attnprof.trace.solve.count import runnable
from attnprof.user_code import loaded
from tests.trace import samples

FILE = Path(samples.__file__)
SIZES = {"B": 2, "N": 6, "h": 3, "d": 5}


def here(name, *args, **named):
    return target_of(f"{FILE}:{name}", *args, **named)


def counted(target, sizes=None):
    sizes = sizes or {name: SIZES[name] for name in target.symbols}
    return totals(record(target, sizes, training=False), "forward")


def test_a_class_of_a_file_gets_its_sizes_guessed():
    target = here("MyAttention")
    assert target.symbols == ("B", "N", "h", "d")
    assert target.spelled_inputs == ["x: B, N, h*d"]
    (note,) = target.notes
    assert note.startswith('guessed: d_model=h*d, num_heads=h, "x: B, N, h*d"; give --arg and')
    assert counted(target)["parameters"] == 4 * 15 * 15 + 4 * 15


def test_nothing_is_guessed_where_all_is_given():
    target = here("MyAttention", ["d_model=h*d", "num_heads=h"], ["x: B, N, h*d"])
    assert target.notes == ()
    assert counted(target) == counted(here("MyAttention"))


def test_mappings_say_the_same_as_texts():
    texts = here("MyAttention", ["d_model=64", "num_heads=h"], ["x: b, 7, 64"])
    mappings = here("MyAttention", {"d_model": 64, "num_heads": "h"}, {"x": ("b", 7, 64)})
    sizes = {"b": 3, "h": 4}
    assert texts.symbols == mappings.symbols == ("h", "b")
    assert counted(texts, sizes) == counted(mappings, sizes)


def test_defaults_stay_and_the_input_fits_them():
    target = here("Wide")
    assert target.spelled_inputs == ["hidden_states: B, N, 48"]
    assert target.symbols == ("B", "N")
    assert counted(target)["parameters"] == 48 * 48 + 48


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("gelu", "gelu"), ("'gelu'", "gelu"), ("True", True), ("false", False), ("none", None),
        ("0.5", 0.5), ("1e-3", 1e-3), ("7", 7), ("2*3", 6), ("h", 3), ("h*d", 15), ("d**2", 25),
        ("(1, 2)", (1, 2)),
    ],
)  # fmt: skip
def test_an_argument_is_an_expression_or_a_value(text, value):
    with fake_world():
        made = here("Wide", [f"activation={text}"]).make(SIZES)
    assert made.activation == value
    assert type(made.activation) is type(value)


def test_inputs_have_formats_and_values():
    target = here("Wide", ["width=h*d"], ["mask: N, N bool", "scale: 2.5", "hidden_states: N, h*d"])
    positional, named = target.call_inputs(SIZES)
    assert [tuple(x.shape) for x in positional] == [(6, 15), (6, 6)]
    assert positional[1].dtype == torch.bool
    assert named == {"scale": 2.5}
    runnable(target, {})


def test_a_configuration_without_a_class_has_what_the_code_reads():
    target = here("Configured")
    assert "config.width=h*d" in target.notes[0]
    assert counted(target)["parameters"] == 15 * 15 + 15


def test_an_embedding_takes_whole_numbers():
    target = here("Embedded", ["vocabulary=V"], ["ids: B, N long"])
    assert target.symbols == ("B", "N", "h", "d", "V")
    assert counted(target, {**SIZES, "V": 11})["parameters"] == 11 * 15


def test_causal_goes_to_who_takes_it():
    with fake_world():
        assert here("Wide", causal=True).make(SIZES).causal is True
    fused = target_of("torch.nn:MultiheadAttention", None, ["attn_mask: N, N bool"], causal=True)
    assert "is_causal: True" in fused.spelled_inputs
    runnable(fused, {})


def test_a_function_takes_heads_apart():
    target = here("attention", ["temperature=0.5"])
    assert target.spelled_inputs[:3] == ["q: B, h, N, d", "k: B, h, N, d", "v: B, h, N, d"]
    assert counted(target)["matmul_flops"] == 4 * 2 * 3 * 6 * 6 * 5


def test_a_function_takes_sizes_beside_its_tensors():
    target = here("split", ["flavour=sweet"])
    assert counted(target)["matmul_flops"] == 4 * 2 * 3 * 6 * 6 * 5
    with pytest.raises(RequestError, match=r"--input \"flavour: None\""):
        here("split")


def test_tensors_go_in_order_where_a_function_names_none():
    target = here("rows", None, ["a: N, d", "b: N, d", "by: 3.0"])
    assert target.keywords == {"by"}
    assert counted(target)["multiplications"] == 2 * 6 * 5
    fused = "torch.nn.functional:scaled_dot_product_attention"
    inputs = [f"{name}: B, h, N, d" for name in "qkv"]
    assert counted(target_of(fused, None, [*inputs, "is_causal: True"]))["flops"] > 0


def test_a_factory_is_called_for_the_module():
    assert counted(here("made")) == counted(here("MyAttention"))
    anonymous = target_of(lambda dim: nn.Linear(dim, 4 * dim), None, {"input": "N, h*d"})
    assert counted(anonymous)["parameters"] == 4 * 15 * 15 + 4 * 15


def test_a_module_that_exists_keeps_its_sizes():
    target = here("ready")
    assert target.symbols == ("B", "N")
    assert target.spelled_inputs == ["x: B, N, 32"]
    built = counted(here("MyAttention", ["d_model=32", "num_heads=4"]), {"B": 2, "N": 6, **SIZES})
    assert counted(target) == built
    assert samples.ready.qkv.weight.grad is None
    assert type(samples.ready.qkv.weight) is nn.Parameter


def test_shared_weights_stay_shared():
    layers = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    layers[1].weight = layers[0].weight
    assert counted(target_of(layers, None, ["input: N, 8"]))["parameters"] == 64 + 16


def test_a_constructor_that_needs_real_tensors_gets_them_at_numbers():
    target = here("Through")
    assert counted(target)["flops"] == 2 * 2 * 6 * 15 * 15


def test_torch_layers_take_the_batch_first():
    target = target_of("torch.nn:MultiheadAttention")
    assert target.spelled_inputs == [f"{name}: B, N, h*d" for name in ("query", "key", "value")]
    assert "batch_first=True was set" in target.notes[1]
    with fake_world():
        assert target.make(SIZES).batch_first is True
        assert (
            not target_of("torch.nn:MultiheadAttention", ["batch_first=False"])
            .make(SIZES)
            .batch_first
        )


def test_mechanisms_have_their_parameters_and_scopes():
    layer = target_of("standard", params={"bias": "false"})
    assert counted(layer)["parameters"] == 4 * 15 * 15
    assert counted(target_of("standard", scope="core"))["parameters"] == 0
    assert layer.name in registry.names()


def test_a_file_is_run_once_and_files_of_one_name_apart(tmp_path, monkeypatch):
    code = """
from attnprof.mechanism import Mechanism
import torch
with open(__file__ + ".runs", "a") as runs: runs.write("x")
class Layer(torch.nn.Identity): place = __file__
class Own(Mechanism):
    name = "own"
    def forward(self): ...
"""
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mine.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    for path in (
        "one/mine.py",
        "./one/../one/mine.py",
        str(tmp_path / "one/mine.py"),
        "two/mine.py",
    ):
        folder = "two" if "two" in path else "one"
        assert Path(loaded(f"{path}:Layer").place).resolve().parent.name == folder
        assert registry.get(f"{path}:Own").name == "own"
    assert [(tmp_path / folder / "mine.py.runs").read_text() for folder in ("one", "two")] == [
        "x"
    ] * 2


def test_a_name_is_found_where_it_lies_in_its_package(tmp_path, monkeypatch):
    package = tmp_path / "package_of_layers"
    (package / "inner").mkdir(parents=True)
    layer = "import torch\nclass {}(torch.nn.Identity): ...\n"
    for name, code in {
        "__init__.py": "", "inner/__init__.py": layer.format("Own"),
        "inner/one.py": layer.format("Shared"), "two.py": layer.format("Shared"),
        "modular_two.py": layer.format("Apart"), "modeling_two.py": layer.format("Apart"),
        "broken.py": "class Elsewhere: ...\nraise ImportError\n",
    }.items():  # fmt: skip
        (package / name).write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    assert loaded("package_of_layers:Own").__module__ == "package_of_layers.inner"
    assert loaded("package_of_layers:Apart").__module__ == "package_of_layers.modeling_two"
    both = r"2 modules .*: type one of package_of_layers.inner.one:Shared, package_of_layers.two"
    with pytest.raises(RequestError, match=both):
        loaded("package_of_layers:Shared")
    with pytest.raises(RequestError, match="no 'Shred': did you mean Shared"):
        loaded("package_of_layers:Shred")
    assert not {"package_of_layers.two", "package_of_layers.broken"} & set(sys.modules)


def test_files_import_their_neighbours(tmp_path, monkeypatch):
    (tmp_path / "neighbour_of_mine.py").write_text("WIDTH = 12\n")
    (tmp_path / "layers_of_mine.py").write_text(
        "from torch import nn\nfrom neighbour_of_mine import WIDTH\n"
        "class L(nn.Linear):\n    def __init__(self):\n        super().__init__(WIDTH, WIDTH)\n"
    )
    monkeypatch.chdir(tmp_path)
    assert counted(target_of("layers_of_mine.py:L", None, ["input: N, 12"]))["parameters"] == 156
    assert counted(target_of("layers_of_mine:L", None, ["input: N, 12"]))["parameters"] == 156


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("MyAtention", "did you mean MyAttention"),
        ("zzz", "it defines MyAttention"),
        ("Empty", "has no forward pass"),
        ("NoModule", "is a class, but no nn.Module"),
        ("number", "is 3: point at"),
    ],
)
def test_what_is_no_target_is_told(name, words):
    with pytest.raises(RequestError) as refused:
        here(name)
    assert words in str(refused.value)


def test_an_argument_of_an_unknown_name_is_asked_for():
    with pytest.raises(RequestError, match=r"needs 'vocabulary'.*: add --arg vocabulary=…"):
        here("Embedded")


@pytest.mark.parametrize(
    ("args", "inputs", "words"),
    [
        (["widht=h*d"], None, "did you mean width"),
        (["width"], None, "type a name, '=' and a value"),
        (["width=h*"], None, "not a size like h*d, nor a value"),
        (["width=__import__('os')"], None, "not a size like h*d"),
        (None, ["mask"], "type a name, a colon and sizes"),
        (None, ["mask: N, N bol"], "did you mean bool"),
        (None, ["mask: N, os.system('x')"], "is not a size"),
        (None, ["x: B, N, 48"], "Wide.forward has no 'x'"),
    ],
)
def test_wrong_arguments_and_inputs_are_told(args, inputs, words):
    with pytest.raises(RequestError) as refused:
        here("Wide", args, inputs)
    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nowhere.py:X", "there is no file nowhere.py"),
        ("torch.nope:X", "there is no module 'torch.nope'"),
        ("no such thing", "is no mechanism"),
        ("standrad", "did you mean standard"),
        ("a b:X", "type path/to/file.py:Name"),
        ("torch.nn:MultiHeadAttention", "did you mean MultiheadAttention"),
    ],
)
def test_places_that_do_not_exist_are_told(text, words):
    with pytest.raises(RequestError) as refused:
        target_of(text)
    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("x = 1\ny = x / 0\n", "ZeroDivisionError: division by zero (broken.py:2)"),
        ("def f(:\n", "SyntaxError: invalid syntax (broken.py:1)"),
        ("import nothing_like_it\n", "No module named 'nothing_like_it' (broken.py:1)"),
        ("from .x import y\n", "type package.module:Name"),
        ("import sys\nsys.exit(4)\n", "SystemExit: 4 (broken.py:2)"),
    ],
)
def test_a_file_that_does_not_import_is_told_with_its_line(tmp_path, code, words):
    (tmp_path / "broken.py").write_text(code)
    with pytest.raises(RequestError) as refused:
        target_of(f"{tmp_path}/broken.py:x")
    assert words in str(refused.value)
    (tmp_path / "broken.py").write_text(
        "def f(x):\n    return x  # of another length: no old bytecode\n"
    )
    target_of(f"{tmp_path}/broken.py:f")


def test_a_file_without_a_name_lists_what_it_has():
    with pytest.raises(RequestError) as refused:
        target_of(str(FILE))
    assert f"{FILE}:MyAttention or " in str(refused.value)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"params": {"bias": "false"}}, "--set is for registered mechanisms"),
        ({"scope": "core"}, "--scope is for registered mechanisms"),
        ({"causal": True}, "takes neither causal nor is_causal"),
    ],
)
def test_what_is_for_mechanisms_is_refused_elsewhere(how, words):
    with pytest.raises(RequestError, match=words):
        here("MyAttention", **how)
    with pytest.raises(RequestError, match="--arg is for your own modules"):
        target_of("standard", ["d_model=h*d"])


def test_code_that_does_not_run_is_told_with_its_line():
    with pytest.raises(RequestError, match=r"ValueError: no such width \(samples.py:\d+\)"):
        runnable(here("Broken"), {})
    with pytest.raises(RequestError, match=r"with x: B, N, 7.*\(samples.py:\d+\)"):
        runnable(here("MyAttention", None, ["x: B, N, 7"]), {})
    with pytest.raises(RequestError, match="at B=1, N=2, h=3, d=4"):
        runnable(here("MyAttention", None, ["x: B, N, 7"]), {"B": 1, "N": 2, "h": 3, "d": 4})


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Reading", r"depends on the value of a tensor.*\(samples.py:\d+\)"),
        ("Choosing", "the size of a result depends on the values of a tensor"),
    ],
)
def test_what_needs_values_cannot_be_followed(name, words):
    with pytest.raises(CannotRunError, match=words):
        runnable(here(name), {})


@pytest.mark.parametrize("name", ["Silent", "Detached"])
def test_what_has_no_backward_pass_is_told_to_ask_for_forward(name):
    target = here(name)
    runnable(target, {})
    with pytest.raises(RequestError, match=r"no backward pass: .* type --phase forward"):
        runnable(target, {}, training=True)


@pytest.mark.parametrize(
    ("name", "entries"),
    [
        ("Heads", 15 * 3 * 15 + 3 * 15),  # dim 15, 3 heads of width 5
        ("made_with", 4 * 15 * 15 + 4 * 15),
    ],
)
def test_heads_and_widths_do_not_stay_at_a_default_that_formulas_contradict(name, entries):
    target = here(name)
    assert target.symbols == ("B", "N", "h", "d")
    assert counted(target)["parameters"] == entries
    assert "heads=h" in target.notes[0]
    assert "max_len" not in " ".join(target.notes)


@pytest.mark.parametrize("name", ["WithoutWidth", "headed"])
def test_heads_are_passed_where_only_the_input_speaks_of_them(name):
    target = here(name)
    assert "num_heads=h" in target.notes[0]
    assert counted(target)["matmul_flops"] == 4 * 2 * 3 * 6 * 6 * 5


def test_defaults_stay_where_they_are_said_or_formulas_do_not_speak_of_them():
    assert counted(here("Heads", ["heads=2", "dim_head=7"]))["parameters"] == (15 + 1) * 3 * 14
    assert here("Heads", ["dim=32"], ["x: B, N, 32"]).symbols == ("B", "N")
    assert here("Wide").symbols == ("B", "N")
    assert "h" in here("Wide", None, ["hidden_states: B, N, h*d"]).symbols
    assert counted(here("Wide", None, ["hidden_states: B, N, h*d"]))["parameters"] == 16 * 15


@pytest.mark.parametrize("name", ["Unusual", "Static", "ByClass", "Named"])
def test_the_instance_is_told_from_the_arguments_by_its_place(name):
    target = here(name)
    assert target.spelled_inputs[0] == "x: B, N, h*d"
    runnable(target, {})


def test_an_argument_called_self_is_one():
    target = here("first_of", None, ["self: N, d", "other: N, d"])
    assert counted(target)["multiplications"] == 6 * 5
    with pytest.raises(RequestError, match="'self', which cannot be guessed"):
        here("first_of", None, ["other: N, d"])


def test_a_package_that_imports_late_and_fails_says_what_it_was_told(tmp_path, monkeypatch):
    (tmp_path / "late.py").write_text(
        "def __getattr__(name):\n"
        "    try:\n"
        "        raise RuntimeError('no such operator')\n"
        "    except RuntimeError as error:\n"
        "        raise ModuleNotFoundError('Could not import') from error\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(RequestError, match=r"late:Attention: late does not import: .*no such op"):
        loaded("late:Attention")


def test_an_input_is_as_wide_as_the_code_asks_in_terms_of_the_width(tmp_path):
    (tmp_path / "beside.py").write_text(
        "from torch import nn\n"
        "class Beside(nn.Module):\n"
        "    def __init__(self, dim, num_heads):\n"
        "        super().__init__()\n"
        "        self.q, self.p = nn.Linear(dim, dim), nn.Linear(dim // 4, dim)\n"
        "    def forward(self, hidden_states, layout_inputs):\n"
        "        return self.q(hidden_states) + self.p(layout_inputs)\n"
    )
    target = target_of(f"{tmp_path / 'beside.py'}:Beside")
    assert "layout_inputs: B, N, h*d/4" in target.spelled_inputs
