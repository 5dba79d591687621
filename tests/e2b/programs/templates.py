"""Templates: environments of the server, and what is built of steps; with tags, and sandboxes made of them."""

import tempfile
from pathlib import Path

from checks import done, new_mark, refused, since, wait_until
from e2b import Sandbox, SandboxException

for name in ("base", "code-interpreter-v1"):
    with Sandbox.create(template=name, timeout=120) as sandbox:
        assert sandbox.commands.run("whoami").stdout == "user\n"
        info = sandbox.get_info()
        assert info.template_id
        with Sandbox.create(template=info.template_id, timeout=120) as other:
            assert other.get_info().template_id == info.template_id
with refused(SandboxException):
    Sandbox.create(template="no-such-template")
if since(2, 20):
    from e2b import BuildException, Template

    assert Template.exists("base") is True
    assert Template.exists("no-such-template") is False
    assert Template.alias_exists("code-interpreter-v1") is True

    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "data.txt").write_text("copied")
        steps = Template(file_context_path=folder).from_template("base").copy("data.txt", "/home/user/data.txt")
        steps = steps.set_envs({"STAGE": "built"}).run_cmd("echo made > /home/user/made.txt")
        name, lines = f"built-{new_mark()['mark'][:8]}", []
        built = Template.build(steps, name, cpu_count=1, memory_mb=512, on_build_logs=lines.append)
        assert built.template_id
        assert any("made.txt" in line.message for line in lines), [line.message for line in lines]
        assert Template.exists(name) is True
        with Sandbox.create(name, timeout=120) as sandbox:
            seen = sandbox.commands.run("cat data.txt made.txt; echo $STAGE; whoami").stdout
            assert seen == "copiedmade\nbuilt\nuser\n", seen
        assert set(Template.assign_tags(f"{name}:default", ["stable", "v1"]).tags) >= {"stable", "v1"}
        assert {"stable", "v1"} <= {tag.tag for tag in Template.get_tags(built.template_id)}
        with Sandbox.create(f"{name}:stable", timeout=120) as sandbox:
            assert sandbox.files.read("made.txt") == "made\n"
        Template.remove_tags(name, "v1")
        assert "v1" not in {tag.tag for tag in Template.get_tags(built.template_id)}
        broken = Template().from_template("base").run_cmd("echo why >&2; exit 3")
        with refused(BuildException):
            Template.build(broken, f"{name}-broken")
        started = Template.build_in_background(steps, name)
        wait_until(lambda: Template.get_build_status(started).status.value == "ready", 120)
        assert Sandbox.delete_snapshot(name) is True  # which deletes a template, too
        assert Template.exists(name) is False
done()
