"""Operations of somebody's own library, counted by the rules they register."""

import importlib.metadata
import sys

import pytest
import torch

import attnprof
from attnprof.algebra.values import evaluate
from attnprof.errors import RequestError
from attnprof.trace import registered

library = torch.library


@library.custom_op("attnprof_tests::mixed", mutates_args=())
def mixed(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, window: int) -> torch.Tensor:
    assert window
    return (q @ k.mT).exp() @ v


@library.custom_op("attnprof_tests::mixed_backward", mutates_args=())
def mixed_backward(
    grad: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
) -> list[torch.Tensor]:
    weights = (q @ k.mT).exp()
    scores = grad @ v.mT * weights
    return [scores @ k, scores.mT @ q, weights.mT @ grad]


mixed.register_fake(lambda q, *_: torch.empty_like(q))
mixed_backward.register_fake(lambda _, *qkv: [torch.empty_like(x) for x in qkv])
mixed.register_autograd(
    lambda ctx, grad: (*mixed_backward(grad, *ctx.saved_tensors), None),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs[:3]),  # noqa: ARG005
)


QKV = dict.fromkeys("qkv", "B, N, d")
HOW = {"inputs": {"x": "B, N, d"}, "phases": "forward"}


def mixing(q, k, v):
    return mixed(q, k, v, 7)


def mixing_itself(x):
    return mixed(x, x, x, 7)


def plain(q, k, v):
    return (q @ k.mT).exp() @ v


@pytest.fixture(autouse=True)
def _no_rules(monkeypatch):
    """But those that a test registers."""
    monkeypatch.setattr(registered, "_RULES", {})


@pytest.fixture
def counted():
    @attnprof.rule("attnprof_tests::mixed")
    def cost(q, k, v, window, out):
        assert (window, out) == (7, q)
        b, n, d = q
        return {"matmul_flops": 2 * b * n * k[1] * (d + v[-1]), "exponentials": b * n * k[1]}

    @attnprof.rule("attnprof_tests::mixed_backward")
    def cost_backward(_grad, q, k, v, out):
        assert out == [q, k, v]
        (b, n, d), m = q, k[1]
        return {"matmul_flops": 10 * b * n * m * d, "exponentials": b * n * m,
                "multiplications": b * n * m}  # fmt: skip


@pytest.mark.usefixtures("counted")
def test_a_custom_operation_is_counted_as_what_it_does():
    mine = attnprof.derive(mixing, inputs=QKV)
    written = attnprof.derive(plain, inputs=QKV, phases="forward")
    for name in ("multiplications", "additions", "exponentials", "matmul_flops", "flops"):
        assert mine.expression(name) == written.expression(name)
    assert str(mine.expression("matmul_flops", "backward")) == "10*B*N**2*d"
    assert str(mine.expression("multiplications", "backward")) == "5*B*N**2*d + B*N**2"
    assert mine.phases["forward"].method == "symbolic"
    assert mine.phases["backward"].uncounted == ()
    assert str(mine.expression("bytes_moved")) == "16*B*N*d"  # operands and results
    assert mine.phases["forward"].bound("peak_bytes") == "at least"


def test_a_rule_says_bytes_and_memory_and_may_compare_sizes():
    @attnprof.rule("attnprof_tests::mixed")
    def cost(q, _k, _v, window):
        b, n, d = q
        seen = b * n * min(n, 2 * window)
        return {"matmul_flops": 4 * seen * d, "bytes_moved": 12, "workspace_bytes": 8 * n * n}

    derivation = attnprof.derive(mixing_itself, **HOW)
    assert evaluate(derivation.expression(), {"B": 2, "N": 100, "d": 3}) == 4 * 2 * 100 * 14 * 3
    assert derivation.expression("bytes_moved") == 12
    assert str(derivation.expression("peak_bytes")) == "4*B*N*d + 8*N**2"
    assert derivation.phases["forward"].bound("peak_bytes") == "exact"
    assert any("N" in text and "14" in text for text in derivation.phases["forward"].domain)


