"""In-place activations that autograd copies first: the copy costs what working in place was to save."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence

from detscope.analyze.advice.case import AdviceRule
from detscope.analyze.findings.case import LineCase
from detscope.analyze.findings.diffs import Code
from detscope.analyze.findings.finding import Finding

_MODULES = {"silu_": "SiLU", "hardswish_": "Hardswish", "mish_": "Mish"}  # by what they call
LEAST_CLONES = 4  # of one function per step: fewer are not worth a change


def find_lines(case: LineCase) -> Iterable[Finding]:
    """Copies by function, but for those that the line asks for itself."""
    rows = case.places("clone", accept=lambda place: "clone(" not in place.code)
    clones = case.places("launch", accept=lambda place: place.what == "aten::clone")
    for found in case.by_function(rows):
        count, size = sum(row.count for row in found), sum(row.bytes for row in found)
        if count < LEAST_CLONES:
            continue
        names = sorted({row.what.removeprefix("aten::") for row in found})
        lines = {row.where for row in found}
        copies = [place for place in clones if place.where in lines]
        yield case.make_finding(
            PART.name,
            copies,  # what they cost, not what the operators in place do
            f"{count:.0f} in-place operators ({', '.join(names)}) per step have their input copied by"
            f" autograd first, {size / 1e6:.3g} MB in all: their gradient needs what they overwrite.",
            "Do it out of place while training (inplace=False, or the function without the underscore): the"
            " same memory is kept, and no copy is made.",
            text="a clone of the same tensor right before each of them, with gradients",
            launches=count,
            diff=_write_diff(case, names),
        )


def _write_diff(case: LineCase, names: Sequence[str]) -> str | None:
    made = [_MODULES[name] for name in names if name in _MODULES]
    known = len(made) == len(names)
    return case.write_constructor_diff(made, _rewrite, "inplace=True", 20) if known else None


def _rewrite(code: Code) -> list[str] | None:
    """`inplace=False` in all that say otherwise."""
    words = [word for call in code.find_calls(*_MODULES.values()) for word in call.keywords]
    asked = [word for word in words if word.arg == "inplace"]
    is_true = all(isinstance(word.value, ast.Constant) and word.value.value is True for word in asked)
    return code.replace(dict.fromkeys(asked, "inplace=False")) if asked and is_true else None


PART = AdviceRule("inplace_clone", 101, lines=find_lines)
