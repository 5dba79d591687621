"""Secrets of a tenant: set, shown without their values, used by sessions, changed and deleted while those run."""

from typing import Any

import pytest
from e2e.api_client import Api, SessionApi, until
from e2e.session_suite import unique

VALUE = "a-value-nobody-sees"


async def put(api: Api, name: str, **more: Any) -> dict[str, Any]:
    body = {"value": VALUE, "hosts": ["api.example.com"], "header": "X-Key", **more}
    found: dict[str, Any] = await api.call("PUT", f"/api/secrets/{name}", body)
    return found


async def knows(session: SessionApi, name: str) -> bool:
    return bool((await session.exec(f"getent hosts {name}"))["exit_code"] == 0)


@pytest.mark.anyio
class SecretSuite:
    async def test_a_secret_is_shown_without_its_value(self, api: Api) -> None:
        name = unique()
        made = await put(api, name, hosts=["API.example.com", "b.example.com"], format="v {}", expires_in_s=60)
        assert made["hosts"] == ["api.example.com", "b.example.com"]
        assert (made["header"], made["query"], made["format"], made["kind"]) == ("X-Key", None, "v {}", None)
        assert await api.get(f"/api/secrets/{name}") == made
        assert made in (await api.get("/api/secrets"))["secrets"]
        assert VALUE not in str(made)
        await api.call("DELETE", f"/api/secrets/{name}", status=204)
        await api.call("GET", f"/api/secrets/{name}", status=404)
        await api.call("DELETE", f"/api/secrets/{name}", status=404)

    @pytest.mark.parametrize(
        "wrong",
        [
            {"value": "short"}, {"value": "with\nnewline"}, {"value": "x" * 8193}, {"value": "schlüssel-lang"},
            {"hosts": []}, {"hosts": ["*.example.com"]}, {"hosts": ["10.0.0.1"]}, {"hosts": ["169.254.169.254"]},
            {"hosts": ["2130706433"]}, {"hosts": ["0x7f.1"]}, {"hosts": ["[::1]"]}, {"hosts": ["localhost"]},
            {"hosts": ["a.example.com:443"]}, {"hosts": ["https://a.example.com"]}, {"hosts": ["a.broker.internal"]},
            {"hosts": ["a b.example"]}, {"hosts": ["a@b.example"]}, {"hosts": ["a\x00.example"]},
            {"header": "X Key"}, {"header": "X-Key:"}, {"header": "Host"}, {"header": "content-length"},
            {"header": "Transfer-Encoding"}, {"header": "Connection"}, {"header": "Proxy-Authorization"},
            {"header": "X-Key\r\nX-Other"}, {"header": "", "query": ""}, {"header": "X-Key", "query": "key"},
            {"header": "", "query": "a&b"}, {"format": "no place"}, {"format": "{} {}"}, {"format": "{x}"},
            {"format": "{}\r\n"}, {"kind": "nothing"}, {"path": "v1"}, {"path": "/a b"}, {"expires_in_s": 0},
        ],
        ids=repr,
    )  # fmt: skip
    async def test_what_cannot_be_a_secret_is_refused_and_not_repeated(self, api: Api, wrong: dict[str, Any]) -> None:
        body = {"value": VALUE, "hosts": ["api.example.com"], "header": "X-Key", **wrong}
        problem = await api.call("PUT", "/api/secrets/wrong", body, status=422)
        assert VALUE not in str(problem)
        assert str(wrong.get("value", VALUE)) not in str(problem)

    @pytest.mark.parametrize("name", ["Upper", "a_b", "-a", "a-", "a.b", "x" * 41, "%2e%2e"])
    async def test_a_name_is_a_label_of_a_host(self, api: Api, name: str) -> None:
        body = {"value": VALUE, "hosts": ["api.example.com"], "header": "X-Key"}
        await api.call("PUT", f"/api/secrets/{name}", body, status=422)

    async def test_a_session_cannot_have_a_secret_that_is_not_there(self, api: Api) -> None:
        problem = await api.call("POST", "/api/sessions", {"secrets": ["nobody-set-it"]}, status=422)
        assert "nobody-set-it" in str(problem)

    async def test_running_sessions_follow_when_a_secret_is_changed_or_deleted(self, api: Api) -> None:
        name = unique()
        await put(api, name, kind="openai", header="")
        async with api.session(secrets=[name]) as session:
            assert session.found["secrets"] == [name]
            assert "OPENAI_API_KEY" in session.found["env_names"]
            inside = f"{name}.broker.internal"
            shown = await session.exec("echo $OPENAI_BASE_URL; test -s $SSL_CERT_FILE; env | grep -c 'value-nobody'")
            assert shown["stdout"].split() == [f"http://{inside}/v1", "0"]
            assert await knows(session, inside)
            assert await knows(session, "api.example.com")
            assert not await knows(session, "other.example.com")
            await put(api, name, hosts=["other.example.com"])

            async def is_changed() -> bool:
                return await knows(session, "other.example.com") and not await knows(session, "api.example.com")

            await until(is_changed)
            await api.call("DELETE", f"/api/secrets/{name}", status=204)

            async def is_gone() -> bool:
                return not await knows(session, inside) and not await knows(session, "other.example.com")

            await until(is_gone)
