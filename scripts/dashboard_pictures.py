"""Makes the pictures of the dashboard in docs/ from a server of its own: `sudo scripts/dashboard_pictures.py`.

It needs Debian's Chromium, playwright and the images that the tests keep. It lets some conversations work for a few
minutes, which fills the machine's plots; `--minutes 1` is enough to see whether it works.
"""

import argparse
import asyncio
import itertools
import os
import sys
import tempfile
from pathlib import Path

from playwright.async_api import Page, async_playwright

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "bench"))

from service_client import Client, connect  # noqa: E402
from service_server import Server, serving  # noqa: E402

CHROMIUM = "/usr/bin/chromium"
SIZE = {"width": 1280, "height": 720}
MAX_BYTES = 150_000
_BUSY = """exec python3 -c '
import time
held = bytearray({mb} << 20)
while True:
    until = time.perf_counter() + {share} / 10
    while time.perf_counter() < until: pass
    time.sleep((1 - {share}) / 10)
'"""
# memory in MiB, share of a core
BUSY = {"support-4711": (180, 0.05), "conv-8f2c": (60, 0.22), "review of #512": (310, 0.12)}
THREADS = {
    "support-4711": {"user": "u-7", "plan": "pro"},
    "report for march": {"user": "u-12"},
    "conv-8f2c": {"user": "u-7"},
    "nightly checks": {"project": "billing"},
    "review of #512": {"project": "web", "user": "u-3"},
    "conv-91aa": {},
}
WORK = (
    "python3 -c 'print(sum(i * i for i in range(400000)))'",
    "for i in $(seq 40000); do :; done",
    'python3 -c \'open("data.bin", "wb").write(bytes(3_000_000)); b = bytearray(40_000_000)\'',
    "true",
)
TYPED = (
    "cat primes.py",
    "python3 primes.py",
    "ls -l --color",
    "curl -sS https://example.com",
)
PRIMES = """\
def primes(limit):
    sieve = [True] * limit
    for n in range(2, limit):
        if sieve[n]:
            yield n
            sieve[n * n :: n] = [False] * len(sieve[n * n :: n])

print(*primes(60))
"""


async def work(client: Client, sessions: list[str], minutes: float) -> None:
    """Runs commands in all conversations, and now and then starts and ends one."""
    end = asyncio.get_running_loop().time() + minutes * 60
    for number, session in enumerate(itertools.cycle(sessions)):
        if asyncio.get_running_loop().time() > end:
            return
        command = WORK[number % len(WORK)]
        await client.call("POST", f"/api/sessions/{session}/exec", {"command": command})
        if number % 5 == 0:
            made = await client.call("POST", "/api/sessions", {"thread_id": f"short-{number}"})
            await client.call("DELETE", f"/api/sessions/{made['session_id']}")
        await asyncio.sleep(0.4 + 0.6 * (number // 40 % 2))


async def picture(page: Page, name: str) -> None:
    path = ROOT / "docs" / f"dashboard-{name}.png"
    await page.wait_for_timeout(1500)
    await page.screenshot(path=path)
    size = path.stat().st_size
    sys.stdout.write(f"{path.relative_to(ROOT)}: {size / 1000:.0f} KB\n")
    assert size < MAX_BYTES, f"{path} is too large for the repository"


async def take_pictures(server: Server, minutes: float) -> None:
    (client,) = await connect(server.port, 1)
    made = [
        (await client.call("POST", "/api/sessions", {"thread_id": thread, "metadata": metadata}))["session_id"]
        for thread, metadata in THREADS.items()
    ]
    for number, thread in enumerate(THREADS):
        if thread in BUSY:
            held, share = BUSY[thread]
            command = _BUSY.format(mb=held, share=share)
            await client.call("POST", f"/api/sessions/{made[number]}/processes", {"command": command})
    write = f"cat > primes.py <<'END'\n{PRIMES}END"
    await client.call("POST", f"/api/sessions/{made[1]}/exec", {"command": write})
    await work(client, made, minutes)
    with tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True) as folder:
        async with async_playwright() as playwright:
            browser = await playwright.chromium.launch(
                executable_path=CHROMIUM, args=["--no-sandbox"], env={**os.environ, "TMPDIR": folder}
            )
            page = await browser.new_page(viewport=SIZE, base_url=f"http://127.0.0.1:{server.port}")
            await page.goto("/ui/sessions")
            await page.get_by_text("MiB").first.wait_for(timeout=60_000)
            await picture(page, "sessions")
            await page.goto(f"/ui/sessions/{made[1]}")
            await page.get_by_role("button", name="New terminal").click()
            await page.locator(".xterm-rows").get_by_text("$").first.wait_for()
            for line in TYPED:
                await page.wait_for_timeout(1000)
                await page.keyboard.type(f"{line}\n")
            await picture(page, "terminal")
            await page.goto("/ui/machine")
            await page.locator(".plots").wait_for()
            await page.evaluate("document.querySelector('.plots').previousElementSibling.scrollIntoView()")
            await picture(page, "machine")
            await browser.close()
    for session in made:
        await client.call("DELETE", f"/api/sessions/{session}")
    client.close()


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=4.0)
    minutes = parser.parse_args(arguments).minutes
    with serving("--pool-size", "3", WARREN_AUTH="false") as server:
        asyncio.run(take_pictures(server, minutes))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
