"""Python's side of the sandbox of graders: loads a grader's source, calls it, puts its errors into words.

Runs inside of Pyodide, before any source of a user's. `load` and `grade` take and return text.
"""

import json
import sys

FILE = "grader.py"
BRIDGE = ("js", "pyodide", "pyodide_js", "_pyodide", "_pyodide_core")


def close_bridge():
    """Takes the modules that lead to JavaScript, and their finders, from Python."""

    def leads_out(name):
        return name.split(".")[0] in BRIDGE

    class Closed:
        @staticmethod
        def find_spec(name, path=None, target=None):
            if leads_out(name):
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    finders = ("JsFinder", "UnvendoredStdlibFinder")
    sys.meta_path[:] = [Closed] + [finder for finder in sys.meta_path if type(finder).__name__ not in finders]
    for name in [name for name in sys.modules if leads_out(name)]:
        del sys.modules[name]


def line_of(error):
    """The line of the source that an error comes from; None if it comes from none."""
    if isinstance(error, SyntaxError) and error.filename == FILE:
        return error.lineno
    line, trace = None, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == FILE:
            line = trace.tb_lineno
        trace = trace.tb_next
    return line


def reason(error):
    """An error in one line: its type, its message, the line of the source."""
    try:
        text = str(error.msg if isinstance(error, SyntaxError) else error)
    except BaseException:
        text = ""
    if isinstance(error, ModuleNotFoundError):
        text += ": graders have Python's standard library alone"
    if isinstance(error, MemoryError):
        text = text or "Python has no memory left"
    name, line = type(error).__name__, line_of(error)
    return (f"{name}: {text}" if text else name)[:2000] + (f" (line {line})" if line is not None else "")


def guarded(work):
    """The JSON of what `work` gives, or of the error that it ends with."""
    try:
        result = work()
    except KeyboardInterrupt as error:
        result = {"kind": "timeout", "error": reason(error)}
    except MemoryError as error:
        result = {"kind": "memory", "error": reason(error)}
    except BaseException as error:
        result = {"kind": "runtime", "error": reason(error)}
    return json.dumps(result)


loaded = {}


def load(source):
    """Runs a source and keeps its grade: {"loaded": true}, or the error."""

    def work():
        namespace = {"__name__": "grader"}
        exec(compile(source, FILE, "exec"), namespace)
        grade = namespace.get("grade")
        if not callable(grade):
            return {"kind": "form", "error": "It defines no grade: write def grade(sample, item) -> float"}
        loaded["grade"] = grade
        return {"loaded": True}

    return guarded(work)


def grade(text):
    """The score of {"sample": …, "item": …}: {"score": …}, or the error."""

    def work():
        values = json.loads(text)
        score = loaded["grade"](values.get("sample"), values.get("item"))
        if not isinstance(score, (int, float)):
            return {"kind": "form", "error": f"grade returned a value of the type {type(score).__name__}, not a number"}
        if not -1e300 < score < 1e300:
            return {"kind": "form", "error": f"grade returned {score}, which is no finite number"}
        return {"score": float(score)}

    return guarded(work)


close_bridge()
