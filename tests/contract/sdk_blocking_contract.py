"""What every SandboxClient does, whether it talks to a server or works on this machine: sessions and commands.

`new` makes clients with the options of the place that is tested.
"""

# Made from tests/contract/sdk_async_contract.py by scripts/generate_sync.py: edit that one.

import contextlib
import hashlib
import platform
from collections.abc import Callable
from functools import partial

import pytest

from warren.model.errors import (
    FileNotFound,
    InvalidRequest,
    KeyReused,
    ProcessNotFound,
    SessionEnded,
    SessionMismatch,
    SessionNotFound,
    SessionPaused,
    UnknownEnvironment,
    WarrenError,
)
from warren.model.network import NetworkRules
from warren.sdk.blocking.batch import BatchSandboxClient
from warren.sdk.blocking.client import SandboxClient
from warren.sdk.blocking.platform import run_parallel
from warren.sdk.results import ExecuteResult

New = Callable[..., SandboxClient]
NewBatch = Callable[..., BatchSandboxClient]


class SessionContract:
    def test_making_a_client_makes_no_session(self, new: New) -> None:
        client = new()
        assert client.session_id == ""
        assert "without a session" in repr(client)
        client.cleanup()
        client.close()

    def test_create_session_says_what_it_made(self, new: New) -> None:
        with new(metadata={"who": "me"}, idle_timeout_s=100) as client:
            info = client.create_session()
            assert info.session_id == client.session_id
            assert (info.state, info.user, info.workspace) == ("running", "sandboxuser", "/workspace")
            assert info["metadata"] == {"who": "me"}
            assert info.idle_timeout_s == 100
            assert client.session_id in repr(client)

    def test_the_first_create_session_says_that_it_is_new(self, new: New) -> None:
        client = new()
        try:
            assert (client.create_session()).created is True
        finally:
            client.leave()

    def test_a_log_is_read_while_the_session_runs_and_after_its_end(self, new: New) -> None:
        client = new(logs="output")
        assert list(client.logs()) == []
        assert client.session_id == ""
        with client:
            client.execute("echo hello")
            begun, output, ended = list(client.logs())
            assert (begun.event, begun.command, output.text, ended.exit_code) == ("started", "echo hello", "hello\n", 0)
            assert [entry.id for entry in client.logs(last=1)] == [3]
            assert [entry.id for entry in client.logs(kinds=["command"], after=1)] == [3]
            seen = []
            for entry in client.logs(follow=True):
                seen.append(entry.id)
                if entry.id == 3:
                    client.cleanup()
            assert seen == [1, 2, 3]
            assert list(client.logs()) == [begun, output, ended]
            client.delete_logs()
            assert list(client.logs()) == []

    def test_a_log_is_deleted_with_its_session(self, new: New) -> None:
        with new(logs="commands") as client:
            client.execute("true")
            client.cleanup(logs=True)
            assert list(client.logs()) == []

    def test_info_tells_the_isolation_in_force(self, new: New) -> None:
        with new() as client:
            info = client.info()
            assert info.isolation is not None
            assert info.env_names == []

    def test_a_machine_with_the_labels_that_are_asked_for_is_found(self, new: New) -> None:
        with new(labels={"arch": platform.machine()}) as client:
            assert (client.info()).state == "running"

    def test_a_provider_of_the_server_can_be_asked_for_and_no_other(self, new: New) -> None:
        with new() as client:
            provider = (client.info()).provider or ""
        with new(provider=provider) as client:
            assert (client.info()).provider == provider
        with pytest.raises(InvalidRequest, match="no provider 'e2b'"), new(provider="e2b"):
            pass

    def test_labels_that_no_machine_has_are_refused_in_words(self, new: New) -> None:
        with pytest.raises(InvalidRequest, match="label gpu=no such"), new(labels={"gpu": "no such"}):
            pass

    def test_keep_alive_and_change_answer_with_the_session(self, new: New) -> None:
        with new() as client:
            assert (client.keep_alive()).session_id == client.session_id
            changed = client.change(idle_timeout_s=77, metadata={"a": "b"})
            assert (changed.idle_timeout_s, changed.metadata) == (77, {"a": "b"})

    def test_a_paused_session_is_resumed_by_the_caller_or_by_its_next_use(self, new: New) -> None:
        with new(on_idle="pause", max_paused_s=3600, auto_resume=False) as client:
            client.execute("echo kept > file")
            found = client.info()
            assert (found.on_idle, found.max_paused_s, found.auto_resume) == ("pause", 3600, False)
            paused = client.pause()
            assert (paused.state, paused.paused_at is not None) == ("paused", True)
            with pytest.raises(SessionPaused):
                client.execute("cat file")
            assert (client.resume()).state == "running"
            assert (client.pause(max_paused_s=60, auto_resume=True)).max_paused_s == 60
            assert (client.execute("cat file")).output == "kept\n"

    def test_many_first_uses_at_once_make_one_session(self, new: New) -> None:
        client = new()
        try:
            results = run_parallel([partial(client.execute, f"echo {number}") for number in range(5)], 5)
            assert [result.output for result in results] == [f"{number}\n" for number in range(5)]
            assert len(client.session_id) > 10
        finally:
            client.leave()

    def test_leaving_ends_a_session_without_a_thread(self, new: New) -> None:
        with new() as client:
            session_id = client.session_id
        with new() as watcher:
            found = watcher._backend.call("get_session", session_id)
            assert (found["state"], found["reason"]) == ("ended", "deleted")

    def test_an_error_in_the_block_is_what_the_caller_hears(self, new: New) -> None:
        with pytest.raises(ZeroDivisionError), new():
            raise ZeroDivisionError

    def test_a_threads_session_stays_for_the_next_turn(self, new: New) -> None:
        with new(thread_id="turns") as client:
            first = client.session_id
            client.write_file("note.txt", "kept")
        with new(thread_id="turns") as client:
            assert client.session_id == first
            assert client.read_file("note.txt") == b"kept"
            client.cleanup()

    def test_a_thread_with_another_session_is_told_so_kept_or_replaced(self, new: New) -> None:
        asked = {"thread_id": "other wishes", "limits": {"pids": 77}}
        with new(thread_id="other wishes") as client:
            first = client.create_session()
            assert first.limits is not None
            differs = {"limits.pids": {"has": first.limits["pids"], "asked": 77}}
        with pytest.raises(SessionMismatch, match="77 was asked for") as caught, new(**asked):
            pass
        assert caught.value.mismatch == differs
        with new(**asked, on_mismatch="keep") as client:
            assert client.session_id == first.session_id
            assert "77 was asked for" in ((client.execute("true")).notice or "")
            assert (client.execute("true")).notice is None
        client = new(**asked, on_mismatch="keep")
        assert (client.create_session()).mismatch == differs
        client.close()
        with new(**asked, on_mismatch="replace") as client:
            assert client.session_id != first.session_id
            assert "replaced" in ((client.execute("true")).notice or "")
            client.cleanup()

    def test_delete_thread_says_whether_there_was_a_session(self, new: New) -> None:
        with new(thread_id="to be deleted") as client:
            assert SandboxClient.delete_thread("to be deleted", backend=client._backend) is True
            assert SandboxClient.delete_thread("to be deleted", backend=client._backend) is False

    def test_what_a_session_can_be_made_of_is_listed_and_its_limits_are_shown(self, new: New) -> None:
        with new() as client:
            environments = SandboxClient.list_environments(backend=client._backend)
            (base,) = [one for one in environments if one.name == "base"]
            assert {"memory_mb", "cpus", "pids", "disk_mb", "open_files"} == set(base.limits)
            assert (client.info()).limits == base.limits
            images = SandboxClient.list_images(backend=client._backend)
            assert all(one.version and one.size_bytes for one in images)

    def test_sessions_are_listed_by_state_thread_environment_and_metadata(self, new: New) -> None:
        with new(metadata={"kind": "a", "odd": "x=y&z"}) as one, new(thread_id="listed") as two:
            there = partial(SandboxClient.list_sessions, backend=one._backend)
            assert {one.session_id, two.session_id} <= {info.session_id for info in there()}
            assert [info.session_id for info in there(metadata={"kind": "a", "odd": "x=y&z"})] == [one.session_id]
            assert [info.session_id for info in there(thread_id="listed")] == [two.session_id]
            assert there(environment="another") == []
            assert one.session_id in {info.session_id for info in there(states=["running", "lost"])}
            two.cleanup()
            assert there(thread_id="listed") == []
            ended = (there(states=["ended"], thread_id="listed"))[0]
            assert ended.thread_id == "listed"
            assert (ended.state, type(ended.state)) == ("ended", str)
            with pytest.raises(InvalidRequest, match="running"):
                there(states=["asleep"])

    def test_cleanup_of_a_thread_that_this_client_has_not_used_ends_its_session(self, new: New) -> None:
        with new(thread_id="cleaned") as client:
            first = client.session_id
        other = new(thread_id="cleaned")
        other.cleanup()
        assert (other._backend.call("get_session", first))["state"] == "ended"
        other.close()

    def test_a_thread_whose_session_has_ended_goes_on_in_a_fresh_one_and_says_so_once(self, new: New) -> None:
        with new(thread_id="goes on") as client:
            first = client.session_id
            client.write_file("old.txt", "old")
            client._backend.call("delete_session", first)
            result = client.execute("ls old.txt")
            assert result.exit_code != 0
            assert "fresh sandbox" in (result.notice or "")
            assert client.session_id != first
            assert (client.execute("true")).notice is None
            client.cleanup()

    def test_every_kind_of_use_goes_on_in_a_fresh_session(self, new: New) -> None:
        with new(thread_id="each use goes on") as client:
            client._backend.call("delete_session", client.session_id)
            assert client.list_files() == []
            client._backend.call("delete_session", client.session_id)
            assert [chunk.text for chunk in client.stream("echo on")] == ["on\n"]
            client._backend.call("delete_session", client.session_id)
            with pytest.raises(FileNotFound):
                client.read_file("nothing")
            client.cleanup()

    def test_a_session_that_has_ended_is_an_error_without_a_thread(self, new: New) -> None:
        with new() as client:
            client._backend.call("delete_session", client.session_id)
            with pytest.raises(SessionEnded):
                client.execute("true")

    def test_attaching_finds_a_session_and_leaves_it_there(self, new: New) -> None:
        with new() as owner:
            with new(session_id=owner.session_id) as guest:
                guest.write_file("by guest", "1")
            assert owner.read_text("by guest") == "1"

    def test_what_an_attached_client_has_ended_is_not_made_anew(self, new: New) -> None:
        with new() as owner, new(session_id=owner.session_id) as guest:
            guest.cleanup()
            with pytest.raises(SessionNotFound, match="ended by this client"):
                guest.execute("true")

    def test_a_session_that_never_was_is_not_found(self, new: New) -> None:
        with new(session_id="ses_never") as client, pytest.raises(SessionNotFound, match="ses_never"):
            client.execute("true")

    def test_an_unknown_environment_is_told_at_once(self, new: New) -> None:
        with pytest.raises(UnknownEnvironment), new(environment="no such"):
            pass

    def test_cleaning_up_twice_is_fine(self, new: New) -> None:
        with new() as client:
            client.cleanup()
            client.cleanup()

    def test_a_client_that_was_closed_can_be_used_again(self, new: New) -> None:
        with new(thread_id="again") as client:
            client.close()
            assert (client.execute("echo back")).output == "back\n"
            client.cleanup()


