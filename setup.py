"""Builds the compiled core with mypyc; everything else about the package is in pyproject.toml.

`BARNABAS_COMPILE=1 pip wheel .` makes a wheel with it, for one interpreter and one platform; without the
variable a wheel is pure Python. `python setup.py compiled_core` (`make compiled`) builds it for a checkout,
where `barnabas.common.compiled_core` finds it. The reasons are in docs/decisions/compiled-core.md.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import sys
import sysconfig
import tempfile
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType
from typing import Any

from setuptools import Command, Extension, setup
from setuptools.command.build_ext import build_ext

MODULES = {
    "broker.base": "purgatory",
    "broker.handlers": "dispatcher produce",
    "broker.log": "appending log_transactions producer_state record_checks",
    "broker.replication": "delayed_fetch delayed_produce fetch_sessions followers partition replica_manager "
    "rules sliced_checks subscriptions",
    "protocol": "batch_builder ids invariants record_batch record_walk records varint",
}
"""By package: their names under `barnabas`."""
ROOT = Path(__file__).resolve().parent
IS_COMPILED = bool(os.environ.get("BARNABAS_COMPILE"))


def extensions(c_folder: str) -> list[Extension]:
    """Translate the modules to C, by mypyc."""
    from mypyc.build import mypycify
    from mypyc.ir.rtypes import object_rprimitive
    from mypyc.primitives import registry

    # It does not know memoryview, which some named tuples have: their annotations are looked up at import.
    registry.builtin_names["builtins.memoryview"] = (object_rprimitive, "PyMemoryView_Type")
    # Without the project's configuration, whose plugin an sdist does not have.
    options = ["--config-file=", "--ignore-missing-imports"]
    return mypycify(
        options
        + [
            f"src/barnabas/{package.replace('.', '/')}/{name}.py"
            for package, names in MODULES.items()
            for name in names.split()
        ],
        opt_level="1",
        debug_level="0",
        multi_file=True,
        group_name="barnabas",
        target_dir=c_folder,
    )


class BuildExtensions(build_ext):
    """Compiles the C files of the library side by side, where setuptools would take one after another."""

    def build_extensions(self) -> None:
        compile_some = self.compiler.compile

        def compile_all(sources: list[str], *args: Any, **options: Any) -> list[str]:
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                objects = list(pool.map(lambda source: compile_some([source], *args, **options), sources))
            return [path for paths in objects for path in paths]

        self.compiler.compile = compile_all
        super().build_extensions()


class CompiledCore(Command):
    """Builds the core for a checkout, unless it is there already. A failure is a line, not an error."""

    description = "compile the core of this checkout"
    user_options: list[tuple[str, str | None, str]] = []

    def initialize_options(self) -> None:
        """Has no options."""

    def finalize_options(self) -> None:
        """Has no options."""

    def run(self) -> None:
        core = load_core()
        target = Path(core.folder(str(ROOT)))
        manifest = core.read_manifest(str(target))
        recipe = [Path(__file__).read_text(), sys.version, version_of_mypy()]
        if manifest is not None and manifest["recipe"] == recipe and core.is_current(manifest, str(ROOT)):
            return
        try:
            target.parent.mkdir(exist_ok=True)
            self._build(core, target, recipe)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - pure Python does the same
            reason = missing_tool() or f"{type(error).__name__}: {str(error)[:200]}"
            print(f"The core is not compiled, so Barnabas runs in pure Python: {reason}")

    def _build(self, core: ModuleType, target: Path, recipe: list[str]) -> None:
        # Before the sources are compiled: an edit meanwhile makes the build out of date.
        stamps = core.stamps(str(ROOT))
        digests = {path: core.digest(str(ROOT), path) for path in stamps}
        with tempfile.TemporaryDirectory(dir=target.parent, prefix="compiling-") as work:
            built = Path(work, "built")
            if reason := missing_tool():
                raise RuntimeError(reason)
            self.distribution.ext_modules = extensions(str(Path(work, "c")))
            self.reinitialize_command("build_ext", build_lib=str(built), build_temp=f"{work}/objects")
            self.run_command("build_ext")
            files = [path.relative_to(built) for path in built.rglob("*.so")]
            modules = {
                ".".join((*path.parent.parts, path.name.partition(".")[0])): str(path) for path in files
            }
            manifest = {"recipe": recipe, "modules": modules, "stamps": stamps, "digests": digests}
            (built / core.MANIFEST).write_text(json.dumps(manifest))
            if target.exists():
                target.rename(Path(work, "old"))
            built.rename(target)


def version_of_mypy() -> str:
    try:
        return version("mypy")
    except PackageNotFoundError:
        return ""


def missing_tool() -> str:
    """The tool that compiling needs and this machine lacks; empty if it has all."""
    compiler = (sysconfig.get_config_var("CC") or "cc").split()[0]
    compiler = (os.environ.get("CC") or compiler).split()[0]
    if shutil.which(compiler) is None:
        return f"there is no C compiler {compiler}"
    header = Path(sysconfig.get_path("include"), "Python.h")
    return "" if header.exists() else f"there is no {header}"


def load_core() -> ModuleType:
    """`barnabas.common.compiled_core`, without importing the package."""
    spec = importlib.util.spec_from_file_location("compiled_core", ROOT / "common" / "compiled_core.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


os.chdir(ROOT)
# An isolated build asks first what it must install.
asks_requirements = "egg_info" in sys.argv
setup(
    ext_modules=extensions("build/c") if IS_COMPILED and not asks_requirements else [],
    setup_requires=["mypy>=1.20"] if IS_COMPILED else [],
    cmdclass={"build_ext": BuildExtensions, "compiled_core": CompiledCore},
)
