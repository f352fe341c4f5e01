from typing import Any

class Policy:
    Reliability: Any
    History: Any

class Qos:
    def __init__(self, *policies: Any) -> None: ...
