"""Makes the pictures of the README from a real run of the live page: `make pictures`.

A cluster of three brokers, its page in Chromium, a pulse of small records. A broker that leads one of its
partitions is killed and restarted by the buttons: `page.png` is an animated PNG of it, `kill.png` the page
before and after the kill. `partition.png` has a follower that lags.
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
from typing import Any, Final

from playwright.sync_api import Browser, Page, sync_playwright

HERE: Final = Path(__file__).parent / "pictures"
CHROMIUM: Final = os.environ.get("CHROMIUM", "chromium")
VIEWPORT: Final = {"width": 960, "height": 690}
FRAME_MS: Final = 750
MOST_BYTES: Final = 1_000_000
_SIGNATURE: Final = b"\x89PNG\r\n\x1a\n"


def run(home: str, *arguments: str) -> None:
    """Run `barnabas` with a home of its own, whose cluster needs no `--dir`. Raises CalledProcessError."""
    subprocess.run(_command(arguments), env=_environment(home), stdout=subprocess.DEVNULL, check=True)


def _command(arguments: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "barnabas.cli.main", *arguments]


def _environment(home: str) -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "BARNABAS_DIR"} | {"HOME": home}


@contextmanager
def served_page(home: str) -> Iterator[str]:
    """The URL of the live page, which is served inside the block."""
    with subprocess.Popen(
        _command(["ui"]), env=_environment(home), stdout=subprocess.PIPE, text=True
    ) as server:
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


def smallest(png: bytes) -> bytes:
    """The same picture, compressed as far as zlib can; Chromium compresses for speed."""
    chunks = list(_chunks(png))
    pixels = zlib.compress(zlib.decompress(b"".join(data for name, data in chunks if name == b"IDAT")), 9)
    header = dict(chunks)[b"IHDR"]
    return b"".join([_SIGNATURE, _chunk(b"IHDR", header), _chunk(b"IDAT", pixels), _chunk(b"IEND", b"")])


_PIXELS: Final = """async ([after, before]) => {
  const read = async (png) => {
    const bitmap = await createImageBitmap(await (await fetch(`data:image/png;base64,${png}`)).blob());
    const context = new OffscreenCanvas(bitmap.width, bitmap.height).getContext("2d");
    context.drawImage(bitmap, 0, 0);
    return context.getImageData(0, 0, bitmap.width, bitmap.height).data;
  };
  const shown = await read(after);
  if (before) {
    const pixels = new Uint32Array(shown.buffer);
    new Uint32Array((await read(before)).buffer).forEach((old, place) => {
      if (old === pixels[place]) pixels[place] = 0;
    });
  }
  return new Promise((resolve) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result.split(",")[1]);
    reader.readAsDataURL(new Blob([shown]));
  });
}"""
"""The pixels of a picture as RGBA; those that are like the picture before are transparent."""


def animated(browser: Browser, frames: Sequence[tuple[bytes, int]]) -> bytes:
    """An animated PNG of still ones of one size, each with the milliseconds that it is shown."""
    page = browser.new_page()
    width, height = struct.unpack_from(">II", dict(_chunks(frames[0][0]))[b"IHDR"])
    header = struct.pack(">IIBBBBB", width, height, 8, 6, 0, 0, 0)
    parts = [_SIGNATURE, _chunk(b"IHDR", header), _chunk(b"acTL", struct.pack(">II", len(frames), 0))]
    sequence, before = 0, None
    for png, shown_ms in frames:
        after = base64.b64encode(png).decode()
        pixels = base64.b64decode(page.evaluate(_PIXELS, [after, before]))
        rows = b"".join(
            b"\0" + pixels[start : start + 4 * width] for start in range(0, len(pixels), 4 * width)
        )
        data = zlib.compress(rows, 9)
        place = struct.pack(">IIIIIHHBB", sequence, width, height, 0, 0, shown_ms, 1000, 0, 1)
        parts.append(_chunk(b"fcTL", place))
        sequence += 1
        if before is None:
            parts.append(_chunk(b"IDAT", data))
        else:
            parts.append(_chunk(b"fdAT", struct.pack(">I", sequence) + data))
            sequence += 1
        before = after
    page.close()
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


def panels(browser: Browser, shown: Sequence[tuple[str, bytes]]) -> bytes:
    """Put several pictures below each other, each under its caption, in one."""
    figures = "".join(
        f"<figure><figcaption>{caption}</figcaption>"
        f"<img src='data:image/png;base64,{base64.b64encode(png).decode()}'></figure>"
        for caption, png in shown
    )
    # Not on the live page, whose policy loads only its own pictures.
    page = browser.new_page(viewport={"width": VIEWPORT["width"], "height": 100})
    page.set_content(
        "<style>body{margin:0;background:#2b3642;color:#e4eaf0;font:600 17px system-ui}"
        f"figure,img{{display:block;margin:0}}figure{{height:590px;overflow:hidden}}"
        f"figcaption{{padding:9px 16px}}</style>{figures}"
    )
    return smallest(page.screenshot(full_page=True))


def killed(page: Page) -> int:
    """Kill a leader of the pulse that is not the controller, by its button on the page; returns its id."""
    state = state_of(page)
    leaders = [
        entry["leader"] for name, entry in state["partitions"].items() if name.startswith("barnabas-pulse-")
    ]
    controller = state["controller"]
    broker: int = next(leader for leader in leaders if leader != controller)
    page.get_by_role("button", name=f"Kill broker {broker}").click()
    return broker


def state_of(page: Page) -> Any:
    """The first event of the page's stream, the whole state."""
    return page.evaluate(
        """() => new Promise((resolve) => {
          const source = new EventSource("stream?with=partitions");
          source.addEventListener("state", (event) => { source.close(); resolve(JSON.parse(event.data)); });
        })"""
    )


