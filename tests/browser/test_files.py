"""Files of a session's page: reading, editing, uploading, downloading, and names and contents made to mislead."""

import asyncio
import io
import re
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from browser.conftest import Visit
from browser.watched_page import WatchedPage
from e2e.api_client import Api, SessionApi
from playwright.async_api import Locator, Route, expect

pytestmark = [pytest.mark.anyio, pytest.mark.extended]

_PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c4890000000d49444154789c6360f8cfc0f01f000500"
    "01ff8999d6ad0000000049454e44ae426082"
)
_SVG = b"""<svg xmlns="http://www.w3.org/2000/svg" width="60" height="40" onload="alert(1)">
<script>alert(document.domain)</script><rect width="60" height="40" fill="teal"/></svg>"""


@pytest.fixture(autouse=True)  # before the pages, which are closed before it ends
async def session(api: Api) -> AsyncIterator[SessionApi]:
    async with api.session() as session:
        yield session


@pytest.fixture
async def files(visit: Visit, admin_key: str, session: SessionApi) -> WatchedPage:
    return await show(visit, admin_key, session)


async def show(visit: Visit, key: str, session: SessionApi, **options: object) -> WatchedPage:
    page = await visit(key, f"/ui/sessions/{session.id}?tab=files", **options)
    await page.get("navigation", "Files").get_by_role("button", name="Reload").wait_for()
    return page


def entry(page: WatchedPage, name: str) -> Locator:
    return page.get("navigation", "Files").get_by_role("button", name=name, exact=True)


async def choose(page: WatchedPage, name: str) -> None:
    await entry(page, name).click()


async def reload(page: WatchedPage) -> None:
    await page.get("navigation", "Files").get_by_role("button", name="Reload").click()


async def test_text_is_edited_and_saved_with_its_mode_and_its_line_ends(
    files: WatchedPage, session: SessionApi
) -> None:
    await session.output("mkdir -p src/deep; printf 'one\\r\\ntwo\\r\\n' > src/deep/run.sh; chmod 750 src/deep/run.sh")
    await reload(files)
    await choose(files, "src/")
    await choose(files, "deep/")
    await choose(files, "run.sh")
    text = files.field("Text", exact=True)
    await expect(text).to_have_value("one\ntwo\n")
    await text.fill("one\nTWO\nthree ü\n")
    await files.get("button", "Save").click()
    await expect(files.text("Saved.")).to_be_visible()
    assert await session.read("src/deep/run.sh") == "one\r\nTWO\r\nthree ü\r\n".encode()
    assert await session.output("stat -c %a src/deep/run.sh") == "750\n"


async def test_a_file_that_was_changed_meanwhile_is_not_overwritten_unasked(
    files: WatchedPage, session: SessionApi
) -> None:
    await session.write("note", b"first")
    await reload(files)
    await choose(files, "note")
    text = files.field("Text", exact=True)
    await expect(text).to_have_value("first")
    await asyncio.sleep(0.05)
    await session.write("note", b"by somebody else")
    await text.fill("mine")
    await files.get("button", "Save").click()
    await files.get("button", "Go on editing").click()
    assert await session.read("note") == b"by somebody else"
    await files.get("button", "Save").click()
    await files.get("button", "Overwrite it").click()
    await expect(files.text("Saved.")).to_be_visible()
    assert await session.read("note") == b"mine"
    await session.write("note", b"again by somebody else")
    await text.fill("mine too")
    await files.get("button", "Save").click()
    await files.get("button", "Load it, and lose what is here").click()
    await expect(files.field("Text", exact=True)).to_have_value("again by somebody else")


async def test_what_is_edited_is_not_lost_unasked(files: WatchedPage, session: SessionApi) -> None:
    await session.write("one", b"1")
    await session.write("two", b"2")
    await reload(files)
    await choose(files, "one")
    await files.field("Text", exact=True).fill("changed")
    await choose(files, "two")
    await files.get("button", "Cancel").click()
    await expect(files.field("Text", exact=True)).to_have_value("changed")
    await choose(files, "two")
    await files.get("button", "Leave").click()
    await expect(files.field("Text", exact=True)).to_have_value("2")


async def test_what_is_no_text_or_too_long_is_not_edited(files: WatchedPage, session: SessionApi) -> None:
    await session.write("binary", b"\x7fELF\0\0\1")
    await session.write("latin", "Grüße".encode("latin-1"))
    await session.write("long", b"0123456789abcde\n" * 100_000)
    await session.write("mixed", b"a\r\nb\n")
    await session.write("empty", b"")
    await session.write("trojan", "access = 'user\u202e \u2066// admin\u2069 \u2066'".encode())
    await reload(files)
    await choose(files, "binary")
    await expect(files.text("It is not text.")).to_be_visible()
    await choose(files, "latin")
    await expect(files.text("shown as Latin-1")).to_be_visible()
    await expect(files.text("Grüße")).to_be_visible()
    await choose(files, "long")
    await expect(files.text("Only the first 1.0 MiB of 1.5 MiB are shown.")).to_be_visible()
    await choose(files, "mixed")
    await expect(files.text("Its lines end in different ways.")).to_be_visible()
    await expect(files.field("Text", exact=True)).to_have_count(0)
    await choose(files, "empty")
    await expect(files.field("Text", exact=True)).to_have_value("")
    await choose(files, "trojan")
    await expect(files.text("it may not be what it seems")).to_be_visible()


