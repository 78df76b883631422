"""The families of checkpoints, by the `model_type` of their `config.json`."""

from keras_txf.checkpoints.families import (
    albert,
    beit,
    bert,
    clip,
    deberta,
    esm,
    eurobert,
    gpt,
    llama,
    llama_kin,
    mixtures,
    modern_bert,
    parallel_decoders,
    rotary_bert,
    seq2seq,
    vit,
)

FAMILIES = {
    **bert.FAMILIES,
    **albert.FAMILIES,
    **modern_bert.FAMILIES,
    **rotary_bert.FAMILIES,
    **deberta.FAMILIES,
    **esm.FAMILIES,
    **eurobert.FAMILIES,
    **gpt.FAMILIES,
    **llama.FAMILIES,
    **llama_kin.FAMILIES,
    **mixtures.FAMILIES,
    **parallel_decoders.FAMILIES,
    **seq2seq.FAMILIES,
    **vit.FAMILIES,
    **beit.FAMILIES,
    **clip.FAMILIES,
}
