"""The families of checkpoints, by the `model_type` of their `config.json`."""

from keras_txf.checkpoints.families import bert, gpt, llama, llama_kin, modern_bert, parallel_decoders, seq2seq, vit

FAMILIES = {
    **bert.FAMILIES,
    **modern_bert.FAMILIES,
    **gpt.FAMILIES,
    **llama.FAMILIES,
    **llama_kin.FAMILIES,
    **parallel_decoders.FAMILIES,
    **seq2seq.FAMILIES,
    **vit.FAMILIES,
}
