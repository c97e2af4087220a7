"""The rules of the house style, checked in every shipped source: sizes, asserts, silence."""

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cluster.macos.absent_on_macos import ABSENT

from .sources import PACKAGES, ROOT, Source, source, sources_in

MAX_FUNCTION_LINES = 60
MAX_LINES_WITH_MANY_CLASSES = 600
VALUE_BASES = frozenset({"NamedTuple", "TypedDict", "Protocol", "Enum", "IntEnum", "StrEnum"})
MIN_LINES_WITH_ONE_IMPORTER = 80
ALWAYS_MODULES = ("broker.handlers.", "broker.replication.delayed_", "protocol.messages.")
"""A handler, a delayed operation or a family of messages has a module of its own, however short."""

LONGER_FUNCTIONS = {"_decode": 80}
"""Function → its limit. Each call would cost in the loops over records."""

SUPPRESSION = re.compile(r"#\s*(noqa\b[\w:, ]*|type:\s*ignore\b(\[[\w\-, ]*\])?\s*)$")
"""A suppression without a reason after it."""

Function = ast.FunctionDef | ast.AsyncFunctionDef
Rule = Callable[[Source], Iterator[tuple[int, str]]]


def _sources() -> list[Path]:
    found = [path for package in PACKAGES for path in sources_in(ROOT / package)]
    return found + sorted((ROOT / "src").glob("*/*.py"))


def long_functions(source: Source) -> Iterator[tuple[int, str]]:
    """Functions whose code, without decorators and docstring, is longer than it may be."""
    for node in source.nodes:
        if isinstance(node, Function):
            last = node.end_lineno or node.lineno
            first = node.lineno
            if ast.get_docstring(node) is not None:
                docstring = node.body[0]
                first += (docstring.end_lineno or docstring.lineno) - docstring.lineno + 1
            limit = LONGER_FUNCTIONS.get(node.name, MAX_FUNCTION_LINES)
            if last - first + 1 > limit:
                yield node.lineno, f"{node.name} has {last - first + 1} lines (at most {limit})"


def crowded_files(source: Source) -> Iterator[tuple[int, str]]:
    """A long file is one idea: one public class, beside the values and errors that it uses."""
    lines = source.text.count("\n")
    classes = [
        node.name for node in source.tree.body if isinstance(node, ast.ClassDef) and _has_behaviour(node)
    ]
    if lines > MAX_LINES_WITH_MANY_CLASSES and len(classes) > 1:
        yield 1, f"{lines} lines and several classes: {', '.join(classes)}"


def _has_behaviour(node: ast.ClassDef) -> bool:
    """Is a public class more than a value, an interface or an error?"""
    bases = {ast.unparse(base).split("[")[0].split(".")[-1] for base in node.bases}
    is_dataclass = any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list)
    is_error = any(base.endswith(("Error", "Exception")) for base in bases)
    return not (node.name.startswith("_") or bases & VALUE_BASES or is_dataclass or is_error)


def asserts(source: Source) -> Iterator[tuple[int, str]]:
    """`assert` vanishes under -O; `barnabas.protocol.invariants` does not."""
    for node in source.nodes:
        if isinstance(node, ast.Assert):
            yield node.lineno, "assert in shipped code; use barnabas.protocol.invariants"


def silent_excepts(source: Source) -> Iterator[tuple[int, str]]:
    """A broad except whose body does nothing; a narrow one may state that the error is expected."""
    for node in source.nodes:
        if isinstance(node, ast.ExceptHandler) and all(isinstance(step, ast.Pass) for step in node.body):
            named = ast.unparse(node.type) if node.type is not None else ""
            if named in ("", "Exception", "BaseException"):
                yield node.lineno, f"except {named}: pass hides every failure"


def unexplained_suppressions(source: Source) -> Iterator[tuple[int, str]]:
    """A check that is switched off has a reason, after it or in the line above."""
    before = ""
    for number, line in enumerate(source.text.splitlines(), 1):
        if SUPPRESSION.search(line) and not before.lstrip().startswith("#"):
            yield number, "noqa or type: ignore without a reason"
        before = line


def small_modules(modules: dict[str, Source]) -> Iterator[str]:
    """Modules, by dotted name, that are a paragraph of the only module that imports them.

    Handlers, messages and tables (modules without a function) may be short.
    """
    importers: dict[str, set[str]] = {name: set() for name in modules}
    for importer, module in modules.items():
        for _, name in module.imported:
            importers.get(name.removeprefix("barnabas."), set()).add(importer)
    for name, module in modules.items():
        lines = module.text.count("\n")
        if (
            len(importers[name]) == 1
            and lines < MIN_LINES_WITH_ONE_IMPORTER
            and not name.startswith(ALWAYS_MODULES)
            and any(isinstance(node, Function) for node in module.nodes)
        ):
            yield f"{name} has {lines} lines and one importer: {importers[name].pop()}"


