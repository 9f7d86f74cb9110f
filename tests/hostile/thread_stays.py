"""Leaves a thread that never ends."""

import threading

from torch import nn


class Att(nn.Module):
    def forward(self, x):
        threading.Thread(target=threading.Event().wait).start()
        return x @ x.transpose(-1, -2) @ x
