# SPDX-License-Identifier: Apache-2.0
"""The examples of the package's page, each on two ranks with what it takes for granted."""
import re
from pathlib import Path

import models
import pytest
import torch
import torch.nn.functional as F
from torch import nn

PAGE = Path(__file__).resolve().parents[2] / "libdualpipe" / "python" / "README.md"
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
NAMES = [re.search(r"import (\w+)[^\n]*\n\n", code)[1] for code in EXAMPLES]


def runs(rank, size, code, folder):
    torch.manual_seed(rank)
    rows, width = 3, 8
    layers = nn.Sequential(*(models.Stage(width) for _ in range(4)))
    known = {"torch": torch, "rank": rank, "size": size, "rows": rows, "width": width,
             "layers": layers, "modules": [models.Stage(width) for _ in range(2)],
             "module": models.Stage(width), "criterion": F.mse_loss, "folder": folder,
             "names": {0: "a", 1: "b"},
             "x": torch.randn(24, width), "labels": torch.randn(24, width)}
    if "DualPipe(" in code:
        known["criterion"], known["x"] = models.criterion, known["x"][:12]
        known["labels"] = known["labels"][:12]
    if "Trainer(" in code or "checkpoint" in code:
        torch.manual_seed(0)
        known["x"], known["labels"] = torch.randn(24, width), torch.randn(24, width)
    known["optimizer"] = torch.optim.AdamW(layers.parameters())
    exec(compile(code, "README.md", "exec"), known)


@pytest.mark.parametrize("code", EXAMPLES, ids=NAMES)
def test_an_example_runs(ranks, tmp_path_factory, code):
    folder = tmp_path_factory.getbasetemp() / "readme"  # the trainer's, for the one after it
    if "load_training" in code:
        ranks(1, runs, code, str(folder))
    else:
        ranks(2, runs, code, str(folder))
