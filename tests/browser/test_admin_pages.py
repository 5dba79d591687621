"""Machine, usage and administration: what operators see and change, and what others do not see."""

import json
import re

import pytest
from browser.conftest import Visit
from browser.watched_page import WatchedPage
from e2e.api_client import Api
from playwright.async_api import expect
from server_process import ServerProcess

pytestmark = [pytest.mark.anyio, pytest.mark.extended]

HOSTILE = "<img src=x onerror=alert(1)>"


async def open_part(page: WatchedPage, name: str) -> None:
    await page.goto("/ui/admin")
    await page.get("tab", name).click()


async def test_the_machine_is_plotted(page: WatchedPage, api: Api) -> None:
    async with api.session() as session:
        await api.post(f"/api/sessions/{session.id}/exec", {"command": "true"})
        await page.goto("/ui/machine")
        pools = page.get("table", "Pools")
        await expect(pools.get_by_role("row").filter(has_text="base")).to_contain_text(re.compile(r"\d+ of \d+"))
        await expect(page.text("Memory free", exact=True).first).to_be_visible()
        # The server makes a point every ten seconds.
        plot = page.get("img", re.compile("^Commands over")).or_(page.get("img", re.compile("^Requests over")))
        await expect(plot.first).to_be_visible(timeout=40_000)
        await expect(page.get("img", re.compile("^Memory free over"))).to_be_visible()
        await page.get("combobox", "Time").select_option("24h")
        await expect(page.text("Counts are those of 300 seconds")).to_be_visible()


async def test_a_key_is_made_used_and_revoked(page: WatchedPage, visit: Visit) -> None:
    await open_part(page, "Keys")
    await page.get("button", "New key").click()
    form = page.get("dialog", "New key")
    await form.get_by_label("Name", exact=True).fill(HOSTILE)
    await form.get_by_label("Tenant", exact=True).fill("acme")
    await form.get_by_label("Quota").fill("[1]")
    await form.get_by_role("button", name="Make the key").click()
    await expect(form.get_by_role("alert")).to_contain_text("must be a JSON object")
    await form.get_by_label("Quota").fill('{"sessions": 3}')
    await form.get_by_role("button", name="Make the key").click()
    key = await page.get("dialog", "The key").get_by_label("The key").input_value()
    await page.get("button", "Done").click()
    line = page.get("table", "Keys").get_by_role("row").filter(has_text=HOSTILE)
    await expect(line).to_contain_text("sessions 3")

    theirs = await visit(key, "/ui/usage")
    quota = theirs.get("table", "Quotas").get_by_role("row").filter(has_text="sessions").filter(has_text="key")
    await expect(quota).to_contain_text("3")
    await expect(theirs.get("link", "Machine", exact=True)).to_have_count(0)
    await theirs.goto("/ui/admin")
    await expect(theirs.get("tab", "Environments")).to_be_visible()
    await expect(theirs.get("tab", "Keys")).to_have_count(0)
    await theirs.goto("/ui/machine")
    await expect(theirs.get("heading", "Not found")).to_be_visible()

    await line.get_by_role("button", name="Revoke").click()
    await page.get("button", "Revoke it").click()
    await expect(line).to_have_count(0)
    theirs.expected.append("401")
    await theirs.goto("/ui/usage")
    await expect(theirs.get("heading", "Sign in")).to_be_visible()


async def test_tenants_and_their_quotas(page: WatchedPage, api: Api) -> None:
    await open_part(page, "Tenants")
    await page.get("button", "Set something for a tenant").click()
    form = page.get("dialog", "Set something for a tenant")
    await form.get_by_label("Tenant", exact=True).fill("bounded")
    await form.get_by_label("Quota").fill('{"sessions": 2, "no such": 1}')
    await form.get_by_role("button", name="Save").click()
    page.expected.append("4(00|22)")
    await expect(form.get_by_role("alert")).to_contain_text("no such")
    await form.get_by_label("Quota").fill('{"sessions": 2}')
    await form.get_by_role("button", name="Save").click()
    line = page.get("table", "Tenants").get_by_role("row").filter(has_text="bounded")
    await expect(line).to_contain_text("sessions 2")
    await line.get_by_role("button", name="Use").click()
    await expect(page.get("table", "Quotas").get_by_role("row").filter(has_text="sessions").first).to_contain_text("2")
    await line.get_by_role("button", name="Take away").click()
    await page.get("button", "Take it away").click()
    await expect(line).to_have_count(0)
    assert await api.get("/api/admin/tenants") == {"tenants": []}


