"""Leaves a process behind that has left its session and its parents."""

import os
import time

from torch import nn


class Att(nn.Module):
    def forward(self, x):
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                os.setsid()
                time.sleep(1000)
            os._exit(0)
        os.wait()
        return x @ x.transpose(-1, -2) @ x
