"""Makes `loops.ll` from the modules of loops: `make loops`, after a change of one of them.

numba compiles each loop for a generic processor; what is kept is its body in LLVM's text form, without the
attributes and flags that only the newest LLVM can read. A loop that could raise, allocate or call anything is
refused. The first line of the file has the sum of the sources, which a test compares.
"""

# numba has no types of its own.
# mypy: disable-error-code="no-untyped-call, attr-defined"

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from barnabas.spark_connector.columns.loops import CODE, SIGNATURES, Parameter

_HERE: Final = Path(__file__).parent
_INTRINSICS: Final = {
    "llvm.memcpy.p0.p0.i64": "void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)",
    "llvm.memset.p0.i64": "void @llvm.memset.p0.i64(ptr, i8, i64, i1)",
    "llvm.smax.i64": "i64 @llvm.smax.i64(i64, i64)",
    "llvm.smin.i64": "i64 @llvm.smin.i64(i64, i64)",
    "llvm.umax.i64": "i64 @llvm.umax.i64(i64, i64)",
    "llvm.umin.i64": "i64 @llvm.umin.i64(i64, i64)",
}
"""The only functions that a loop may call: instructions of the processor, or of the C library."""
_LEFT_OUT: Final = (
    # Metadata, references to attribute groups, comments.
    (r", ![a-z.]+ !\d+", ""),
    (r" #\d+(?=[ {\n])", ""),
    (r" +;.*$", ""),
    # Attributes of parameters and functions, and flags of instructions, that some LLVM does not know.
    (r"\b(captures|range|dereferenceable|dereferenceable_or_null|initializes)\([^)]*\)+ ?", ""),
    (r"\b(noundef|readonly|writeonly|readnone|noalias|nonnull|nocapture|local_unnamed_addr) ", ""),
    (r"\b(samesign|disjoint|nneg) ", ""),
    (r"\b(getelementptr(?: inbounds)?)(?: nuw| nusw)+", r"\1"),
    (r"\btrunc(?: nuw| nsw)+", "trunc"),
    (r"(?<=\S) {2,}(?=[%{)])", " "),
)


def source_sum() -> str:
    """The SHA-256 of the modules of loops and of their tables."""
    names = [*SIGNATURES, "layout", "encode_layout"]
    return hashlib.sha256(b"".join((_HERE / f"{name}.py").read_bytes() for name in names)).hexdigest()


def code_of(module: str, name: str, parameters: Iterable[Parameter]) -> str:
    """The body of one loop. Raises ValueError for a loop that is not plain machine code."""
    from numba import carray, int64, njit, types

    names: list[str] = []
    arguments: list[str] = []
    kinds: list[Any] = []
    for index, parameter in enumerate(parameters):
        shape = [f"p{index}_{dimension}" for dimension in range(parameter.dimensions)]
        names += [f"p{index}", *shape]
        arguments.append(f"carray(p{index}, ({', '.join(shape)},))" if shape else f"p{index}")
        element = getattr(types, parameter.value[0])
        kinds += [types.CPointer(element) if shape else int64, *(int64 for _ in shape)]
    target = getattr(import_module(f"barnabas.spark_connector.columns.{module}"), name)
    scope = {"carray": carray, "target": target}
    # The wrapper makes arrays of pointers and lengths, which vanish when it is compiled.
    exec(f"def {name}({', '.join(names)}):\n    return target({', '.join(arguments)})\n", scope)
    compiled = njit(int64(*kinds), error_model="numpy")(scope[name]).overloads[tuple(kinds)]
    symbol = re.escape(compiled.fndesc.llvm_func_name)
    text = compiled.library.get_llvm_str()
    found = re.search(rf"^define [^\n]*@{symbol}\(.*?^}}\n", text, re.M | re.S)
    if found is None:
        raise ValueError(f"{name} was not found in the code that numba made")
    body = re.sub(rf"@{symbol}\b", f"@{name}", found.group())
    for pattern, replacement in _LEFT_OUT:
        body = re.sub(pattern, replacement, body, flags=re.M)
    called = set(re.findall(r"@([\w.]+)", body)) - {name}
    if called - set(_INTRINSICS) or re.search(r"\bret i32 (?!0\b)", body):
        raise ValueError(f"{name} can raise, or calls {', '.join(sorted(called - set(_INTRINSICS)))}")
    return body


def make_code() -> str:
    """The contents of `loops.ll`."""
    # Read by numba when it is imported: no instructions that only this processor has.
    os.environ.update(NUMBA_CPU_NAME="generic", NUMBA_CPU_FEATURES="")
    bodies = [
        code_of(module, name, parameters)
        for module, signatures in SIGNATURES.items()
        for name, parameters in signatures.items()
    ]
    called = sorted(set(re.findall(r"@(llvm[\w.]+)", "".join(bodies))))
    lines = [
        f"; Made by make_loops.py from sources with the sum {source_sum()}; do not edit.",
        *(f"declare {_INTRINSICS[name]}" for name in called),
        *bodies,
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    CODE.write_text(make_code())
