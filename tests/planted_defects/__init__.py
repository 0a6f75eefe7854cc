"""Small scripts, each with one defect, and their mended twins."""

import pytest

pytest.register_assert_rewrite("planted_defects.planted_runs")