async def test_pictures_are_shown_and_scripts_in_them_do_not_run(files: WatchedPage, session: SessionApi) -> None:
    await session.write("dot.png", _PNG)
    await session.write("evil.svg", _SVG)
    await session.write("broken.png", b"no picture")
    await session.write("page.html", b"<script>alert(1)</script>")
    await reload(files)
    for name, width in (("dot.png", 1), ("evil.svg", 60)):
        await choose(files, name)
        picture = files.get("img", name)
        await expect(picture).to_be_visible()
        assert await picture.evaluate("image => image.decode().then(() => image.naturalWidth)") == width
    await files.field("Show its text").check()
    await expect(files.field("Text", exact=True)).to_have_value(_SVG.decode())
    await choose(files, "broken.png")
    await expect(files.text("It is not a picture")).to_be_visible()
    await choose(files, "page.html")
    await expect(files.field("Text", exact=True)).to_have_value("<script>alert(1)</script>")


async def test_hostile_names_are_shown_as_they_are_and_can_be_used(
    files: WatchedPage, session: SessionApi, visit: Visit, admin_key: str
) -> None:
    names = {
        b"<img src=x onerror=alert(1)>": "<img src=x onerror=alert(1)>",
        b"two\nlines": r"two\nlines",
        b"tab\tand\\back": r"tab\tand\\back",
        "invoice\u202etxt.exe".encode(): r"invoice\u202etxt.exe",
        "zero\u200bwidth".encode(): r"zero\u200bwidth",
        b"not-utf8-\xff": r"not-utf8-\udcff",
        b"&amp;'\"`$(id);?#%41+": "&amp;'\"`$(id);?#%41+",
        "emoji 😀 ü".encode(): "emoji 😀 ü",
        b"--help": "--help",
    }
    for number, name in enumerate(names):
        await session.write(name, b"content %d" % number)
    await session.output("ln -s $'two\\nlines' link; ln -s /nowhere dangling")
    await reload(files)
    for number, shown in enumerate(names.values()):
        await choose(files, shown)
        await expect(files.field("Text", exact=True)).to_have_value(f"content {number}")
    await files.picture("files-hostile")
    await choose(files, r"link → two\nlines")
    await expect(files.field("Text", exact=True)).to_have_value("content 1")
    await choose(files, r"not-utf8-\udcff")
    await files.field("Text", exact=True).fill("changed")
    await files.get("button", "Save").click()
    await expect(files.text("Saved.")).to_be_visible()
    assert await session.read(b"not-utf8-\xff") == b"changed"
    await choose(files, r"two\nlines")
    await files.get("button", "Rename").click()
    await files.field("Name", exact=True).fill("one line")
    await files.get("dialog", "Rename").get_by_role("button", name="Rename").click()
    await expect(entry(files, "one line")).to_be_visible()
    for shown in (r"not-utf8-\udcff", r"invoice\u202etxt.exe", "--help"):
        await choose(files, shown)
        await expect(files.field("Text", exact=True)).to_be_visible()
        await files.get("button", "Delete").click()
        await files.get("dialog", "Delete it?").get_by_role("button", name="Delete").click()
        await expect(entry(files, shown)).to_have_count(0)
    left = await session.get("/files")
    assert len(left["files"]) == len(names) + 2 - 3


async def test_what_was_shown_before_cannot_be_edited_while_another_is_looked_up(
    files: WatchedPage, session: SessionApi
) -> None:
    for name in ("first", "second", "third"):
        await session.write(name.encode(), name.encode())
    await reload(files)
    await choose(files, "first")
    text = files.field("Text", exact=True)
    await expect(text).to_have_value("first")
    may_go_on = asyncio.Event()

    async def answer_late(route: Route) -> None:
        await may_go_on.wait()
        await route.continue_()

    await files.raw.route("**/files/stat?*second", answer_late)
    await choose(files, "second")
    await expect(text).to_have_count(0)
    await expect(files.text("Loading…")).to_be_visible()
    await choose(files, "third")
    await expect(text).to_have_value("third")
    async with files.raw.expect_response("**/files/stat?*second"):
        may_go_on.set()
    await text.fill("changed")
    await files.get("button", "Save").click()
    await expect(files.text("Saved.")).to_be_visible()
    assert [await session.read(name) for name in (b"first", b"second", b"third")] == [b"first", b"second", b"changed"]


