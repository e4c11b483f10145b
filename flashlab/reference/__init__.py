"""Attention in plain PyTorch, to be read and to be trusted: the oracle, the merge identity, and the loops over tiles."""
