"""One transform that takes most of the workers' time while the loop waits for them."""

from __future__ import annotations

from detscope.analyze.advice.case import Advice, AdviceRule, Case
from detscope.analyze.step.loader import TransformFigures

LEAST_WAIT = 0.05  # of the step
LEAST_SHARE = 0.30  # of a worker's time
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
        "do it on the device",
        "leave it out of the data set and call it on the whole batch after .to(device):"
        " torchvision.transforms.v2 take batches; collate uint8 images, which are a quarter of the bytes",
    ),
)
_ELSE = (
    "make it cheaper, or drop it",
    "call it on whole batches on the device, with a lower probability, or with a library that does it faster",
)


def advise(case: Case) -> Advice | None:
    """What the loop would wait less without the dearest of them."""
    loader, wait = case.summary.loader, case.phases.get("data", 0.0)
    rows = [row for row in loader.transforms if row.where in ("worker", "loop") and row.kind != "rest"]
    if not rows or not case.own_loader or wait < LEAST_WAIT or loader.lies_ready:
        return None
    shares = {row: _share_of(row, loader.worker_ms_per_image) for row in rows}
    dearest = max(rows, key=lambda row: shares[row])
    share = shares[dearest]
    if share < LEAST_SHARE:
        return None
    what, how = _choose_remedy(dearest)
    often = dearest.calls_per_image
    calls = f", {often:.2g} calls" if often is not None and often >= 1.5 else ""
    others = ", ".join(
        f"{row.name} {shares[row]:.0%}"
        for row in sorted(rows, key=lambda row: -shares[row])
        if row is not dearest and row.inside is None
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


def _share_of(row: TransformFigures, worker_ms: float | None) -> float:
    """Of a worker's time; of those that call others, with these only where they are what makes it dear."""
    mixes = any(word in row.name.lower() for word in _REMEDIES[0][0])
    return _ms_of(row) / worker_ms if mixes and worker_ms else row.share or 0.0


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
