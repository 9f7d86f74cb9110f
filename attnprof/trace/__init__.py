"""Closed forms from running code: what a module executes and holds, counted on fake tensors.

From the bottom up: ``rules`` say what an ATen operation costs, ``run`` records what one run does,
``request`` makes targets of what is asked, ``report`` says what a reader wants of closed forms,
``solve`` finds them and holds them against runs at other shapes.
"""
