"""BERT, RoBERTa, CamemBERT, MPNet, ELECTRA and DistilBERT: post-norm encoders with learned positions."""

import dataclasses
import functools

from keras_txf import models
from keras_txf.checkpoints.family import POOLER, Family, Task, classes, encoder_task, sizes, spans
from keras_txf.checkpoints.weight_map import Tensor, projections, skip
from keras_txf.layers import RelativeBias

BODY = {
    "embedding/token": "embeddings.word_embeddings",
    "embedding/position": "embeddings.position_embeddings",
    "embedding/token_type": "embeddings.token_type_embeddings",
    "encoder_embedding_norm": "embeddings.LayerNorm",
    **projections(
        "encoder_{i}/attention", "encoder.layer.{i}.attention", ("self.query", "self.key", "self.value", "output.dense")
    ),
    "encoder_{i}/attention_norm": "encoder.layer.{i}.attention.output.LayerNorm",
    "encoder_{i}/feed_forward/intermediate": "encoder.layer.{i}.intermediate.dense",
    "encoder_{i}/feed_forward/output": "encoder.layer.{i}.output.dense",
    "encoder_{i}/feed_forward_norm": "encoder.layer.{i}.output.LayerNorm",
}
MPNET = {
    **BODY,
    "encoder_position": "encoder.relative_attention_bias",
    **projections("encoder_{i}/attention", "encoder.layer.{i}.attention.attn", "qkvo"),
    "encoder_{i}/attention_norm": "encoder.layer.{i}.attention.LayerNorm",
}
DISTILBERT = {
    "embedding/token": "embeddings.word_embeddings",
    "embedding/position": "embeddings.position_embeddings",
    "encoder_embedding_norm": "embeddings.LayerNorm",
    **projections("encoder_{i}/attention", "transformer.layer.{i}.attention", ("q_lin", "k_lin", "v_lin", "out_lin")),
    "encoder_{i}/attention_norm": "transformer.layer.{i}.sa_layer_norm",
    "encoder_{i}/feed_forward/intermediate": "transformer.layer.{i}.ffn.lin1",
    "encoder_{i}/feed_forward/output": "transformer.layer.{i}.ffn.lin2",
    "encoder_{i}/feed_forward_norm": "transformer.layer.{i}.output_layer_norm",
}
CLASSES = {"logits": "classifier"}
SPANS = {"logits": "qa_outputs"}
TWO_LAYERS = {"head": "classifier.dense", "logits": "classifier.out_proj"}


def body(c, skipped=0, types=2):
    """Returns the options of all families here except DistilBERT, whose keys differ."""
    if types:
        types = c("type_vocab_size", types)
    return {
        **sizes(c),
        "intermediate_dim": c("intermediate_size"),
        "activation": c.activation("hidden_act", "gelu"),
        "norm_epsilon": c("layer_norm_eps", 1e-12),
        "dropout": c("hidden_dropout_prob", 0.1),
        "attention_dropout": c("attention_probs_dropout_prob", 0.1),
        "max_length": c("max_position_embeddings") - skipped,
        "token_types": types or None,
        "pad_id": c.pad_id(0),
        **COMMON,
    }


def bert(c, skipped=0):
    """Returns the options of a family whose class in transformers needs a table of token types."""
    options = body(c, skipped)
    if options["token_types"] is None:
        raise ValueError("config.json must have a `type_vocab_size` of at least 1, which its class needs; received 0.")
    return options


COMMON = {"position_encoding": "learned", "scale_embedding": False, "embedding_norm": True}


def offset(c):
    """Returns the first position, which follows the padding token's id."""
    return c("pad_token_id", 1) + 1


def electra(c):
    width = c("embedding_size", 128)
    return {**bert(c), "embedding_dim": None if width == c("hidden_size") else width}


def mpnet(c):
    options = body(c, 2, types=0)
    c.only("relative_attention_num_buckets", 32)  # transformers ignores the key and has 32
    bias = RelativeBias(options["num_heads"], name="encoder_position")
    return {**options, "pad_id": c.pad_id(1), "position": bias}


def distilbert(c):
    c.only("sinusoidal_pos_embds", False, True)  # the file holds the positions in both cases
    return {
        **sizes(c, num_layers="n_layers", dim="dim", num_heads="n_heads"),
        "intermediate_dim": c("hidden_dim"),
        "activation": c.activation("activation", "gelu"),
        "norm_epsilon": 1e-12,
        "dropout": c("dropout", 0.1),
        "attention_dropout": c("attention_dropout", 0.1),
        "max_length": c("max_position_embeddings", 512),
        "pad_id": c.pad_id(0),
        **COMMON,
    }


def pooled(activation):
    return lambda c: {"pooling": "first", "head": activation, "head_dropout": dropout(c)}


def dropout(c, key="classifier_dropout", default=0.1):
    """Returns the dropout rate of a head, by default the rate of the blocks."""
    rate = c(key, None)
    return c("hidden_dropout_prob", default) if rate is None else rate


def masked(architecture, dense, norm, decoder, bias, activation=None):
    rows = {"head": dense, "head_norm": norm, "logits": decoder, "logit_adjustment/bias": bias}
    untied = {"logit_adjustment/bias": f"{decoder}.bias"}  # the same tensor if tied
    return Task(architecture, models.masked_language_model, rows, activation or (lambda c: {}), untied=untied)


