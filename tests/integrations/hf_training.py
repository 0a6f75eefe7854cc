"""The example of transformers' Trainer; with `callback` it records itself."""

import sys

from train_hf import main

callbacks = []
if sys.argv[-1] == "callback":
    from detscope.integrations.huggingface import HuggingFaceRecording

    callbacks.append(HuggingFaceRecording(quiet=True))
main(callbacks)
if callbacks:
    assert callbacks[0].run is not None