async def test_webhooks_and_what_is_not_delivered(page: WatchedPage) -> None:
    await open_part(page, "Webhooks")
    await page.get("button", "New webhook").click()
    form = page.get("dialog", "New webhook")
    page.expected.append("4(00|22)")
    await form.get_by_label("Address").fill("ftp://example.com/")
    await form.get_by_role("button", name="Make the webhook").click()
    await expect(form.get_by_role("alert")).to_be_visible()
    await form.get_by_label("Address").fill("https://hooks.invalid/warren")
    await form.get_by_label("Description").fill(HOSTILE)
    await form.get_by_role("button", name="Make the webhook").click()
    await expect(page.get("dialog", "The secret of the webhook")).to_be_visible()
    await page.get("button", "Done").click()
    line = page.get("table", "Webhooks").get_by_role("row").filter(has_text="hooks.invalid")
    await expect(line).to_contain_text(HOSTILE)
    await line.get_by_role("button", name="Test").click()
    await expect(page.text(re.compile("^Not delivered: "))).to_be_visible()
    await line.get_by_role("button", name="Delete").click()
    await page.get("button", "Delete it").click()
    await expect(page.text("There is no webhook.")).to_be_visible()


async def test_environments_registry_and_images(page: WatchedPage) -> None:
    await open_part(page, "Environments")
    base = page.get("table", "Environments").get_by_role("row").filter(has_text=re.compile("^base default"))
    await expect(base).to_contain_text("ready")
    await page.get("tab", "Registry").click()
    await page.get("table", "environments").get_by_role("button", name="base", exact=True).click()
    await expect(page.get("dialog", "base").get_by_text('image: "base"')).to_be_visible()
    await page.raw.keyboard.press("Escape")
    await page.get("tab", "Images").click()
    await expect(page.get("table", "Images").get_by_role("row").filter(has_text="base").first).to_contain_text("MiB")
    await page.field("Image to build").fill("no-such-image")
    page.expected.append("4(00|04|22)")
    await page.get("button", "Build", exact=True).click()
    await expect(page.get("status", "").filter(has_text="no-such-image")).to_be_visible()


async def test_the_record_is_searched(page: WatchedPage, api: Api) -> None:
    async with api.session(metadata={"note": HOSTILE}) as session:
        await api.post(f"/api/sessions/{session.id}/exec", {"command": f"echo '{HOSTILE}'\n: \u202ehidden"})
        await open_part(page, "Audit record")
        await page.field("Session").fill(session.id)
        await page.field("Action").fill("run_command")
        await page.get("button", "Search").click()
        line = page.get("table", "Audit record").get_by_role("row").filter(has_text="run_command")
        await expect(line).to_have_count(1)
        await expect(line).to_contain_text("ok")
        await expect(line.locator("pre")).to_have_text(f"echo '{HOSTILE}'\n: \\u202ehidden")


async def test_the_doctor_reports(page: WatchedPage, server: ServerProcess) -> None:
    probe = {"id": "escape-x", "group": "escape", "tries": HOSTILE, "verdict": "contained", "evidence": "EPERM"}
    counts = {"summary": "1 of 1 contained", "counts": {"contained": 1}, "seconds": 1.5}
    report = {"at": 1_790_000_000.0, **counts, "probes": [probe]}
    (server.state_dir / "attack-report.json").write_text(json.dumps(report))
    await open_part(page, "Doctor")
    check = page.get("table", "Checks").get_by_role("row").filter(has_text="cgroup")
    await expect(check.first).to_be_visible(timeout=90_000)
    await expect(page.text("1 of 1 contained")).to_be_visible()
    await expect(page.get("table", "Probes").get_by_role("row").filter(has_text="escape-x")).to_contain_text(HOSTILE)
