from cyclonedds.core import Qos
from cyclonedds.domain import DomainParticipant
from cyclonedds.idl import IdlStruct

class Topic:
    def __init__(
        self, participant: DomainParticipant, name: str, kind: type[IdlStruct], qos: Qos | None = None
    ) -> None: ...
