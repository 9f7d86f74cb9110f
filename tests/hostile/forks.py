"""Leaves three processes behind."""

import os
import time

from torch import nn


class Att(nn.Module):
    def forward(self, x):
        for _ in range(3):
            if os.fork() == 0:
                time.sleep(1000)
                os._exit(0)
        return x @ x.transpose(-1, -2) @ x
