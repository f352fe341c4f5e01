from typing import Any

from cyclonedds.core import Qos
from cyclonedds.domain import DomainParticipant
from cyclonedds.topic import Topic

class DataWriter:
    def __init__(self, participant: DomainParticipant, topic: Topic, qos: Qos | None = None) -> None: ...
    def write(self, sample: Any) -> None: ...
