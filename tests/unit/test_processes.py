"""Helper programs of the host."""

from warren.sandboxes.host.processes import Finished

GO_CRASH = """\
runtime: failed to create new OS thread (have 5 already; errno=11)
fatal error: newosproc

goroutine 1 [running]:
runtime.throw({0x5581c2, 0x9})
rip    0x4664a1
gs     0x0
"""


def test_the_reason_of_a_failure_is_the_last_line_or_the_first_of_a_crash() -> None:
    assert Finished(1, "creating\nno such file\n\n").last_line == "no such file"
    assert Finished(2, GO_CRASH).last_line == "runtime: failed to create new OS thread (have 5 already; errno=11)"
    assert Finished(2, "SIGILL: illegal instruction\nPC=0x1\n\ngs     0x0\n").last_line == "SIGILL: illegal instruction"
    assert Finished(-9, "").last_line == "ended with -9, without a word"
