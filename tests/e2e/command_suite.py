"""Commands over HTTP: POST /exec to its end. CommandSuite keeps to what the fake's shell knows."""

import asyncio
import base64

import pytest
from e2e.api_client import Api, SessionApi, until
from e2e.once_suite import cut_off


@pytest.mark.anyio
class CommandSuite:
    @pytest.mark.parametrize(
        ("line", "code"), [("true", 0), ("false", 1), ("exit 7", 7), ("exit 255", 255), ("no-such-program", 127)]
    )
    async def test_the_exit_code_is_the_commands(self, session: SessionApi, line: str, code: int) -> None:
        result = await session.exec(line)
        assert (result["exit_code"], result["reason"], result["signal"]) == (code, "exited", None)

    @pytest.mark.parametrize(
        ("place", "headers"),
        [
            ("/api/sessions//exec", {}),
            ("/api/sessions/{id}/exec", {"Idempotency-Key": "k" * 256}),
            ("/api/sessions/{id}/exec", {"Content-Type": "multipart/form-data; boundary=x"}),
        ],
    )
    async def test_the_short_way_answers_like_the_long_one(
        self, session: SessionApi, api: Api, place: str, headers: dict[str, str]
    ) -> None:
        async def asked(**params: str) -> tuple[int, bytes]:
            where, data = place.replace("{id}", session.id), b'{"command": "true"}'
            async with api.ask("POST", where, data=data, headers=headers, **params) as answer:
                return answer.status, await answer.read()

        assert await asked() == await asked(any="parameter")

    async def test_a_signal_is_told(self, session: SessionApi) -> None:
        result = await session.exec("kill -9 $$")
        assert (result["exit_code"], result["reason"], result["signal"]) == (137, "signal", 9)

    async def test_a_program_gets_its_arguments_as_they_are(self, session: SessionApi) -> None:
        assert await session.output(["echo", "a  b", "$HOME", ";", "é\n"]) == "a  b $HOME ; é\n\n"

    async def test_both_streams_are_apart_and_together(self, session: SessionApi) -> None:
        result = await session.exec("echo one; echo two >&2; echo three")
        assert (result["stdout"], result["stderr"]) == ("one\nthree\n", "two\n")
        assert sorted(result["output"].split()) == ["one", "three", "two"]
        assert result["bytes_total"] == len("one\ntwo\nthree\n")

    async def test_directory_and_variables_of_one_command(self, session: SessionApi) -> None:
        assert await session.output("pwd") == "/workspace\n"
        assert await session.output("pwd; printenv A", cwd="/tmp", env={"A": "ü b"}) == "/tmp\nü b\n"
        assert (await session.exec("printenv A"))["exit_code"] == 1

    async def test_a_directory_that_is_not_there_is_an_error(self, session: SessionApi) -> None:
        body = {"command": "pwd", "cwd": "/no/such"}
        refused = await session.refused("POST", "/exec", body, status=422, code="invalid_path")
        assert "/no/such" in refused["detail"]

    async def test_directory_and_exports_last_if_they_are_to(self, session: SessionApi) -> None:
        await session.exec("cd /tmp; export GREETING='hello there'")
        assert await session.output("pwd; printenv GREETING") == "/tmp\nhello there\n"
        assert await session.output("pwd", carry_state=False) == "/workspace\n"
        await session.exec("cd /; export GREETING=bye", carry_state=False)
        assert await session.output("pwd; printenv GREETING") == "/tmp\nhello there\n"

    async def test_a_user_that_is_not_there_is_an_error(self, session: SessionApi) -> None:
        assert await session.output("whoami") == "sandboxuser\n"
        body = {"command": "true", "user": "nobody-knows"}
        await session.refused("POST", "/exec", body, status=422, code="unknown_user")

    async def test_text_and_bytes_reach_stdin(self, session: SessionApi) -> None:
        assert await session.output("cat", stdin="žluťoučký 🐎\n") == "žluťoučký 🐎\n"
        data = bytes(range(256)) * 300
        assert await session.output("wc -c", stdin_base64=base64.b64encode(data).decode()) == f"{len(data)}\n"
        assert await session.output("cat") == ""

    async def test_stdin_given_twice_or_badly_is_refused(self, session: SessionApi) -> None:
        for extra in ({"stdin": "a", "stdin_base64": "YQ=="}, {"stdin_base64": "%%%"}):
            await session.refused("POST", "/exec", {"command": "cat", **extra}, status=422, code="invalid_request")

    async def test_a_time_out_is_a_result_and_counts_what_it_killed(self, session: SessionApi) -> None:
        result = await session.exec("echo begun; sleep 100 & sleep 100", timeout_s=0.5)
        assert result["reason"] == "timeout"
        assert result["stdout"] == "begun\n"
        assert result["killed"] >= 2
        assert result["survivors"] == 0
        assert result["duration_ms"] < 60_000

    async def test_a_time_out_that_is_too_long_is_refused(self, session: SessionApi) -> None:
        for timeout_s in (-1, 10**8):
            body = {"command": "true", "timeout_s": timeout_s}
            await session.refused("POST", "/exec", body, status=422, code="invalid_request")

    async def test_a_file_can_be_the_input(self, session: SessionApi) -> None:
        await session.exec("echo 123 > numbers; mkdir folder")
        assert (await session.exec("cat", stdin_path="numbers"))["output"] == "123\n"
        for body, status, code in (
            ({"stdin_path": "nothing"}, 404, "file_not_found"),
            ({"stdin_path": "folder"}, 400, "is_directory"),
            ({"stdin_path": "numbers", "stdin": "4"}, 422, "invalid_request"),
        ):
            await session.refused("POST", "/exec", {"command": "cat", **body}, status=status, code=code)
        key = {"Idempotency-Key": "k"}
        body = {"command": "cat", "stdin_path": "numbers"}
        await session.refused("POST", "/exec", body, status=422, code="invalid_request", headers=key)

    async def test_more_output_than_is_kept_is_told(self, session: SessionApi) -> None:
        result = await session.exec("echo head; head -c 100000 /dev/zero; echo tail", keep_bytes=1000)
        assert result["truncated"] is True
        assert result["bytes_total"] == 100_010
        assert result["output"].startswith("head\n\0")
        assert result["output"].endswith("\0tail\n")
        assert "bytes not kept" in result["output"]
        assert len(result["output"]) < 1200

    async def test_bytes_that_are_no_text_are_replaced(self, session: SessionApi) -> None:
        result = await session.exec(r"printf 'a\xff\xfeb'")
        assert result["output"] == "a\ufffd\ufffdb"
        assert result["bytes_total"] == 4
        assert base64.b64decode(result["stdout_base64"]) == b"a\xff\xfeb"
        again = [await session.exec(r"printf 'a\xff'", headers={"Idempotency-Key": "k"}) for _ in range(2)]
        assert [base64.b64decode(each["stdout_base64"]) for each in again] == [b"a\xff"] * 2

    async def test_unicode_comes_back_as_it_was(self, session: SessionApi) -> None:
        words = "žluťoučký 🐎 日本語 \u200f‏"
        assert await session.output(["echo", words]) == f"{words}\n"

    async def test_commands_do_not_wait_for_each_other(self, session: SessionApi) -> None:
        slow = asyncio.ensure_future(session.exec("sleep 100"))
        await asyncio.sleep(0.3)
        assert [await session.output(f"echo {number}") for number in range(5)] == [f"{n}\n" for n in range(5)]
        assert not slow.done()
        slow.cancel()
        await asyncio.gather(slow, return_exceptions=True)

    async def test_fifty_commands_at_once_all_answer(self, session: SessionApi) -> None:
        found = await asyncio.gather(*(session.output(f"echo {number}") for number in range(50)))
        assert found == [f"{number}\n" for number in range(50)]

    async def test_a_process_left_in_the_background_does_not_delay_the_result(self, session: SessionApi) -> None:
        result = await session.exec("sleep 30 & echo done")
        assert result["stdout"] == "done\n"
        assert result["background"] == 1
        assert result["duration_ms"] < 20_000

    async def test_an_empty_command_is_refused(self, session: SessionApi) -> None:
        for command in ("", [], [""], "a\0b"):
            await session.refused("POST", "/exec", {"command": command}, status=422, code="invalid_request")


