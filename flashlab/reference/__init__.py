"""Attention in plain PyTorch, to be read and trusted: the oracle, the merge identity, and the loops over tiles."""
