"""What help says of each verb beside its options: its group, a line for the list, two commands to type."""

from __future__ import annotations

from dataclasses import dataclass

GROUPS = ("measure", "look", "improve", "predict", "prepare")


@dataclass(frozen=True)
class VerbHelp:
    """A verb in the list of verbs, and the end of its own help."""

    group: str  # one of GROUPS; of a verb of a verb nothing
    summary: str  # a line of at most 64 characters
    examples: tuple[str, str]

    @property
    def epilog(self) -> str:
        """Examples as click leaves them: line by line."""
        return "\b\nExamples:\n" + "\n".join(f"  {example}" for example in self.examples)


VERBS = {
    "train": VerbHelp(
        "measure",
        "Train a detector: where each step's time and memory go.",
        (
            "detscope train tiny_fasterrcnn --steps 20 --level ops --memory",
            "detscope train tiny_ssd --data DIR --batch-size 8 --precision bf16",
        ),
    ),
    "infer": VerbHelp(
        "measure",
        "Pass images through a detector: from the file to the boxes.",
        (
            "detscope infer tiny_maskrcnn photos/ --limit 100",
            "detscope infer tiny_ssd --data synthetic --batch-size 4 --threads 1",
        ),
    ),
    "eval": VerbHelp(
        "measure",
        "Measure accuracy as COCO and VOC do, class by class.",
        (
            "detscope eval --weights latest",
            "detscope eval --detections results.json --data DIR",
        ),
    ),
    "run": VerbHelp(
        "measure",
        "Run your own training script as it is, recorded.",
        (
            "detscope run train.py --epochs 1",
            "detscope run --level ops --max-steps 50 -m mypackage.train",
        ),
    ),
    "import": VerbHelp(
        "measure",
        "Open what other tools recorded: traces, Nsight, snapshots.",
        (
            "detscope import trace.json.gz",
            "detscope import rank0.json rank1.json --name both",
        ),
    ),
    "sweep": VerbHelp(
        "measure",
        "Run a plan of many trials into one store.",
        (
            "detscope sweep plan.toml --dry-run",
            "detscope sweep status results.db",
        ),
    ),
    "show": VerbHelp(
        "look",
        "Show a recorded run again, at a glance or by section.",
        (
            "detscope show",
            "detscope show a2ec --section memory,modules",
        ),
    ),
    "why": VerbHelp(
        "look",
        "Tell what costs time, at which line of code, and what to change.",
        (
            "detscope why",
            "detscope why a2ec --json --sarif findings.sarif",
        ),
    ),
    "report": VerbHelp(
        "look",
        "Write a run or a sweep as one offline page, Markdown or CSV.",
        (
            "detscope report --open",
            "detscope report a2ec --format md --out -",
        ),
    ),
    "compare": VerbHelp(
        "look",
        "Compare runs; a gate for CI.",
        (
            "detscope compare a2ec 77f0",
            "detscope compare a2ec 77f0 --fail-if 'step_p50 > +5%' --markdown -",
        ),
    ),
    "runs": VerbHelp(
        "look",
        "List recorded runs, the newest first, with their ids.",
        (
            "detscope runs",
            "detscope runs --model fasterrcnn --sort ms",
        ),
    ),
    "mcp": VerbHelp(
        "look",
        "Answer an agent's questions about runs: an MCP server.",
        (
            "detscope mcp",
            "detscope mcp --runs /data/runs",
        ),
    ),
    "try": VerbHelp(
        "improve",
        "Try a patch, a setting or a variable on a run; judge it.",
        (
            "detscope try a2ec --patch faster.diff --markdown body.md",
            "detscope try latest --set training.channels_last=true",
        ),
    ),
    "tune": VerbHelp(
        "improve",
        "Try the advice one by one and keep what helps.",
        (
            "detscope tune tiny_fasterrcnn --budget 5m",
            "detscope tune --config a2ec --steps 50",
        ),
    ),
    "prune": VerbHelp(
        "improve",
        "Remove channels: networks of many sizes from a few models.",
        (
            "detscope prune tiny_fasterrcnn --levels 0,30,50",
            "detscope prune tiny_ssd tiny_fcos --mode l1 --out networks",
        ),
    ),
    "predict": VerbHelp(
        "predict",
        "Latency and memory of a network before it runs.",
        (
            "detscope predict tiny_fasterrcnn --batch-sizes 1,2,4",
            "detscope predict a2ec --device-model cpu.model",
        ),
    ),
    "fit": VerbHelp(
        "predict",
        "Make a model of a device from measured steps.",
        (
            "detscope fit results.db --out cpu.model",
            "detscope fit --microbench --out cpu.model",
        ),
    ),
    "score": VerbHelp(
        "predict",
        "Tell how wrong predictions are on what was not seen.",
        (
            "detscope score results.db",
            "detscope score results.db --protocol unseen-families --picture score.png",
        ),
    ),
    "data": VerbHelp(
        "prepare",
        "List, prepare and check data sets.",
        (
            "detscope data list",
            "detscope data check DIR",
        ),
    ),
    "models": VerbHelp(
        "prepare",
        "List the models that can be measured.",
        (
            "detscope models",
            "detscope models '*rcnn*' --json",
        ),
    ),
    "doctor": VerbHelp(
        "prepare",
        "Examine this machine: what is missing and what to do.",
        (
            "detscope doctor",
            "detscope doctor --selftest --device cpu",
        ),
    ),
    "schema": VerbHelp(
        "prepare",
        "Print the JSON Schema of what --json prints.",
        (
            "detscope schema summary",
            "detscope schema run > run.schema.json",
        ),
    ),
}
INNER_VERBS = {
    "data list": ("detscope data list", "detscope data list --root /datasets --json"),
    "data prepare": ("detscope data prepare pets", "detscope data prepare voc2007 --root /datasets"),
    "data check": ("detscope data check synthetic", "detscope data check DIR --out checks"),
    "sweep run": ("detscope sweep run plan.toml", "detscope sweep run plan.toml --resume --quiet"),
    "sweep status": ("detscope sweep status results.db", "detscope sweep status results.db --json"),
    "sweep merge": (
        "detscope sweep merge a.db b.db --out both.db",
        "detscope sweep merge *.db --out all.db --json",
    ),
    "sweep export": (
        "detscope sweep export results.db --out -",
        "detscope sweep export results.db --format parquet --out results.parquet",
    ),
    "sweep import": (
        "detscope sweep import memory.csv --store results.db",
        "detscope sweep import older/ --store results.db --workload inference",
    ),
}


def examples_of(verb: str) -> str:
    """The end of a verb's help."""
    known = VERBS.get(verb)
    return (known or VerbHelp("", "", INNER_VERBS[verb])).epilog
