# SPDX-License-Identifier: Apache-2.0
"""One wheel for every Python: it is imported, and what needs no torch runs, on each that is here."""
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import LIMIT_S

import libdualpipe

PACKAGES = str(Path(libdualpipe.__file__).parents[1])
ENVIRONMENTS = os.path.join(os.environ.get("DP_TEST_CACHE", ""), "python")


def python(version):
    """One with cffi and pytest, of tests/python/venv.sh; else why there is none."""
    if version == sys.version_info[1]:
        return sys.executable
    found = shutil.which("python", path=f"{ENVIRONMENTS}3.{version}/bin")
    if found is None:
        pytest.skip(f"no python3.{version} with cffi and pytest: tests/run.sh without --no-install "
                    "makes an environment of each python3.N that it finds")
    return found


@pytest.mark.parametrize("version", range(9, 14))
def test_the_wheel_runs_on(version):
    said = subprocess.run([python(version), "-m", "pytest", "-q", "-p", "no:cacheprovider",
                           str(Path(__file__).parent / "test_data.py")],
                          capture_output=True, text=True, timeout=LIMIT_S,
                          env={**os.environ, "PYTHONPATH": PACKAGES})
    assert said.returncode == 0, said.stdout + said.stderr
    assert " 0 skipped" in said.stdout, said.stdout
