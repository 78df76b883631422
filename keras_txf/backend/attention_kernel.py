"""Properties of each backend's fused attention kernel, which `keras.ops.dot_product_attention` calls."""

import keras

LARGE_MASK = 2**27  # entries of a mask from which PyTorch's kernel takes more memory than blocks: 5 bytes each


def has_kernel(query):
    """Whether the backend has a fused kernel for the dtype of the queries.

    TensorFlow has no kernel. JAX's kernel asks for a product of float16 in float32, which JAX does not compile for a
    CPU, and computes the softmax of float64 in float32.
    """
    inexact = keras.backend.standardize_dtype(query.dtype) in ("float16", "float64")
    return keras.backend.backend() == "torch" or (keras.backend.backend() == "jax" and not inexact)


def fuses_long(query, key, window, has_pairs):
    """Whether the kernel needs no more memory for long sequences than attention in blocks.

    PyTorch's kernel never holds the logits; JAX's kernel holds them on a CPU and in float32. PyTorch's kernel takes a
    mask as a whole, and computes the logits that a window hides: with a window of 512, 32,768 tokens and 8 heads of 64,
    attention and its gradient take 65 s and 6.2 GB, in blocks 12 s and 1.1 GB (2 cores). With a mask of 8,192 x 8,192
    entries the kernel takes no more memory than blocks, and half the time.

    Args:
        query, key: (B, T, N, H) and (B, S, K, H).
        window: the width of the mask's window, or None.
        has_pairs: whether the mask differs from query to query in other ways than by causality and window.
    """
    if keras.backend.backend() == "torch":
        entries = query.shape[1] * key.shape[1] * (query.shape[0] or 1)
        return window is None and (not has_pairs or entries < LARGE_MASK)
    if keras.backend.backend() != "jax":
        return False
    import jax

    return jax.default_backend() == "gpu" and keras.backend.standardize_dtype(query.dtype) in ("bfloat16", "float16")


def takes_one_width():
    """Whether the kernel requires values with the width of the keys."""
    return keras.backend.backend() == "jax"
