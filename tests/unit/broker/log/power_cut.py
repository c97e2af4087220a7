"""A file system that tracks which changes are durable, so that a test can create what a power cut would
leave.

The model, for ext4 and XFS with write-back caching, and stricter where POSIX promises less:

- Bytes are durable after an fsync of their file. Of later writes, each block of 512 bytes survives as
  it was at any time since then; the file's length and the freed blocks of a truncation are of one moment,
  because an inode's metadata are journaled. So a file may be empty, lack its middle, or contain zeros.
- Names are durable after an fsync of their folder; an fsync of the file does not cover its name. Of later
  changes of names those up to some moment survive, because the journal keeps their order; the moment may
  differ between folders. A rename survives whole or not at all; an unlinked file may be back with its bytes.
- A durable write (RWF_DSYNC) survives, with the metadata to read those bytes, and nothing else of the file.
- After a kill -9 all changes survive, and any leading part of the last write.

The real files, which the log reads, are changed too; `write_image` writes an image into another folder.
"""

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Final

from barnabas.broker.log.file_system import FileSystem

_BLOCK_BYTES: Final = 512

Image = dict[str, bytes | None]
"""The bytes of each file, and None for each folder, by path; a folder comes before its files."""


class _File:
    """The bytes of one inode, now and after each change since the last fsync."""

    def __init__(self, data: bytes = b"") -> None:
        self.states: list[bytes] = [data]
        self.freed: list[int | None] = [None]
        """For each change, the size that a truncation left, or None."""

    @property
    def now(self) -> bytes:
        return self.states[-1]

    def write(self, data: bytes, position: int) -> None:
        before = self.now.ljust(position, b"\0")
        self._add(before[:position] + data + before[position + len(data) :], None)

    def truncate(self, size: int) -> None:
        is_shorter = size < len(self.now)
        self._add(self.now[:size].ljust(size, b"\0"), size if is_shorter else None)

    def write_durably(self, data: bytes, position: int) -> None:
        end = position + len(data)
        self.states = [state[:position].ljust(position, b"\0") + data + state[end:] for state in self.states]

    def fsync(self) -> None:
        self.states, self.freed = [self.now], [None]

    def after_kill(self, random: random.Random, *, is_last: bool) -> bytes:
        """All bytes, except that the last write may be incomplete."""
        if not is_last or len(self.states) < 2 or self.freed[-1] is not None:
            return self.now
        before = self.states[-2]
        changed = [at for at in range(len(self.now)) if self.now[at : at + 1] != before[at : at + 1]]
        if not changed or len(self.now) != len(before):
            return self.now
        torn = random.randrange(changed[0], changed[-1] + 2)
        return self.now[:torn] + before[torn:]

    def after_power_cut(self, random: random.Random) -> bytes:
        last = len(self.states) - 1
        choice = random.random()
        if choice < 0.3 or not last:
            return self.states[random.choice((0, last))]
        if choice < 0.5:
            return self.states[random.randrange(last + 1)]
        inode = random.randrange(last + 1)
        size = len(self.states[inode])
        blocks = []
        for start in range(0, size, _BLOCK_BYTES):
            first, end = 0, last
            for at, freed in enumerate(self.freed):
                if freed is None or freed > start:
                    continue
                if at <= inode:
                    first = at
                else:
                    end = min(end, at - 1)
            state = self.states[random.randint(first, end)]
            blocks.append(state[start : start + _BLOCK_BYTES].ljust(_BLOCK_BYTES, b"\0"))
        return b"".join(blocks)[:size]

    def _add(self, data: bytes, freed: int | None) -> None:
        self.states.append(data)
        self.freed.append(freed)


class _Folder:
    """The names in one folder, and the durable ones."""

    def __init__(self) -> None:
        self.names: dict[str, _File | _Folder] = {}
        self.safe: dict[str, _File | _Folder] = {}


_Change = list[tuple[_Folder, str, "_File | _Folder | None"]]
"""Names that change together, each with its new file or folder."""


