# SPDX-License-Identifier: Apache-2.0
"""The types of the package, as mypy sees them."""
import subprocess
import sys
from pathlib import Path

import pytest

SOURCES = Path(__file__).resolve().parents[2] / "libdualpipe" / "python"


def test_types_are_strict(tmp_path):
    pytest.importorskip("mypy", reason="no mypy: tests/run.sh without --no-install gets it")
    said = subprocess.run([
        sys.executable, "-m", "mypy", "--config-file",
        str(SOURCES / "pyproject.toml"), "--cache-dir",
        str(tmp_path), "-p", "libdualpipe"
    ],
                          capture_output=True,
                          text=True,
                          cwd=SOURCES)
    assert said.returncode == 0, said.stdout + said.stderr
