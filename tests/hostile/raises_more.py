"""Raises what `except Exception` does not catch."""

from torch import nn


class NotAnException(BaseException): ...


class Att(nn.Module):
    def forward(self, x):
        raise NotAnException("of no use")
        return x @ x.transpose(-1, -2) @ x
