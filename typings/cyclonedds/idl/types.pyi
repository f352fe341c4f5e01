from typing import TypeAlias

float64: TypeAlias = float
int32: TypeAlias = int
uint8: TypeAlias = int
uint32: TypeAlias = int
sequence = list
