"""A headless browser for tests of the report: opens files, takes pictures, and tells what the page did."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")


def find_browser() -> str | None:
    return next((found for found in map(shutil.which, NAMES) if found), None)


@dataclass(frozen=True)
class Visit:
    """What a page did when it was opened."""

    dom: str
    console: list[str]
    requests: list[str]  # addresses other than those of local files

    def told(self) -> dict[str, Any]:
        """Return what a script in the page left in <pre id="told">."""
        matches = re.findall(r'<pre id="told">(.*?)</pre>', self.dom, re.DOTALL)
        assert matches, self.console
        found: dict[str, Any] = json.loads(html.unescape(matches[-1]))
        return found


class Browser:
    def __init__(self, program: str, folder: Path) -> None:
        self.program, self.folder = program, folder

    def visit(self, page: Path, *options: str) -> Visit:
        log = self.folder / "net.json"
        done = self._run(page, "--dump-dom", "--enable-logging=stderr", f"--log-net-log={log}", *options)
        console = re.findall(r"CONSOLE[:(].*", done.stderr)
        return Visit(done.stdout, console, _requests(log))

    def shoot(self, page: Path, name: str, width: int, height: int, *options: str) -> Path:
        picture = self.folder / f"{name}.png"
        self._run(page, f"--screenshot={picture}", f"--window-size={width},{height}", *options)
        return picture

    def print(self, page: Path) -> Path:
        paper = self.folder / "paper.pdf"
        self._run(page, f"--print-to-pdf={paper}", "--no-pdf-header-footer")
        return paper

    def _run(self, page: Path, *options: str) -> subprocess.CompletedProcess[str]:
        command = [
            self.program,
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--hide-scrollbars",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--no-first-run",
            "--host-resolver-rules=MAP * ~NOTFOUND",  # what the browser itself would ask for
            "--virtual-time-budget=4000",
            f"--user-data-dir={self.folder / 'profile'}",
            *options,
            page.as_uri(),
        ]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)


def _requests(log: Path) -> list[str]:
    """Return the addresses that a page asked for; the browser itself asks for others, on behalf of no page."""
    asked = [event.get("params", {}) for event in json.loads(log.read_text())["events"]]
    local = ("file:", "data:", "about:", "chrome:")
    return [
        each["url"]
        for each in asked
        if "url" in each and each.get("initiator", "not an origin") != "not an origin" and not each["url"].startswith(local)
    ]
