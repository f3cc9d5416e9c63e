"""Gradient hooks in C: they note that a gradient is ready, so that Python runs only once per message
(include/mgwfbp/notes.h). PyTorch is not needed."""

import ctypes
from ctypes import POINTER, Structure, c_bool, c_char_p, c_double, c_int, c_ubyte, c_uint, c_uint32, c_void_p, py_object
from typing import Any, Callable, List, Optional, Sequence

from ._lib import library

ALONE = 2 ** 32 - 1  # instead of a message: the gradient is reported by itself
UNSEEN, HANDED_OVER, NOTED = range(3)  # states of a tensor in `seen`
TAKEN = 2 ** 32 - 1  # in `left`: the gradients of the message were handed over


class _Notes(Structure):
    _fields_ = [("on", c_bool), ("seen", c_void_p), ("at_s", POINTER(c_double)), ("message", POINTER(c_uint32)),
                ("left", POINTER(c_uint32)), ("sampled", c_uint), ("share", c_uint), ("stream", c_void_p),
                ("current", py_object), ("mark", py_object)]


class _Hook(Structure):
    _fields_ = [("notes", POINTER(_Notes)), ("id", c_uint), ("listener", py_object), ("arguments", py_object)]


class _Python(Structure):
    _fields_ = [(name, c_void_p) for name in ("none", "retain", "release", "pointer_of", "call")]


class _MethodDef(Structure):  # PyMethodDef
    _fields_ = [("name", c_char_p), ("function", c_void_p), ("flags", c_int), ("about", c_char_p)]


METH_VARARGS = 1
_method = _MethodDef(b"gradient_is_there", ctypes.cast(library.mgw_hook, c_void_p), METH_VARARGS, None)
_make = ctypes.pythonapi.PyCFunction_NewEx
_make.restype, _make.argtypes = py_object, [POINTER(_MethodDef), py_object, py_object]


def _lend() -> None:
    names = ("Py_IncRef", "Py_DecRef", "PyLong_AsVoidPtr", "PyObject_CallObject")
    functions = [ctypes.cast(getattr(ctypes.pythonapi, name), c_void_p) for name in names]
    library.mgw_hook_lend.restype, library.mgw_hook_lend.argtypes = None, [POINTER(_Python)]
    library.mgw_hook_lend(_Python(id(None), *functions))


_lend()


class Notes:
    """Which gradients are ready, and the hooks that record it. While `on`, `listener(k)` is called for the last gradient of
    a message and for gradients that are not noted; otherwise for every gradient. `mark(k)` is called for sampled tensors;
    `current()` returns the stream, if there are several."""

    def __init__(self, seen: bytearray, listener: Callable[[int], None], mark: Optional[Callable[[int], None]] = None,
                 current: Optional[Callable[[], int]] = None):
        n = len(seen)
        self.at_s, self.message, self.left, self._counts = (c_double * n)(), (c_uint32 * n)(), (c_uint32 * n)(), (c_uint32 * n)()
        self.sizes = ctypes.sizeof(self.left)
        self._kept: List[Any] = [listener, mark, current, (c_ubyte * n).from_buffer(seen), [(k,) for k in range(n)]]
        self.books = _Notes(False, ctypes.addressof(self._kept[3]), self.at_s, self.message, self.left)
        if mark is not None:
            self.books.mark = mark
        if current is not None:
            self.books.current = current
        self._hooks = (_Hook * n)(*[(ctypes.pointer(self.books), k, listener, arguments)
                                    for k, arguments in enumerate(self._kept[4])])

    def hook(self, k: int) -> Callable:
        """The hook of a tensor; it keeps these notes alive."""
        return _make(ctypes.byref(_method), ctypes.addressof(self._hooks) + k * ctypes.sizeof(_Hook), self)

    def adopt(self, messages: Sequence[Sequence[int]]) -> None:
        """Sets which tensors are reported together. All others are reported by themselves."""
        self.message[:] = [ALONE] * len(self.message)
        for number, tensors in enumerate(messages):
            self._counts[number] = len(tensors)
            for k in tensors:
                self.message[k] = number

    def begin(self, stream: Optional[int] = None, sampled: int = 0, share: int = 0) -> None:
        ctypes.memmove(self.left, self._counts, self.sizes)
        books = self.books
        books.stream, books.sampled, books.share, books.on = stream, sampled, share, True

    def end(self) -> None:
        self.books.on = False

    @property
    def on(self) -> bool:
        return self.books.on

    def is_complete(self, k: int) -> bool:
        """Whether all gradients of its message are ready."""
        return self.left[self.message[k]] == 0
