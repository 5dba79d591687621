"""Addresses of files that work without a key, for the one thing that they were made for, and for a while."""

import os
import time

import httpx
from checks import done
from e2b import Sandbox

http = httpx.Client(timeout=60, verify=os.environ.get("SSL_CERT_FILE", True))

with Sandbox.create(timeout=300) as sandbox, Sandbox.create(timeout=300) as other:
    sandbox.files.write("shared file.txt", "for you")
    url = sandbox.download_url("shared file.txt", use_signature_expiration=600)
    answer = http.get(url)
    assert (answer.status_code, answer.text) == (200, "for you"), answer.text
    assert http.get(sandbox.download_url("/home/user/shared file.txt")).text == "for you"
    assert http.get(sandbox.download_url("shared file.txt", user="user")).text == "for you"
    assert http.get(sandbox.download_url("none")).status_code == 404

    upload = sandbox.upload_url("sent.bin", use_signature_expiration=600)
    answer = http.post(upload, files={"file": ("name-of-the-client", b"\x00" * 2_000_000)})
    assert answer.status_code == 200, answer.text
    assert answer.json()[0]["path"] == "/home/user/sent.bin"
    assert sandbox.files.get_info("sent.bin").size == 2_000_000
    answer = http.post(sandbox.upload_url("/tmp/of-root", user="root"), files={"file": b"x"})
    assert answer.status_code == 200, answer.text
    assert sandbox.files.get_info("/tmp/of-root").owner == "root"

    # It is good for this path, this direction, this sandbox, and this time only.
    def asked(address: str) -> int:
        return http.get(address).status_code

    assert asked(url.replace("shared", "other")) == 401
    assert asked(upload) == 401
    assert http.post(url, files={"file": b"x"}).status_code == 401
    assert asked(url + "&username=root") == 401
    assert asked(url.replace("signature=v1_", "signature=v1_A")) == 401
    brief = sandbox.download_url("shared file.txt", use_signature_expiration=1)
    time.sleep(2.5)
    expired = http.get(brief)
    assert (expired.status_code, expired.json()) == (401, {"code": 401, "message": "signature is already expired"})
    assert http.get(sandbox.envd_api_url + "/files", params={"path": "shared file.txt"}).status_code in (401, 404)
    other.files.write("shared file.txt", "not for you")
    assert http.get(url).text == "for you"
    assert http.get(other.download_url("shared file.txt")).text == "not for you"
    sandbox.kill()
    assert asked(url) in (401, 404, 502)
done()
