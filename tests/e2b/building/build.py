"""Builds a template with Python's SDK, makes a sandbox of it, and builds one that fails."""

import contextlib
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
from e2b import Sandbox, Template

try:
    from e2b import BuildException
except ImportError:
    from e2b.exceptions import BuildException


KEY = {"X-API-Key": os.environ["E2B_API_KEY"]}


@contextlib.contextmanager
def refused_build(says: str) -> Iterator[None]:
    failed = ""
    try:
        yield
    except BuildException as exc:
        failed = str(exc)
    assert says in failed, failed


def exists(alias: str) -> bool:
    """The oldest SDK has no call for it."""
    asked = httpx.get(f"{os.environ['E2B_API_URL']}/templates/aliases/{alias}", headers=KEY)
    assert asked.status_code in (200, 404), asked.text
    return asked.status_code == 200


Path("hello.txt").write_text("from a file\n")
Path("sub").mkdir(exist_ok=True)
Path("sub/inner.txt").write_text("inner\n")
name = os.environ["TEMPLATE"]
said: list[str] = []
template = (
    Template()
    .from_template("base")
    .run_cmd("touch made")
    .copy("hello.txt", "/opt/", mode=0o640)
    .copy("sub", "dest", user="root")
    .set_envs({"COLOUR": "blue", "PATH": "/opt/bin:$PATH"})
    .run_cmd("whoami > /root/who", user="root")
    .set_workdir("/srv/app")
    .set_start_cmd("echo up > /tmp/up; sleep 1000", "test -e /tmp/up")
)
Template.build(template, alias=name, cpu_count=1, memory_mb=512, on_build_logs=lambda entry: said.append(entry.message))
assert any("RUN touch made" in line for line in said), said
with Sandbox.create(template=name, timeout=120) as sandbox:
    seen = sandbox.commands.run(
        "pwd; cat /opt/hello.txt; stat -c '%U %a' /opt/hello.txt; stat -c %U ~/dest/inner.txt ~/made; "
        "echo $COLOUR; echo ${PATH%%:*}; cat /tmp/up; pgrep -c sleep"
    ).stdout.splitlines()
    assert seen == ["/srv/app", "from a file", "user 640", "root", "user", "blue", "/opt/bin", "up", "1"], seen
    assert sandbox.get_info().template_id == name
failing = Template().from_template(name).run_cmd("echo because; exit 7")
with refused_build("exit code 7"):
    Template.build(failing, alias=f"{name}-failing")
with refused_build("failed to run command 'whoami': command failed: unauthenticated: invalid username: 'root123'"):
    Template.build(Template().from_template("base").run_cmd("whoami", user="root123"), alias=f"{name}-failing")
with refused_build("no-such-image"):
    Template.build(Template().from_image("no-such-image"), alias=f"{name}-refused")
assert not exists(f"{name}-refused"), "a refused build has left its template"
several = [f"{name}-{number}" for number in range(3)]  # of one tenant, at once: they wait for each other
with ThreadPoolExecutor() as pool:
    slow = Template().from_template("base").run_cmd("sleep 1")
    list(pool.map(lambda alias: Template.build(slow, alias=alias, skip_cache=True), several))
assert all(exists(alias) for alias in several)
if hasattr(Template, "assign_tags"):  # not in the oldest
    assert Template.assign_tags(f"{name}:default", ["v1"]).tags == ["v1"]
    assert {one.tag for one in Template.get_tags(name)} == {"default", "v1"}
    Template.remove_tags(name, ["v1"])
    assert [one.tag for one in Template.get_tags(name)] == ["default"]
    begun = Template.build_in_background(failing, f"{name}-failing")
    while (status := Template.get_build_status(begun)).status.value not in ("ready", "error"):
        time.sleep(0.2)
    assert status.status.value == "error"
print("done")
