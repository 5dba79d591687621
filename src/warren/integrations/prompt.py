"""A text about the sandbox for the system prompt, to put behind the agent's own instructions."""

from typing import Final

SANDBOX_PROMPT: Final = """\
## Your sandbox

You have a Linux computer of your own, made for this conversation. Nothing you do there can harm anything else.

- `bash` runs a command line. `cd` and `export` last from one call to the next, also over several turns. You begin in
  /workspace: keep your files there.
- `run_code` runs Python (or JavaScript, bash, R) in an interpreter that keeps its variables, as a notebook does. It
  sees the same files as `bash`.
- Every command ends with its exit code; anything but 0 means that it failed: read the output and correct it.
- Calls made at the same time run at the same time. Let one call wait for another with `&&`, not by making two.
- Nobody can answer a question that a program asks. Use options such as `-y`; commands see an empty standard input.
- A command that takes long, or a server, is for `bash_background`; look at it with `background_output`, end it with
  `background_stop`.
- `write_file` and `read_file` are better than `cat` and `echo` for whole files: nothing has to be quoted.
- Long output is shortened in the middle. Write it to a file and look at parts of it with `grep`, `head` or `tail`.
- A text in [square brackets] comes from the sandbox itself. When it says that this is a fresh sandbox, earlier files
  are gone and must be made again.
"""


def sandbox_prompt(*, network: bool | None = None, notes: str = "") -> str:
    """Returns SANDBOX_PROMPT with a line about the network (None: no line) and notes of your own."""
    network_line = {
        True: "- The network can be reached.\n",
        False: "- There is no network: packages cannot be installed from the internet.\n",
        None: "",
    }[network]
    return SANDBOX_PROMPT + network_line + (f"\n{notes.strip()}\n" if notes.strip() else "")
