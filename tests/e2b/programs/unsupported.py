"""What Warren does not have is refused with a sentence that says so; it neither hangs nor pretends."""

from checks import done, refused, since
from e2b import NotFoundException, Sandbox

SAYS = "not support"


def not_supported(call) -> None:
    with refused(Exception) as refusal:
        call()
    assert SAYS in str(refusal.error).lower(), repr(refusal.error)
    assert not isinstance(refusal.error, (KeyError, TypeError, AttributeError, ValueError)), repr(refusal.error)


with Sandbox.create(timeout=120) as sandbox:
    if since(2, 44):
        from e2b import Secret

        not_supported(lambda: Secret.create("name", "value"))
        not_supported(lambda: Secret.list().next_items())
        not_supported(lambda: Secret.get_info("name"))
        not_supported(lambda: Secret.update("name", "value"))
        not_supported(lambda: Secret.exists("name"))
        not_supported(lambda: Secret.destroy("name"))
        token = Secret.iam_token(audience="there", token_type="JWT-SVID")
        not_supported(lambda: Sandbox.create(timeout=60, iam={"tokens": {"a": token}}))
    not_supported(lambda: Sandbox.create(timeout=60, mcp={"context7": {}}))
    assert sandbox.get_mcp_url().endswith("/mcp")  # made up by the SDK
    with refused(NotFoundException):
        sandbox.get_mcp_token()
    assert sandbox.commands.run("echo alive").stdout == "alive\n"
    if since(2, 20):
        assert Sandbox.delete_snapshot("none") is False
done()
