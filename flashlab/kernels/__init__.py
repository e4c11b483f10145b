"""Triton kernels: one launcher under each kernel. Importing any of them first decides where kernels run (backend)."""

from flashlab.kernels import backend

backend.prepare()

if backend.interpreting():
    from flashlab.kernels.interpreter import quicken

    quicken()
