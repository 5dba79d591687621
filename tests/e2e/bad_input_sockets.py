"""What a WebSocket client can do wrong: addresses, first messages, messages to a process."""

import json
from typing import Any

_S = "/api/sessions/{session_id}"
_ATTACH = f"{_S}/processes/{{process_id}}/attach"

# Refused before it is a WebSocket: path and query, status, code.
ADDRESSES = [
    (f"{_ATTACH}?offset=abc", 422, "invalid_request"),
    (f"{_ATTACH}?offset=-1", 422, "invalid_request"),
    (f"{_ATTACH}?offset={'9' * 30}", 422, "invalid_request"),
    (f"{_S}/terminal?rows=abc", 422, "invalid_request"),
    (f"{_S}/terminal?columns=1.5", 422, "invalid_request"),
]

# Told in words after it was opened: path and query, code.
OPENED = [
    ("/api/sessions/ses_0/terminal", "session_not_found"),
    ("/api/sessions/%00/terminal", "session_not_found"),
    ("/api/sessions/ses_0/processes/x/attach", "session_not_found"),
    (f"{_S}/processes/nothing/attach", "process_not_found"),
    (f"{_ATTACH}?encoding=nothing", "invalid_request"),
    (f"{_S}/exec?encoding=nothing", "invalid_request"),
    (f"{_S}/terminal?rows=0", "invalid_request"),
    (f"{_S}/terminal?columns=99999", "invalid_request"),
    (f"{_S}/terminal?rows={'9' * 30}", "invalid_request"),
    (f"{_S}/terminal?command=%00", "invalid_request"),
    (f"{_S}/terminal?cwd=/nowhere", "invalid_path"),
    (f"{_S}/terminal?process_id=a%20b", "invalid_request"),
]

_BROKEN: list[tuple[str | bytes, str]] = [
    ("", "invalid_json"),
    ("{", "invalid_json"),
    ("garbage", "invalid_json"),
    ("[]", "invalid_request"),
    ("null", "invalid_request"),
    ('"text"', "invalid_request"),
    ('{"type": NaN}', "invalid_json"),
    ('{"type": 1e999}', "invalid_json"),
    ('{"type": "\\ud800"}', "invalid_json"),
    ("[" * 100_000, "invalid_json"),
    ('{"type":' * 200 + "1" + "}" * 200, "invalid_json"),
    ('{"type": ' + "9" * 5000 + "}", "invalid_json"),
]
FIRST = [
    *_BROKEN,
    (b"\x00\xff binary", "invalid_request"),
    ("{}", "invalid_request"),
    (json.dumps({"command": ""}), "invalid_request"),
    (json.dumps({"command": "a\0b"}), "invalid_request"),
    (json.dumps({"command": 5}), "invalid_request"),
    (json.dumps({"command": "true", "unknown": 1}), "invalid_request"),
    (json.dumps({"command": "true", "timeout_s": -1}), "invalid_request"),
    (json.dumps({"command": "true", "timeout_s": 1e9}), "invalid_request"),
    (json.dumps({"command": "true", "user": "nobody-of-that-name"}), "unknown_user"),
    (json.dumps({"command": "true", "cwd": "/nowhere"}), "invalid_path"),
    (json.dumps({"command": "true", "stdin_base64": "%"}), "invalid_request"),
]


def _message(**values: Any) -> str:
    return json.dumps(values)


LATER = [
    *_BROKEN,
    (_message(), "invalid_request"),
    (_message(type=None), "invalid_request"),
    (_message(type="nothing"), "invalid_request"),
    (_message(type="x" * 100_000), "invalid_request"),
    (_message(type=["stdin"]), "invalid_request"),
    (_message(type="stdin", data=5), "invalid_request"),
    (_message(type="stdin", data_base64="%"), "invalid_request"),
    (_message(type="stdin", data="a", data_base64="YQ=="), "invalid_request"),
    (_message(type="signal"), "invalid_request"),
    (_message(type="signal", signal="NOTHING"), "invalid_request"),
    (_message(type="signal", signal=0), "invalid_request"),
    (_message(type="signal", signal=True), "invalid_request"),
    (_message(type="signal", signal=10**30), "invalid_request"),
    (_message(type="resize"), "invalid_request"),
    (_message(type="resize", rows=0, columns=0), "invalid_request"),
    (_message(type="resize", rows="10", columns=20), "invalid_request"),
    (_message(type="resize", rows=10**30, columns=20), "invalid_request"),
]
