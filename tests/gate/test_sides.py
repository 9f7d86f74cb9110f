"""Real processes: they build, time, count; what crashes or hangs is an answer, not the end."""

import pytest

from attnprof.gate import trees
from attnprof.gate.trees import RunningTree, TreeError
from attnprof.measure.request import PointRequest

CODE = """
import ctypes, time
import torch
from torch import nn


class Fine(nn.Module):
    def forward(self, x):
        print("noise on stdout")
        return x @ x.transpose(-1, -2) @ x


class Crashes(nn.Module):
    def forward(self, x):
        ctypes.string_at(0)


class Raises(nn.Module):
    def forward(self, x):
        raise ValueError("no such luck")


class Hangs(nn.Module):
    def forward(self, x):
        time.sleep(60)
"""


def request(name):
    params = {"args": [], "inputs": ["x: B, N, h*d"]}
    return PointRequest(f"code.py:{name}", 32, 2, 8, params=params, threads=1)


@pytest.fixture(scope="module")
def side(tmp_path_factory, fresh_servers):  # noqa: ARG001 - in real processes
    tree = tmp_path_factory.mktemp("tree")
    (tree / "code.py").write_text(CODE)
    with RunningTree(tree, "the tree") as found:
        yield found


def opened(side, name):
    side.ask_open(request(name))
    return side.opened()


def test_blocks_are_timed(side):
    seconds = opened(side, "Fine")
    assert seconds > 0
    processor, wall = side.block(20)
    assert processor > 0
    assert wall > 0
    side.close()


@pytest.mark.parametrize(("name", "said"), [
    ("Crashes", "SIGSEGV"), ("Raises", "no such luck"),
])  # fmt: skip
def test_a_crash_is_told_and_survived(side, name, said):
    with pytest.raises(TreeError, match=said):
        opened(side, name)
    side.close()
    assert opened(side, "Fine") > 0
    side.close()


def test_what_does_not_exist_is_missing(side):
    with pytest.raises(TreeError) as caught:
        opened(side, "Nowhere")
    assert caught.value.missing
    side.close()


def test_what_hangs_is_ended_and_the_side_starts_again(side, monkeypatch):
    opened(side, "Fine")
    side.close()
    monkeypatch.setattr(trees, "LIMIT_S", 1.0)
    with pytest.raises(TreeError, match="no answer within 1 s"):
        opened(side, "Hangs")
    monkeypatch.setattr(trees, "LIMIT_S", 100.0)
    assert opened(side, "Fine") > 0
    side.close()
