"""A watched folder tells what happens in it, at once, and below it where that is asked for."""

from checks import done, refused, since, wait_until
from e2b import FilesystemEventType, NotFoundException, Sandbox, SandboxException

CREATE, WRITE = FilesystemEventType.CREATE, FilesystemEventType.WRITE
REMOVE, RENAME, CHMOD = FilesystemEventType.REMOVE, FilesystemEventType.RENAME, FilesystemEventType.CHMOD


def of(events, name: str) -> list[FilesystemEventType]:
    return [event.type for event in events if event.name == name]


with Sandbox.create(timeout=300) as sandbox:
    files = sandbox.files
    files.make_dir("watched/inner")
    watch = files.watch_dir("watched")
    assert watch.get_new_events() == []
    files.write("watched/new.txt", "hello")
    # Every change that was made before the question is in the answer.
    events = watch.get_new_events()
    assert of(events, "new.txt")[0] is CREATE, events
    assert WRITE in of(events, "new.txt"), events
    assert watch.get_new_events() == []
    files.rename("watched/new.txt", "watched/other.txt")
    events = watch.get_new_events()
    assert of(events, "new.txt") == [RENAME], events
    assert of(events, "other.txt") == [CREATE], events
    sandbox.commands.run("chmod 600 watched/other.txt")
    assert of(watch.get_new_events(), "other.txt") == [CHMOD]
    files.remove("watched/other.txt")
    assert REMOVE in of(watch.get_new_events(), "other.txt")
    files.write("watched/inner/deep.txt", "x")
    assert of(watch.get_new_events(), "inner/deep.txt") == []
    sandbox.commands.run("for i in $(seq 200); do echo x > watched/many-$i; done")
    names = {event.name for event in watch.get_new_events()}
    assert {f"many-{number}" for number in range(1, 201)} <= names
    watch.stop()
    files.write("watched/unseen.txt", "x")
    with refused(SandboxException):
        watch.get_new_events()

    below = files.watch_dir("watched", recursive=True)
    files.write("watched/inner/deep.txt", "y")
    assert WRITE in of(below.get_new_events(), "inner/deep.txt")
    sandbox.commands.run("mkdir -p watched/made/since")
    wait_until(lambda: of(below.get_new_events(), "made"))
    files.write("watched/made/since/then.txt", "z")
    assert CREATE in of(below.get_new_events(), "made/since/then.txt")
    below.stop()

    if since(2, 34):
        watch = files.watch_dir("watched", include_entry=True)
        files.write("watched/entry.txt", "12345")
        written = [event for event in watch.get_new_events() if event.type is WRITE]
        assert written[-1].entry is not None
        assert (written[-1].entry.size, written[-1].entry.owner) == (5, "user")
        watch.stop()
        files.watch_dir("watched", allow_network_mounts=True).stop()
    with refused(NotFoundException):
        files.watch_dir("there-is-none")
    with refused(SandboxException):
        files.watch_dir("watched/inner/deep.txt")
done()
