"""What attends to what in a layer, by the layer's name."""

# Each kind of attention: its title, the sequence that attends, and the sequence that is attended to.
KINDS = {
    "self": ("Self-attention", "tokens", "tokens"),
    "encoder": ("Encoder self-attention", "source_tokens", "source_tokens"),
    "decoder": ("Decoder self-attention", "tokens", "tokens"),
    "cross": ("Cross-attention", "tokens", "source_tokens"),
}


def attention_kind(name, with_source):
    """The kind of attention of the layer with this name: a key of `KINDS`.

    Args:
        name: path of the layer, such as "decoder_0/cross_attention".
        with_source: whether the model has a source sequence.
    """
    if "cross_attention" in name.rpartition("/")[2]:
        return "cross"
    if not with_source:
        return "self"
    return "encoder" if name.startswith("encoder") else "decoder"
