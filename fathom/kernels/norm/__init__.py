"""Root-mean-square normalisation over the last dimension, alone or after adding a residual.

    rms_norm(x, weight, eps) -> x / sqrt(mean(x^2) + eps) * weight
    add_rms_norm(x, residual, weight, eps) -> (rms_norm(x + residual), x + residual)

        x, residual  [..., size]
        weight       [size] float32

Arithmetic is in float32, results are in x's dtype. The two are one step because the sum is in registers when
the norm needs it; the sum is the residual stream that the next addition starts from.
"""

from fathom.kernels.norm.ref import add_rms_norm, rms_norm

__all__ = ["add_rms_norm", "rms_norm"]
