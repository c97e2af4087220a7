"""``python -m barnabas`` and the script `barnabas`: Ctrl-C before the command runs leaves no traceback.

Imports take most of the time of a short command, and Ctrl-C within them would be a KeyboardInterrupt before
any handler, or an import error made of one. As long as there is nothing to clean up, before and after the
command, the system's action applies instead: SIGINT ends the process. Imports nothing heavy.
"""

from __future__ import annotations

import signal
import sys


def main() -> int:
    """Run the command that the program's arguments name; returns its exit code."""
    # A parent that ignores Ctrl-C, as nohup or a shell for `&`, is obeyed.
    takes_interrupts = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if takes_interrupts:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from barnabas.cli.main import main as run

    code = run()
    if takes_interrupts:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    return code


if __name__ == "__main__":
    sys.exit(main())