class PowerCutDisk(FileSystem):
    """Everything below one folder; its initial content is durable."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.on_change: Callable[[str], None] = lambda what: None
        """Called after each change with its description; a test creates images here."""
        self._top = _Folder()
        self._pending: list[_Change] = []
        """The changes of names that no fsync has made durable, in order."""
        self._by_descriptor: dict[int, _File] = {}
        self._last_written: _File | None = None
        _read_tree(root, self._top)

    # Changes

    def open(self, path: Path, flags: int) -> int:
        folder, is_new = self._folder(path.parent), not path.exists()
        descriptor = super().open(path, flags)
        if is_new:
            self._rename_all([(folder, path.name, _File())])
        file = folder.names[path.name]
        assert isinstance(file, _File)
        self._by_descriptor[descriptor] = file
        if is_new:
            self._changed(f"create {path.name}")
        elif flags & os.O_TRUNC:
            file.truncate(0)
            self._changed(f"empty {path.name}")
        return descriptor

    def pwrite(self, descriptor: int, data: memoryview | bytes, position: int) -> int:
        written = os.pwrite(descriptor, data, position)
        self._last_written = self._by_descriptor[descriptor]
        self._last_written.write(bytes(data[:written]), position)
        self._changed(f"write {written} bytes at {position}")
        return written

    def write_durably(self, descriptor: int, data: memoryview | bytes, position: int) -> None:
        super().write_durably(descriptor, data, position)
        self._by_descriptor[descriptor].write_durably(bytes(data), position)
        self._changed(f"write {len(data)} bytes durably at {position}")

    def truncate(self, file: int | Path, size: int) -> None:
        super().truncate(file, size)
        self._file(file).truncate(size)
        self._changed(f"truncate to {size}")

    def allocate(self, descriptor: int, size: int) -> None:
        super().allocate(descriptor, size)
        self._file(descriptor).truncate(size)
        self._changed(f"allocate {size} bytes")

    def fsync(self, file: int | Path) -> None:
        """Record the sync; the real disk is not synced, to save time."""
        if isinstance(file, Path) and file.is_dir():
            self._fsync_folder(self._folder(file))
            self._changed(f"fsync folder {file.name}")
        else:
            if isinstance(file, Path) and not file.exists():
                raise FileNotFoundError(2, os.strerror(2))
            self._file(file).fsync()
            self._changed("fsync")

    def sync_all(self, folder: Path) -> bool:
        """Return False, so that each file is synced."""
        return False

    def rename(self, source: Path, target: Path) -> None:
        super().rename(source, target)
        before, after = self._folder(source.parent), self._folder(target.parent)
        self._rename_all([(before, source.name, None), (after, target.name, before.names[source.name])])
        self._changed(f"rename to {target.name}")

    def unlink(self, path: Path, *, missing_ok: bool = False) -> None:
        is_there = path.exists()
        super().unlink(path, missing_ok=missing_ok)
        if is_there:
            self._rename_all([(self._folder(path.parent), path.name, None)])
            self._changed(f"unlink {path.name}")

    def mkdir(self, path: Path) -> None:
        if path.is_dir():
            return
        super().mkdir(path)
        self._rename_all([(self._folder(path.parent), path.name, _Folder())])
        self._changed(f"mkdir {path.name}")

    def rmtree(self, path: Path) -> None:
        for child in sorted(path.iterdir()):
            if child.is_dir():
                self.rmtree(child)
            else:
                self.unlink(child)
        path.rmdir()
        self._rename_all([(self._folder(path.parent), path.name, None)])
        self._changed(f"rmdir {path.name}")

    # Images

    def killed(self, random: random.Random, *, torn: bool) -> Image:
        """The image after a kill -9."""
        last = self._last_written if torn else None
        return _image(
            self._top,
            lambda folder: folder.names,
            lambda file: file.after_kill(random, is_last=file is last),
        )

    def cut(self, random: random.Random) -> Image:
        """One of the many possible images after a power cut."""
        names: dict[_Folder, dict[str, _File | _Folder]] = {}
        for change in self._surviving(random):
            for folder, name, node in change:
                of_folder = names.setdefault(folder, dict(folder.safe))
                if node is None:
                    of_folder.pop(name, None)
                else:
                    of_folder[name] = node
        contents: dict[_File, bytes] = {}

        def content(file: _File) -> bytes:
            if file not in contents:
                contents[file] = file.after_power_cut(random)
            return contents[file]

        return _image(self._top, lambda folder: names.get(folder, folder.safe), content)

    def check_follows(self) -> None:
        """Check that every change went through this object."""
        result = _Folder()
        _read_tree(self.root, result)
        found, expected = (
            _image(folder, lambda each: each.names, lambda file: file.now) for folder in (result, self._top)
        )
        assert found == expected

    def _surviving(self, random: random.Random) -> list[_Change]:
        pending = self._pending
        if random.random() < 0.5:
            return pending[: random.randint(0, len(pending))]
        chances: dict[_Folder, int] = {}
        survivors = []
        for at, change in enumerate(pending):
            folder = change[0][0]
            if folder not in chances:
                chances[folder] = random.randint(0, len(pending))
            if at < chances[folder]:
                survivors.append(change)
        return survivors

    # Inside

    def _changed(self, what: str) -> None:
        self.on_change(what)
        self._last_written = None

    def _rename_all(self, change: _Change) -> None:
        for folder, name, node in change:
            if node is None:
                folder.names.pop(name, None)
            else:
                folder.names[name] = node
        self._pending.append(change)

    def _fsync_folder(self, folder: _Folder) -> None:
        folder.safe = dict(folder.names)
        self._pending = [
            change for change in self._pending if all(changed is not folder for changed, _, _ in change)
        ]

    def _folder(self, path: Path) -> _Folder:
        result = self._top
        for name in path.relative_to(self.root).parts:
            child = result.names[name]
            assert isinstance(child, _Folder)
            result = child
        return result

    def _file(self, file: int | Path) -> _File:
        if isinstance(file, int):
            return self._by_descriptor[file]
        result = self._folder(file.parent).names[file.name]
        assert isinstance(result, _File)
        return result


def _read_tree(path: Path, folder: _Folder) -> None:
    for child in path.iterdir():
        node: _File | _Folder
        if child.is_dir():
            node = _Folder()
            _read_tree(child, node)
        else:
            node = _File(child.read_bytes())
        folder.names[child.name] = folder.safe[child.name] = node


def _image(
    folder: _Folder,
    names_of: Callable[[_Folder], dict[str, _File | _Folder]],
    content_of: Callable[[_File], bytes],
    under: str = "",
) -> Image:
    image: Image = {}
    for name, node in names_of(folder).items():
        path = under + name
        if isinstance(node, _File):
            image[path] = content_of(node)
        else:
            image[path] = None
            image |= _image(node, names_of, content_of, f"{path}/")
    return image


def write_image(image: Image, target: Path) -> None:
    """Write an image into a new folder."""
    target.mkdir()
    for name, data in image.items():
        if data is None:
            (target / name).mkdir()
        else:
            (target / name).write_bytes(data)
