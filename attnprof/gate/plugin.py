"""A pytest plugin: tests that fail when a module's FLOPs, bytes, memory or parameters grow.

The fixture ``attnprof_check(MyAttention, seq=512, …)`` and the marker
``@pytest.mark.attnprof(attention=…, seq=…)`` count a case on tensors without memory and compare
it exactly with a file of counts, ``.attnprof/baseline.json`` beside pytest's configuration.
Nothing heavy is imported before a test asks.
"""

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from attnprof.errors import AttnprofError

if TYPE_CHECKING:
    from attnprof.gate.in_tests import TestGate

DEFAULT = ".attnprof/baseline.json"
MARKER = (
    "attnprof(attention, seq=512, ...): compare what it counts with the recorded counts; takes "
    "what the fixture attnprof_check takes"
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add options for the file of counts, and for recording it."""
    group = parser.getgroup("attnprof", "counts of attention modules")
    group.addoption("--attnprof-baseline", metavar="FILE", help=f"recorded counts ({DEFAULT})")
    group.addoption(
        "--attnprof-update", action="store_true", help="record the counts of the tests that run"
    )
    group.addoption(
        "--attnprof-against",
        metavar="REF",
        help="compare with a git revision or a folder, times included, and not with the file",
    )
    parser.addini("attnprof_baseline", "recorded counts, beside this file", default=DEFAULT)


def pytest_configure(config: pytest.Config) -> None:
    """Make the file's path absolute before other processes are started."""
    config.addinivalue_line("markers", MARKER)
    file = config.getoption("--attnprof-baseline")
    if config.getoption("--attnprof-update") and config.getoption("--attnprof-against"):
        raise pytest.UsageError("--attnprof-update records counts, --attnprof-against uses none")
    if file:
        config.option.attnprof_baseline = str(config.invocation_params.dir / file)


_GATE = pytest.StashKey["TestGate"]()


def _gate(config: pytest.Config) -> "TestGate":
    """Return the session's gate, made when a test first asks for it."""
    if _GATE not in config.stash:
        from attnprof.gate.in_tests import UPDATE, TestGate

        home = config.inipath.parent if config.inipath else config.rootpath
        file_option = config.getoption("--attnprof-baseline")
        file = Path(file_option) if file_option else home / config.getini("attnprof_baseline")
        update, against = map(config.getoption, ("--attnprof-update", "--attnprof-against"))
        start = config.invocation_params.dir
        typed = file.relative_to(start) if file.is_relative_to(start) else file
        command = f"{UPDATE} --attnprof-baseline {typed}" if file_option else UPDATE
        config.stash[_GATE] = TestGate(file, config.rootpath, bool(update), against, command)
    return config.stash[_GATE]


def _check(config: pytest.Config, *args: Any, **sizes: Any) -> Any:
    """Run a check; its failure fails the test and shows the message without a traceback."""
    __tracebackhide__ = True
    try:
        return _gate(config).check(*args, **sizes)
    except AttnprofError as error:
        message = str(error)
    pytest.fail(message, pytrace=False)


@pytest.fixture
def attnprof_check(pytestconfig: pytest.Config) -> Callable[..., Any]:
    """Return a function that fails the test where a module counts more than is recorded.

    ``attnprof_check(MyAttention, seq=512, d_model=512, heads=8, phase="forward")``: a class or
    function of a module, ``"my.py:MyAttention"`` or a mechanism's id; also ``batch``, ``causal``,
    ``dtype``, ``scope``, ``args`` and ``inputs`` as ``attnprof derive`` takes them, ``params`` of a
    mechanism. It gives the records, one a metric.
    """
    return partial(_check, pytestconfig)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Check the case that a test's marker names, before the test's body."""
    for mark in item.iter_markers("attnprof"):
        _check(item.config, *mark.args, **mark.kwargs)
    return (yield)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write recorded counts; a worker of pytest-xdist sends them to its controller."""
    gate = session.config.stash.get(_GATE, None)
    if gate is None:
        return
    gate.close()
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["attnprof"] = json.dumps(gate.carried())
        return
    try:
        gate.write()
    except AttnprofError as error:
        gate.notes.append(str(error))
        session.exitstatus = pytest.ExitCode.USAGE_ERROR


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take over the counts and notes of a worker of pytest-xdist."""
    if carried := getattr(node, "workeroutput", {}).get("attnprof"):
        _gate(node.config).take(json.loads(carried))


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Print the session's notes on files that were written, and on cases that got better."""
    gate = config.stash.get(_GATE, None)
    if gate is not None and gate.notes:
        terminalreporter.section("attnprof")
        for line in gate.notes:
            terminalreporter.line(line)
