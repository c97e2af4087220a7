"""Sources as the architecture tests read them: each file is read, parsed and walked once a run."""

import ast
from collections.abc import Iterator
from functools import cache, cached_property
from pathlib import Path

PACKAGES = (
    "protocol",
    "common",
    "zookeeper",
    "broker",
    "logtools",
    "controller",
    "client",
    "spark_connector",
    "deploy",
    "chaos",
    "ui",
    "cli",
)
ROOT = Path(__file__).parents[2]


class Source:
    def __init__(self, text: str) -> None:
        self.text = text

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        return tuple(ast.walk(self.tree))

    @cached_property
    def imported(self) -> list[tuple[int, str]]:
        """(line, dotted name) of every import at any level; `from a import b` also gives `a.b`."""
        return list(self._imported())

    def _imported(self) -> Iterator[tuple[int, str]]:
        for node in self.nodes:
            if isinstance(node, ast.Import):
                for name in node.names:
                    yield node.lineno, name.name
            elif isinstance(node, ast.ImportFrom):
                if node.level:
                    yield node.lineno, "relative"
                elif node.module:
                    yield node.lineno, node.module
                    for name in node.names:
                        yield node.lineno, f"{node.module}.{name.name}"


@cache
def source(path: Path) -> Source:
    return Source(path.read_text(encoding="utf-8"))


@cache
def sources_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*.py") if "__pycache__" not in path.parts)
