"""Writes every mutant of a module into one syntax tree, each behind a question to the switch.

`a < b` becomes `a <= b if __mutant__(17) else a < b`, and `f()` as a statement `if not __mutant__(18):
f()`. So a module is compiled once, and a mutant costs no more than a fork with another answer. A mutant
differs from the source in one place. Only code of functions is mutated: what a module computes while it is
imported is done before a fork. Left out are annotations, f-strings, log calls, `invariant`, `__repr__` and
`__str__`.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

SWITCH: Final = "__mutant__"
"""The global of a mutated module that is asked whether a mutant is active."""
_WIDTH: Final = 100
_NEGATED: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Lt: ast.GtE,
    ast.LtE: ast.Gt,
    ast.Gt: ast.LtE,
    ast.GtE: ast.Lt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
_NEIGHBOUR: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
}
_ARITHMETIC: Final[dict[type[ast.operator], type[ast.operator]]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
}
_LOGGED: Final = frozenset({"debug", "info", "warning", "error", "exception", "critical"})
_Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Mutant:
    number: int
    file: str
    line: int
    key: str
    """The function and the change, as `tests/mutants/equivalent.toml` names them; unique in a file."""


def mutated(source: str, file: str, first: int) -> tuple[ast.Module, list[Mutant]]:
    """The module with all its mutants, which are numbered from ``first``."""
    mutator = _Mutator(file, first)
    tree = mutator.visit(ast.parse(source))
    return ast.fix_missing_locations(tree), mutator.mutants


def _expressions(node: ast.expr, is_condition: bool) -> Iterator[ast.expr]:
    """The mutants of an expression."""
    match node:
        case ast.Compare():
            for place, operator in enumerate(node.ops):
                for table in (_NEIGHBOUR, _NEGATED):
                    if type(operator) in table:
                        changed = copy.deepcopy(node)
                        changed.ops[place] = table[type(operator)]()
                        yield changed
        case ast.BoolOp():
            other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
            yield ast.BoolOp(other, copy.deepcopy(node.values))
        case ast.UnaryOp(op=ast.Not()):
            yield copy.deepcopy(node.operand)
        case ast.BinOp() if type(node.op) in _ARITHMETIC:
            yield ast.BinOp(copy.deepcopy(node.left), _ARITHMETIC[type(node.op)](), copy.deepcopy(node.right))
        case ast.Constant(value=bool()):
            yield ast.Constant(not node.value)
        case ast.Constant(value=int()):
            yield ast.Constant(node.value + 1)
    if is_condition and not isinstance(node, ast.Compare | ast.Constant):
        yield ast.UnaryOp(ast.Not(), copy.deepcopy(node))


def _is_droppable(node: ast.stmt) -> bool:
    match node:
        case ast.Expr(value=ast.Call() | ast.Await()) | ast.AugAssign() | ast.Raise():
            return True
        case ast.Assign(targets=targets) | ast.Delete(targets=targets):
            return all(isinstance(target, ast.Attribute | ast.Subscript) for target in targets)
        case ast.AnnAssign():
            return node.value is not None and not isinstance(node.target, ast.Name)
    return False


def _is_left_out(node: ast.AST) -> bool:
    match node:
        case ast.pattern() | ast.JoinedStr():
            return True
        case ast.FunctionDef(name=name):
            return name in ("__repr__", "__str__")
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=owner, attr=attr))) if attr in _LOGGED:
            return ast.unparse(owner).endswith(("log", "logger"))
        case ast.Expr(value=ast.Call(func=ast.Name(id="invariant"))):
            return True
        case ast.Raise(exc=ast.expr() as error):
            return ast.unparse(error).startswith("NotImplementedError")
        case ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return True
    return False


def _conditions(node: ast.AST) -> Iterator[ast.expr]:
    """The conditions of a statement or expression; of `a and b`, both parts. `not a` has a mutant already."""
    waiting: list[ast.expr] = []
    match node:
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
            waiting = [test]
        case ast.comprehension(ifs=ifs):
            waiting = list(ifs)
    while waiting:
        test = waiting.pop()
        if isinstance(test, ast.BoolOp):
            waiting += test.values
        elif not (isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)):
            yield test


class _Mutator(ast.NodeTransformer):
    def __init__(self, file: str, first: int) -> None:
        self.mutants: list[Mutant] = []
        self._file = file
        self._first = first
        self._scopes: list[str] = []
        self._functions: list[bool] = []
        """Whether each function around the node returns a value."""
        self._conditions: set[ast.expr] = set()
        self._keys: dict[str, int] = {}

    def visit(self, node: ast.AST) -> ast.AST:
        if _is_left_out(node):
            return node
        if isinstance(node, ast.ClassDef | _Function | ast.Lambda):
            return self._scope(node)
        if not self._functions:
            return self.generic_visit(node)
        self._conditions.update(_conditions(node))
        if isinstance(node, ast.expr):
            return self._expression(node)
        return self._statement(node) if isinstance(node, ast.stmt) else self.generic_visit(node)

    def _scope(self, node: ast.ClassDef | _Function | ast.Lambda) -> ast.AST:
        if isinstance(node, ast.ClassDef):
            self._scopes.append(node.name)
            node.body = [self.visit(statement) for statement in node.body]
            self._scopes.pop()
            return node
        node.args.defaults = [self.visit(default) for default in node.args.defaults]
        node.args.kw_defaults = [default and self.visit(default) for default in node.args.kw_defaults]
        self._scopes.append("lambda" if isinstance(node, ast.Lambda) else node.name)
        if isinstance(node, ast.Lambda):
            self._functions.append(False)
            node.body = self.visit(node.body)
        else:
            self._functions.append(
                not (isinstance(node.returns, ast.Constant) and node.returns.value is None)
            )
            node.body = [self.visit(statement) for statement in node.body]
        self._functions.pop()
        self._scopes.pop()
        return node

    def _expression(self, node: ast.expr) -> ast.expr:
        before = ast.unparse(node)
        changes = list(_expressions(node, node in self._conditions))
        guarded = self.generic_visit(node)
        for change in changes:
            asked = self._asked(node, f"{before} → {ast.unparse(change)}")
            guarded = ast.copy_location(ast.IfExp(asked, change, guarded), node)
        return guarded

    def _statement(self, node: ast.stmt) -> ast.stmt:
        text = ast.unparse(node)
        is_droppable = _is_droppable(node)
        if isinstance(node, ast.AnnAssign):
            annotation, node.annotation = node.annotation, ast.Constant(None)
            text = f"{ast.unparse(node.target)} = {node.value and ast.unparse(node.value)}"
            changed = self.generic_visit(node)
            node.annotation = annotation
        else:
            changed = self.generic_visit(node)
        if is_droppable:
            asked = self._asked(node, f"without {text}")
            return ast.copy_location(ast.If(ast.UnaryOp(ast.Not(), asked), [changed], []), node)
        match node:
            case ast.Break() | ast.Continue():
                other = ast.Continue() if isinstance(node, ast.Break) else ast.Break()
                asked = self._asked(node, f"{text} → {ast.unparse(other)}")
                return ast.copy_location(ast.If(asked, [other], [node]), node)
            case ast.Return(value=ast.expr() as value) if self._functions[-1]:
                if text not in ("return None", "return False"):
                    asked = self._asked(node, f"{text} → return None")
                    node.value = ast.copy_location(ast.IfExp(asked, ast.Constant(None), value), node)
        return changed

    def _asked(self, node: ast.expr | ast.stmt, change: str) -> ast.expr:
        """Adds a mutant; the expression that is true while it is active."""
        text = " ".join(change.split())
        key = f"{'.'.join(self._scopes)}: {text if len(text) <= _WIDTH else text[: _WIDTH - 1] + '…'}"
        self._keys[key] = count = self._keys.get(key, 0) + 1
        number = self._first + len(self.mutants)
        self.mutants.append(
            Mutant(number, self._file, node.lineno, key if count == 1 else f"{key} ({count})")
        )
        return ast.Call(ast.Name(SWITCH, ast.Load()), [ast.Constant(number)], [])