async def test_files_and_folders_are_uploaded_with_progress_and_downloaded(
    files: WatchedPage, session: SessionApi, tmp_path: Path
) -> None:
    large = tmp_path / "large.bin"
    large.write_bytes(bytes(range(256)) * 32 * 1024)
    (tmp_path / "small.txt").write_text("small")
    folder = tmp_path / "folder"
    (folder / "inner").mkdir(parents=True)
    (folder / "inner" / "a.txt").write_text("a")
    (folder / "b.txt").write_text("b")
    await files.field("Files to upload").set_input_files([large, tmp_path / "small.txt"])
    await expect(entry(files, "large.bin")).to_be_visible()
    assert await session.read("large.bin") == large.read_bytes()
    await files.field("Folder to upload").set_input_files(folder)
    await expect(entry(files, "folder/")).to_be_visible()
    assert await session.output("cat folder/inner/a.txt folder/b.txt") == "ab"
    (tmp_path / "small.txt").write_text("larger")
    await files.field("Files to upload").set_input_files(tmp_path / "small.txt")
    await files.get("button", "Cancel").click()
    assert await session.read("small.txt") == b"small"
    await files.field("Files to upload").set_input_files(tmp_path / "small.txt")
    await files.get("button", "Overwrite").click()
    await choose(files, "small.txt")
    await expect(files.field("Text", exact=True)).to_have_value("larger")
    async with files.raw.expect_download() as started:
        await files.get("button", "Download", exact=True).click()
    download = await started.value
    assert (download.suggested_filename, Path(await download.path()).read_bytes()) == ("small.txt", b"larger")
    await choose(files, "folder/")
    async with files.raw.expect_download() as started:
        await files.raw.locator(".files").get_by_role("button", name="Download as tar").click()
    download = await started.value
    assert download.suggested_filename == "folder.tar"
    with tarfile.open(fileobj=io.BytesIO(Path(await download.path()).read_bytes())) as archive:
        assert {name.removeprefix("./").split("/")[-1] for name in archive.getnames()} >= {"a.txt", "b.txt"}


async def test_files_are_dropped_into_the_chosen_folder(files: WatchedPage, session: SessionApi) -> None:
    await files.get("button", "New folder").click()
    await files.field("Name", exact=True).fill("here")
    await files.get("dialog", "New folder").get_by_role("button", name="New folder").click()
    await choose(files, "here/")
    await files.raw.evaluate(
        """() => {
            const data = new DataTransfer();
            data.items.add(new File(["dropped"], "one.txt"));
            data.items.add(new File(["too"], "two <b>.txt"));
            const tree = document.querySelector(".file-tree");
            tree.dispatchEvent(new DragEvent("dragover", { dataTransfer: data, bubbles: true, cancelable: true }));
            tree.dispatchEvent(new DragEvent("drop", { dataTransfer: data, bubbles: true, cancelable: true }));
        }"""
    )
    await expect(entry(files, "two <b>.txt")).to_be_visible()
    assert await session.read("here/one.txt") == b"dropped"


async def test_refusals_are_told(files: WatchedPage, session: SessionApi, tmp_path: Path) -> None:
    files.expected.append("status of 4")
    await files.field("Directory").fill("/etc")
    await files.get("button", "Show", exact=True).click()
    await choose(files, "hostname")
    (tmp_path / "hosts").write_text("x")
    (tmp_path / "new").write_text("x")
    await files.field("Files to upload").set_input_files(tmp_path / "new")
    await expect(files.text(re.compile("new: .*"))).to_be_visible()
    await files.field("Directory").fill("/nowhere")
    await files.get("button", "Show", exact=True).click()
    await expect(files.get("navigation", "Files").get_by_role("alert")).to_be_visible()


async def test_a_large_directory_is_shown_in_parts(files: WatchedPage, session: SessionApi) -> None:
    await session.output("mkdir many; cd many; touch $(seq 1000 5999)")
    await reload(files)
    await choose(files, "many/")
    await expect(files.text("Show more (4700 are left)")).to_be_visible()
    await files.get("button", "Show more").click()
    await expect(files.text("Show more (4400 are left)")).to_be_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_the_files_fit_a_narrow_screen(visit: Visit, admin_key: str, session: SessionApi, scheme: str) -> None:
    await session.write("notes/a file with a rather long name that goes on.txt", b"text\n" * 30)
    narrow = {"width": 360, "height": 740}
    page = await show(visit, admin_key, session, viewport=narrow, color_scheme=scheme)
    await choose(page, "notes/")
    await choose(page, "a file with a rather long name that goes on.txt")
    await expect(page.field("Text", exact=True)).to_be_visible()
    assert not await page.raw.evaluate("document.documentElement.scrollWidth > innerWidth")
    await page.picture(f"files-{scheme}-360")
    await page.raw.set_viewport_size({"width": 1280, "height": 800})
    await page.picture(f"files-{scheme}")
