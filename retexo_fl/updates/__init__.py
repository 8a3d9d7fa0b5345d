"""How updates and weights travel between clients and server."""

from retexo_fl.updates.codec import WHOLE_WEIGHTS, PlainUpdates, UpdateCodec, UpdateKey, WeightCodec
from retexo_fl.updates.digest import DigestedArray, array_digest
from retexo_fl.updates.few_bits import FewBits, WeightChanges, most_held, weights_name
from retexo_fl.updates.masked import MaskedUpdates, NoisedUpdates
from retexo_fl.updates.zeros import bytes_with_zeros, with_zeros, without_zeros

__all__ = [
    "DigestedArray",
    "FewBits",
    "MaskedUpdates",
    "NoisedUpdates",
    "PlainUpdates",
    "UpdateCodec",
    "UpdateKey",
    "WeightChanges",
    "WeightCodec",
    "array_digest",
    "bytes_with_zeros",
    "most_held",
    "update_codec",
    "weights_name",
    "with_zeros",
    "without_zeros",
]


def update_codec(
    *,
    update_bits: int = 32,
    weight_bits: int = 32,
    keeps_zeros: bool = False,
    masked: bool = False,
    clip: float | None = None,
) -> UpdateCodec:
    """Return the codec of updates and weights of so many bits a value.

    Args:
        update_bits: 32 loses nothing.
        weight_bits: 32 leaves weights as they are.
        keeps_zeros: Leave updates as they are at 32 bits; else their zeros are left out.
        masked: Updates are whole numbers that are added under masks.
        clip: Norm of what one train node adds, where clients add noise under masks.
    """
    weights = WHOLE_WEIGHTS if weight_bits == 32 else WeightChanges(weight_bits)
    if clip is not None:
        return NoisedUpdates(clip, weights=weights)
    if masked:
        return MaskedUpdates(update_bits=update_bits, weights=weights)
    if update_bits == 32:
        return PlainUpdates(keeps_zeros=keeps_zeros, weights=weights)
    return FewBits(update_bits=update_bits, weights=weights)
