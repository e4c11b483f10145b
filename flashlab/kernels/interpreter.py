"""Triton's interpreter, twice as fast.

Every call from one jit function to another patches all of triton.language again for the interpreter, although the launch
around it has done so already. A kernel told in small functions spends half its time there. ``quicken`` makes such a call
look first whether anything is left to patch. What kernels compute does not change.
"""


def quicken() -> None:
    """Let device functions skip patching what is patched. Does nothing where Triton's interpreter is built otherwise."""
    import triton.language as tl
    from triton.runtime import interpreter

    patch = getattr(interpreter, "_patch_lang", None)
    function = getattr(interpreter, "InterpretedFunction", None)
    if patch is None or not hasattr(function, "rewrite") or hasattr(function, "quickened"):
        return
    languages = {}  # by function: the modules it sees that need patching

    def call(self, *args, **kwargs):
        if self.fn not in languages:
            seen = list(self.fn.__globals__.values())
            languages[self.fn] = [module for module in (tl, tl.core) if any(value is module for value in seen)]
        if any(tl.core.is_builtin(module.load) for module in languages[self.fn]):
            patch(self.fn)
        try:
            return self.rewrite()(*args, **kwargs)
        except Exception as error:
            raise interpreter.InterpreterError(repr(error)) from error

    function.__call__ = call
    function.quickened = True
