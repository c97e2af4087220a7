"""Makes the pictures of the README from a real run of the live page: `make pictures`.

A cluster of three brokers, its page in Chromium, a pulse of small records; a broker is killed and restarted.
`page.png` is an animated PNG of the whole; `kill.png` has the page before and after the kill, side by side.
"""

from __future__ import annotations

import base64
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from playwright.sync_api import Browser, Page, sync_playwright

HERE: Final = Path(__file__).parent / "pictures"
CHROMIUM: Final = os.environ.get("CHROMIUM", "chromium")
VIEWPORT: Final = {"width": 1080, "height": 770}
SCALE: Final = 0.8
"""Pixels of a picture for each of the page, so that an animated one stays small."""
FRAME_MS: Final = 750
MOST_BYTES: Final = 1_000_000
_SIGNATURE: Final = b"\x89PNG\r\n\x1a\n"


def run(*arguments: str) -> str:
    """The output of `barnabas`. Raises CalledProcessError."""
    command = [sys.executable, "-m", "barnabas.cli.main", *arguments]
    return subprocess.run(command, capture_output=True, check=True, text=True).stdout


@contextmanager
def served_page(place: Sequence[str]) -> Iterator[str]:
    """The URL of the live page, which is served inside the block."""
    command = [sys.executable, "-m", "barnabas.cli.main", "ui", *place]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield server.stdout.readline().strip()
        finally:
            server.terminate()


def _chunks(png: bytes) -> Iterator[tuple[bytes, bytes]]:
    position = len(_SIGNATURE)
    while position < len(png):
        (size,) = struct.unpack_from(">I", png, position)
        yield png[position + 4 : position + 8], png[position + 8 : position + 8 + size]
        position += size + 12


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def animated(frames: Sequence[tuple[bytes, int]]) -> bytes:
    """An animated PNG of still ones of one size, each with the milliseconds that it is shown."""
    header = dict(_chunks(frames[0][0]))[b"IHDR"]
    parts = [_SIGNATURE, _chunk(b"IHDR", header), _chunk(b"acTL", struct.pack(">II", len(frames), 0))]
    sequence = 0
    for number, (png, shown_ms) in enumerate(frames):
        place = struct.pack(
            ">IIIIIHHBB", sequence, *struct.unpack(">II", header[:8]), 0, 0, shown_ms, 1000, 0, 0
        )
        parts.append(_chunk(b"fcTL", place))
        sequence += 1
        for name, data in _chunks(png):
            if name == b"IDAT" and number == 0:
                parts.append(_chunk(name, data))
            elif name == b"IDAT":
                parts.append(_chunk(b"fdAT", struct.pack(">I", sequence) + data))
                sequence += 1
    return b"".join([*parts, _chunk(b"IEND", b"")])


class Film:
    """Takes pictures of a page at a steady pace; a picture like the one before lengthens that one."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self.frames: list[tuple[bytes, int]] = []

    def record(self, seconds: float) -> bytes:
        """Take pictures for this time, and return the last one."""
        end = time.monotonic() + seconds
        while (now := time.monotonic()) < end:
            png = self._page.screenshot()
            if self.frames and self.frames[-1][0] == png:
                self.frames[-1] = (png, self.frames[-1][1] + FRAME_MS)
            else:
                self.frames.append((png, FRAME_MS))
            self._page.wait_for_timeout(max(0.0, FRAME_MS - (time.monotonic() - now) * 1000))
        return self.frames[-1][0]


def side_by_side(browser: Browser, panels: Sequence[tuple[str, bytes]]) -> bytes:
    """One picture of several, each with its caption."""
    figures = "".join(
        f"<figure><figcaption>{caption}</figcaption>"
        f"<img src='data:image/png;base64,{base64.b64encode(png).decode()}'></figure>"
        for caption, png in panels
    )
    # Not on the live page, whose policy loads only its own pictures.
    page = browser.new_page()
    page.set_viewport_size(
        {"width": round(2 * SCALE * VIEWPORT["width"]) + 60, "height": round(SCALE * VIEWPORT["height"]) + 70}
    )
    page.set_content(
        "<style>body{margin:0;display:flex;gap:20px;padding:0 20px;background:#0e1318;color:#e4eaf0;"
        f"font:20px system-ui}}figure{{margin:0}}figcaption{{padding:12px 0}}</style>{figures}"
    )
    return page.screenshot()


def film(browser: Browser, url: str, place: Sequence[str]) -> dict[str, bytes]:
    page = browser.new_page(viewport=VIEWPORT, device_scale_factor=SCALE, color_scheme="dark")
    page.goto(url)
    page.select_option("#window", "20")
    page.locator("#pulse button").click()
    page.wait_for_timeout(8_000)
    recorded = Film(page)
    before = recorded.record(2)
    run("kill", "1", *place)
    after = recorded.record(4.5)
    run("restart", "1", *place)
    recorded.record(4.5)
    return {
        "page.png": animated(recorded.frames),
        "kill.png": side_by_side(browser, [("Before", before), ("After the kill of broker 1", after)]),
    }


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        place = ("--dir", str(Path(folder) / "cluster"))
        run("up", "--detach", *place)
        try:
            run("topics", "create", "orders", *place)
            with served_page(place) as url:
                browser = playwright.chromium.launch(
                    executable_path=shutil.which(CHROMIUM), args=["--no-sandbox", "--disable-gpu"]
                )
                pictures = film(browser, url, place)
                browser.close()
        finally:
            run("down", *place)
    for name, data in pictures.items():
        if len(data) > MOST_BYTES:
            raise SystemExit(f"{name} has {len(data):,} bytes, at most {MOST_BYTES:,} are good for a README")
        (HERE / name).write_bytes(data)
        print(f"{name}: {len(data):,} bytes")


if __name__ == "__main__":
    main()
