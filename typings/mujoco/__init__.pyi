# MuJoCo's extension modules ship no stubs: to the type checker every name of theirs is Any.
from typing import Any

def __getattr__(name: str) -> Any: ...
