"""The families of checkpoints, by the `model_type` of their `config.json`."""

from keras_txf.checkpoints.families import albert, bert, eurobert, gpt, llama, modern_bert, rotary_bert, seq2seq, vit

FAMILIES = {
    **bert.FAMILIES,
    **albert.FAMILIES,
    **modern_bert.FAMILIES,
    **rotary_bert.FAMILIES,
    **eurobert.FAMILIES,
    **gpt.FAMILIES,
    **llama.FAMILIES,
    **seq2seq.FAMILIES,
    **vit.FAMILIES,
}
