"""The protocol between worker and agent, version 1. The agent's half is agent/wire.h.

One stream connection carries many channels. A frame is a header of 12 bytes, little endian
(payload length u32, channel u32, type u8, three zero bytes), and its payload. The worker opens a
channel by sending START, ATTACH, FILE, CONTROL, LIST or PING under a channel number not in use;
EXIT, ERROR or DONE from the agent closes it. Frames for a channel that is closed are ignored.

Requests and replies are lists of fields: tag u8, length u32, value; numbers are 4 or 8 bytes.
ARGV, ENV, BASE_ENV, GLOB and METADATA repeat in requests. ENV is for this command alone; BASE_ENV is what a shell
starts with before it exports anything. The agent answers START without DEFER with STARTED as soon as the program runs.

  START    ID, ARGV… or SHELL, ENV…, BASE_ENV…, CWD, USER, TIMEOUT_MS, GRACE_MS, FLAGS, KEEP, ROWS, COLS
           -> STARTED(ID, PID), OUTPUT…, EXIT(…)
  ATTACH   ID, OFFSET, FLAGS (FOLLOW: stay until the end; without it: what is kept, then DONE)
           -> OUTPUT…, EXIT (if the command has ended, at once)
  FILE     OP, PATH, … -> DATA…, DONE(…)            (see FileOp)
  CONTROL  ID, OP, SIGNAL | GRACE_MS | ROWS, COLS -> DONE
           KILL_ALL has no ID; it ends everything but the agent -> DONE(KILLED, SURVIVORS)
           RESUMED has no ID but AGE_MS, how long the sandbox was frozen: all that is timed is put off by that.
           An agent of an earlier release answers ERROR; one that knows it says so: HELLO has the last as CONTROL
  LIST     -> DATA (records), DONE
  PING     -> DONE

DATA from the worker is the stdin of the command or the content of the file, and EOF closes it. CLOSE
detaches from a command and undoes a file operation. OUTPUT carries a stream number u8, the offset u64 of its
first byte in the whole output of the command, and the bytes; where the offset jumps, output was not kept.
DEFER holds all output back until the command ends, and then sends what was kept. LOSSLESS pauses the command
while the channel cannot take its output, so that none is lost.

Flow control: either side may send at most WINDOW bytes of OUTPUT or DATA on a channel before the other side
grants more with CREDIT (u32, bytes), which is what it has taken. Headers and the first 9 bytes of OUTPUT do not count.
The agent sends no frame that carries nothing: no empty OUTPUT or DATA, no CREDIT of 0.

Records (LIST, and FILE ops LIST, PACK, UNPACK, WATCH, SEARCH) are u32 length and fields; in PACK and
UNPACK a record of a file is followed by exactly SIZE bytes.

Nothing that the agent sends is trusted: every function here either decodes it or raises ProtocolError.
"""

import struct
from collections.abc import Iterable
from enum import IntEnum, IntFlag

from warren.model.errors import ProtocolError

VERSION = 1
HEADER = struct.Struct("<IIB3x")
MAX_FRAME_OUT = 4 * 1024 * 1024
MAX_FRAME_IN = 1024 * 1024
MAX_RECORD = 64 * 1024
MAX_FIELDS = 256  # of a response: none of its tags repeats
STDIN_WINDOW = 256 * 1024
OUTPUT_WINDOW = 1024 * 1024

_FIELD = struct.Struct("<BI")
_FIELD_SIZE = _FIELD.size
_OUTPUT = struct.Struct("<BQ")
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


class WireRequest(IntEnum):
    HELLO = 0x01
    START = 0x02
    ATTACH = 0x03
    FILE = 0x04
    DATA = 0x05
    EOF = 0x06
    CREDIT = 0x07
    CONTROL = 0x08
    LIST = 0x09
    CLOSE = 0x0A
    PING = 0x0B


class WireResponse(IntEnum):
    HELLO = 0x41
    STARTED = 0x42
    OUTPUT = 0x43
    EXIT = 0x44
    ERROR = 0x45
    DATA = 0x46
    DONE = 0x47
    CREDIT = 0x48


