"""Counting tensors: they run a mechanism's text like torch's, without values, and count its cost.

A :class:`Tensor` has torch's methods, a shape whose sizes may be symbols, and memory that lives as
long as in torch. Costs are operations by kind, bytes moved and the peak of live memory.
"""