@pytest.mark.anyio
class LinuxCommandSuite:
    """What needs real processes to be seen."""

    async def test_a_time_out_ends_the_whole_tree(self, session: SessionApi) -> None:
        line = "(setsid sleep 1001 &) ; (nohup sh -c 'sleep 1001 & wait' >/dev/null 2>&1 &); sleep 1001"
        result = await session.exec(line, timeout_s=1)
        assert (result["reason"], result["survivors"]) == ("timeout", 0)
        assert result["killed"] >= 4
        assert await sleepers(session) == 0

    async def test_a_client_that_goes_away_ends_its_command(self, session: SessionApi) -> None:
        request_context = asyncio.ensure_future(session.exec("sh -c 'sleep 1002 & sleep 1002'; true"))
        await until(lambda: at_least(session, 2))
        await cut_off(request_context, 0.3)
        await until(lambda: none_sleep(session))
        await until(lambda: nothing_runs(session))  # the agent reaps the last process a moment after it has died

    async def test_a_client_that_goes_away_at_once_ends_its_command(self, session: SessionApi) -> None:
        for after_s in (0.0, 0.002, 0.01, 0.05, 0.2):
            await cut_off(asyncio.ensure_future(session.exec("sleep 1003")), after_s)
        await until(lambda: none_sleep(session))

    async def test_running_out_of_memory_is_told_and_survived(self, api: Api) -> None:
        async with api.session(limits={"memory_mb": 64}) as session:
            assert (await session.exec("head -c 200m /dev/zero | tail"))["reason"] == "oom"
            assert await session.output("echo alive") == "alive\n"

    async def test_everything_between_head_and_tail_is_counted(self, session: SessionApi) -> None:
        result = await session.exec("seq 1000000", keep_bytes=300)
        assert result["bytes_total"] == 6_888_896
        assert result["output"].startswith("1\n2\n3\n")
        assert result["output"].endswith("999999\n1000000\n")

    async def test_as_much_output_as_is_kept_by_default_comes_whole(self, session: SessionApi) -> None:
        result = await session.exec("head -c 10000000 /dev/zero | tr '\\0' x")
        assert result["truncated"] is False
        assert result["stdout"] == "x" * 10_000_000

    async def test_a_character_written_in_two_pieces_comes_out_whole(self, session: SessionApi) -> None:
        line = r"printf '\xc3'; sleep 0.2; echo >&2 between; printf '\xa9'"
        assert (await session.exec(line))["stdout"] == "é"


@pytest.mark.anyio
class UserSuite:
    """Where sandboxes have a user namespace, and so more users than one."""

    async def test_another_user_of_the_sandbox_may_run_it(self, session: SessionApi) -> None:
        assert await session.output("whoami; id -u", user="daemon") == "daemon\n1\n"
        assert await session.output("id -u") == "1000\n"

    async def test_files_of_another_user_stay_theirs(self, session: SessionApi) -> None:
        await session.write("/tmp/theirs", b"secret", mode="0600", user="daemon")
        await session.refused("GET", "/files/content", path="/tmp/theirs", status=403, code="permission_denied")
        assert await session.read("/tmp/theirs", user="daemon") == b"secret"


async def sleepers(session: SessionApi) -> int:
    return int(await session.output("cat /proc/[0-9]*/comm 2>/dev/null | grep -cx sleep; true", carry_state=False))


async def none_sleep(session: SessionApi) -> bool:
    return await sleepers(session) == 0


async def nothing_runs(session: SessionApi) -> bool:
    return not [one for one in (await session.get("/processes"))["processes"] if one["running"]]


async def at_least(session: SessionApi, count: int) -> bool:
    return await sleepers(session) >= count