class CommandContract:
    def test_a_result_is_read_like_an_object_and_like_a_dictionary(self, new: New) -> None:
        with new() as client:
            result = client.execute("echo out; echo err >&2; exit 3")
        assert (result.exit_code, result.stdout, result.stderr) == (3, "out\n", "err\n")
        assert (result["exit_code"], result["stdout"]) == (3, "out\n")
        assert result.get("reason") == result.reason == "exited"
        assert type(result.reason) is str
        assert not result.ok
        assert "output" in result
        assert dict(result)["exit_code"] == 3
        assert result.get("nothing", 7) == 7
        with pytest.raises(KeyError):
            result["nothing"]

    def test_a_line_begins_where_the_last_one_ended(self, new: New) -> None:
        with new() as client:
            client.execute("cd /tmp && export COLOUR=red")
            assert (client.execute("echo $COLOUR in $PWD")).output == "red in /tmp\n"

    def test_arguments_directory_environment_and_input_are_passed_on(self, new: New) -> None:
        with new(env={"A": "1"}) as client:
            assert (client.execute(["echo", "two words", "$A"])).output == "two words $A\n"
            assert (client.execute("echo $A $B", env={"B": "2"})).output == "1 2\n"
            assert (client.execute("pwd", cwd="/tmp", carry_state=False)).output == "/tmp\n"
            assert (client.execute("cat", stdin="four")).output == "four"

    def test_a_time_out_is_a_result(self, new: New) -> None:
        with new() as client:
            result = client.execute("sleep 60", timeout=0.2)
            assert (result.reason, result.ok) == ("timeout", False)

    def test_the_clients_time_out_counts_when_none_is_given(self, new: New) -> None:
        with new(timeout=0.2) as client:
            assert (client.execute("sleep 60")).reason == "timeout"

    def test_a_command_with_exactly_once_gives_the_same_result(self, new: New) -> None:
        with new(exactly_once=True) as client:
            assert (client.execute("echo once")).output == "once\n"

    def test_the_same_key_does_not_run_twice(self, new: New) -> None:
        with new() as client:
            first = client._backend.call(
                "run_command", client.session_id, key="key-1", work_s=9, command="echo >> n; wc -l < n"
            )
            again = client._backend.call(
                "run_command", client.session_id, key="key-1", work_s=9, command="echo >> n; wc -l < n"
            )
            assert first["output"] == again["output"]
            with pytest.raises(KeyReused):
                client._backend.call("run_command", client.session_id, key="key-1", work_s=9, command="other")

    def test_a_command_that_cannot_be_is_refused(self, new: New) -> None:
        with new() as client:
            with pytest.raises(InvalidRequest):
                client.execute("")
            with pytest.raises(InvalidRequest):
                client.execute("true", timeout=-1)

    def test_a_stream_gives_output_as_it_comes_and_the_result(self, new: New) -> None:
        results: list[ExecuteResult] = []
        with new() as client:
            stream = client.stream("echo a; echo b >&2; exit 4", on_result=results.append)
            chunks = [chunk for chunk in stream if chunk.data]
        assert "".join(str(chunk) for chunk in chunks if chunk.stream == "stdout") == "a\n"
        assert b"".join(chunk["data"] for chunk in chunks if chunk.stream == "stderr") == b"b\n"
        assert [result.exit_code for result in results] == [4]

    def test_a_stream_gives_every_byte_and_text_that_is_whole(self, new: New) -> None:
        line = r"printf 'a\303'; sleep 0.3; printf '\244\377b'; sleep 0.3; printf '\303'"
        with new() as client:
            chunks = list(client.stream(line))
            process = client.spawn(line)
            process.wait(30)
            followed = list(process.follow())
            assert process.output_bytes() == b"a\xc3\xa4\xffb\xc3"
            assert process.output() == "aä\ufffdb\ufffd"
        for found in (chunks, followed):
            assert b"".join(chunk.data for chunk in found) == b"a\xc3\xa4\xffb\xc3"
            assert "".join(chunk.text for chunk in found) == "aä\ufffdb\ufffd"
        assert chunks[-1].next_offset == 6

    def test_standard_input_is_passed_on_byte_by_byte(self, new: New) -> None:
        data = bytes(range(256)) * 300
        with new() as client:
            result = client.execute("cat > in", stdin=data)
            assert result.ok
            assert client.read_file("in") == data
            assert (client.execute(["od", "-An", "-tx1"], stdin="ä\udcff")).output == " c3 a4 ff\n"
            chunks = list(client.stream("cat", stdin=data))
            assert b"".join(chunk.data for chunk in chunks) == data

    def test_input_of_any_length_is_passed_on(self, new: New) -> None:
        data = bytes(range(256)) * (5 * 4096)
        pieces = [data[start : start + 1000_000] for start in range(0, len(data), 1000_000)]
        with new() as client:
            for stdin in (data, iter(pieces), data.decode("latin-1")):
                sent = stdin.encode() if isinstance(stdin, str) else data
                result = client.execute(["sha256sum"], stdin=stdin)
                assert result.stdout.split()[0] == hashlib.sha256(sent).hexdigest()
            size = sum([len(chunk.data) for chunk in client.stream("cat", stdin=data)])
            assert size == len(data)
            assert (client.execute("ls -A /tmp | grep input", stdin=b"")).output == ""

    def test_bytes_that_are_no_text_can_be_had(self, new: New) -> None:
        with new() as client:
            result = client.execute("printf 'a\\377b'; printf '\\303\\244' >&2")
            assert (result.stdout, result.stdout_bytes) == ("a\ufffdb", b"a\xffb")
            assert (result.stderr, result.stderr_bytes) == ("ä", "ä".encode())
            data = bytes(range(256)) * 1000
            client.write_file("all", data)
            assert (client.execute("cat all")).stdout_bytes == data

    def test_a_time_out_of_zero_is_none(self, new: New) -> None:
        with new(timeout=0.3) as client:
            assert (client.execute("sleep 0.6; echo late", 0)).output == "late\n"
            assert (client.execute("sleep 30")).reason == "timeout"
            process = client.spawn("sleep 0.6; echo late", timeout=0)
            assert (process.wait()).output == "late\n"

    def test_leaving_the_loop_of_a_stream_ends_the_command(self, new: New) -> None:
        with new() as client:
            for chunk in client.stream("while echo on; do sleep 0.05; done"):
                assert chunk.data.startswith(b"on")
                break
            for _ in range(100):
                if not any(process.running for process in client.processes()):
                    break
                client.execute(["sleep", "0.1"])
            assert not any(process.running for process in client.processes())

    def test_closing_a_stream_ends_the_command_at_once(self, new: New) -> None:
        with new() as client:
            with contextlib.closing(client.stream("while echo on; do sleep 0.05; done")) as chunks:
                assert str(next(chunks)).startswith("on")
            assert (client.execute("echo fine")).output == "fine\n"

    def test_a_stream_of_a_session_that_is_gone_raises(self, new: New) -> None:
        with new(session_id="ses_never") as client, pytest.raises(SessionNotFound):
            for _ in client.stream("true"):
                pass

    def test_a_background_command_can_be_followed_fed_and_waited_for(self, new: New) -> None:
        with new() as client:
            process = client.spawn("cat; echo done; exit 5", name="fed")
            assert process.id == "fed"
            assert "fed" in repr(process)
            process.write("ping\n")
            process.close_stdin()
            result = process.wait(30)
            assert (result.exit_code, result.output) == (5, "ping\ndone\n")
            assert process.output() == "ping\ndone\n"
            assert process.output(5) == "done\n"
            assert "".join([str(chunk) for chunk in process.follow()]) == "ping\ndone\n"

    def test_a_background_command_is_listed_found_again_and_forgotten(self, new: New) -> None:
        with new() as client:
            client.spawn("sleep 60", name="sleeper")
            [info] = client.processes()
            assert (info.process_id, info.running, info["command"]) == ("sleeper", True, "sleep 60")
            found = client.process("sleeper")
            assert (found.info()).running
            with pytest.raises(TimeoutError):
                found.wait(0.1)
            with pytest.raises(TimeoutError):
                found.wait(0)
            found.forget()
            assert client.processes() == []
            with pytest.raises(ProcessNotFound):
                client.process("sleeper")

    def test_a_background_command_can_be_signalled_and_killed(self, new: New) -> None:
        with new() as client:
            process = client.spawn("echo up; exec sleep 60")
            for _ in process.follow():
                break  # it is up
            process.signal("TERM")
            assert (process.wait(30)).exit_code == 143
            process = client.spawn("sleep 60 & sleep 60")
            assert not (process.kill(0)).ok
            process = client.spawn("exec sleep 60")
            assert client.kill_all() >= 1
            assert (process.wait(30)).reason == "cancelled"

    def test_what_a_session_uses_is_shown(self, new: New) -> None:
        with new() as client:
            client.execute("head -c 3000000 /dev/zero > large; sync")
            found = client.metrics()
            assert found.session_id == client.session_id
            assert (found.interval_s, found["limits"]["memory_bytes"] > 0) == (10, True)
            assert found.now.processes >= 1
            assert found.now["at"].endswith("Z")
            assert isinstance(found.series, list)

    def test_the_network_is_shown_and_changed(self, new: New) -> None:
        with new(network={"allow": []}) as client:
            assert (client.network()).allow == []
            if (client.info()).provider == "fake":
                with pytest.raises(InvalidRequest, match="capability egress"):
                    client.set_network(internet=True)
                return
            assert (client.set_network(NetworkRules(allow=("one.example",)))).allow == ["one.example"]
            assert (client.execute("getent hosts one.example")).ok
            assert not (client.execute("getent hosts two.example")).ok
            assert "two.example" in {each["rule"] for each in (client.network()).refusals}
            assert (client.set_network()).allow == []
            assert not (client.execute("getent hosts one.example")).ok

    def test_a_process_id_that_has_odd_characters_is_refused_not_misread(self, new: New) -> None:
        with new() as client, pytest.raises(WarrenError):
            client.process("../../x y?#")


