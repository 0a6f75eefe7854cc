"""TensorBoard's event file: records of protocol buffers, written with its own library and without torch.

TensorBoard's ready-made writers put the machine's host name into the name of the file, start a thread
and append to what is there. A run's view is written once and whole: one file, one name.
"""

from __future__ import annotations

import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from detscope.runs.atomic import write_bytes

FILE_NAME = "events.out.tfevents.0000000000.detscope"  # it is found by the `tfevents` in it


def write_events(path: Path, events: Iterable[Any]) -> None:
    """Write events as one file, atomically."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.summary.writer.record_writer import RecordWriter

    buffer = io.BytesIO()
    records = RecordWriter(buffer)
    first_s = None
    for event in events:
        if first_s is None:
            first_s = event.wall_time
            records.write(Event(wall_time=first_s, file_version="brain.Event:2").SerializeToString())
        records.write(event.SerializeToString())
    write_bytes(path, buffer.getvalue())


def event(time_s: float, step: int, values: Iterable[Any]) -> Any:
    """Everything that is said of one step."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary

    return Event(wall_time=time_s, step=step, summary=Summary(value=values))


def scalar(tag: str, value: float) -> Any:
    """A number for the Scalars tab."""
    from tensorboard.compat.proto.summary_pb2 import Summary

    return Summary.Value(tag=tag, simple_value=value)


def image(tag: str, encoded: bytes, width: int, height: int) -> Any:
    """The content of a JPEG or PNG file for the Images tab."""
    from tensorboard.compat.proto.summary_pb2 import Summary

    content = Summary.Image(width=width, height=height, colorspace=3, encoded_image_string=encoded)
    return Summary.Value(tag=tag, image=content)


def text(tag: str, markdown: str) -> Any:
    """Markdown for the Text tab."""
    from tensorboard.plugins.text.summary_v2 import text_pb

    return text_pb(tag, markdown).value[0]


def parameters_and_metrics(
    parameters: dict[str, Any], metrics: dict[str, str], trial: str, started_s: float
) -> list[Any]:
    """A row of the HParams tab; `metrics` maps the tag of a scalar to the name to show."""
    from tensorboard.plugins.hparams.summary_v2 import HParam, Metric, hparams_config_pb, hparams_pb

    columns = [HParam(name) for name in parameters]
    shown = [Metric(tag, display_name=name) for tag, name in metrics.items()]
    config = hparams_config_pb(columns, shown, time_created_secs=started_s)
    row = hparams_pb(parameters, trial_id=trial, start_time_secs=started_s)
    return [config.value[0], row.value[0]]
