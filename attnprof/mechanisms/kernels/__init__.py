"""Kernel attention: softmax replaced, or approximated, by a product of feature maps."""
