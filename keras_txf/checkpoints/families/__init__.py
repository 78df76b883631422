"""The families of checkpoints, by the `model_type` of their `config.json`."""

from keras_txf.checkpoints.families import (
    beit,
    bert,
    bert_kin,
    clip,
    deberta,
    esm,
    gpt,
    image_text,
    llama,
    llama_kin,
    mixtures,
    modern_bert,
    parallel_decoders,
    seq2seq,
    t5,
    vit,
)

FAMILIES = {
    **bert.FAMILIES,
    **bert_kin.FAMILIES,
    **modern_bert.FAMILIES,
    **deberta.FAMILIES,
    **esm.FAMILIES,
    **gpt.FAMILIES,
    **llama.FAMILIES,
    **llama_kin.FAMILIES,
    **mixtures.FAMILIES,
    **parallel_decoders.FAMILIES,
    **t5.FAMILIES,
    **seq2seq.FAMILIES,
    **vit.FAMILIES,
    **beit.FAMILIES,
    **clip.FAMILIES,
    **image_text.FAMILIES,
}