class WireTag(IntEnum):
    VERSION = 1
    ID = 2
    ARGV = 3
    SHELL = 4
    ENV = 5
    CWD = 6
    USER = 7
    TIMEOUT_MS = 8
    GRACE_MS = 9
    FLAGS = 10
    KEEP = 11
    ROWS = 12
    COLS = 13
    OFFSET = 14
    LENGTH = 15
    OP = 16
    PATH = 17
    PATH2 = 18
    MODE = 19
    DEPTH = 20
    SIGNAL = 21
    BASE_ENV = 22
    PID = 30
    EXIT_CODE = 31
    REASON = 32
    DURATION_US = 33
    CPU_US = 34
    BYTES = 35
    KILLED = 36
    SURVIVORS = 37
    BACKGROUND = 38
    CODE = 39
    MESSAGE = 40
    RUNNING = 41
    AGE_MS = 42
    TRUNCATED = 43
    SIZE = 44
    MTIME_NS = 45
    UID = 46
    GID = 47
    KIND = 48
    TARGET = 49
    COMMAND = 50
    TERMINAL = 51
    CHANGE = 52
    COUNT = 53
    GLOB = 54
    PATTERN = 55
    LINE = 56
    COLUMN = 57
    TEXT = 58
    SEARCHED = 59
    BINARY = 60
    TOO_LARGE = 61
    UNREADABLE = 62
    HIDDEN = 63
    LONG_LINES = 64
    OWNER = 65
    GROUP = 66
    TARGET_PATH = 67
    TARGET_KIND = 68
    TARGET_MODE = 69
    METADATA = 70
    CONTROL = 71


class Flag(IntFlag):
    """For START and ATTACH; RECURSIVE, IGNORE_CASE, HIDDEN and the three after it for FILE.

    ONCE: when EXIT is sent and nothing was left running, forget it. UNTIL_CLOSED: it ends when no process can write
    to its output any more, or by a signal KILL or TERM.
    DETAILS: answer also with OWNER, GROUP, METADATA and what a link leads to; LIST goes in the order of names.
    ATTRIBUTES: report changes of attributes as such. METADATA: replace the file's metadata by that of the request.
    """

    STDIN = 1
    CARRY = 2
    TERMINAL = 4
    DEFER = 8
    LOSSLESS = 16
    FOLLOW = 32
    RECURSIVE = 64
    ONCE = 128
    IGNORE_CASE = 256
    HIDDEN = 512
    DETAILS = 1024
    ATTRIBUTES = 2048
    METADATA = 4096
    UNTIL_CLOSED = 8192


class FileOp(IntEnum):
    """READ(PATH, OFFSET, LENGTH) WRITE(PATH, MODE, METADATA…) LIST(PATH, DEPTH) STAT(PATH) MKDIR(PATH, MODE)
    REMOVE(PATH, RECURSIVE) RENAME(PATH, PATH2) PACK(PATH) UNPACK(PATH) WATCH(PATH, RECURSIVE)
    SEARCH(PATH, GLOB…, PATTERN, IGNORE_CASE, HIDDEN, COUNT, LENGTH, TIMEOUT_MS)
    WRITE_IN_PLACE(PATH, MODE, METADATA…); all take USER. WRITE, WRITE_IN_PLACE and MKDIR take OWNER, a user who
    gets what they create. METADATA is `key=value` in requests; in answers it is keys and values in turns, each with a
    NUL byte at its end.

    STAT, WRITE and WRITE_IN_PLACE answer with the file's fields in DONE, UNPACK with COUNT. WATCH sends one empty
    record (no field) as soon as it is watching. For each byte of DATA it sends a record with the change SYNCED, after
    all changes that were made before the byte came. SEARCH takes COUNT as the most matches and LENGTH as
    the largest file; it sends a record for each match, and the counts of the summary in DONE, with
    TRUNCATED as a SearchEnd.

    The agent's HELLO carries the last operation it knows as OP; without it that is WATCH. An agent that knows
    WRITE_IN_PLACE also knows the details, ATTRIBUTES, OWNER, METADATA and SYNCED.
    """

    READ = 1
    WRITE = 2
    LIST = 3
    STAT = 4
    MKDIR = 5
    REMOVE = 6
    RENAME = 7
    PACK = 8
    UNPACK = 9
    WATCH = 10
    SEARCH = 11
    WRITE_IN_PLACE = 12


class ControlOp(IntEnum):
    SIGNAL = 1
    KILL = 2
    RESIZE = 3
    FORGET = 4
    KILL_ALL = 5
    RESUMED = 6


class WireCode(IntEnum):
    """The error codes of ERROR."""

    NOT_FOUND = 1
    PERMISSION_DENIED = 2
    IS_DIRECTORY = 3
    NOT_A_DIRECTORY = 4
    EXISTS = 5
    INVALID_PATH = 6
    NO_SPACE = 7
    UNKNOWN_USER = 8
    NO_PROCESS = 9
    INVALID = 10
    LIMIT = 11
    IO = 12
    CONFLICT = 13
    NO_CWD = 14


class WireEnd(IntEnum):
    EXITED = 0
    SIGNAL = 1
    TIMEOUT = 2
    CANCELLED = 3


class WireKind(IntEnum):
    FILE = 0
    DIRECTORY = 1
    SYMLINK = 2
    OTHER = 3


