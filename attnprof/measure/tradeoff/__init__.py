"""Compare mechanisms with softmax attention: their error against their cost."""
