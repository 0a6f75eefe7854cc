"""One thread for torch: small models gain nothing from two, and lose much where the cores are shared."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
