"""Asks the process that started it to end, in all the usual ways."""

import os
import signal

from torch import nn


class Att(nn.Module):
    def forward(self, x):
        for number in (
            signal.SIGTERM,
            signal.SIGINT,
            signal.SIGHUP,
            signal.SIGUSR1,
            signal.SIGPIPE,
        ):
            os.kill(os.getppid(), number)
        return x @ x.transpose(-1, -2) @ x
