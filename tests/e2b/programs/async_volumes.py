"""Volumes as E2B's documents show them, from asynchronous programs."""

import asyncio
import uuid

from checks import done, refused, since
from e2b import NotFoundException

if not since(2, 20):
    done()
    raise SystemExit

from e2b import AsyncSandbox, AsyncVolume


async def main() -> None:
    name = f"my-volume-{uuid.uuid4().hex[:8]}"
    volume = await AsyncVolume.create(name)
    assert (await AsyncVolume.connect(volume.volume_id)).name == name
    assert volume.volume_id in [each.volume_id for each in await AsyncVolume.list()]
    assert (await AsyncVolume.get_info(volume.volume_id)).token
    await volume.write_file("/path/to/file", "file content")
    assert await volume.read_file("/path/to/file") == "file content"
    assert await volume.read_file("/path/to/file", format="bytes") == b"file content"
    stream = await volume.read_file("/path/to/file", format="stream")
    assert b"".join([piece async for piece in stream]) == b"file content"
    await volume.make_dir("/path/to/nested/dir", force=True, mode=0o700)
    assert [each.path for each in await volume.list("/path/to")] == ["/path/to/file", "/path/to/nested"]
    assert (await volume.get_info("/path/to/nested/dir")).mode == 0o700
    assert await volume.exists("/path/to/file") is True
    assert (await volume.update_metadata("/path/to/file", mode=0o604)).mode == 0o604
    names = [f"/many/{number}" for number in range(20)]
    await asyncio.gather(*(volume.write_file(path, path) for path in names))
    assert await asyncio.gather(*(volume.read_file(path) for path in names)) == names
    async with await AsyncSandbox.create(volume_mounts={"/mnt/my-data": volume}, timeout=120) as sandbox:
        assert await sandbox.files.read("/mnt/my-data/path/to/file") == "file content"
        await sandbox.files.write("/mnt/my-data/hello.txt", "Hello, world!")
    assert await volume.read_file("/hello.txt") == "Hello, world!"
    await volume.remove("/path")
    with refused(NotFoundException):
        await volume.read_file("/path/to/file")
    assert await AsyncVolume.destroy(volume.volume_id) is True


asyncio.run(main())
done()
