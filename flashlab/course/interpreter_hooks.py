"""All that is known here of the inside of Triton's interpreter: where a launch, a program, a load and a store pass.

Triton offers no such thing, so its methods are wrapped while somebody listens. An argument's pointers carry its number
in their top byte, which no address uses: so a load knows its argument through any arithmetic, even where two arguments
are views of one tensor.

Where kernels are compiled (on a GPU machine) they are Python functions all the same: for as long as somebody listens,
their launches go to the interpreter instead, and everything is put back afterwards.

Triton and flashlab.kernels are imported inside the functions: lessons without a kernel need neither.
"""

import contextlib
import functools
import inspect
import os
import sys
import types

import torch

MARK_BIT = 56
ADDRESS = (1 << MARK_BIT) - 1
UNKNOWN = "(loaded pointer)"  # an address that no argument of the launch led to


_listeners: list = []  # all that listen now, the first of them outermost
_guards: list = []  # those of them that want memory guarded


@contextlib.contextmanager
def listening(listener, guard: bool = False):
    """Every launch inside runs in the interpreter, on CPU tensors, and tells the listener:

    ``launch(kernel, arguments)`` before the first program, arguments being {name: elements from its first to its last};
    ``program(index, grid)``; ``access(name, element, itemsize, write)`` for each load and store, with the elements of
    the lanes that are not masked off, counted from the argument's first (a numpy array of int64, in no order);
    and ``launched(grid)`` after the last program.

    ``guard``: lanes outside their tensor touch nothing. Such a load gives NaN (-1 of an integer), such a store is
    dropped. Lanes that are masked off in a load without ``other`` get NaN as well: a GPU promises nothing there.
    """
    from flashlab.kernels import backend

    with contextlib.ExitStack() as stack:
        if not _listeners:
            if not backend.interpreting():
                stack.enter_context(_interpreting())
            _wrap(stack)
        for held in (_listeners, _guards)[: 1 + guard]:
            held.append(listener)
            stack.callback(held.pop)
        yield


