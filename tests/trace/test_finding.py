"""Targets: what is typed, what is guessed, and what a wrong request is told."""

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from attnprof import registry
from attnprof.errors import RequestError
from attnprof.trace.request.lookup import target_of
from attnprof.trace.run.worlds import fake_world
from attnprof.trace.solve.count import runnable
from attnprof.user_code import loaded
from tests.trace import samples
from tests.trace.checks import counted_at

FILE = Path(samples.__file__)
SIZES = {"B": 2, "N": 6, "h": 3, "d": 5, "V": 11}


def here(name, *args, **named):
    return target_of(f"{FILE}:{name}", *args, **named)


def counted(target):
    return counted_at(target, {name: SIZES[name] for name in target.symbols}, "forward")


WRITTEN = 4 * 15 * 15 + 4 * 15
PRODUCTS = 4 * 2 * 3 * 6 * 6 * 5
SDPA = "torch.nn.functional:scaled_dot_product_attention"
ALL, TOKENS = ("B", "N", "h", "d"), ("B", "N")
#: What is asked for (name, arguments, inputs), what is said of it, its symbols and what it counts.
COUNTED = {
    "a class": (("MyAttention",), "guessed: d_model=h*d, num_heads=h,", ALL, "parameters", WRITTEN),
    "numbers": (
        ("MyAttention", {"d_model": 33, "num_heads": "h"}, {"x": ("V", 7, 33)}), "x: V, 7, 33",
        ("h", "V"), "parameters", 4 * 33 * 33 + 4 * 33),
    "a default": (("Wide",), "hidden_states: B, N, 48", TOKENS, "parameters", 48 * 48 + 48),
    "a default in the way": (
        ("Wide", None, ["hidden_states: B, N, h*d"]), "width=h*d", ALL, "parameters", 16 * 15),
    "heads by default": (("Heads",), "heads=h", ALL, "parameters", 15 * 3 * 15 + 3 * 15),
    "given heads": (
        ("Heads", ["heads=2", "dim_head=7"]), "dim=h*d", ALL, "parameters", (15 + 1) * 3 * 14),
    "given sizes": (
        ("Heads", ["dim=32"], ["x: B, N, 32"]), "", TOKENS, "parameters", 33 * 3 * 8 * 64),
    "heads of a factory": (("made_with",), "num_heads=h", ALL, "parameters", WRITTEN),
    "a factory": (("made",), "x: B, N, h*d", ALL, "parameters", WRITTEN),
    "heads of the input": (("WithoutWidth",), "num_heads=h", ALL, "matmul_flops", PRODUCTS),
    "heads of a function": (("headed",), "num_heads=h", ALL, "matmul_flops", PRODUCTS),
    "a configuration": (("Configured",), "config.width=h*d", ALL, "parameters", 15 * 15 + 15),
    "whole numbers": (
        ("Embedded", ["vocabulary=V"], ["ids: B, N long"]), "", (*ALL, "V"), "parameters", 11 * 15),
    "a function": (
        ("attention", ["temperature=0.5"]), "k: B, h, N, d", ALL, "matmul_flops", PRODUCTS),
    "sizes of a function": (("split", ["flavour=sweet"]), "", ALL, "matmul_flops", PRODUCTS),
    "tensors without names": (
        ("rows", None, ["a: N, d", "b: N, d", "by: 3.0"]), "", ("N", "d"), "multiplications", 60),
    "an input called self": (
        ("first_of", None, ["self: N, d", "other: N, d"]), "", ("N", "d"), "multiplications", 30),
    "values at real tensors": (("Through",), "", ALL, "flops", 2 * 2 * 6 * 15 * 15),
    "a module that exists": (
        ("ready",), "x: B, N, 32", TOKENS, "parameters", 4 * 32 * 32 + 4 * 32),
}  # fmt: skip


@pytest.mark.parametrize("case", COUNTED)
def test_what_is_found_has_sizes_and_runs(case):
    request, said, symbols, quantity, value = COUNTED[case]
    target = here(*request)
    assert said in " ".join([*target.spelled_inputs, *target.notes])
    assert "max_len" not in " ".join(target.notes)
    assert target.symbols == symbols
    assert counted(target)[quantity] == value


def test_nothing_is_guessed_where_all_is_given():
    assert here("MyAttention", ["d_model=h*d", "num_heads=h"], ["x: B, N, h*d"]).notes == ()


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


def test_causal_goes_to_who_takes_it():
    with fake_world():
        assert here("Wide", causal=True).make(SIZES).causal is True
    fused = target_of("torch.nn:MultiheadAttention", None, ["attn_mask: N, N bool"], causal=True)
    assert "is_causal: True" in fused.spelled_inputs
    runnable(fused, {})


def test_objects_are_targets_too():
    anonymous = target_of(lambda dim: nn.Linear(dim, 4 * dim), None, {"input": "N, h*d"})
    assert counted(anonymous)["parameters"] == WRITTEN
    fused = target_of(SDPA, None, [*(f"{name}: B, h, N, d" for name in "qkv"), "is_causal: True"])
    assert counted(fused)["flops"] > 0


def test_shared_weights_stay_shared():
    layers = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    layers[1].weight = layers[0].weight
    assert counted(target_of(layers, None, ["input: N, 8"]))["parameters"] == 64 + 16


