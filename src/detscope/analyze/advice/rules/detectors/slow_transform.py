"""One transform that takes most of the workers' time while the loop waits for them."""

from __future__ import annotations

from collections.abc import Sequence

from detscope.analyze.advice.case import Advice, AdviceRule, Case
from detscope.analyze.step.transforms import TransformFigures

LEAST_WAIT = 0.05  # of the step
LEAST_SHARE = 0.30  # of a worker's time
WORTH_NAMING = 0.05  # of a worker's time: others beside the dearest
_ON_DEVICE = "do it on the device"
# what is in a transform's name: what to do about it; the first that fits
_REMEDIES = (
    (
        ("mosaic", "mixup", "cutmix", "copypaste"),
        "fewer of them",
        "a lower probability (mosaic=0.5) or an earlier end of it (close_mosaic), and images kept in memory"
        " (cache=ram): every one of them reads and resizes several images",
    ),
    (
        ("decode", "read", "load", "imread", "open"),
        "smaller files",
        "store the images once at the size that training needs, or keep decoded ones in memory",
    ),
    (
        ("resize", "letterbox", "scale"),
        "images of the right size",
        "store the images once at the size that training needs, so that little is left to resize",
    ),
    (
        ("normal", "todtype", "convert", "hsv", "jitter", "blur", "erase", "solarize", "noise", "totensor"),
        _ON_DEVICE,
        "leave it out of the data set and call it on the whole batch after .to(device): transforms of"
        " torchvision.transforms.v2 take batches",
    ),
)
_ELSE = (
    "make it cheaper, or drop it",
    "call it with a lower probability, with a library that does it faster, or on whole batches",
)


def advise(case: Case) -> Advice | None:
    """What the loop would wait less without the dearest of them."""
    loader, wait = case.summary.loader, case.phases.get("data", 0.0)
    known = [row for row in loader.transforms if row.where in ("worker", "loop") and row.kind != "rest"]
    rows = [row for row in known if row.kind != "sampled" or row.inside is None]
    if not rows or not case.own_loader or wait < LEAST_WAIT or loader.lies_ready:
        return None
    shares = {row: _share_of(row, known, loader.worker_ms_per_image) for row in rows}
    dearest = max(rows, key=lambda row: shares[row])
    share = shares[dearest]
    if share < LEAST_SHARE:
        return None
    what, how = _choose_remedy(dearest)
    if what == _ON_DEVICE and not case.on_accelerator:
        what, how = _ELSE
    often = dearest.calls_per_image
    calls = f", {often:.2g} calls" if often is not None and often >= 1.5 else ""
    others = ", ".join(
        f"{row.name} {shares[row]:.0%}"
        for row in sorted(rows, key=lambda row: -shares[row])
        if row is not dearest and row.inside != dearest.name and shares[row] >= WORTH_NAMING
    )
    return case.suggest_change(
        f"{dearest.name}: {what}",
        f"The loop waits for data {wait:.0%} of the step, and {dearest.name} takes {share:.0%} of what"
        f" {'workers do' if dearest.where == 'worker' else 'is done'} to an image"
        f" ({_ms_of(dearest):.2g} ms{calls})" + (f"; beside it {others}." if others else "."),
        _waited_less(case, wait, share),
        "nothing takes its place",
        in_code=how,
    )


def _ms_of(row: TransformFigures) -> float:
    """With its parts: what a mosaic reads is the mosaic's."""
    return row.ms_per_image if row.total_ms_per_image is None else row.total_ms_per_image


def _share_of(row: TransformFigures, known: Sequence[TransformFigures], worker_ms: float | None) -> float:
    """Of a worker's time, with the functions seen in it; of mixers of images, with all that they call."""
    if any(word in row.name.lower() for word in _REMEDIES[0][0]) and worker_ms:
        return _ms_of(row) / worker_ms
    seen = [one for one in known if one.kind == "sampled" and one.inside == row.name]
    return sum(one.share or 0.0 for one in (row, *seen))


def _choose_remedy(row: TransformFigures) -> tuple[str, str]:
    name = row.name.lower()
    return next(
        (
            (what, how)
            for words, what, how in _REMEDIES
            if row.kind in words or any(word in name for word in words)
        ),
        _ELSE,
    )


def _waited_less(case: Case, wait: float, share: float) -> float:
    """Share of the step that is waited less if workers had so much less to do."""
    loader = case.summary.loader
    capacity, demand = loader.capacity_images_per_s, loader.demand_images_per_s
    if not loader.num_workers or not capacity or not demand:
        return wait * share
    busy = 1 - wait
    return wait - max(0.0, busy * demand * (1 - share) / capacity - busy)


PART = AdviceRule("slow_transform", 12, time=advise)