def test_without_a_rule_the_total_is_at_least_and_says_what_to_write():
    derivation = attnprof.derive(mixing, inputs=QKV, phases="forward")
    forms = derivation.phases["forward"]
    assert forms.bound("flops") == "at least"
    assert forms.uncounted[0].startswith("attnprof_tests.mixed ×1 (")
    (hint,) = (note for note in forms.notes if "@attnprof.rule" in note)
    assert hint.endswith('@attnprof.rule("attnprof_tests::mixed")')


def _raises(*_):
    raise KeyError("n")


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (_raises, r"the rule for attnprof_tests::mixed \(test_reg\w+.py:\d+\) raised KeyError"),
        (lambda _q, _k: {}, "does not take what it gets, q, k, v, window, out"),
        (lambda *_: 3, "gives 3; what it may give is a dictionary of numbers by kind: multiplic"),
        (lambda *_: {"flops": 3}, "gives {'flops': 3}; what it may give"),
        *((lambda *_, x=x: {"other": x}, f"gives {x!r} for other: a whole number, 0 or more")
          for x in ("3", -3, 0.5, float("nan"), True)),
    ],
)  # fmt: skip
def test_a_rule_that_is_wrong_is_told_with_its_place(rule, words):
    attnprof.rule("attnprof_tests::mixed")(rule)
    with pytest.raises(RequestError, match=words):
        attnprof.derive(mixing_itself, **HOW)


@pytest.mark.parametrize("name", ["mixed", "a::b::c", "a.b", "", 3, "torch.ops.a.b"])
def test_names_are_those_of_operations(name):
    with pytest.raises(RequestError, match="type library::name"):
        attnprof.rule(name)


def test_one_operation_has_one_rule_that_may_be_run_again():
    for _ in range(2):

        @attnprof.rule("attnprof_tests::mixed")
        def cost(*_):
            return {}

    with pytest.raises(RequestError, match=r"has a rule already: test_registered.py:\d+"):
        attnprof.rule("attnprof_tests::mixed")(lambda *_: {})
    with pytest.raises(RequestError, match="is no function but 3"):
        attnprof.rule("attnprof_tests::mixed")(3)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("attnprof_tests::mixd", "attnprof_tests has no 'mixd': did you mean mixed"),
        ("aten::mm", "aten::mm has a rule of attnprof's own"),
        ("aten::relu_", "aten::relu_ has a rule of attnprof's own"),
    ],
)
def test_rules_for_no_operation_and_for_ours_are_refused(name, words):
    attnprof.rule(name)(lambda *_: {})
    with pytest.raises(RequestError, match=words):
        attnprof.derive(torch.square, inputs={"x": "N"})


def test_a_rule_fills_a_gap_of_ours():
    attnprof.rule("aten::special_i1")(lambda _x, out: {"other": 20 * out[0]})
    attnprof.rule("nobody_imported::this")(lambda *_: {})  # no error: its library may come later
    derivation = attnprof.derive(torch.special.i1, inputs={"x": "N"}, phases="forward")
    assert str(derivation.expression()) == "20*N"
    assert derivation.phases["forward"].uncounted == ()


def test_installed_packages_bring_their_rules(monkeypatch, tmp_path):
    (tmp_path / "attnprof_rules_of_theirs.py").write_text(
        "import attnprof\n"
        "@attnprof.rule('attnprof_tests::mixed')\n"
        "def cost(q, k, v, window):\n"
        "    return {'other': q[0]}\n"
    )
    points = [importlib.metadata.EntryPoint("theirs", "attnprof_rules_of_theirs", registered.GROUP)]
    listed = {registered.GROUP: points}
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: listed.get(group, []))
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    registered._installed.cache_clear()
    assert str(attnprof.derive(mixing_itself, **HOW).expression()) == "B"
    points[0] = importlib.metadata.EntryPoint("broken", "no_such_module_here", registered.GROUP)
    registered._RULES.clear()
    registered._installed.cache_clear()
    broken = r"plug-in 'broken' \(no_such_module_here\) does not load"
    with pytest.raises(RequestError, match=broken):
        attnprof.derive(mixing_itself, **HOW)
    registered._installed.cache_clear()
