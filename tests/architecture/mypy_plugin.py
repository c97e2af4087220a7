"""A plugin of mypy: no call of `dataclasses.replace` with a message, which only fails at run time.

mypy treats messages as dataclasses, because their decorator is a `dataclass_transform`; they are not.
"""

from collections.abc import Callable

from mypy.plugin import FunctionContext, Plugin
from mypy.types import Instance, Type, get_proper_type

MESSAGES = "barnabas.protocol.messages."


def refuse_messages(call: FunctionContext) -> Type:
    argument = get_proper_type(call.arg_types[0][0])
    if isinstance(argument, Instance) and argument.type.module_name.startswith(MESSAGES):
        text = f"{argument.type.name} is a message: copy it by barnabas.protocol.schema.replace"
        call.api.fail(text, call.context)
    return call.default_return_type


class MessagePlugin(Plugin):
    def get_function_hook(self, fullname: str) -> Callable[[FunctionContext], Type] | None:
        return refuse_messages if fullname == "dataclasses.replace" else None


def plugin(version: str) -> type[Plugin]:
    return MessagePlugin
