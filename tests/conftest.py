"""One thread and one seed for every test; only the explorer's first picture is judged by time."""

import gc
import os
import re
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

import hypothesis
import pytest
import torch

from attnprof.processes import pool
from attnprof.trace.run import surroundings, symbols
from tests.forking import Zygote, forking

# Tests start hundreds of processes, each of which would compile the same files again.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# threads that wait asleep leave the processors to the other workers
os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="attnprof-tests-")  # nothing is kept
torch.set_num_threads(1)
hypothesis.settings.register_profile("repeatable", deadline=None, derandomize=True)
hypothesis.settings.load_profile("repeatable")
#: The servers of pools that commands start in this process; ``fresh_servers`` has real ones.
pool.subprocess = forking(Zygote().fork)


def pytest_configure(config):
    """Only tests have their asserts rewritten: the entry point of our plugin means all of us."""
    config.pluginmanager.rewrite_hook._must_rewrite.discard("attnprof")


def pytest_collection_finish():
    """What is imported stays: no collection looks through it again, and no fork copies it.

    Formulas are many small objects that do not refer to one another in circles: collections find
    nothing among them, and seldom run.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000)


def pytest_sessionfinish():
    """One collection finds what tests left unclosed; pytest, which tells of it, makes five more."""
    gc.collect()
    gc.freeze()
    shutil.rmtree(os.environ["XDG_CACHE_HOME"], ignore_errors=True)


@cache
def text_with_imports(module):
    """The text of a file of the tests, and of those that it imports, with their names."""
    texts = {module: Path(sys.modules[module].__file__).read_text(encoding="utf-8")}
    for place, name in re.findall(r"from (tests[\w.]*) import \(?\s*(\w+)", texts[module]):
        for other in {place, f"{place}.{name}"} & sys.modules.keys():
            texts |= text_with_imports(other)
    return texts


@pytest.fixture(scope="module", autouse=True)
def alone(request):
    """A run looks after the state of its own test's modules, as if no other file was there.

    It would else do so for all tests, and for transformers, at each of thousands of runs.
    """
    used = text_with_imports(request.module.__name__)
    shown = "".join(used.values())
    needed = {"tests": used, "transformers": ()}
    if "transformers" in shown or "attnprof.models" in shown:
        del needed["transformers"]

    def may_be_foreign(name):
        package = name.partition(".")[0]
        return foreign(name) and (package not in needed or name in needed[package])

    foreign = symbols.may_be_foreign
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(symbols, "may_be_foreign", may_be_foreign)
        for looked_up in (symbols._foreign_modules, surroundings._modules, surroundings._watched):
            looked_up.cache_clear()
        yield


@pytest.fixture(autouse=True)
def seeded():
    torch.default_generator.manual_seed(0)  # the CPU's alone: for other devices torch takes 1 ms


@pytest.fixture(scope="module")
def fresh_servers():
    """Servers are started as users' are: by interpreters of their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pool, "subprocess", subprocess)
        yield
