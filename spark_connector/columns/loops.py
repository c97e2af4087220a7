"""The compiled loops as functions over numpy arrays, loaded from `loops.ll` by llvmlite in 0.15 s.

`loops.ll` is the code of `kernel` and `encode_kernel`, compiled ahead of time to LLVM's portable form. So a
worker needs neither numba nor a cache of machine code, which every new worker would pay for with seconds.

Any thread; the loops run without the interpreter lock. A loop checks the bytes of records, and relies on its
caller for the shapes and contents of tables: see `kernel`.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Mapping
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import numpy as np

from barnabas.protocol.errors import InvalidConfiguration
from barnabas.protocol.invariants import invariant

logger = logging.getLogger(__name__)

Engine = Literal["auto", "compiled", "python"]

CODE: Final = Path(__file__).with_name("loops.ll")


class Parameter(Enum):
    """What a loop takes: the element type of an array and its dimensions, or a number."""

    BYTES = ("uint8", 1)
    INTS = ("int32", 1)
    LONGS = ("int64", 1)
    TABLE = ("int64", 2)
    NUMBER = ("int64", 0)

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(self.value[0])

    @property
    def dimensions(self) -> int:
        return self.value[1]


_P = Parameter
SIGNATURES: Final[Mapping[str, Mapping[str, tuple[Parameter, ...]]]] = {
    "kernel": {
        "scan": (_P.BYTES, _P.TABLE, _P.NUMBER, _P.NUMBER, _P.TABLE, _P.LONGS),
        "scan_headers": (_P.BYTES, _P.LONGS, _P.LONGS, _P.NUMBER, _P.TABLE, _P.NUMBER),
        "gather": (_P.BYTES, _P.LONGS, _P.LONGS, _P.BYTES, _P.INTS, _P.BYTES, _P.NUMBER),
    },
    "encode_kernel": {
        "plan_rows": (
            *(_P.BYTES, _P.TABLE, _P.TABLE, _P.TABLE, _P.LONGS, _P.LONGS, _P.TABLE),
            *(_P.NUMBER, _P.NUMBER, _P.NUMBER, _P.LONGS),
        ),
        "write_rows": (
            *(_P.BYTES, _P.BYTES, _P.BYTES, _P.BYTES, _P.TABLE, _P.TABLE, _P.TABLE),
            *(_P.NUMBER, _P.NUMBER, _P.BYTES),
        ),
    },
}
"""Module → its loops and what each takes. All return a 64-bit number."""


class Loop:
    """A compiled loop. Calls check the arrays' types and layout, because machine code cannot."""

    def __init__(self, address: int, parameters: tuple[Parameter, ...]) -> None:
        self._parameters = [(parameter.dtype, parameter.dimensions) for parameter in parameters]
        kinds: list[Any] = [ctypes.c_void_p, ctypes.c_void_p]
        for _, dimensions in self._parameters:
            kinds += [ctypes.c_void_p] if dimensions else []
            kinds += [ctypes.c_int64] * (dimensions or 1)
        self._function = ctypes.CFUNCTYPE(ctypes.c_int32, *kinds)(address)

    def __call__(self, *arguments: Any) -> int:
        """Raises TypeError for an array of another type, or one that is not contiguous."""
        result = ctypes.c_int64()
        # Compiled Python returns by a pointer; the second one is for an exception, which loops never raise.
        flat: list[Any] = [ctypes.addressof(result), None]
        for (dtype, dimensions), argument in zip(self._parameters, arguments, strict=True):
            if not dimensions:
                flat.append(argument)
                continue
            # It takes a third of the time of `argument.ctypes`, which calls for small batches would spend.
            interface = argument.__array_interface__
            if argument.dtype != dtype or argument.ndim != dimensions or interface["strides"] is not None:
                raise TypeError(
                    f"an array of {argument.dtype} with {argument.ndim} dimensions: expected {dtype} with "
                    f"{dimensions}, contiguous"
                )
            flat.append(interface["data"][0])
            flat += argument.shape
        status = self._function(*flat)
        invariant(status == 0, "a compiled loop ended with status %d", status)
        return result.value


class Loops(NamedTuple):
    """All loops; they are valid as long as the engine, which owns their machine code."""

    engine: object
    scan: Loop
    scan_headers: Loop
    gather: Loop
    plan_rows: Loop
    write_rows: Loop


@cache
def load_loops() -> Loops:
    """The loops for this processor, loaded once in a process.

    Raises ImportError if llvmlite is absent, and RuntimeError if its LLVM is too old for the code.
    """
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), opt=2
    )
    module = llvm.parse_assembly(CODE.read_text())
    module.triple = machine.triple
    module.data_layout = str(machine.target_data)
    module.verify()
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    loops = {
        name: Loop(engine.get_function_address(name), parameters)
        for signatures in SIGNATURES.values()
        for name, parameters in signatures.items()
    }
    return Loops(engine, **loops)


def choose_loops(engine: Engine, otherwise: str) -> Loops | None:
    """The loops, or None for the engine "python", and for "auto" with a warning if they cannot be loaded.

    ``otherwise`` begins the warning. Raises InvalidConfiguration for another engine, and with "compiled" the
    errors of `load_loops`.
    """
    if engine == "python":
        return None
    if engine not in ("auto", "compiled"):
        raise InvalidConfiguration(f"engine {engine!r} is unknown; expected auto, compiled or python")
    try:
        return load_loops()
    except (ImportError, OSError, RuntimeError) as error:
        if engine == "compiled":
            raise
        logger.warning("%s in Python, ten times slower than compiled: %s", otherwise, error)
        return None
