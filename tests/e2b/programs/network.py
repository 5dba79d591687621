"""Servers in sandboxes by their host names, who may open them, and what sandboxes may reach."""

from checks import done, fetch, refused, since, wait_until, web_url
from e2b import CommandExitException, Sandbox, SandboxException


def serve(sandbox: Sandbox, port: int = 3000) -> str:
    sandbox.files.write("site/index.html", f"<h1>port {port}</h1>")
    sandbox.commands.run(f"python3 -m http.server {port} --bind 127.0.0.1", background=True, cwd="/home/user/site")
    address = web_url(sandbox.get_host(port))
    wait_until(lambda: fetch(address, **headers_of(sandbox)).status_code == 200)
    return address


def headers_of(sandbox: Sandbox) -> dict[str, str]:
    token = sandbox.traffic_access_token
    return {"e2b-traffic-access-token": token} if token else {}


with Sandbox.create(timeout=300) as sandbox:
    address = serve(sandbox)
    assert fetch(address).text == "<h1>port 3000</h1>"
    assert fetch(address + "/none").status_code == 404
    assert fetch(web_url(sandbox.get_host(3001))).status_code == 502
    second = serve(sandbox, 8080)
    assert fetch(second).status_code == 200
    sandbox.kill()
    assert fetch(address).status_code >= 400

with Sandbox.create(timeout=300, network={"allow_public_traffic": False}) as sandbox:
    address = serve(sandbox)
    assert sandbox.traffic_access_token
    assert fetch(address).status_code in (401, 403)
    assert fetch(address, **{"e2b-traffic-access-token": "wrong"}).status_code in (401, 403)
    assert fetch(address, **headers_of(sandbox)).status_code == 200

ECHO = """
import http.server

class Echo(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.headers["Host"].encode())

http.server.HTTPServer(("127.0.0.1", 3000), Echo).serve_forever()
"""

if since(2, 20):
    with Sandbox.create(timeout=300, network={"mask_request_host": "app.example.com:${PORT}"}) as sandbox:
        sandbox.files.write("echo.py", ECHO)
        sandbox.commands.run("python3 echo.py", background=True)
        address = web_url(sandbox.get_host(3000))
        wait_until(lambda: fetch(address).status_code == 200)
        assert fetch(address).text == "app.example.com:3000"
        if since(2, 34):
            assert sandbox.get_info().network["mask_request_host"] == "app.example.com:${PORT}"

if since(2, 34):
    rules = {"api.example.com": [{"transform": {"headers": {"X-Key": "value-0123"}}}]}
    with Sandbox.create(timeout=300, network={"rules": rules}) as sandbox:
        shown = sandbox.get_info().network["rules"]
        assert shown == {"api.example.com": [{"transform": {"headers": {"X-Key": "***"}}}]}, shown
        sandbox.update_network({"allow_internet_access": False})
        assert "rules" not in sandbox.get_info().network

if since(2, 44):
    with refused(SandboxException, says="egressProxy"):
        Sandbox.create(timeout=60, network={"egress_proxy": {"address": "proxy.example.com:1080"}})

REACH = "timeout 5 bash -c ': > /dev/tcp/%s/%d'"
for options in ({"allow_internet_access": False}, {"network": {"deny_out": ["0.0.0.0/0"]}}):
    with Sandbox.create(timeout=300, **options) as sandbox, refused(CommandExitException):
        sandbox.commands.run(REACH % ("192.0.2.1", 80))

if since(2, 34):
    with Sandbox.create(timeout=300, allow_internet_access=False) as sandbox:
        sandbox.update_network({"allow_internet_access": False})
        with refused(SandboxException):
            sandbox.update_network({"allow_out": ["not an address !"]})
done()