def tasks(
    name,
    masked_lm,
    sequence_rows,
    sequence_options,
    token_options=lambda c: {"head_dropout": dropout(c)},
    span_options=lambda c: {},
):
    """Returns the tasks of a family; `span_options` is None for a family without a class of question answering."""
    found = {
        "encoder": encoder_task(f"{name}Model"),
        "masked_lm": masked_lm,
        "sequence_classification": classes(
            f"{name}ForSequenceClassification", models.encoder_classifier, sequence_rows, sequence_options
        ),
        "token_classification": classes(
            f"{name}ForTokenClassification", models.token_classifier, CLASSES, token_options
        ),
    }
    if span_options is not None:
        found["question_answering"] = spans(f"{name}ForQuestionAnswering", SPANS, span_options)
    return found


def activation_of(key, default="gelu"):
    return lambda c: {"head": c.activation(key, default)}


BUFFERS = (r"embeddings\.position_ids", r"embeddings\.token_type_ids")


def roberta(name, prefix="roberta.", placement="post", rows=BODY):
    """Returns RoBERTa or a family that differs from it in names, or in the placement and the rows of norms."""
    return Family(
        lambda c: {**bert(c, offset(c)), "pad_id": c.pad_id(1), "norm_placement": placement},
        lambda c: {**rows, "embedding/position": Tensor(BODY["embedding/position"], other=skip(offset(c)))},
        tasks(
            name,
            masked(f"{name}ForMaskedLM", "lm_head.dense", "lm_head.layer_norm", "lm_head.decoder", "lm_head.bias"),
            TWO_LAYERS,
            pooled("tanh"),
        ),
        prefix,
        BUFFERS,
        (POOLER,),
        {"lm_head.decoder.bias": "lm_head.bias"},
    )


def bert_masked(name):
    return masked(
        f"{name}ForMaskedLM", "cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm",
        "cls.predictions.decoder", "cls.predictions.bias", activation_of("hidden_act"),
    )  # fmt: skip


BERT_MASKED = bert_masked("Bert")


def pretraining(name):
    """Returns the task of BERT's pretraining: a masked language model that also predicts the next sentence."""
    masked_lm = bert_masked(name)
    return dataclasses.replace(
        masked_lm,
        architecture=f"{name}ForPreTraining",
        tensors={
            **masked_lm.tensors,
            "pooler": Tensor("pooler.dense", inner=True),
            "next_sentence_logits": "cls.seq_relationship",
        },
        options=lambda c: {**masked_lm.options(c), "next_sentence": True},
    )


def bert_family(name, prefix, options=bert, rows=BODY, neutral=()):
    """Returns BERT or a family that differs from it in names, or in the options and rows of the embedding."""
    head = {"head": Tensor("pooler.dense", inner=True), **CLASSES}
    return Family(
        options,
        rows,
        {**tasks(name, bert_masked(name), head, pooled("tanh")), "pretraining": pretraining(name)},
        prefix,
        BUFFERS,
        (POOLER, r"cls\.seq_relationship\.(weight|bias)"),
        {"cls.predictions.decoder.bias": "cls.predictions.bias"},
        neutral,
    )


# Keys of the first BERTs, which no code reads any more.
OF_FIRST = ("directionality", "pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers",
            "pooler_size_per_head", "pooler_type")  # fmt: skip
FAMILIES = {
    "bert": bert_family("Bert", "bert.", neutral=OF_FIRST),
    "roberta": roberta("Roberta"),
    "xlm-roberta": roberta("XLMRoberta"),
    "camembert": roberta("Camembert"),
    "mpnet": Family(
        mpnet,
        {**MPNET, "embedding/position": Tensor(MPNET["embedding/position"], other=skip(2))},
        tasks(
            "MPNet",
            masked("MPNetForMaskedLM", "lm_head.dense", "lm_head.layer_norm", "lm_head.decoder", "lm_head.bias"),
            TWO_LAYERS,
            lambda c: {"pooling": "first", "head": "tanh", "head_dropout": c("hidden_dropout_prob", 0.1)},
            lambda c: {"head_dropout": c("hidden_dropout_prob", 0.1)},
        ),
        "mpnet.",
        BUFFERS,
        (POOLER,),
        {"lm_head.decoder.bias": "lm_head.bias"},
    ),
    "electra": Family(
        electra,
        {**BODY, "encoder_embedding_projection": "embeddings_project"},
        {
            **tasks(
                "Electra",
                masked(
                    "ElectraForMaskedLM", "generator_predictions.dense", "generator_predictions.LayerNorm",
                    "generator_lm_head", "generator_lm_head.bias",
                ),
                TWO_LAYERS,
                pooled("gelu"),
            ),
            "replaced_token_detection": Task(
                "ElectraForPreTraining",
                functools.partial(models.token_classifier, num_classes=1),
                {"head": "discriminator_predictions.dense", "logits": "discriminator_predictions.dense_prediction"},
                activation_of("hidden_act"),
                makes_head=True,
            ),
        },
        "electra.",
        BUFFERS,
        neutral=("summary_type", "summary_use_proj", "summary_activation", "summary_last_dropout"),  # of another head
    ),
    "distilbert": Family(
        distilbert,
        DISTILBERT,
        tasks(
            "DistilBert",
            masked(
                "DistilBertForMaskedLM", "vocab_transform", "vocab_layer_norm", "vocab_projector",
                "vocab_projector.bias", activation_of("activation"),
            ),
            {"head": "pre_classifier", **CLASSES},
            lambda c: {"pooling": "first", "head": "relu", "head_dropout": c("seq_classif_dropout", 0.2)},
            lambda c: {"head_dropout": c("dropout", 0.1)},
            lambda c: {"head_dropout": c("qa_dropout", 0.1)},
        ),
        "distilbert.",
        BUFFERS,
        neutral=("tie_weights_",),
    ),
}  # fmt: skip
