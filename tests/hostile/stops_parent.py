"""Stops the process that started it."""

import os
import signal

from torch import nn


class Att(nn.Module):
    def forward(self, x):
        os.kill(os.getppid(), signal.SIGSTOP)
        return x @ x.transpose(-1, -2) @ x
