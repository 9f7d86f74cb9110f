"""One thread and one seed for every test; no test is judged by how long it takes."""

import gc
import os
import subprocess
import sys
import tempfile

import hypothesis
import pytest
import torch

from attnprof.processes import pool
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


@pytest.fixture(autouse=True)
def seeded():
    torch.default_generator.manual_seed(0)  # the CPU's alone: for other devices torch takes 1 ms


@pytest.fixture(scope="module")
def fresh_servers():
    """Servers are started as users' are: by interpreters of their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pool, "subprocess", subprocess)
        yield
