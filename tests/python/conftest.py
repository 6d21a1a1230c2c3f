"""Strata comes before torch, so that it can prepare the machine (include/strata/host.h)."""

import strata  # noqa: F401
