"""Another name for the sandbox user in /etc/passwd and /etc/group."""

import pytest

from warren.worker.user_name import add_line

LINE = "user:x:1000:1000::/home/user:/bin/bash"
ROOT = "root:x:0:0::/root:/bin/bash\n"
SANDBOX = "sandboxuser:x:1000:1000::/home/sandboxuser:/bin/bash\n"
OTHER = "user:x:1234:1234::/home/user:/bin/sh\n"
OWN = "user:x:1000:1000:of the image:/home/user:/bin/zsh\n"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (ROOT + SANDBOX, f"{ROOT}{LINE}\n{SANDBOX}"),
        (SANDBOX + ROOT, f"{LINE}\n{SANDBOX}{ROOT}"),
        (ROOT, f"{ROOT}{LINE}\n"),
        (ROOT.rstrip(), f"{ROOT}{LINE}\n"),
        ("", f"{LINE}\n"),
        ("\n# no names\nx:\n" + SANDBOX, f"\n# no names\nx:\n{LINE}\n{SANDBOX}"),
        (SANDBOX + OTHER, SANDBOX + OTHER),  # the image means another user by this name
        (SANDBOX + ROOT + OWN, OWN + SANDBOX + ROOT),
        (OWN + SANDBOX, OWN + SANDBOX),
    ],
)
def test_the_name_comes_before_others_with_its_number(before: str, after: str) -> None:
    assert add_line(before, LINE) == after
    assert add_line(after, LINE) == after