def failover(browser: Browser, url: str) -> dict[str, bytes]:
    """The overview: a pulse, a kill by the button, the gap, and the restart."""
    page = browser.new_page(viewport=VIEWPORT, color_scheme="dark")
    page.goto(url)
    page.select_option("#window", "20")
    recorded = Film(page)
    recorded.record(1)
    page.locator("#pulse").click()
    recorded.record(2)
    page.wait_for_timeout(6_000)
    before = recorded.record(1.5)
    broker = killed(page)
    page.locator(".gap").first.wait_for()
    page.mouse.move(0, 0)
    after = recorded.record(5)
    page.get_by_role("button", name=f"Restart broker {broker}").click()
    page.mouse.move(0, 0)
    recorded.record(6)
    page.locator("#pulse").click()
    page.close()
    captions = (
        "Three brokers, 75 records a second",
        f"Broker {broker} is killed: the gap of its partition in ms",
    )
    return {
        "page.png": animated(browser, recorded.frames),
        "kill.png": panels(browser, list(zip(captions, (before, after), strict=True))),
    }


def lag(browser: Browser, url: str) -> dict[str, bytes]:
    """A partition of which one follower fetches over a slow link, with the explanation of that follower."""
    page = browser.new_page(viewport=VIEWPORT, color_scheme="dark")
    page.goto(url)
    page.locator("#pulse").click()
    page.get_by_role("button", name="Stop the pulse").wait_for()
    partition = state_of(page)["partitions"]["barnabas-pulse-0"]
    leader = partition["leader"]
    follower = next(replica for replica in partition["isr"] if replica != leader)
    page.goto(f"{url}faults")
    page.get_by_label("Delay, ms").fill("700")
    page.get_by_role("button", name=f"Slow broker {leader} to broker {follower}").click()
    page.goto(f"{url}partition?topic=barnabas-pulse&partition=0")
    page.get_by_role("button", name=f"Broker {follower}").click()
    page.wait_for_timeout(4_000)
    picture = smallest(page.screenshot(full_page=True))
    page.goto(f"{url}faults")
    page.get_by_role("button", name="Mend all links").click()
    return {"partition.png": picture}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which(CHROMIUM), args=["--no-sandbox", "--disable-gpu"]
        )
        pictures: dict[str, bytes] = {}
        for options, taken in ((), failover), (("--links",), lag):
            run(folder, "up", "--detach", *options)
            try:
                with served_page(folder) as url:
                    pictures |= taken(browser, url)
            finally:
                run(folder, "down")
        browser.close()
    for name, data in pictures.items():
        if len(data) > MOST_BYTES:
            raise SystemExit(f"{name} has {len(data):,} bytes, at most {MOST_BYTES:,} are good for a README")
        (HERE / name).write_bytes(data)
        print(f"{name}: {len(data):,} bytes")


if __name__ == "__main__":
    main()
