"""Templates are the environments of the server: those that exist are found, and sandboxes are made of them."""

from checks import done, refused, since
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
    from e2b import Template

    assert Template.exists("base") is True
    assert Template.exists("no-such-template") is False
    assert Template.alias_exists("code-interpreter-v1") is True
done()
