"""Recording in a trainer's own idiom: a callback begins and ends what `detscope run` records.

Each file imports its own trainer's library, and nothing else imports these files.
"""
