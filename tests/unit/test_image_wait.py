"""A client whose session needs an image that is being built: it waits, and says for what."""

from typing import Any

import pytest

from warren.model.errors import ImageBuilding
from warren.sdk.aio.session_holder import create_session as create_session_async
from warren.sdk.blocking.session_holder import create_session

pytestmark = pytest.mark.anyio
MESSAGE = "the image of this environment is being built; it takes about 3 min"


class Building:
    """A server that builds the image while it is asked three times."""

    def __init__(self) -> None:
        self.asked = 0

    def call(self, operation: str, **values: Any) -> dict[str, Any]:
        self.asked += 1
        if self.asked <= 3:
            raise ImageBuilding(MESSAGE, retry_after_s=0.001, step="pip", fraction=None, about="3 min")
        return {"session_id": "ses_1"}


class AsyncBuilding(Building):
    async def call(self, operation: str, **values: Any) -> dict[str, Any]:  # type: ignore[override]
        return super().call(operation, **values)


async def create(kind: str, **options: Any) -> dict[str, Any]:
    if kind == "async":
        return await create_session_async(AsyncBuilding(), "key", {}, **options)  # type: ignore[arg-type]
    return create_session(Building(), "key", {}, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["blocking", "async"])
async def test_a_program_that_waits_for_an_image_says_so_once(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    assert (await create(kind))["session_id"] == "ses_1"
    [record] = caplog.records
    assert (record.name, record.levelname) == ("warren", "WARNING")
    assert record.getMessage() == f"{MESSAGE}; the first use of the environment waits for it"


@pytest.mark.parametrize("kind", ["blocking", "async"])
async def test_a_program_that_shows_the_progress_itself_logs_nothing(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    steps: list[str] = []
    await create(kind, on_progress=lambda building: steps.append(building.step))
    assert (steps, caplog.records) == (["pip"] * 3, [])
