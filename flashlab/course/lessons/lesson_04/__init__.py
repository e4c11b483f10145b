"""Lesson 04: programs, pointers, masks; softmax and attention of one head as Triton kernels."""
