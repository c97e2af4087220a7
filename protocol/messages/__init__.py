"""Every request and response, declared once; one module per API family.

Importing this package fills `barnabas.protocol.schema.APIS`.
"""

from importlib import import_module
from pkgutil import iter_modules

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
