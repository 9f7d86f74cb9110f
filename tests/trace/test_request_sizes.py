"""Sizes of a request: functions and exact quotients on ints and on torch's symbolic sizes."""

# ruff: noqa: E501 - the tables of cases are texts
import pytest
from torch import nn

from attnprof.errors import RequestError
from attnprof.trace.request.target import parsed
from attnprof.trace.request.texts import parse_inputs, symbols_in
from attnprof.trace.solve.derive import derive_anything


class Linear(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.map = nn.Linear(width, width)

    def forward(self, x):
        return self.map(x)


def derived(width):
    found = derive_anything(
        Linear, None, args={"width": width}, inputs={"x": f"B, N, {width}"}, phases=["forward"],
        at=None, dtype="float32", scope=None, causal=False, params={},
    )  # fmt: skip
    return lambda h, d: found.at("matmul_flops", "forward", B=2, N=5, h=h, d=d)


@pytest.mark.parametrize(
    ("text", "width"),
    [
        ("max(h, d)", max), ("ceil(h*d/3)", lambda h, d: -(-h * d // 3)), ("h*d/2", lambda h, d: h * d // 2),
        ("h*d - d % 5", lambda h, d: h * d - d % 5), ("0.5*h*4*d", lambda h, d: 2 * h * d),
    ],
)  # fmt: skip
def test_sizes_are_computed_where_torch_knows_them_by_symbol(text, width):
    flops = derived(text)
    for h, d in ((4, 6), (6, 34)):
        assert flops(h, d) == 2 * 2 * 5 * width(h, d) ** 2


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
