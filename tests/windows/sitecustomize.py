"""Python imports this first: it installs the rules of Windows if ``WINDOWS_RULES`` is set."""

from __future__ import annotations

import os

if os.environ.get("WINDOWS_RULES"):
    from windows_rules import install

    install(os.environ["WINDOWS_RULES"])