class ChangeKind(IntEnum):
    CREATED = 1
    MODIFIED = 2
    REMOVED = 3
    MOVED_FROM = 4
    MOVED_TO = 5
    OVERFLOW = 6
    ATTRIBUTES = 7
    SYNCED = 8


class SearchEnd(IntEnum):
    COMPLETE = 0
    MATCHES = 1
    TIME = 2


class StreamNumber(IntEnum):
    STDOUT = 1
    STDERR = 2
    TERMINAL = 3


def frame(kind: WireRequest, channel: int, payload: bytes | memoryview = b"") -> bytes:
    return HEADER.pack(len(payload), channel, kind) + payload


def fields(items: Iterable[tuple[WireTag, int | str | bytes]]) -> bytes:
    parts: list[bytes] = []
    for tag, value in items:
        if isinstance(value, int):
            raw = _U64.pack(value)
        elif isinstance(value, str):
            raw = value.encode("utf-8", "surrogateescape")
        else:
            raw = value
        parts.append(_FIELD.pack(tag, len(raw)))
        parts.append(raw)
    return b"".join(parts)


class WireFields:
    """The fields of a response. The last one of a tag counts; unknown tags are ignored."""

    __slots__ = ("_values",)

    def __init__(self, payload: bytes | memoryview) -> None:
        payload = bytes(payload)
        self._values: dict[int, bytes] = {}
        at, end, count = 0, len(payload), 0
        while at < end:
            if end - at < _FIELD_SIZE:
                raise ProtocolError("a field's head is cut short")
            tag, length = _FIELD.unpack_from(payload, at)
            at += _FIELD_SIZE
            if length > end - at:
                raise ProtocolError("a field is longer than its frame")
            count += 1
            if count > MAX_FIELDS:
                raise ProtocolError("more fields than there are tags")
            self._values[tag] = payload[at : at + length]
            at += length

    def number(self, tag: WireTag, default: int = 0) -> int:
        raw = self._values.get(tag)
        if raw is None:
            return default
        if len(raw) not in (4, 8):
            raise ProtocolError(f"field {tag.name} is not a number")
        return int.from_bytes(raw, "little")

    def numbers(self, *tags: WireTag) -> list[int]:
        """Returns the number of each tag, or 0, as `number` does, for those who want many at once."""
        values, found = self._values, []
        for tag in tags:
            raw = values.get(tag)
            if raw is None:
                found.append(0)
            elif len(raw) in (4, 8):
                found.append(int.from_bytes(raw, "little"))
            else:
                raise ProtocolError(f"field {tag.name} is not a number")
        return found

    def raw(self, tag: WireTag) -> bytes:
        return self._values.get(tag, b"")

    def text(self, tag: WireTag, default: str = "") -> str:
        raw = self._values.get(tag)
        return default if raw is None else raw.decode("utf-8", "surrogateescape")

    def __contains__(self, tag: object) -> bool:
        return tag in self._values

    def __bool__(self) -> bool:
        return bool(self._values)


def output(payload: memoryview) -> tuple[int, int, bytes]:
    """Returns the stream number, offset and bytes of an OUTPUT frame."""
    if len(payload) < _OUTPUT.size:
        raise ProtocolError("an output frame is cut short")
    stream, offset = _OUTPUT.unpack_from(payload)
    return stream, offset, bytes(payload[_OUTPUT.size :])


def credit(payload: memoryview) -> int:
    if len(payload) != _U32.size:
        raise ProtocolError("a credit frame is not four bytes long")
    return int(_U32.unpack(payload)[0])


def credit_frame(channel: int, amount: int) -> bytes:
    return frame(WireRequest.CREDIT, channel, _U32.pack(amount))


class Records:
    """Splits a DATA stream into records: `add` bytes, then take the complete records."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def add(self, data: bytes) -> None:
        self._buffer += data

    def next(self) -> WireFields | None:
        """Returns the next record, or None if it is not complete yet."""
        if len(self._buffer) < _U32.size:
            return None
        end = _U32.size + _U32.unpack_from(self._buffer)[0]
        if end > _U32.size + MAX_RECORD:
            raise ProtocolError("a record is too long")
        if len(self._buffer) < end:
            return None
        payload = bytes(self._buffer[_U32.size : end])
        del self._buffer[:end]
        return WireFields(payload)

    def take_raw(self, limit: int) -> bytes:
        """Returns up to `limit` bytes that follow the last record, as file contents do in PACK."""
        raw = bytes(self._buffer[:limit])
        del self._buffer[:limit]
        return raw

    def __len__(self) -> int:
        """The number of bytes added and not taken yet."""
        return len(self._buffer)


def record(items: Iterable[tuple[WireTag, int | str | bytes]]) -> bytes:
    payload = fields(items)
    return _U32.pack(len(payload)) + payload
