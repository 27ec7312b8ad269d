"""Runs a program in its own pseudo-terminal, as a login would: `terminal.py COMMAND ...`.

Copies its output to stdout. Lines on stdin are the user's actions: `press C-c`, `press C-d`, `type TEXT` for a line
with Enter, or `close` to end the terminal. The last line is `exit STATUS`, as in a shell.
"""

import os
import pty
import select
import sys

KEYS = {"press C-c": b"\x03", "press C-d": b"\x04"}

pid, terminal = pty.fork()
if pid == 0:
    os.execvp(sys.argv[1], sys.argv[1:])
open_ends = [0, terminal]
while terminal in open_ends:
    for end in select.select(open_ends, [], [])[0]:
        try:
            text = os.read(end, 65536)
        except OSError:
            text = b""
        if end == terminal:
            if text:
                os.write(1, text)
            else:
                open_ends.remove(terminal)
        elif not text:
            open_ends.remove(0)
        else:
            for line in text.decode().splitlines():
                if line == "close":
                    open_ends.remove(terminal)
                elif line.startswith("type "):
                    os.write(terminal, line.removeprefix("type ").encode() + b"\r")
                else:
                    os.write(terminal, KEYS[line])
os.close(terminal)
_, status = os.waitpid(pid, 0)
code = os.waitstatus_to_exitcode(status)
print(f"\nexit {code if code >= 0 else 128 - code}", flush=True)