def unguarded_linux_calls(source: Source) -> Iterator[tuple[int, str]]:
    """The calls that macOS lacks, in a file that never asks whether the system has them."""
    if "/proc" in source.text and not re.search(r"FileNotFoundError|OSError|\.exists\(\)", source.text):
        yield 1, "a file of /proc, which macOS does not have, and no other way"
    for node in source.nodes:
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            is_absent = node.attr.startswith(ABSENT.get(node.value.id, ()))
            guards = (f'hasattr({node.value.id}, "', "sys.platform")
            if is_absent and not any(guard in source.text for guard in guards):
                yield node.lineno, f"{node.value.id}.{node.attr} is not there on macOS"


def missing_module_docstrings(source: Source) -> Iterator[tuple[int, str]]:
    if ast.get_docstring(source.tree) is None:
        yield 1, "the module has no docstring"


RULES: dict[str, Rule] = {
    rule.__name__: rule
    for rule in (
        long_functions,
        crowded_files,
        asserts,
        silent_excepts,
        missing_module_docstrings,
        unexplained_suppressions,
        unguarded_linux_calls,
    )
}


@pytest.mark.parametrize("name", sorted(RULES))
def test_no_shipped_source_breaks_the_rule_on(name: str) -> None:
    sources = _sources()
    assert len(sources) > 20, "hardly any source found: is the test looking in the right place?"
    problems = []
    for path in sources:
        problems += [f"{path.relative_to(ROOT)}:{line}: {said}" for line, said in RULES[name](source(path))]
    assert problems == [], "\n".join(problems)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("long_functions", "def f():\n" + "    x = 1\n" * MAX_FUNCTION_LINES),
        ("crowded_files", "class A: ...\nclass B: ...\n" + "x = 1\n" * MAX_LINES_WITH_MANY_CLASSES),
        ("asserts", "assert True\n"),
        ("silent_excepts", "try:\n    x = 1\nexcept Exception:\n    pass\n"),
        ("silent_excepts", "try:\n    x = 1\nexcept:\n    pass\n"),
        ("missing_module_docstrings", "x = 1\n"),
        ("unexplained_suppressions", "import x  \x23 noqa: F401\n"),
        ("unexplained_suppressions", "x = y  \x23 type: ignore[misc]\n"),
        ("unguarded_linux_calls", "descriptor = os.eventfd(0)\n"),
        ("unguarded_linux_calls", "status = open('/proc/self/status')\n"),
    ],
)
def test_the_check_sees_a_breach_of(name: str, text: str) -> None:
    assert list(RULES[name](Source(text)))


def test_no_test_and_no_benchmark_switches_a_check_off_without_a_reason() -> None:
    problems = []
    for path in (
        path for folder in ("tests", "benchmarks", "examples") for path in sources_in(ROOT / folder)
    ):
        found = unexplained_suppressions(source(path))
        problems += [f"{path.relative_to(ROOT)}:{line}: {said}" for line, said in found]
    assert problems == [], "\n".join(problems)


def test_no_small_module_has_a_single_importer() -> None:
    modules = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts): source(path)
        for path in _sources()
        if path.name != "__init__.py"
    }
    assert list(small_modules(modules)) == []


@pytest.mark.parametrize(
    ("name", "text", "importers", "is_breach"),
    [
        ("log.small", "def f(): ...\n", 1, True),
        ("log.small", "class C:\n    def f(self): ...\n", 1, True),
        ("log.small", "def f(): ...\n", 2, False),
        ("log.small", "def f(): ...\n" * MIN_LINES_WITH_ONE_IMPORTER, 1, False),
        ("log.table", "ROWS = (1, 2)\n", 1, False),
        ("broker.handlers.small", "def f(): ...\n", 1, False),
        ("protocol.messages.small", "def f(): ...\n", 1, False),
    ],
)
@pytest.mark.parametrize("is_whole_module", [False, True])
def test_the_check_of_small_modules_sees_a_breach(
    name: str, text: str, importers: int, is_breach: bool, is_whole_module: bool
) -> None:
    package, _, module = f"barnabas.{name}".rpartition(".")
    statement = f"from {package} import {module}\n" if is_whole_module else f"from barnabas.{name} import f\n"
    readers = {f"log.reader{number}": Source(statement) for number in range(importers)}
    assert bool(list(small_modules({name: Source(text), **readers}))) == is_breach


def test_a_long_docstring_does_not_count_as_code() -> None:
    text = 'def f():\n    """One.\n' + "    more\n" * MAX_FUNCTION_LINES + '    """\n    return 1\n'
    assert list(long_functions(Source(text))) == []
