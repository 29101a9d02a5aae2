"""The pages and the examples: every block of Python in the two pages runs in order, as it stands there. The
documentation strings are run by tests/python.rs, under each interpreter: beside it they would meet at their ports."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import types
from contextlib import redirect_stdout
from pathlib import Path

import pytest

import tautline

HERE = Path(__file__).resolve().parent
DOCS = HERE.parents[2] / "docs"
PAGES = [DOCS / "how-to" / "python.md", DOCS / "reference" / "python.md"]


def test_every_public_class_has_an_example() -> None:
    for name in tautline.__all__:
        value = getattr(tautline, name)
        if isinstance(value, type):
            assert value.__doc__, name
            is_derived = issubclass(value, tautline.Error) and value is not tautline.Error
            assert is_derived or ">>>" in value.__doc__ or name == "Layout", name
            for call, method in vars(value).items():
                assert call.startswith("_") or not callable(method) or method.__doc__, f"{name}.{call}"


def test_every_block_of_the_pages_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    blocks = re.findall(r"```(\w+)\n(.*?)```", text, re.DOTALL)
    assert sum(kind == "python" for kind, _ in blocks) >= 8
    page = types.ModuleType("page")
    monkeypatch.setitem(sys.modules, "page", page)
    said = ""
    for kind, block in blocks:
        if kind == "toml":
            Path("node.toml").write_text(block, encoding="utf-8")
        elif kind == "python":
            output = io.StringIO()
            with redirect_stdout(output):
                exec(compile(block, "page", "exec", dont_inherit=True), vars(page))
            said = output.getvalue()
        elif kind == "text":
            assert said.split() == block.split()


def test_the_examples_run(tmp_path: Path) -> None:
    examples = HERE.parent / "examples"
    typed = subprocess.run([sys.executable, examples / "typed.py"], capture_output=True, text=True, cwd=tmp_path)
    assert typed.stdout == "JointState(stamp=1, position=(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)) b'stop'\n", typed.stderr
    if os.geteuid() != 0:
        pytest.skip("the measurement needs root for its hosts")
    figures = tmp_path / "figures.json"
    few = ["--rounds", "500", "--seconds", "0.1", "--json", str(figures)]
    measured = subprocess.run([sys.executable, examples / "round_trip.py", *few], capture_output=True, text=True)
    assert measured.returncode == 0, measured.stderr
    assert measured.stdout.startswith("link xdp") and "UDP socket" in measured.stdout and figures.exists()
