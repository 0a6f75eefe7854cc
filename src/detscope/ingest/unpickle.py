"""Plain data out of a pickle, and nothing else: no class, no call, no import can be expressed.

A pickle is a program for a small stack machine. This one knows only the instructions that build numbers,
texts, lists, tuples and dictionaries; any other instruction ends the reading. Python's own unpickler, with a
`find_class` that refuses, still crashes on a deeply nested tuple as a key (hashing it overflows the C stack)
and asks for gigabytes when one wrong byte names a high place of its memory.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from struct import Struct
from typing import Any

from detscope.errors import InputError
from detscope.limits import over_limit, read_limit

MAX_MARKS = 200  # how deep containers may lie in each other while they are filled

_HINT = "snapshots by torch.cuda.memory._dump_snapshot hold plain data; do not open this file elsewhere"
_REFUSED = {
    b"c": "a class (GLOBAL)",
    b"\x93": "a class (STACK_GLOBAL)",
    b"i": "an object (INST)",
    b"o": "an object (OBJ)",
    b"R": "a call (REDUCE)",
    b"b": "an object's state (BUILD)",
    b"\x81": "an object (NEWOBJ)",
    b"\x92": "an object (NEWOBJ_EX)",
    b"P": "a persistent id",
    b"Q": "a persistent id",
    b"\x82": "a registered class (EXT1)",
    b"\x83": "a registered class (EXT2)",
    b"\x84": "a registered class (EXT4)",
    b"\x97": "an outside buffer",
    b"\x98": "an outside buffer",
}
_U2, _U4, _I4, _U8, _F8 = Struct("<H"), Struct("<I"), Struct("<i"), Struct("<Q"), Struct(">d")


def load_plain(data: bytes) -> Any:
    """The value that a pickle of plain data holds; InputError for anything else."""
    try:
        return _PlainReader(data).read_value()
    except InputError:
        raise
    except (IndexError, KeyError, ValueError, TypeError, ArithmeticError, AttributeError) as error:
        what = f"{type(error).__name__}: {error}".splitlines()[0][:120]
        raise InputError(f"the pickle is damaged ({what})", "record or copy the file again") from error


class _PlainReader:
    """One reading; `position` is the next byte."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.position = 0
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}
        self.most = read_limit("snapshot_values")
        self.made = 0  # lists, tables and tuples: a byte of the file asks for fifty of memory
        self.actions = self._make_actions()

    def read_value(self) -> Any:
        data, actions = self.data, self.actions
        stack, memo, most = self.stack, self.memo, self.most
        while True:
            code = data[self.position]
            self.position += 1
            # the two instructions that make up 80 % of a snapshot: read a text again, keep a new one
            if code == 0x68:  # BINGET
                stack.append(memo[data[self.position]])
                self.position += 1
            elif code == 0x6A:  # LONG_BINGET
                stack.append(memo[_U4.unpack_from(data, self.position)[0]])
                self.position += 4
            elif code == 0x2E:  # STOP
                return stack.pop()
            else:
                actions[code]()
            if len(stack) > most:
                raise over_limit("snapshot_values", "the pickle keeps open")

    def _refuse_code(self, code: int) -> None:
        what = _REFUSED.get(bytes((code,)))
        if what is None:
            raise InputError(
                f"the pickle is damaged (no instruction {code:#04x} at byte {self.position - 1})",
                "record or copy the file again",
            )
        parts: list[str] = []  # what class was asked for, as far as it can be said safely
        if code == 0x63:
            lines = self.data[self.position : self.position + 200].split(b"\n", 2)[:2]
            parts = [line.decode("ascii", "replace") for line in lines]
        elif code == 0x93:
            parts = [part for part in self.stack[-2:] if isinstance(part, str)]
        named = " " + repr(".".join(part[:80] for part in parts)) if parts else ""
        raise InputError(f"the pickle asks for {what}{named}: refused, nothing of it was run", _HINT)

    # ---- bytes

    def _take_bytes(self, count: int) -> bytes:
        piece = self.data[self.position : self.position + count]
        if len(piece) != count:
            raise InputError(
                f"the pickle ends at byte {len(self.data)}, in the middle of a value", "copy the file again"
            )
        self.position += count
        return piece

    def _take_number(self, shape: Struct) -> Any:
        return shape.unpack(self._take_bytes(shape.size))[0]

    def _take_line(self) -> str:
        end = self.data.index(b"\n", self.position)
        text = self.data[self.position : end].decode("ascii")
        self.position = end + 1
        return text

    # ---- stack

    def _pop_to_mark(self) -> list[Any]:
        start = self.marks.pop()
        items = self.stack[start:]
        del self.stack[start:]
        return items

    def _push_mark(self) -> None:
        if len(self.marks) >= MAX_MARKS:
            raise InputError("the pickle nests deeper than a snapshot can", _HINT)
        self.marks.append(len(self.stack))

    def _push_container(self, container: Any) -> None:
        self.made += 1
        if self.made > self.most:
            raise over_limit("snapshot_values", "the pickle makes lists and tables")
        self.stack.append(container)

    def _extend_list(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if type(target) is not list:
            raise TypeError(f"append to {type(target).__name__}")
        target.extend(items)

    def _set_items(self, items: list[Any], new: dict[Any, Any] | None = None) -> None:
        if new is not None:
            self._push_container(new)
        target = self.stack[-1]
        if type(target) is not dict:
            raise TypeError(f"set items of {type(target).__name__}")
        keys = items[::2]
        for key in keys:
            if type(key) not in (str, int):
                raise TypeError(f"a key that is a {type(key).__name__}")
        target.update(zip(keys, items[1::2], strict=True))

    def _push_tuple(self, count: int) -> None:
        if len(self.stack) < count:
            raise IndexError("too few values for a tuple")
        items = tuple(self.stack[-count:])
        del self.stack[-count:]
        self._push_container(items)

    def _keep_memo(self, key: int) -> None:
        self.memo[key] = self.stack[-1]

    def _push_long(self, size: int) -> None:
        if size > 64:
            raise ValueError(f"a number of {size} bytes")
        self.stack.append(int.from_bytes(self._take_bytes(size), "little", signed=True))

    def _push_text(self, size: int) -> None:
        self.stack.append(self._take_bytes(size).decode("utf-8", "surrogatepass"))

    def _pop_value(self) -> None:
        if self.marks and self.marks[-1] == len(self.stack):
            self.marks.pop()
        else:
            self.stack.pop()

    def _push_int_line(self) -> None:
        text = self._take_line()
        if len(text) > 40:
            raise ValueError("a number of more than 40 digits")
        self.stack.append({"00": False, "01": True}[text] if text in ("00", "01") else int(text.rstrip("L")))

    def _make_actions(self) -> list[Callable[[], Any]]:
        push, number, take = self.stack.append, self._take_number, self._take_bytes
        known: dict[bytes, Callable[[], Any]] = {
            b"\x80": lambda: take(1),  # PROTO
            b"\x95": lambda: take(8),  # FRAME: only a hint about sizes
            b"(": self._push_mark,
            b"0": self._pop_value,
            b"1": self._pop_to_mark,
            b"2": lambda: push(self.stack[-1]),
            b"N": lambda: push(None),
            b"\x88": lambda: push(True),
            b"\x89": lambda: push(False),
            b"I": self._push_int_line,
            b"L": self._push_int_line,
            b"F": lambda: push(float(self._take_line()[:60])),
            b"J": lambda: push(number(_I4)),
            b"K": lambda: push(take(1)[0]),
            b"M": lambda: push(number(_U2)),
            b"\x8a": lambda: self._push_long(take(1)[0]),
            b"\x8b": lambda: self._push_long(number(_U4)),
            b"G": lambda: push(number(_F8)),
            b"X": lambda: self._push_text(number(_U4)),
            b"\x8c": lambda: self._push_text(take(1)[0]),
            b"\x8d": lambda: self._push_text(number(_U8)),
            b"B": lambda: push(take(number(_U4))),
            b"C": lambda: push(take(take(1)[0])),
            b"\x8e": lambda: push(take(number(_U8))),
            b"U": lambda: push(take(take(1)[0]).decode("latin-1")),
            b"T": lambda: push(take(number(_U4)).decode("latin-1")),
            b"V": lambda: push(self._take_line()),
            b"]": lambda: self._push_container([]),
            b"}": lambda: self._push_container({}),
            b")": lambda: push(()),
            b"l": lambda: self._push_container(self._pop_to_mark()),
            b"t": lambda: self._push_container(tuple(self._pop_to_mark())),
            b"\x85": partial(self._push_tuple, 1),
            b"\x86": partial(self._push_tuple, 2),
            b"\x87": partial(self._push_tuple, 3),
            b"a": lambda: self._extend_list([self.stack.pop()]),
            b"e": lambda: self._extend_list(self._pop_to_mark()),
            b"s": lambda: self._set_items([self.stack.pop(-2), self.stack.pop()]),
            b"u": lambda: self._set_items(self._pop_to_mark()),
            b"d": lambda: self._set_items(self._pop_to_mark(), {}),
            b"g": lambda: push(self.memo[int(self._take_line()[:20])]),
            b"p": lambda: self._keep_memo(int(self._take_line()[:20])),
            b"q": lambda: self._keep_memo(take(1)[0]),
            b"r": lambda: self._keep_memo(number(_U4)),
            b"\x94": lambda: self._keep_memo(len(self.memo)),
        }
        return [known.get(bytes((code,)), partial(self._refuse_code, code)) for code in range(256)]
