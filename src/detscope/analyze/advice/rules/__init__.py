"""Rules of advice, one file each; found by detscope.parts."""
