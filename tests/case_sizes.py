"""Sizes of the small models of transformers that the cases of families share."""

BERT = dict(
    vocab_size=61, hidden_size=24, num_hidden_layers=3, num_attention_heads=4, intermediate_size=40,
    max_position_embeddings=26, layer_norm_eps=1e-2,
)  # fmt: skip
LLAMA = dict(
    vocab_size=61, hidden_size=24, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
    intermediate_size=40, max_position_embeddings=64, rms_norm_eps=1e-2, pad_token_id=0, bos_token_id=1,
    eos_token_id=2,
)  # fmt: skip
BART = dict(
    vocab_size=61, d_model=24, encoder_layers=2, decoder_layers=3, encoder_attention_heads=4,
    decoder_attention_heads=2, encoder_ffn_dim=40, decoder_ffn_dim=44, max_position_embeddings=26,
)  # fmt: skip
WHISPER = dict(
    vocab_size=61, d_model=24, encoder_layers=2, decoder_layers=3, encoder_attention_heads=4,
    decoder_attention_heads=2, encoder_ffn_dim=40, decoder_ffn_dim=44, num_mel_bins=10, max_source_positions=9,
    max_target_positions=26, pad_token_id=1, bos_token_id=2, eos_token_id=2, decoder_start_token_id=3,
    begin_suppress_tokens=[4, 2],
)  # fmt: skip
T5 = dict(
    vocab_size=61, d_model=24, d_kv=7, d_ff=40, num_layers=2, num_decoder_layers=3, num_heads=4,
    relative_attention_num_buckets=8, relative_attention_max_distance=20, layer_norm_epsilon=1e-2,
    decoder_start_token_id=0,
)  # fmt: skip
VIT = dict(
    hidden_size=24, num_hidden_layers=3, num_attention_heads=4, intermediate_size=40, image_size=12, patch_size=4,
    layer_norm_eps=1e-2,
)  # fmt: skip
YARN = dict(
    rope_type="yarn", rope_theta=500.0, factor=3.0, original_max_position_embeddings=8, beta_fast=16.0, beta_slow=2.0
)
LLAMA3 = dict(
    rope_type="llama3", rope_theta=700.0, factor=4.0, low_freq_factor=1.0, high_freq_factor=3.0,
    original_max_position_embeddings=16,
)  # fmt: skip
FIVE = dict(num_labels=5)
DISTILBERT = dict(vocab_size=61, dim=24, n_layers=3, n_heads=4, hidden_dim=40, max_position_embeddings=26)
GPT2 = dict(
    vocab_size=61, n_embd=24, n_layer=3, n_head=4, n_positions=26, layer_norm_epsilon=1e-2, bos_token_id=1,
    eos_token_id=1,
)  # fmt: skip
OPT = dict(
    vocab_size=61, hidden_size=24, num_hidden_layers=3, num_attention_heads=4, ffn_dim=40, max_position_embeddings=26
)
MODERNBERT = dict(
    vocab_size=61, hidden_size=24, num_hidden_layers=4, num_attention_heads=3, intermediate_size=40,
    max_position_embeddings=64, local_attention=6, norm_eps=1e-2, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    cls_token_id=1, sep_token_id=2,
)  # fmt: skip
LINEAR = dict(rope_type="linear", rope_theta=300.0, factor=2.5)
# What a head is called in `rows` -> what its class adds to the family's name, and its own options.
HEADS = {
    "masked": ("ForMaskedLM", {}), "classes": ("ForSequenceClassification", FIVE), "encoder": ("Model", {}),
    "tokens": ("ForTokenClassification", FIVE), "spans": ("ForQuestionAnswering", {}),
}  # fmt: skip


def rows(family, prefix, heads, options):
    """A row of `checkpoint_cases` for each of these heads."""
    return [(family, head, prefix + HEADS[head][0], {**options, **HEADS[head][1]}) for head in heads.split()]
