"""What other files may call says in a docstring what it does."""

import ast
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[1]
TREES = {
    file.relative_to(PACKAGE): ast.parse(file.read_text())
    for file in sorted(PACKAGE.rglob("*.py"))
    if "tests" not in file.parts
}
CLASSES = {node.name: node for tree in TREES.values() for node in tree.body if isinstance(node, ast.ClassDef)}
# A class says what these do: passes of autograd functions; and attributes may say all by their names.
EXEMPT = {"staticmethod", "property"}


def bases_of(node: ast.ClassDef) -> Iterator[ast.ClassDef]:
    for name in (ast.unparse(base) for base in node.bases):
        if name in CLASSES:
            yield CLASSES[name]
            yield from bases_of(CLASSES[name])


def methods_of(node: ast.ClassDef) -> Iterator[ast.FunctionDef]:
    return (each for each in node.body if isinstance(each, ast.FunctionDef))


def is_clear(node: ast.ClassDef, method: ast.FunctionDef) -> bool:
    """Whether a method needs no docstring of its own: it has no body, or a base of the class describes it."""
    return (
        any(ast.unparse(each) in EXEMPT for each in method.decorator_list)
        or ast.unparse(method.body[0]) == "..."
        or any(each.name == method.name for base in bases_of(node) for each in methods_of(base))
    )


def undescribed() -> Iterator[str]:
    for file, tree in TREES.items():
        for node in tree.body:
            if not isinstance(node, ast.ClassDef | ast.FunctionDef) or node.name.startswith("_"):
                continue
            if not ast.get_docstring(node):
                yield f"{file}: {node.name}"
            for method in methods_of(node) if isinstance(node, ast.ClassDef) else ():
                if not (method.name.startswith("_") or ast.get_docstring(method) or is_clear(node, method)):
                    yield f"{file}: {node.name}.{method.name}"


def test_what_is_public_has_a_docstring():
    assert list(undescribed()) == []
