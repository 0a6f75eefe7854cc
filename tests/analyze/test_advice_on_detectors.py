"""What detectors and their trainers do around the network: figures on which each rule speaks or is silent."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

from advised_runs import advised, summary
from detscope.analyze.step.content import content_figures
from detscope.analyze.step.cost_content import BOXES, matching_against_boxes


def stage(name: str, share: float) -> dict[str, Any]:
    return {"name": name, "share": share, "depth": name.count("."), "total_ms": 100 * share}


def matched(assignment: float = 0.2, **changes: Any) -> Any:
    """A step of 100 ms whose matcher takes a quarter of it, with 20 boxes per image."""
    parts = [stage("matcher", assignment + 0.05), stage("matcher.assignment", assignment)]
    parts += [stage("matcher.cost", 0.03), stage("matcher.copy_to_host", 0.02), stage("loss.main", 0.1)]
    cost = {"stage": "matcher", "measure": BOXES, "slope": 5.0, "ci95": [4.0, 6.0], "r2": 0.9, "n": 30}
    given = {
        "stages": parts,
        "content": {"boxes_per_image": 20.0},
        "cost_against_content": [cost],
        "modules": [
            {"path": "matcher", "stage": "matcher.cost", "calls": 7.0},
            {"path": "linear_sum_assignment()", "stage": "matcher.assignment", "calls": 56.0},
        ],
        "batch_size": 8,
        "processor": {"cores": 4},
    }
    return summary(**{**given, **changes})


def test_the_matcher_s_dearest_part_and_the_boxes_at_which_it_is_half_of_the_step() -> None:
    """A quarter of 100 ms: another 50 ms make it as long as all else, at 5 ms for 10 boxes 100 boxes more."""
    found = advised(matched())["matcher"]
    assert found.title == "assign the images of a batch in threads"
    assert found.gain_share == pytest.approx(0.2 * (1 - 1 / 4))  # four cores
    assert "25% of the step, in 7 calls (assignment 20%, cost 3%, copy to host 2%)" in found.evidence
    assert "there were 20, and from about 120 on it would be more than half" in found.evidence
    assert "ThreadPoolExecutor" in found.how
    assert "matcher" not in advised(matched(-0.01))
    assert "matcher" not in advised(matched(phases={"backward": 0.0})), "nothing trains"


def test_a_matcher_that_mostly_copies_is_told_to_copy_once() -> None:
    parts = [stage("matcher", 0.2), stage("matcher.copy_to_host", 0.18)]
    found = advised(matched(stages=parts))["matcher"]
    assert found.title == "copy the matching costs of all decoder layers to the host at once"
    assert found.gain_share == pytest.approx(0.18 * 6 / 7)
    alone = advised(matched(stages=[stage("matcher", 0.6)]))["matcher"]
    assert alone.title == "match once for all decoder layers"
    assert alone.gain_share == pytest.approx(0.6 * 6 / 7)
    assert "more than half of it with 20 boxes per image" in alone.evidence


def test_costs_of_matching_are_dear_by_images_on_a_processor_and_by_layers_on_a_device() -> None:
    parts = [stage("matcher", 0.2), stage("matcher.cost", 0.16)]
    found = advised(matched(stages=parts))["matcher"]
    assert found.title == "compute matching costs image by image"
    assert found.gain_share == pytest.approx(0.16 * 7 / 8)
    on_device = advised(matched(stages=parts, device="cuda"))["matcher"]
    assert on_device.title == "compute the matching costs of all decoder layers at once"
    assert on_device.gain_share == pytest.approx(0.16 * 6 / 7)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"cost_against_content": []}, "the boxes of a batch are not known"),
        (
            {"cost_against_content": [{"stage": "matcher", "measure": BOXES, "why": "no variation"}]},
            "no variation",
        ),
        (
            {
                "cost_against_content": [
                    {"stage": "matcher", "measure": BOXES, "slope": 1.0, "ci95": [-1.0, 3.0], "n": 30}
                ]
            },
            "in 30 steps its time did not follow the 20 boxes per image",
        ),
    ],
)
def test_where_boxes_do_not_tell_that_is_said(changes, why) -> None:
    evidence = advised(matched(**changes))["matcher"].evidence
    assert f"Cannot tell from how many boxes on it would be half of the step: {why}." in evidence


def test_the_slope_of_matching_is_that_of_the_run_s_own_steps() -> None:
    """1 ms and 0.2 ms per box in each of two images; what is no matcher does not count."""
    rows = [
        (step, "stage", path, "forward", ns)
        for step in range(12)
        for path, ns in (
            ("matcher", 500_000),
            ("matcher.assignment", 500_000 + 200_000 * step),
            ("backbone", 9_000_000),
        )
    ]
    spans = pl.DataFrame(rows, ["step", "kind", "path", "direction", "self_ns"], orient="row")
    content = pl.DataFrame({"step": range(12), "images": [2] * 12, "boxes": [2 * step for step in range(12)]})
    (found,) = matching_against_boxes(spans, content, list(range(12)))
    assert (found.stage, found.measure, found.n) == ("matcher", BOXES, 12)
    assert found.slope == pytest.approx(2.0)
    assert matching_against_boxes(spans.filter(pl.col("path") == "backbone"), content, list(range(12))) == ()


def test_auxiliary_losses_against_the_last_layer_s() -> None:
    names = ("loss.auxiliary_0", "loss.auxiliary_1", "loss.auxiliary_2", "loss.denoising")
    rows = [stage("loss", 0.25), stage("loss.main", 0.05), *(stage(name, 0.05) for name in names)]
    found = advised(summary(stages=[*rows, stage("matcher", 0.04)]))["auxiliary_losses"]
    assert found.gain_share == pytest.approx(0.2 - 0.05)
    assert "4 losses beside that of the last layer" in found.evidence
    assert "the one of the last layer 5%" in found.evidence and "(4% for all layers)" in found.evidence
    assert "auxiliary_losses" not in advised(summary(stages=rows[:3]))
    small = [stage(name, 0.01) for name in names]
    assert "auxiliary_losses" not in advised(summary(stages=small))


def optimizer(groups: int, different: int, way: str = "loop", name: str = "AdamW") -> dict[str, Any]:
    return {"name": name, "groups": groups, "different_groups": different, "tensors": 200, "way": way}


def test_one_group_per_parameter_is_merged_by_settings() -> None:
    given = summary(phases={"optimizer": 0.1}, optimizers=[optimizer(200, 2)])
    found = advised(given)["parameter_groups"]
    assert found.title == "2 parameter groups instead of 200"
    assert found.gain_share == pytest.approx(198 * 0.01 / 100)  # 10 µs each, of a step of 100 ms
    assert "parameter_groups" not in advised(summary(optimizers=[optimizer(200, 2)])), "2 % of the step"
    for rare in (optimizer(3, 3), optimizer(200, 200), optimizer(6, 1)):
        assert "parameter_groups" not in advised(summary(phases={"optimizer": 0.1}, optimizers=[rare]))
    unlike = {"phases": {"optimizer": 0.5}, "step_ms": {"p50": 1.0}, "optimizers": [optimizer(20, 12)]}
    assert "parameter_groups" not in advised(summary(**unlike)), "most groups have a reason"


def test_no_more_than_the_optimizer_takes_is_saved_by_merging_its_groups() -> None:
    given = summary(
        phases={"optimizer": 0.06}, step_ms={"p50": 10.0}, optimizers=[optimizer(200, 1, "foreach")]
    )
    assert advised(given)["parameter_groups"].gain_share == pytest.approx(0.06 * 199 / 200)


def test_a_fused_optimizer_is_advised_where_it_is_none_and_torch_has_one() -> None:
    slow = {"optimizer": 0.1}
    found = advised(summary(phases=slow, optimizers=[optimizer(1, 1)]))["fused_optimizer"]
    assert "AdamW updates 200 tensors, tensor after tensor" in found.evidence
    for other in (optimizer(1, 1, "fused"), optimizer(1, 1, name="Muon")):
        assert "fused_optimizer" not in advised(summary(phases=slow, optimizers=[other]))


def transform(name: str, share: float, **more: Any) -> dict[str, Any]:
    return {"name": name, "kind": "transform", "where": "worker", "ms_per_image": 10 * share} | {
        "share": share,
        **more,
    }


def piped(*transforms: dict[str, Any], wait: float = 0.4, **changes: Any) -> Any:
    """Two workers make 20 images/s in 10 ms each of a loop that could take 33."""
    loader = {
        "num_workers": 2,
        "capacity_images_per_s": 20.0,
        "demand_images_per_s": 100 / 3,
        "worker_ms_per_image": 10.0,
    }
    told = {**loader, "transforms": list(transforms), **changes}
    return summary(phases={"data": wait}, device="cuda", precision="bf16", loader=told)


def test_the_transform_that_workers_are_busy_with_while_the_loop_waits() -> None:
    """60 ms of work and 40 of waiting; with half of the work the workers would keep up."""
    blur = transform("GaussianBlur", 0.5)
    found = advised(piped(blur, transform("Resize", 0.2)))["slow_transform"]
    assert found.title == "GaussianBlur: do it on the device"
    assert found.gain_share == pytest.approx(0.4)
    assert "takes 50% of what workers do to an image (5 ms); beside it Resize 20%." in found.evidence
    seen = [transform("GaussianBlur", 0.1), transform("smooth", 0.4, kind="sampled", inside="GaussianBlur")]
    assert advised(piped(*seen))["slow_transform"].title == found.title, "its functions are its own"
    assert "slow_transform" not in advised(piped(blur, wait=0.03))
    assert "slow_transform" not in advised(piped(transform("GaussianBlur", 0.2)))
    partly = advised(piped(transform("MyOwn", 0.3)))["slow_transform"]
    assert partly.gain_share == pytest.approx(0.4 - (0.6 * (100 / 3) * 0.7 / 20 - 0.6))
    assert "drop it" in partly.title


def test_a_mosaic_answers_for_the_images_that_it_reads() -> None:
    mosaic = transform("Mosaic", 0.1, total_ms_per_image=8.0, calls_per_image=1.0)
    reads = transform("load_image", 0.2, inside="Mosaic", calls_per_image=4.0)
    found = advised(piped(mosaic, reads))["slow_transform"]
    assert found.title == "Mosaic: fewer of them"
    assert "takes 80% of what workers do" in found.evidence and "close_mosaic" in found.how
    alone = advised(piped(mosaic, reads, num_workers=0))["slow_transform"]
    assert alone.gain_share == pytest.approx(0.4 * 0.8)


def test_padding_to_a_fixed_size_is_another_matter_than_images_of_unlike_shape() -> None:
    given = {"stages": [stage("backbone", 0.5), stage("neck", 0.1)], "verb": "run"}
    boxed = advised(summary(content={"padding_share": 0.4, "input_sizes": 1}, **given))
    assert boxed["letterbox"].gain_share == pytest.approx(0.4 * 0.6)
    assert "padding" not in boxed
    varied = advised(summary(content={"padding_share": 0.4, "input_sizes": 7}, **given))
    assert "padding" in varied and "letterbox" not in varied
    little = advised(summary(content={"padding_share": 0.05, "input_sizes": 1}, **given))
    assert "letterbox" not in little


def test_sizes_of_the_network_s_input_are_counted_per_image() -> None:
    def sizes(*padded: int) -> int | None:
        steps = len(padded)
        table = {name: [1] * steps for name in ("boxes", "proposals", "sampled_rois", "pixels")}
        table |= {"step": list(range(steps)), "images": [2] * (steps - 1) + [1], "padded_pixels": [*padded]}
        return content_figures(
            pl.DataFrame(table | {"network_pixels": [1] * steps}), list(range(steps))
        ).input_sizes

    assert sizes(80, 80, 40) == 1  # the last batch has one image
    assert sizes(80, 60, 40) == 2
    assert sizes(80, 40) is None, "two steps tell nothing"


def test_a_model_with_a_head_of_its_own_for_it_needs_no_suppression() -> None:
    given = {"stages": [stage("postprocess.nms", 0.2)], "verb": "run", "phases": {"backward": 0.0}}
    found = advised(summary(model={"one_to_one_head": True}, **given))
    assert found["end_to_end_head"].gain_share == pytest.approx(0.2)
    assert "nms_limits" not in found
    after = {"stages": [], "parts": [{"name": "nms", "phase": "other", "share": 0.1}]}  # the model's call
    beside = advised(summary(model={"one_to_one_head": True}, **{**given, **after}))
    assert beside["end_to_end_head"].gain_share == pytest.approx(0.1)
    in_use = [*given["stages"], stage("head.one2one", 0.1)]
    assert "end_to_end_head" not in advised(
        summary(model={"one_to_one_head": True}, **{**given, "stages": in_use})
    )
    other = advised(
        summary(
            score=0.5, detections={"per_image": 90.0, "above_score_per_image": 3.0}, **{**given, "phases": {}}
        )
    )
    assert "end_to_end_head" not in other
    assert (
        "Of the 90 boxes per image that it leaves, 3 have a score above 0.5." in other["nms_limits"].evidence
    )


def averaged(ms: float, parameters: int, tensors: int | None = 300, **changes: Any) -> Any:
    """An average of the weights that takes so long in a step of 100 ms."""
    place = {"function": "train", "file": "train.py", "line": 90}
    part = {"name": "ema", "phase": "other", "ms": ms, "share": ms / 100, "calls": 1.0, "own": place}
    model = {"tensors": tensors, "parameters": parameters}
    return summary(verb="run", parts=[part], model=model, **changes)


def test_an_average_by_loop_is_updated_at_once() -> None:
    """300 tensors of 1000 numbers: 0.12 ms for the tensors and 0.09 for the numbers, where 9 were spent."""
    found = advised(averaged(9.0, 300_000))["average_of_weights"]
    assert found.title == "update all averaged weights at once"
    assert found.gain_share == pytest.approx(0.09 - 0.0021)
    assert "(train.py:90) takes 9% of the step for 300 tensors, 30 µs each" in found.evidence
    assert "_foreach_lerp_" in found.how
    assert "average_of_weights" not in advised(averaged(4.0, 300_000))


def test_an_average_whose_numbers_take_the_time_is_updated_less_often() -> None:
    for given in (averaged(9.0, 20_000_000), averaged(9.0, 300_000, tensors=None)):
        found = advised(given)["average_of_weights"]
        assert found.title == "update the averaged weights in every 10th step"
        assert found.gain_share == pytest.approx(0.09 * 0.9)