class BatchContract:
    def test_a_batch_runs_in_order_in_one_sandbox(self, new_batch: NewBatch) -> None:
        results = new_batch().execute_batch(["echo 1 > n", "cat n", ["cat", "n"]])
        assert [result["output"] for result in results] == ["", "1\n", "1\n"]

    def test_one_failure_does_not_lose_the_others(self, new_batch: NewBatch) -> None:
        results = new_batch().execute_batch(["echo 1", "", "exit 7", "echo 2"])
        assert [result.exit_code for result in results] == [0, 125, 7, 0]
        assert results[1].reason == "invalid_request"
        assert (results[0].output, results[3].output) == ("1\n", "2\n")

    def test_a_batch_may_stop_at_the_first_failure(self, new_batch: NewBatch) -> None:
        results = new_batch().execute_batch(["echo 1", "exit 7", "echo 2"], stop_on_error=True)
        assert [result.exit_code for result in results] == [0, 7]

    def test_a_parallel_batch_is_spread_over_sandboxes_and_keeps_its_order(self, new_batch: NewBatch) -> None:
        commands = [f"echo {number} >> n; cat n" for number in range(4)]
        results = new_batch().execute_batch(commands, parallel=2)
        assert [result.output for result in results] == ["0\n", "1\n", "0\n2\n", "1\n3\n"]

    def test_a_batch_leaves_no_session(self, new: New, new_batch: NewBatch) -> None:
        with new() as client:
            with new_batch() as batch:
                batch.execute_batch(["true"] * 3, parallel=3)
            listed = client._backend.call("list_sessions")
            assert [each["session_id"] for each in listed["sessions"]] == [client.session_id]

    def test_a_batch_in_a_session_leaves_it_there(self, new: New, new_batch: NewBatch) -> None:
        with new() as client:
            new_batch(session_id=client.session_id).execute_batch(["echo 1 > n"])
            assert client.read_text("n") == "1\n"

    def test_an_empty_batch_has_no_results(self, new_batch: NewBatch) -> None:
        assert new_batch().execute_batch([]) == []

    def test_a_batch_takes_a_list_and_one_lane_or_more(self, new_batch: NewBatch) -> None:
        with pytest.raises(InvalidRequest, match="must be a list"):
            new_batch().execute_batch("echo 1")
        with pytest.raises(InvalidRequest, match="1 or more"):
            new_batch().execute_batch(["echo 1"], parallel=0)
