"""Every snippet of the README and of docs/ is run, document by document, each in a scratch folder; docs/api.md names all that is public."""

from __future__ import annotations

import inspect
import os
import re
import runpy
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import yaml

import streampca as sp
from streampca.jobs import JobConfig, load_config
from tests.cli.harness import ROOT, environment, free_port, run_here

DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SHELL = ("sh", "bash", "console")
KINDS = (*SHELL, "python", "yaml", "text")  # text is not run
SETUP = "./scripts/"  # these make .venv and run everything: not from within the tests
SLURM = re.compile(r"^\s*(#SBATCH|sbatch|srun|squeue|scancel|salloc|sinfo|sacct|module)\b", re.MULTILINE)
NOT_SIMPLE = re.compile(r"[|&;<>$`*?~(]")  # outside of quotes: needs a shell


class Block(NamedTuple):
    """A snippet, and the line of the document that it begins in."""

    kind: str
    text: str
    line: int


def blocks_of(document: Path) -> list[Block]:
    text = document.read_text()
    found = re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [Block(each[1], each[2], text.count("\n", 0, each.start(2)) + 1) for each in found]


# --- running ---------------------------------------------------------------------------------------------------


def commands_of(text: str) -> list[list[str]] | None:
    """Return the arguments of each ``streampca`` command, or None if there is more than such commands to run."""
    found = []
    for line in text.replace("\\\n", " ").splitlines():
        bare = re.sub(r"'[^']*'|\"[^\"]*\"", "", line).partition("#")[0]
        words = shlex.split(line, comments=True)
        if not words:
            continue
        if words[0] != "streampca" or "$" in line or NOT_SIMPLE.search(bare):
            return None
        found.append(words[1:])
    return found


def prompted(text: str) -> str:
    """Return the commands of a console: what follows its prompts."""
    return "\n".join(line[2:] for line in text.splitlines() if line.startswith("$ "))


