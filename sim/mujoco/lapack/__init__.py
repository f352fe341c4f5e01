"""The controller's linear algebra, rounded bit for bit as LIBERO's official stack rounds it on an AVX2 processor.

The official code calls NumPy, SciPy and numba, which call OpenBLAS and LAPACK; which of its kernels OpenBLAS takes
depends on the processor, and with them the last bits of every torque (an AVX-512 machine gives other episodes than an
AVX2 one). Here each operation is written out in the order of OpenBLAS's Haswell kernels (also its Zen ones) and of
LAPACK 3.12, for the few sizes that a seven-joint arm needs, so that the result is the same on every x86-64 processor,
needs no SciPy and costs a fraction of the calls.
"""
