"""A page as a real browser shows it, by Chromium without a window.

Chromium reads and answers its own protocol on two pipes, one JSON text after the other. One serves
all tests of a process; each page has a profile of its own, as in a private window.
"""

import atexit
import json
import os
import shutil
import subprocess
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
BROWSER = next(filter(None, map(shutil.which, NAMES)), None)
AXE = find_spec("axe_playwright_python")  # only its file of JavaScript: playwright is not used
needs_browser = pytest.mark.skipif(not BROWSER, reason="no Chromium: apt-get install chromium")
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
         "--disable-extensions", "--disable-background-networking", "--hide-scrollbars",
         "--remote-debugging-pipe")  # fmt: skip
#: Findings that keep somebody out, with the elements that they are about.
SERIOUS = """axe.run({resultTypes: ["violations"], preload: false}).then(found => found.violations
  .filter(one => ["serious", "critical"].includes(one.impact))
  .map(one => [one.id, one.nodes.slice(0, 3).map(node => node.html.slice(0, 200))]))"""


@dataclass
class Seen:
    """What a page does: its errors and requests, and values of scripts.

    ``serious`` are findings of axe-core; None where it was not asked, or is not installed.
    """

    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    values: list = field(default_factory=list)
    serious: list | None = None


class _Chromium:
    """A running browser: commands to it or to the page that is open, and what that tells."""

    def __init__(self):
        self.folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        to_browser, from_browser = os.pipe(), os.pipe()
        words = [BROWSER, *FLAGS, f"--user-data-dir={self.folder.name}", "about:blank"]
        shell = f'exec "$@" 3<&{to_browser[0]} 4>&{from_browser[1]}'
        self.process = subprocess.Popen(
            ["bash", "-c", shell, "bash", *words], pass_fds=(to_browser[0], from_browser[1]),
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(to_browser[0])
        os.close(from_browser[1])
        self.commands = os.fdopen(to_browser[1], "wb")
        self.answers = os.fdopen(from_browser[0], "rb")
        self.count, self.session, self.events, self.seen = 0, None, [], Seen()
        atexit.register(self.stop)

    def stop(self):
        """End the browser and remove its folder."""
        self.process.terminate()
        self.process.wait(timeout=30)
        self.commands.close()
        self.answers.close()
        self.folder.cleanup()

    @contextmanager
    def page(self):
        """Open an empty page with a profile of its own; yield what will be seen of it."""
        profile = self.ask("Target.createBrowserContext")
        target = self.ask("Target.createTarget", url="about:blank", **profile)
        self.seen, self.events = Seen(), []
        self.session = self.ask("Target.attachToTarget", flatten=True, **target)["sessionId"]
        try:
            yield self.seen
        finally:
            self.session = None
            self.ask("Target.disposeBrowserContext", **profile)

    def ask(self, method, **params):
        """The result of a command; errors and requests on the way are kept."""
        self.count += 1
        message = {"id": self.count, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        self.commands.write(json.dumps(message).encode() + b"\0")
        self.commands.flush()
        while (answer := self.next()).get("id") != self.count:
            pass
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']['message']}")
        return answer["result"]

    def next(self):
        text = bytearray()
        while (byte := self.answers.read(1)) != b"\0":
            if not byte:
                raise RuntimeError("the browser ended")
            text += byte
        message = json.loads(text)
        self.note(message.get("method", ""), message.get("params", {}))
        return message

    def note(self, method, params):
        self.events.append(method)
        if method == "Network.requestWillBeSent":
            self.seen.requests.append(params["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.seen.errors.append(details.get("exception", details).get("description", "error"))
        elif method == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.seen.errors.append(params["entry"]["text"])
        elif method == "Runtime.consoleAPICalled" and params["type"] == "error":
            self.seen.errors.append(str([one.get("value") for one in params["args"]]))

    def run(self, script):
        """The value of a script, which may be a promise."""
        result = self.ask("Runtime.evaluate", expression=script, awaitPromise=True,
                          returnByValue=True)  # fmt: skip
        if "exceptionDetails" in result:
            raise RuntimeError(result["exceptionDetails"]["exception"]["description"])
        return result["result"].get("value")


def expect_accessible(*pages):
    """Fail if a page raised errors or axe-core has serious findings; skip without axe-core."""
    for seen in pages:
        assert (seen.errors, seen.serious) == ([], [] if AXE else None)
    if not AXE:
        pytest.skip("no axe-core: pip install 'attnprof[browser]'")


@cache
def chromium():
    """The browser of this process's tests."""
    return _Chromium()


@cache
def axe_script():
    """The text of axe-core, as a package on PyPI ships it."""
    return next(Path(AXE.origin).parent.rglob("axe.min.js")).read_text("utf-8")


def open_page(path, *, width=1280, height=900, dark=False, scripts=(), address="", audit=False):
    """Open a file, run scripts one after the other, and return what is seen then.

    With ``audit``, axe-core looks at the page afterwards.
    """
    browser = chromium()
    with browser.page() as seen:
        for domain in ("Page", "Runtime", "Log", "Network"):
            browser.ask(f"{domain}.enable")
        browser.ask("Emulation.setDeviceMetricsOverride", width=width, height=height,
                    deviceScaleFactor=1, mobile=width < 600)  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        browser.ask("Emulation.setEmulatedMedia", features=[scheme])
        browser.ask("Page.navigate", url=Path(path).resolve().as_uri() + address)
        while "Page.loadEventFired" not in browser.events:
            browser.next()
        browser.run("new Promise(done => setTimeout(done, 400))")
        seen.values = [browser.run(script) for script in scripts]
        if audit and AXE:
            browser.run(f"{axe_script()};0")
            seen.serious = browser.run(SERIOUS)
    return seen