class Reader:
    """Does in a folder what a document says, one snippet after the other; Python remembers its names, as in a notebook."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self.monkeypatch, self.capsys = folder, monkeypatch, capsys
        self.names: dict[str, Any] = {"__name__": "__main__"}
        monkeypatch.chdir(folder)
        monkeypatch.delenv("DASK_SCHEDULER_ADDRESS", raising=False)

    def follow(self, block: Block, where: str) -> None:
        if block.kind == "python":
            code = compile(block.text, where, "exec")
            if "SLURMCluster" not in block.text:
                exec(code, self.names)  # noqa: S102 - our own text
        elif block.kind == "yaml":
            self._keep(block, where)
        elif block.text.startswith(SETUP):
            for script in re.findall(r"^\./(\S+)", block.text, re.MULTILINE):
                assert os.access(ROOT / script, os.X_OK), f"{where}: {script} cannot be run"
        elif block.kind in SHELL:
            self._shell(prompted(block.text) if block.kind == "console" else block.text, where)

    def _keep(self, block: Block, where: str) -> None:
        """Write a config, which must be valid, under the name in its first line; a part of one has no name."""
        name = re.match(r"# (\S+\.yaml)\b", block.text)
        if name is None:
            assert set(yaml.safe_load(block.text)) <= set(JobConfig.model_fields), where
            return
        (self.folder / name[1]).write_text(block.text)
        load_config(self.folder / name[1])

    def _shell(self, text: str, where: str) -> None:
        if SLURM.search(text):
            subprocess.run(["bash", "-n"], input=text, text=True, check=True, timeout=20)
            return
        commands = commands_of(text)
        if commands is None:
            self._bash(text, where)
        for arguments in commands or ():
            done = run_here(arguments, self.monkeypatch, self.capsys)
            assert done.code == 0, f"{where}: streampca {shlex.join(arguments)}: {done.stderr}"

    def _bash(self, text: str, where: str) -> None:
        """Run commands to their end, and that of all they started."""
        command = self.folder / "bin" / "streampca"
        command.parent.mkdir(exist_ok=True)
        command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m streampca "$@"\n')
        command.chmod(0o755)
        env = environment()
        env["PATH"] = f"{command.parent}{os.pathsep}{env['PATH']}"
        port = str(free_port())
        with (self.folder / "log").open("w+") as log:
            text = text.replace("8786", port)
            process = subprocess.Popen(["bash", "-euc", text], cwd=self.folder, env=env, stdout=log, stderr=log, start_new_session=True)
            try:
                code = process.wait(timeout=90)
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # the group that was started here; Dask takes seconds to end by itself
                process.wait()
            log.seek(0)
            assert code == 0, f"{where}: {log.read()}"


# --- the documents ---------------------------------------------------------------------------------------------


def sample(folder: Path) -> None:
    """Leave what ./scripts/run leaves, but smaller."""
    make = runpy.run_path(str(ROOT / "scripts" / "make_data.py"))["main"]
    make([str(folder / "out" / "sample.h5"), "--rows", "3000", "--features", "64"])
    shutil.copytree(ROOT / "configs", folder / "configs")


def check_readme(folder: Path) -> None:
    model, scores = sp.load(folder / "out" / "m.zarr"), sp.open_source(folder / "out" / "z.h5").read(slice(None))
    assert (model.n_components_, model.n_samples_) == (20, 3000)
    np.testing.assert_allclose(scores, model.transform(folder / "out" / "sample.h5"), atol=1e-4)
    np.testing.assert_array_equal(scores, sp.open_source(folder / "out" / "z.zarr").read(slice(None)))
    assert np.load(folder / "out" / "scores.npy").shape == (3000, 10)
    assert "<svg" in (folder / "out" / "report.html").read_text()


def check_quickstart(folder: Path) -> None:
    names = {name: list(sp.load(folder / "out" / f"{name}.zarr").feature_names_in_[:2]) for name in ("climate", "cells")}
    assert names == {"climate": ["station_00", "station_01"], "cells": ["gene_0", "gene_1"]}
    for name in ("climate", "cells", "table", "again", "py-report", "field"):
        assert "<svg" in (folder / "out" / f"{name}.html").read_text()
    assert np.load(folder / "out" / "second-year.npy").shape == (365, 5)


def check_nightly(folder: Path) -> None:
    rows = {name: sp.load(folder / "out" / f"{name}.zarr").n_samples_ for name in ("model", "without-16", "sites")}
    assert rows == {"model": 3800, "without-16": 2800, "sites": 2000}


SAMPLED = ("README.md", "cluster.md")  # they go on from what ./scripts/run leaves
CHECKS: dict[str, Callable[[Path], None]] = {
    "README.md": check_readme,
    "docs/quickstart.md": check_quickstart,
    "docs/nightly.md": check_nightly,
}


def name_of(document: Path) -> str:
    return str(document.relative_to(ROOT))


@pytest.mark.parametrize("document", [each for each in DOCUMENTS if blocks_of(each)], ids=name_of)
def test_every_snippet_works(document: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    if document.name in SAMPLED:
        sample(tmp_path)
    reader = Reader(tmp_path, monkeypatch, capsys)
    for block in blocks_of(document):
        reader.follow(block, f"{name_of(document)}, line {block.line}")
    CHECKS.get(name_of(document), lambda folder: None)(tmp_path)


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_snippets_are_closed_and_links_lead_somewhere(document: Path) -> None:
    text, blocks = document.read_text(), blocks_of(document)
    assert text.count("```") == 2 * len(blocks)
    assert {block.kind for block in blocks} <= set(KINDS)
    for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)):
        if target.startswith("http"):
            continue
        path, _, anchor = target.partition("#")
        led_to = (document.parent / path).resolve() if path else document
        assert led_to.exists(), target
        assert not anchor or anchor in anchors_of(led_to), target


def anchors_of(document: Path) -> list[str]:
    """Return what the headings of a document can be linked by."""
    found: list[str] = []
    for heading in re.findall(r"^#+ (.*)$", document.read_text(), re.MULTILINE):
        slug = re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")
        times = sum(re.fullmatch(rf"{re.escape(slug)}(-\d+)?", each) is not None for each in found)
        found.append(f"{slug}-{times}" if times else slug)
    return found


def test_every_document_is_in_both_lists() -> None:
    for document in DOCUMENTS[1:]:
        if document.name != "README.md":
            assert f"(docs/{document.name})" in DOCUMENTS[0].read_text()
            assert f"({document.name})" in (ROOT / "docs" / "README.md").read_text()


# --- docs/api.md -----------------------------------------------------------------------------------------------

API = (ROOT / "docs" / "api.md").read_text()
ESTIMATORS = ("PCA", "ProbabilisticPCA", "FactorAnalysis", "KernelPCA", "SparsePCA", "ICA")


def section(name: str) -> str:
    """Return what is said of a public name, on one line."""
    found = re.search(rf"^## `?{name}`?\n(.*?)(?=^## |\Z)", API, re.MULTILINE | re.DOTALL)
    assert found, f"docs/api.md has no section on {name}"
    return " ".join(found[1].split())


@pytest.mark.parametrize("name", sp.__all__)
def test_every_public_name_has_its_signature(name: str) -> None:
    text, value = section(name), getattr(sp, name)
    if not callable(value):
        return
    for parameter in inspect.signature(value).parameters.values():
        default = "" if parameter.default is parameter.empty else f"={parameter.default!r}".replace("'", '"')
        assert f"{parameter.name}{default}" in text, f"{name}: {parameter}"


@pytest.mark.parametrize("name", ESTIMATORS)
def test_every_attribute_and_method_of_an_estimator_is_told(name: str) -> None:
    text = section(name) + API.partition("## PCA")[0]
    kind = getattr(sp, name)
    fitted = kind(n_components=2).fit(np.random.default_rng(0).standard_normal((40, 5)) ** 3)
    attributes = [each for each in vars(fitted) if each.endswith("_") and not each.startswith("_")]
    ours = [base for base in kind.__mro__ if base.__module__.startswith("streampca")]
    methods = [each for base in ours for each, value in vars(base).items() if inspect.isfunction(value) or isinstance(value, property)]
    methods = [each for each in methods if not each.startswith("_")]
    assert len(attributes) > 5
    assert [each for each in (*attributes, *methods) if not re.search(rf"\b{each}\b", text)] == []


def test_every_error_and_picture_is_told() -> None:
    told = section("errors") + section("plot")
    errors = [name for name, value in vars(sp.errors).items() if inspect.isclass(value) and issubclass(value, sp.errors.StreamPCAError)]
    assert [name for name in (*errors, *sp.plot.__all__) if not re.search(rf"\b{name}\b", told)] == []
