"""Honest speeds: every kernel beside what one would use instead, in one run, checked first, kept as a record.

    cases, inputs       the shapes, and random tensors of them
    peers               what is compared: found at run time, absent ones say so
    oracle              float64 decides who is right; a wrong peer is marked and never ranked
    timing, ceilings    medians on a hot GPU with a flushed L2, and what the GPU itself can do in the same run
    session             one run: check, time, write a record after every case
    launch, link        the staircase, underfill and split curves; transfers over the host's link
    records, figures    what a run leaves behind, and every ratio derived from it; neither needs torch
    shape               holds a record to schema.json, on the standard library alone
    compare             what got slower between two records, beyond noise
    counting            without a GPU: tiles, bytes and programs, no speed
    tune                a launch table for the GPU present

Speeds are ratios within one run. A figure that stands in the documentation stands in a record.
"""
