"""How far mechanisms are from softmax attention, beside what they cost."""
