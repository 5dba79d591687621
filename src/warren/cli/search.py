"""`warren search`: finds files of a session by name, and lines in them by a regular expression."""

import sys

import click

from warren.cli.main import report
from warren.cli.options import Duration, server_options, thread_option
from warren.cli.output import print_json, printable
from warren.cli.remote import RemoteServer, complete_session
from warren.sdk.results import FileMatch, SearchSummary


@click.command()
@click.argument("session", required=False, default="", shell_complete=complete_session)
@thread_option
@click.option(
    "-e", "--pattern", default="", metavar="REGEX", help="Find lines: an extended regular expression, as of grep -E."
)
@click.option("-g", "--glob", default="", metavar="GLOB", help="Only these names ('*.py') or paths ('src/**/*.ts').")
@click.option("-C", "--path", default="/workspace", metavar="D", show_default=True, help="Search below this directory.")
@click.option("-i", "--ignore-case", is_flag=True, help="Take upper and lower case as the same.")
@click.option("--hidden", is_flag=True, help="Search names that begin with a dot too.")
@click.option(
    "-m",
    "--max-matches",
    type=click.IntRange(1, 100_000),
    default=1000,
    metavar="N",
    show_default=True,
    help="Stop after so many.",
)
@click.option("--timeout", type=Duration(), default=30.0, metavar="D", help="End the search after so long: 1m.  [30s]")
@server_options
def search(
    session: str,
    thread: str,
    pattern: str,
    glob: str,
    path: str,
    ignore_case: bool,
    hidden: bool,
    max_matches: int,
    timeout: float,
    url: str,
    as_json: bool,
) -> int:
    """Search the files of a session.

    Prints PATH:LINE:TEXT for each line with the pattern, or PATH for each name when there is no pattern. The exit code
    is 1 if nothing was found.

    Example: warren search ses_0123 -e 'def [a-z_]+' -g '*.py'
    """
    if not pattern and not glob:
        raise click.UsageError("give --pattern, --glob, or both")
    summaries: list[SearchSummary] = []
    with RemoteServer(url) as server:
        client = server.client(server.find(session, thread))
        matches = client.search_files(
            pattern,
            glob=glob,
            path=path,
            ignore_case=ignore_case,
            hidden=hidden,
            max_matches=max_matches,
            timeout=timeout,
            on_summary=summaries.append,
        )
        found = []
        for match in matches:
            found.append(dict(match))
            if not as_json:
                click.echo(_line(match))
    if as_json:
        print_json({"matches": found, "summary": dict(summaries[0]) if summaries else None})
    elif summaries and summaries[0].truncated_by:
        report(f"there may be more: {summaries[0].truncated_by} ended the search")
    return 0 if found else 1


def _line(match: FileMatch) -> str:
    """Returns a match as text. For a terminal it has no control characters: what is in a sandbox must not move the
    cursor or colour it."""
    line = f"{match.path}:{match.line}:{match.text}" if match.line else match.path
    return printable(line, keep="\t") if sys.stdout.isatty() else line