def _wrap(stack) -> None:
    import numpy as np
    from triton.runtime import interpreter

    builder, Handle = interpreter.interpreter_builder, interpreter.TensorHandle
    run, load, store = interpreter.GridExecutor.__call__, builder.create_masked_load, builder.create_masked_store
    rmw, cas = builder.create_atomic_rmw, builder.create_atomic_cas
    marked: list[_Marked] = []  # the launch in progress

    def launch(self, *args, **kwargs):
        function = self.fn
        self.fn = _Marked(function, args, kwargs)
        marked.append(self.fn)
        try:
            run(self, *args, **kwargs)
        finally:
            self.fn = function
            marked.pop()
        for listener in _listeners:
            listener.launched(builder.grid_dim)

    def told(pointer, mask, *directions):
        """(the pointer without its mark, the lanes that are on and may be), after the listeners have heard of them."""
        on = np.ones(pointer.data.shape, bool)
        if mask is not None:
            on &= mask if isinstance(mask, np.ndarray) else mask.data
        itemsize = max(1, pointer.get_element_ty().primitive_bitwidth // 8)
        marks, address = pointer.data >> np.uint64(MARK_BIT), pointer.data & np.uint64(ADDRESS)
        for mark in np.unique(marks[on]):
            name, first, span = marked[-1].argument(int(mark))
            mine = on & (marks == mark)
            element = (address[mine].astype(np.int64) - first) // itemsize
            for listener in _listeners:
                for write in directions:
                    listener.access(name, element, itemsize, write)
            if _guards and span is not None:
                on[mine] = (element >= 0) & (element < span)
        return Handle(address, pointer.dtype), Handle(on, mask_type)

    def masked_load(pointer, mask, *rest, **named):
        plain, on = told(pointer, mask, False)
        value = load(plain, on, *rest, **named)
        if _guards:
            stray = ~on.data
            if (named["other"] if "other" in named else rest[0]) is not None:
                stray &= mask if isinstance(mask, np.ndarray) else mask.data
            nothing = np.nan if value.data.dtype.kind == "f" else -1
            value.data[stray] = np.array(nothing).astype(value.data.dtype)
        return value

    def masked_store(pointer, value, mask, *rest, **named):
        plain, on = told(pointer, mask, True)
        return store(plain, value, on, *rest, **named)

    def atomic_rmw(op, pointer, value, mask, *rest, **named):
        plain, on = told(pointer, mask, False, True)
        return rmw(op, plain, value, on, *rest, **named)

    def atomic_cas(pointer, *rest, **named):
        return cas(told(pointer, None, False, True)[0], *rest, **named)

    mask_type = interpreter.tl.int1
    _set(stack, interpreter.GridExecutor, "__call__", launch)
    _set(stack, builder, "create_masked_load", masked_load)
    _set(stack, builder, "create_masked_store", masked_store)
    _set(stack, builder, "create_atomic_rmw", atomic_rmw)
    _set(stack, builder, "create_atomic_cas", atomic_cas)


class _Marked:
    """A kernel's function whose pointers are marked, called once a program."""

    def __init__(self, function, args, kwargs):
        self.function, self.arguments = function, None
        self.__name__, self.__globals__ = function.__name__, function.__globals__
        self.__annotations__, self.__signature__ = function.__annotations__, inspect.signature(function)
        named = self.__signature__.parameters
        given = inspect.getcallargs(function, *args, **{name: value for name, value in kwargs.items() if name in named})
        self.spans = {name: span for name, value in given.items() if (span := _span(name, value)) is not None}
        for listener in _listeners:
            listener.launch(function.__name__, self.spans)

    def __call__(self, **arguments):
        from triton.runtime.interpreter import interpreter_builder as builder

        if self.arguments is None:
            self.names, self.firsts = list(arguments), [0] * len(arguments)
            self.arguments = {name: self._mark(value, i) for i, (name, value) in enumerate(arguments.items())}
        for listener in _listeners:
            listener.program(builder.grid_idx, builder.grid_dim)
        return self.function(**self.arguments)

    def argument(self, mark: int) -> tuple[str, int, int | None]:
        """(name, address of its first element, elements to its last if it is one tensor) of what carries the mark."""
        if mark == 0:
            return UNKNOWN, 0, None
        name = self.names[mark - 1]
        return name, self.firsts[mark - 1], self.spans.get(name)

    def _mark(self, value, index: int):
        import numpy as np
        from triton.language import tensor
        from triton.runtime.interpreter import TensorHandle

        mark = np.uint64(index + 1 << MARK_BIT)
        if isinstance(value, tensor) and value.dtype.is_ptr():
            self.firsts[index] = int(value.handle.data[0])
            return tensor(TensorHandle(value.handle.data | mark, value.handle.dtype), value.type)
        if isinstance(value, tuple):
            parts = [self._mark(part, index) for part in value]
            return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
        base = getattr(getattr(value, "handle", None), "base", None)  # a tensor descriptor
        if base is not None:
            self.firsts[index] = int(base.data[0])
            value.handle.base = TensorHandle(base.data | mark, base.dtype)
        return value


def _span(name: str, value) -> int | None:
    """Elements from a tensor's first to its last, both included; None for what is no tensor."""
    value = getattr(value, "base", value)  # a descriptor's tensor, or what TensorWrapper reinterprets
    if not isinstance(value, torch.Tensor):
        return None
    if value.device.type != "cpu":
        raise ValueError(f"{name} is on {value.device}: traced kernels run in Triton's interpreter, on CPU tensors")
    if value.numel() == 0:
        return 0
    return 1 + sum((n - 1) * stride for n, stride in zip(value.shape, value.stride(), strict=True))


@contextlib.contextmanager
def _interpreting():
    """Kernels that would be compiled run in the interpreter, and the package's launchers know it."""
    import triton.language as tl
    from triton.runtime import interpreter, jit

    from flashlab.kernels.kept import Kept

    rewritten = {}  # by function: what the interpreter runs in its place

    def run(self, *args, grid, warmup, **kwargs):
        return interpreter.InterpretedFunction(self.fn).run(*args, grid=grid, warmup=warmup, **kwargs)

    def call(self, *args, **kwargs):
        if self.fn not in rewritten:
            rewritten[self.fn] = interpreter.InterpretedFunction(self.fn).rewrite()
        return rewritten[self.fn](*args, **kwargs)

    def launch(self, key, grid, tensors, numbers, **options):
        self.kernel[grid](*tensors, *numbers, **options)

    with contextlib.ExitStack() as stack:
        stack.callback(_forget_plans)
        _forget_plans()
        before = os.environ.get("TRITON_INTERPRET")
        stack.callback(lambda: os.environ.pop("TRITON_INTERPRET") if before is None else _turn(before))
        _turn("1")
        _remember_patches(stack, interpreter)
        seen_by_device_code = {"tl": tl, "core": tl.core}
        interpreter._patch_lang(types.SimpleNamespace(__globals__=seen_by_device_code))
        for name, member in list(vars(tl.tensor).items()):
            if isinstance(member, jit.JITFunction):  # x.sum() as sum(x): a JITFunction does not bind
                _set(stack, tl.tensor, name, functools.partialmethod(lambda x, f, *a, **k: f(x, *a, **k), member))
        _set(stack, jit.JITFunction, "run", run)
        _set(stack, jit.JITFunction, "__call__", call)
        _set(stack, Kept, "__call__", launch)
        yield


def _remember_patches(stack, interpreter) -> None:
    """Undo at the end whatever the interpreter patches in triton.language: it leaves some of it behind."""
    patch, originals = interpreter._LangPatchScope.set_attr, {}

    def set_attr(self, obj, name, value):
        originals.setdefault((id(obj), name), (obj, name, vars(obj).get(name, _ABSENT)))
        patch(self, obj, name, value)

    def undo():
        for obj, name, value in originals.values():
            delattr(obj, name) if value is _ABSENT else setattr(obj, name, value)

    stack.callback(undo)
    _set(stack, interpreter._LangPatchScope, "set_attr", set_attr)


def _forget_plans() -> None:
    """The package's launchers plan anew: a plan made for the one way of running does not serve the other."""
    for name, module in list(sys.modules.items()):
        if name.startswith(("flashlab.kernels.", "flashlab.attention.")):
            for value in list(vars(module).values()):
                for held in value.values() if isinstance(value, dict) else (value,):
                    if hasattr(held, "cache_clear"):
                        held.cache_clear()


_ABSENT = object()


def _set(stack, obj, name: str, value) -> None:
    """Set an attribute until the stack closes."""
    before = vars(obj).get(name, _ABSENT)
    stack.callback(lambda: delattr(obj, name) if before is _ABSENT else setattr(obj, name, before))
    setattr(obj, name, value)


def _turn(value: str) -> None:
    os.environ["TRITON_INTERPRET"] = value
