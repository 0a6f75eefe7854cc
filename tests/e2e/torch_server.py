"""Imports torch once and forks a child for every command, which then ends as any Python process ends.

An order is a line of JSON: modules to import before forking, folder, arguments. A child is `detscope
ARGUMENTS`, or with `script` a plain script. Answers: the child's process id, then its exit code.
"""

import importlib
import json
import os
import sys

for line in sys.stdin:
    order = json.loads(line)
    for name in order["imports"]:
        importlib.import_module(name)
    child = os.fork()
    if child == 0:
        break
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
else:
    os._exit(0)

os.chdir(order["folder"])
sys.stdin = open(os.devnull)  # noqa: SIM115, PTH123
for number, stream in enumerate(("out", "err"), start=1):
    os.dup2(os.open(stream, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
sys.argv[:] = order["arguments"]
if order["script"]:
    from detscope.sessions.script_main import ScriptTarget, execute

    execute(ScriptTarget(sys.argv[0], tuple(sys.argv[1:])))
else:
    from detscope.cli.main import main

    main()
