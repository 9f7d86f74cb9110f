"""Writing down what a module executes: operations in, cost and memory by stage out."""
