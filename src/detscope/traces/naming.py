"""What categories and names in a trace mean."""

from __future__ import annotations

import re
from functools import cache

from detscope.zoo.registry import list_stage_words

# category, in lower case -> what an event is to us
_RUNTIMES = ("cuda", "hip", "xpu", "privateuse1")
ROLES = {
    "kernel": "kernel",
    "gpu_memcpy": "copy",
    "memcpy": "copy",
    "gpu_memset": "set",
    "memset": "set",
    "cuda_sync": "sync",
    "runtime": "runtime",
    "mtia_runtime": "runtime",
    **{f"{name}_{part}": "runtime" for name in _RUNTIMES for part in ("runtime", "driver")},
    "cpu_op": "operator",
    "operator": "operator",
    "user_annotation": "annotation",
    "gpu_user_annotation": "device annotation",
    "python_function": "python",
    "cuda_profiler_range": "counters",
    # detscope's own traces
    "steps": "own step",
    "phases": "own phase",
    "stages": "own stage",
    "modules": "own module",
    "operators": "operator",
    "kernels": "kernel",
    "loader": "own loader",
}
# events that are known and of no use here
SILENT_CATEGORIES = {"trace", "overhead", "cpu_instant_event", "external_correlation", "cuda_event"}
SILENT_CATEGORIES |= {"collective_comm", "gpu_pm_counter"}
DEVICE_ROLES = ("kernel", "copy", "set", "sync")
SYNCHRONISATION = re.compile(r"^(?:Stream|Event|Context|Device) Sync|^Stream Wait Event")
MEMORY_EVENT = "[memory]"

STEP_MARK = re.compile(r"^ProfilerStep\s*#?\s*(\d+)")
# what people call a step where no profiler marks it
STEP_RANGE = re.compile(
    r"^(?:detscope:step[ :#]*|(?:training |train |inference )?(?:step|iteration|iter)[ :_#]*)(\d{1,15})$",
    re.I,
)
OWN_STEP = re.compile(r"^step (\d+)")
LOADER_MARK = re.compile(r"^enumerate\(DataLoader\)#|DataLoader.*__next__")
OPTIMIZER_MARK = re.compile(r"^Optimizer\.(step|zero_grad)#|^(## )?optimizer( ##)?$", re.IGNORECASE)
OPTIMIZER_STEP = re.compile(r"^Optimizer\.step#")
FORWARD_MARK = re.compile(r"^(## )?forward( ##)?$|^DistributedDataParallel\.forward$", re.IGNORECASE)
BACKWARD_MARK = re.compile(r"^(## )?backward( ##)?$", re.IGNORECASE)
BACKWARD_OPERATOR = re.compile(
    r"^autograd::engine::evaluate_function|AccumulateGrad$|^(\w+::)*\w+Backward(?:Backward)?\d*$"
)
RECORD_ENTER = "profiler::_record_function_enter"
RECORD_MARKS = re.compile(r"^profiler::_record_function_(enter|exit)")
COMMUNICATION = re.compile(
    r"nccl(?!.*memset)|rccl|nvshmem|c10d::|all_?reduce|all_?gather|reduce_?scatter", re.I
)
MODULE_EVENT = re.compile(r"^nn\.Module: (.+)$")
_COPY = re.compile(r"(HtoD|DtoH|DtoD|PtoP|HtoH|HtoA|AtoH|DtoA|AtoD|\b[HMD]2[HMD]\b)", re.IGNORECASE)
_COPY_CASE = {name.lower(): name for name in ("HtoD", "DtoH", "DtoD", "PtoP", "HtoH")}
_COPY_CASE |= {"htoa": "HtoD", "atoh": "DtoH", "dtoa": "DtoD", "atod": "DtoD"}  # arrays live on the device
# Intel's names: M is memory of the host
_COPY_CASE |= {f"{host}2d": "HtoD" for host in "hm"} | {f"d2{host}": "DtoH" for host in "hm"}
_COPY_CASE |= {f"{one}2{other}": "HtoH" for one in "hm" for other in "hm"} | {"d2d": "DtoD"}
_MODULE_PART = re.compile(r"^(.*?)_([A-Z]\w*)$")
_DIRECTION = re.compile(r"^(.*) \((backward|recompute)\)$")
_BRACKETED = re.compile(r"\s*\([^)]*\)")
# Beside the stages of families of detectors: what people call parts of theirs.
_OTHER_STAGES = {"preprocessing", "transform", "neck", "anchor_generator", "roi_head", "box_head"}
_OTHER_STAGES |= {"mask_head", "nms", "postprocessing"}
_HOME = re.compile(r"(/home/|/Users/|[A-Za-z]:\\Users\\)[^/\\\s:;\"']+")
_FRAME = re.compile(r"^(?P<file>[^<(][^(]*\.pyx?)\((?P<line>\d+)\): (?P<function>.+)$")
_LIBRARY = re.compile(
    r"(^|/)(site-packages|dist-packages|lib/python[\d.]*|torch|torchvision|torchmetrics|numpy|"
    r"multiprocessing|concurrent|importlib|asyncio|contextlib\.py|threading\.py|typing\.py|functools\.py|"
    r"runpy\.py|socket\.py|selectors\.py|tqdm|transformers|timm|PIL)(/|$)"
)


def copy_direction(name: str) -> str | None:
    """HtoD, DtoH, DtoD or PtoP."""
    found = _COPY.search(name)
    return _COPY_CASE[found.group(1).lower()] if found else None


def stage_name(annotation: str) -> str | None:
    """A detector's stage, where an annotation names one: "model rpn (region proposal network)" -> rpn."""
    words = _BRACKETED.sub("", annotation).strip().strip("#").strip().lower()
    for prefix in ("model ", "stage ", "model.", "stage:", "## "):
        words = words.removeprefix(prefix).strip()
    return words if words in _stage_words() else None


@cache
def _stage_words() -> frozenset[str]:
    return list_stage_words() | _OTHER_STAGES


def module_path(name: str) -> tuple[str, str] | None:
    """Path and type from a name like NR_Detector.backbone_Body.conv1_Conv2d, which some tools write."""
    parts = name.split(".")
    if len(parts) < 2 or "::" in name or "#" in name:
        return None
    found = [_MODULE_PART.match(part) for part in parts]
    if not all(found):
        return None
    path = ".".join(match.group(1) for match in found[1:] if match)
    last = found[-1]
    return path, last.group(2) if last else ""


def without_direction(name: str) -> tuple[str, str]:
    """detscope's own traces write the direction behind the name."""
    found = _DIRECTION.match(name)
    return (found.group(1), found.group(2)) if found else (name, "forward")


def scrub_homes(text: str) -> str:
    """The text without anybody's home folder."""
    return _HOME.sub("~", text) if "/" in text or "\\" in text else text


def has_home(text: str) -> bool:
    """Whether a text names a home folder."""
    return _HOME.search(text) is not None


def user_line(frame: str) -> str | None:
    """A frame of a Python stack if it is the user's own code: file name, line and function, no folders."""
    found = _FRAME.match(frame.strip())
    if not found or _LIBRARY.search(found.group("file").replace("\\", "/")):
        return None
    file = found.group("file").replace("\\", "/").rsplit("/", 1)[-1]
    return f"{file}({found.group('line')}): {found.group('function')}"


def innermost_user_line(stack: str) -> str | None:
    """The user's own innermost line of a stack written innermost first, frames parted by semicolons."""
    return next(filter(None, map(user_line, stack.split(";"))), None)