def test_torch_layers_take_the_batch_first():
    target = target_of("torch.nn:MultiheadAttention")
    assert target.spelled_inputs == [f"{name}: B, N, h*d" for name in ("query", "key", "value")]
    assert "batch_first=True was set" in target.notes[1]
    with fake_world():
        assert target.make(SIZES).batch_first is True
        tokens_first = target_of("torch.nn:MultiheadAttention", ["batch_first=False"])
        assert not tokens_first.make(SIZES).batch_first


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
    spellings = "one/mine.py", "./one/../one/mine.py", f"{tmp_path}/one/mine.py", "two/mine.py"
    for path in spellings:
        folder = "two" if "two" in path else "one"
        assert Path(loaded(f"{path}:Layer").place).resolve().parent.name == folder
        assert registry.get(f"{path}:Own").name == "own"
    runs = [(tmp_path / folder / "mine.py.runs").read_text() for folder in ("one", "two")]
    assert runs == ["x", "x"]


def test_a_name_is_found_where_it_lies_in_its_package(tmp_path, monkeypatch):
    package = tmp_path / "package_of_layers"
    (package / "inner").mkdir(parents=True)
    layer = "import torch\nclass {}(torch.nn.Identity): ...\n"
    for name, code in {
        "__init__.py": "", "inner/__init__.py": layer.format("Own"),
        "inner/one.py": layer.format("Shared"), "two.py": layer.format("Shared"),
        "modular_two.py": layer.format("Apart"), "modeling_two.py": layer.format("Apart"),
        "broken.py": "class Elsewhere: ...\nraise ImportError\n", "Same.py": layer.format("Same"),
    }.items():  # fmt: skip
        (package / name).write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    assert loaded("package_of_layers:Own").__module__ == "package_of_layers.inner"
    assert loaded("package_of_layers:Apart").__module__ == "package_of_layers.modeling_two"
    for _ in range(2):  # once it is imported, the package has a module of that name
        assert loaded("package_of_layers:Same").__module__ == "package_of_layers.Same"
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
    ("request_", "words"),
    [
        (("Wide", ["widht=h*d"]), "did you mean width"),
        (("Wide", ["width"]), "type a name, '=' and a value"),
        (("Wide", ["width=h*"]), "not a size like h*d, nor a value"),
        (("Wide", ["width=__import__('os')"]), "not a size like h*d"),
        (("Wide", None, ["mask"]), "type a name, a colon and sizes"),
        (("Wide", None, ["mask: N, N bol"]), "did you mean bool"),
        (("Wide", None, ["mask: N, os.system('x')"]), "is not a size"),
        (("Wide", None, ["x: B, N, 48"]), "Wide.forward has no 'x'"),
        (("Embedded",), "needs 'vocabulary', which cannot be guessed: add --arg vocabulary=…"),
        (("split",), '--input "flavour: None"'),
        (("first_of", None, ["other: N, d"]), "'self', which cannot be guessed"),
        (("MyAttention", None, None, {"bias": "false"}), "--set is for registered mechanisms"),
        (("MyAttention", None, None, None, "core"), "--scope is for registered mechanisms"),
        (("MyAttention", None, None, None, None, True), "takes neither causal nor is_causal"),
        (("MyAtention",), "did you mean MyAttention"),
        (("zzz",), "it defines MyAttention"),
        (("Empty",), "has no forward pass"),
        (("NoModule",), "is a class, but no nn.Module"),
        (("number",), "is 3: point at"),
        ("nowhere.py:X", "there is no file nowhere.py"),
        ("torch.nope:X", "there is no module 'torch.nope'"),
        ("no such thing", "is no mechanism"),
        ("standrad", "did you mean standard"),
        ("a b:X", "type path/to/file.py:Name"),
        ("torch.nn:MultiHeadAttention", "did you mean MultiheadAttention"),
        (str(FILE), f"{FILE}:MyAttention or "),
    ],
)
def test_wrong_requests_and_places_are_told(request_, words):
    look = target_of if isinstance(request_, str) else lambda request: here(*request)
    with pytest.raises(RequestError) as refused:
        look(request_)
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


def test_arguments_are_for_own_modules():
    with pytest.raises(RequestError, match="--arg is for your own modules"):
        target_of("standard", ["d_model=h*d"])


def test_code_that_does_not_run_is_told_with_its_line():
    with pytest.raises(RequestError, match=r"ValueError: no such width \(samples.py:\d+\)"):
        runnable(here("Broken"), {})
    with pytest.raises(RequestError, match=r"with x: B, N, 7.*\(samples.py:\d+\)"):
        runnable(here("MyAttention", None, ["x: B, N, 7"]), {})
    with pytest.raises(RequestError, match="at B=1, N=2, h=3, d=4"):
        runnable(here("MyAttention", None, ["x: B, N, 7"]), {"B": 1, "N": 2, "h": 3, "d": 4})


@pytest.mark.parametrize("name", ["Silent", "Detached"])
def test_what_has_no_backward_pass_is_told_to_ask_for_forward(name):
    target = here(name)
    runnable(target, {})
    with pytest.raises(RequestError, match=r"no backward pass: .* type --phase forward"):
        runnable(target, {}, training=True)


@pytest.mark.parametrize("name", ["Unusual", "Static", "ByClass", "Named"])
def test_the_instance_is_told_from_the_arguments_by_its_place(name):
    target = here(name)
    assert target.spelled_inputs[0] == "x: B, N, h*d"
    runnable(target, {})


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
