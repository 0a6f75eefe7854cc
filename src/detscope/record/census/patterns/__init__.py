"""Patterns of operators that are worth a row of their own, one file each; found by detscope.parts."""
