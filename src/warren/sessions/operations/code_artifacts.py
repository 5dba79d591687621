"""Saves what a request wants of a cell: files when it has ended, and results that are files themselves."""

import base64
import binascii
import time
from typing import Final

from warren.model.artifact import Artifact, LeftOut, SaveResult
from warren.model.code import CodeResult
from warren.model.errors import WarrenError
from warren.sessions.artifact_files import check_paths
from warren.sessions.operations.artifact_saving import save_after, store_bytes
from warren.sessions.operations.call import Call, Values
from warren.sessions.schemas import CodeBody, saved_view

_MIMES: Final = {"png": "image/png", "jpeg": "image/jpeg", "pdf": "application/pdf", "svg": "image/svg+xml"}
_MAX_TOLD: Final = 100
_MAX_SAVED: Final = 200  # results of one cell
_SAVE_S: Final = 60.0  # for all of them together


class CellArtifacts:
    """The constructor raises what is wrong with the request's globs, before the cell runs."""

    def __init__(self, call: Call, body: CodeBody) -> None:
        check_paths(body.save_artifacts)
        self._call = call
        self._globs = body.save_artifacts
        self._wants_results = body.save_results
        self._count = self._saved = 0
        self._seconds = 0.0
        self._artifacts: list[Artifact] = []
        self._left_out: list[LeftOut] = []
        self._left_out_count = 0

    async def take(self, cell_id: str, result: CodeResult) -> None:
        """Saves a result in each of its formats that is a file. They are named after the cell."""
        if not self._wants_results:
            return
        self._count += 1
        for kind, mime in _MIMES.items():
            text = result.get(kind)
            if isinstance(text, str):
                await self._store(f"{cell_id}-{self._count}.{kind}", mime, text, is_text=kind == "svg")

    async def _store(self, name: str, mime: str, text: str, *, is_text: bool) -> None:
        if self._saved == _MAX_SAVED or self._seconds > _SAVE_S:
            much = f"in {_SAVE_S:g} s" if self._saved < _MAX_SAVED else f"of one cell: {_MAX_SAVED}"
            self._leave_out(LeftOut(name, f"there was more than can be saved {much}"))
            return
        self._saved += 1
        began = time.monotonic()
        try:
            await self._save(name, mime, text, is_text=is_text)
        finally:
            self._seconds += time.monotonic() - began

    async def _save(self, name: str, mime: str, text: str, *, is_text: bool) -> None:
        try:
            data = text.encode(errors="replace") if is_text else base64.b64decode(text)
            self._artifacts.append(await store_bytes(self._call, name, mime, data))
        except binascii.Error:
            self._leave_out(LeftOut(name, "it is not base64"))
        except WarrenError as exc:
            self._leave_out(LeftOut(name, str(exc)))

    def _leave_out(self, one: LeftOut) -> None:
        self._left_out_count += 1
        if len(self._left_out) < _MAX_TOLD:
            self._left_out.append(one)

    async def view(self) -> Values:
        """What was saved, once the cell has ended; empty if nothing was asked for."""
        if not self._globs and not self._wants_results:
            return {}
        files = await save_after(self._call, self._globs) if self._globs else SaveResult()
        saved = SaveResult(
            artifacts=(*self._artifacts, *files.artifacts),
            left_out=(*self._left_out, *files.left_out),
            left_out_count=self._left_out_count + files.left_out_count,
        )
        return {"saved": saved_view(saved, self._call.base_url())}
