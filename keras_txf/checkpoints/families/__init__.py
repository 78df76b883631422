"""The families of checkpoints, by the `model_type` of their `config.json`."""

from keras_txf.checkpoints.families import bert, gpt, llama, modern_bert, seq2seq, vit

FAMILIES = {
    **bert.FAMILIES,
    **modern_bert.FAMILIES,
    **gpt.FAMILIES,
    **llama.FAMILIES,
    **seq2seq.FAMILIES,
    **vit.FAMILIES,
}
