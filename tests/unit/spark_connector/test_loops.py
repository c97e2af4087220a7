"""The compiled loops: made from the present sources, plain machine code, and checked calls."""

import re
import subprocess
import sys

import numpy as np
import pytest

from barnabas.spark_connector.columns import kernel, make_loops
from barnabas.spark_connector.columns.loops import CODE, SIGNATURES, Parameter, load_loops


def test_the_code_was_made_from_the_present_sources() -> None:
    first = CODE.read_text().splitlines()[0]
    assert make_loops.source_sum() in first, "run `make loops`"


def test_the_code_defines_the_declared_loops_and_calls_only_known_functions() -> None:
    text = CODE.read_text()
    names = {name for signatures in SIGNATURES.values() for name in signatures}
    assert set(re.findall(r"^define \w+ @(\w+)", text, re.M)) == names
    assert set(re.findall(r"@(llvm[\w.]+)", text)) <= set(make_loops._INTRINSICS)


def test_a_loop_that_can_raise_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def divide(first: int, second: int) -> int:
        if second == 0:
            raise ZeroDivisionError
        return first // second

    monkeypatch.setattr(kernel, "gather", kernel.loop(divide))
    with pytest.raises(ValueError, match="gather can raise"):
        make_loops.code_of("kernel", "gather", (Parameter.NUMBER, Parameter.NUMBER))


def test_arrays_of_a_wrong_type_or_layout_are_refused() -> None:
    data, longs = np.zeros(8, np.uint8), np.zeros(4, np.int64)
    gather = load_loops().gather
    good = (data, longs, longs, data.copy(), np.zeros(4, np.int32), data.copy(), 0)
    assert gather(*good) == 0
    wrong_ones = ((1, np.zeros(4, np.int32)), (1, np.zeros((2, 2), np.int64)), (4, longs), (0, data[::2]))
    for place, wrong in wrong_ones:
        arguments = [*good]
        arguments[place] = wrong
        with pytest.raises(TypeError, match="expected"):
            gather(*arguments)
    with pytest.raises(ValueError, match="shorter"):
        gather(*good[:-1])


def test_loading_the_loops_does_not_load_numba() -> None:
    code = (
        "import sys; from barnabas.spark_connector.columns.decode import BulkDecoder\n"
        "BulkDecoder([], engine='compiled'); sys.exit('numba' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
