"""Uses up the stack."""

import sys

from torch import nn


class Att(nn.Module):
    def forward(self, x):
        sys.setrecursionlimit(10**9)

        def deeper(_):
            return list(map(deeper, [0]))

        deeper(0)
        return x @ x.transpose(-1, -2) @ x
