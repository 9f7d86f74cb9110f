"""Nystromformer: softmax attention through landmarks."""
