"""The log changes files and folders only through `FileSystem`: the crash tests see no other changes."""

import ast
from collections.abc import Iterator

import pytest

from .sources import ROOT, Source, source

LOG = ROOT / "broker" / "log"
LAYER = "file_system.py"

CALLS = {
    *("replace", "rename", "renames", "fsync", "fdatasync", "truncate", "ftruncate", "pwrite", "pwritev"),
    *("unlink", "remove", "mkdir", "makedirs", "rmdir", "rmtree", "removedirs", "link", "symlink", "touch"),
    *("write_bytes", "write_text", "posix_fallocate", "utime"),
}
MODULES = ("os", "shutil")
PATH_METHODS = {"unlink", "rename", "mkdir", "rmdir", "touch", "write_bytes", "write_text"}


def _is_layer(receiver: ast.expr) -> bool:
    named = receiver.attr if isinstance(receiver, ast.Attribute) else getattr(receiver, "id", "")
    return named in ("files", "_files")


def changes(source: Source) -> Iterator[tuple[int, str]]:
    """Calls that change something on disk without the layer."""
    for node in source.nodes:
        if not isinstance(node, ast.Call):
            continue
        called = node.func
        if isinstance(called, ast.Attribute) and not _is_layer(called.value):
            is_module = isinstance(called.value, ast.Name) and called.value.id in MODULES
            if called.attr in (CALLS if is_module else PATH_METHODS):
                yield node.lineno, ast.unparse(called)
        modes = [*node.args[1:2], *(keyword.value for keyword in node.keywords if keyword.arg == "mode")]
        is_open = isinstance(called, ast.Name) and called.id == "open"
        if is_open and any(set(str(getattr(mode, "value", "w"))) & set("wax+") for mode in modes):
            yield node.lineno, ast.unparse(node)
        if ast.unparse(called) == "os.open" and "O_RDONLY" not in ast.unparse(node):
            yield node.lineno, ast.unparse(node)


def test_the_log_changes_the_disk_through_the_file_layer_alone() -> None:
    sources = sorted(path for path in LOG.glob("*.py") if path.name != LAYER)
    assert len(sources) > 15
    problems = [f"{path.name}:{line}: {said}" for path in sources for line, said in changes(source(path))]
    assert problems == []


@pytest.mark.parametrize(
    "text",
    [
        "os.replace(a, b)",
        "os.open(path, os.O_RDWR)",
        "os.pwrite(descriptor, data, 0)",
        "shutil.rmtree(path)",
        "path.unlink(missing_ok=True)",
        "self.path.rename(other)",
        'open(path, "wb")',
        "path.write_text(text)",
    ],
)
def test_the_check_sees(text: str) -> None:
    assert list(changes(Source(text)))
    assert not list(changes(Source("files.rename(a, b); self._files.unlink(a); os.open(a, os.O_RDONLY)")))
