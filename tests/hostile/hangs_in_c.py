"""Sleeps in C, with all signals blocked."""

import ctypes
import signal

from torch import nn


class Att(nn.Module):
    def forward(self, x):
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        ctypes.CDLL(None).sleep(10_000)
        return x @ x.transpose(-1, -2) @ x
