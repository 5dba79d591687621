"""Builds a template with Python's SDK, makes a sandbox of it, and builds one that fails."""

import os
import time
from pathlib import Path

from e2b import Sandbox, Template

try:
    from e2b import BuildException
except ImportError:
    from e2b.exceptions import BuildException

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
failed = ""
try:
    Template.build(failing, alias=f"{name}-failing")
except BuildException as exc:
    failed = str(exc)
assert "exit code 7" in failed, failed
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
