"""What every command does with its errors: one line that says which command, and an exit status.

Contract: `status_of(name, run)` -> what `run()` returns, 1 after an error that people can act on, 130 after Ctrl+C.
Anything else is a mistake of ours and shows its traceback.
"""

from __future__ import annotations

import sys
from collections.abc import Callable


def status_of(name: str, run: Callable[[], int]) -> int:
    try:
        return run()
    except (ValueError, RuntimeError, OSError) as error:
        print(f"\n{name}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"\n{name}: stopped", file=sys.stderr)
        return 130
