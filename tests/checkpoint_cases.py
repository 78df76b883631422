"""Small models of transformers with random weights, of every family, with options away from their defaults."""

import copy
import dataclasses
import functools

import decoder_cases
import encoder_cases
import image_text_cases
import numpy as np
from case_sizes import BART, BERT, DISTILBERT, FIVE, GPT2, LINEAR, LLAMA, LLAMA3, MODERNBERT, OPT, T5, VIT, YARN, rows

import keras_txf as txf


@dataclasses.dataclass
class Case:
    """A class of transformers, and the options of its configuration."""

    name: str
    family: str
    architecture: str
    options: dict

    def model(self, seed=0):
        """The model, every weight of it random, the norms' too."""
        import torch
        import transformers

        torch.manual_seed(seed)
        cls = getattr(transformers, self.architecture)
        model = cls(cls.config_class(**copy.deepcopy(self.options))).eval()  # transformers changes the dicts
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if not is_fixed(self.family, name):
                    parameter += 0.2 * torch.randn_like(parameter)
            for name, buffer in model.named_buffers():
                if "final_logits_bias" in name or "e_score_correction_bias" in name or "expert_bias" in name:
                    buffer += torch.randn_like(buffer)
                if "inv_freq" in name and self.family == "esm":  # which its files hold
                    buffer *= 1 + 0.1 * torch.rand_like(buffer)
        if hasattr(model, "tie_weights"):
            model.tie_weights()
        return model


def is_fixed(family, name):
    return family in SINUSOIDS and SINUSOIDS[family] in name


bert, llama, bart = (functools.partial(dict, **sizes) for sizes in (BERT, LLAMA, BART))


MIXED = ["full_attention", "sliding_attention", "full_attention"]
SINUSOIDS = {"marian": "embed_positions"}  # families that do not write their sinusoids -> what names of tables hold

CASES = [
    Case(f"{family}-{name}", family, architecture, options)
    for family, name, architecture, options in (
        *rows("bert", "Bert", "masked encoder spans", BERT),
        ("bert", "untied", "BertForMaskedLM", bert(tie_word_embeddings=False, hidden_act="gelu_new", type_vocab_size=3,
         pad_token_id=5)),
        *rows("bert", "Bert", "classes", bert(hidden_act="silu", classifier_dropout=0.3)),
        *rows("bert", "Bert", "tokens", bert(hidden_act="quick_gelu")),
        *rows("roberta", "Roberta", "masked", bert(pad_token_id=1, type_vocab_size=1)),
        *rows("roberta", "Roberta", "classes tokens encoder spans", BERT),
        ("roberta", "untied", "RobertaForMaskedLM", bert(tie_word_embeddings=False, pad_token_id=3, hidden_act="relu")),
        *rows("xlm-roberta", "XLMRoberta", "masked classes tokens encoder spans",
              bert(pad_token_id=1, type_vocab_size=1)),
        *rows("distilbert", "DistilBert", "masked tokens", DISTILBERT),
        ("distilbert", "untied", "DistilBertForMaskedLM", {**DISTILBERT, "activation": "relu",
         "tie_word_embeddings": False}),
        *rows("distilbert", "DistilBert", "classes spans", {**DISTILBERT, "pad_token_id": 4, "qa_dropout": 0.3}),
        ("distilbert", "waves", "DistilBertModel", {**DISTILBERT, "sinusoidal_pos_embds": True}),
        *rows("mpnet", "MPNet", "masked tokens spans", BERT),
        *rows("mpnet", "MPNet", "classes encoder", bert(hidden_act="relu", pad_token_id=4)),
        *rows("electra", "Electra", "masked classes tokens spans", bert(embedding_size=10)),
        ("electra", "wide", "ElectraForMaskedLM", bert(embedding_size=24, hidden_act="relu",
         tie_word_embeddings=False)),
        *rows("electra", "Electra", "encoder", bert(embedding_size=10, type_vocab_size=4)),
        *rows("modernbert", "ModernBert", "masked tokens", MODERNBERT),
        *rows("modernbert", "ModernBert", "spans", {**MODERNBERT, "classifier_bias": True}),
        ("modernbert", "biased", "ModernBertForMaskedLM", {**MODERNBERT, "norm_bias": True, "attention_bias": True,
         "mlp_bias": True, "classifier_bias": True, "decoder_bias": False, "hidden_activation": "relu",
         "classifier_activation": "silu", "tie_word_embeddings": False}),
        ("modernbert", "classes", "ModernBertForSequenceClassification", {**MODERNBERT, **FIVE,
         "classifier_pooling": "mean", "layer_types": ["sliding_attention", "full_attention", "full_attention",
         "sliding_attention"], "rope_parameters": {"full_attention": {"rope_type": "linear", "rope_theta": 300.0,
         "factor": 2.0}, "sliding_attention": {"rope_type": "default", "rope_theta": 50.0}}}),
        ("modernbert-decoder", "plain", "ModernBertDecoderForCausalLM", MODERNBERT),
        ("modernbert-decoder", "biased", "ModernBertDecoderForCausalLM", {**MODERNBERT, "norm_bias": True,
         "attention_bias": True, "mlp_bias": True, "classifier_bias": True, "decoder_bias": False,
         "hidden_activation": "relu", "classifier_activation": "silu", "pad_token_id": 5, "tie_word_embeddings": False,
         "local_attention": 8, "layer_types": ["sliding_attention", "full_attention", "full_attention",
         "sliding_attention"]}),
        ("modernbert-decoder", "classes", "ModernBertDecoderForSequenceClassification", {**MODERNBERT, **FIVE,
         "classifier_bias": True, "classifier_dropout": 0.3}),
        ("modernbert-decoder", "encoder", "ModernBertDecoderModel", MODERNBERT),
        ("gpt2", "plain", "GPT2LMHeadModel", GPT2),
        ("gpt2", "scaled", "GPT2LMHeadModel", {**GPT2, "n_inner": 44, "activation_function": "silu",
         "scale_attn_by_inverse_layer_idx": True, "scale_attn_weights": False, "tie_word_embeddings": False,
         "pad_token_id": 0}),
        ("gpt2", "upcast", "GPT2LMHeadModel", {**GPT2, "reorder_and_upcast_attn": True,
         "scale_attn_by_inverse_layer_idx": True}),
        ("opt", "plain", "OPTForCausalLM", OPT),
        ("opt", "post", "OPTForCausalLM", {**OPT, "do_layer_norm_before": False, "word_embed_proj_dim": 10,
         "enable_bias": False, "activation_function": "gelu"}),
        ("opt", "unnormed", "OPTForCausalLM", {**OPT, "_remove_final_layer_norm": True, "tie_word_embeddings": False}),
        ("llama", "plain", "LlamaForCausalLM", llama()),
        ("llama", "biased", "LlamaForCausalLM", llama(attention_bias=True, mlp_bias=True, head_dim=10,
         hidden_act="gelu", tie_word_embeddings=True, rope_parameters=LLAMA3, pad_token_id=None)),
        ("llama", "yarn", "LlamaForCausalLM", llama(rope_parameters=YARN, num_key_value_heads=1)),
        ("llama", "stretched", "LlamaForCausalLM", llama(num_key_value_heads=4, rope_parameters=LINEAR)),
        ("mistral", "window", "MistralForCausalLM", llama(sliding_window=4, head_dim=10)),
        ("mistral", "open", "MistralForCausalLM", llama(sliding_window=None, tie_word_embeddings=True)),
        ("qwen2", "plain", "Qwen2ForCausalLM", llama()),
        ("qwen2", "window", "Qwen2ForCausalLM", llama(use_sliding_window=True, sliding_window=3, max_window_layers=1,
         tie_word_embeddings=True)),
        ("qwen3", "plain", "Qwen3ForCausalLM", llama(head_dim=10)),
        ("qwen3", "window", "Qwen3ForCausalLM", llama(head_dim=10, attention_bias=True, use_sliding_window=True,
         sliding_window=4, layer_types=MIXED)),
        ("smollm3", "plain", "SmolLM3ForCausalLM", llama(num_hidden_layers=5)),
        ("smollm3", "window", "SmolLM3ForCausalLM", llama(num_hidden_layers=4, no_rope_layers=[1, 0, 1, 0],
         use_sliding_window=True, sliding_window=4, attention_bias=True, mlp_bias=True, tie_word_embeddings=False)),
        ("gemma", "plain", "GemmaForCausalLM", llama(head_dim=10)),
        ("gemma", "biased", "GemmaForCausalLM", llama(head_dim=10, attention_bias=True, hidden_act="silu",
         tie_word_embeddings=False)),
        ("gemma2", "plain", "Gemma2ForCausalLM", llama(head_dim=10, sliding_window=4, query_pre_attn_scalar=20)),
        ("gemma2", "uncapped", "Gemma2ForCausalLM", llama(head_dim=10, sliding_window=3, layer_types=MIXED,
         attn_logit_softcapping=None, final_logit_softcapping=2.0, attention_bias=True)),
        ("gemma3_text", "plain", "Gemma3ForCausalLM", llama(head_dim=10, sliding_window=4, query_pre_attn_scalar=20)),
        ("gemma3_text", "capped", "Gemma3ForCausalLM", llama(head_dim=10, sliding_window=3, layer_types=MIXED,
         final_logit_softcapping=2.0, rope_parameters={"full_attention": dict(rope_type="linear", rope_theta=300.0,
         factor=2.0), "sliding_attention": dict(rope_type="default", rope_theta=20.0)})),
        ("gemma3_text", "both", "Gemma3TextModel", llama(head_dim=10, sliding_window=5, layer_types=MIXED,
         use_bidirectional_attention=True)),
        ("gemma3_text", "both-classes", "Gemma3TextForSequenceClassification", llama(**FIVE, head_dim=10,
         sliding_window=4, layer_types=MIXED, use_bidirectional_attention=True)),
        *decoder_cases.DECODERS,
        *decoder_cases.HEADS,
        ("t5", "relu", "T5ForConditionalGeneration", T5),
        ("t5", "gated", "T5ForConditionalGeneration", {**T5, "feed_forward_proj": "gated-gelu",
         "tie_word_embeddings": False, "pad_token_id": 3, "decoder_start_token_id": 3}),
        ("t5", "silu", "T5ForConditionalGeneration", {**T5, "feed_forward_proj": "gated-silu",
         "num_decoder_layers": 1}),
        ("bart", "plain", "BartForConditionalGeneration", bart()),
        ("bart", "scaled", "BartForConditionalGeneration", bart(scale_embedding=True, activation_function="relu",
         decoder_start_token_id=4, pad_token_id=3)),
        ("marian", "plain", "MarianMTModel", bart(pad_token_id=60, decoder_start_token_id=60, eos_token_id=0,
         forced_eos_token_id=0)),
        ("marian", "apart", "MarianMTModel", bart(pad_token_id=50, decoder_start_token_id=50, eos_token_id=0,
         forced_eos_token_id=0, scale_embedding=True, share_encoder_decoder_embeddings=False, decoder_vocab_size=53,
         activation_function="silu", tie_word_embeddings=False)),
        ("vit", "classes", "ViTForImageClassification", {**VIT, **FIVE}),
        ("vit", "oblong", "ViTForImageClassification", {**VIT, "image_size": (8, 12), "patch_size": (2, 4),
         "num_channels": 2, "qkv_bias": False, "hidden_act": "gelu_new"}),
        ("vit", "encoder", "ViTModel", VIT),
        *encoder_cases.ROWS,
        *image_text_cases.ROWS,
    )
]  # fmt: skip


def inputs(case, config, seed=3):
    """What the model of a case reads, for transformers and for us, and where its outputs count.

    Returns:
        dict of NumPy arrays for transformers, arrays for us, and bool (B, T), True at real tokens.
    """
    rng = np.random.default_rng(seed)
    if hasattr(config, "image_token_id"):
        return *image_text_cases.inputs(config, rng), None
    if hasattr(config, "vision_config"):
        theirs, images, _ = inputs(case, config.vision_config, seed)
        if case.architecture.endswith("ForImageClassification"):
            return theirs, images, None
        ids = rng.integers(6, 50, (3, 11))
        if case.family in ("clip", "metaclip_2"):  # each text ends elsewhere, and the end token is also padding
            end = config.text_config.eos_token_id
            end = 60 if end == 2 and case.family == "clip" else end
            ids[0, 10], ids[1, 4:], ids[2, 7:] = end, end, end
        return {**theirs, "input_ids": ids}, {"images": images, "token_ids": ids}, None
    if hasattr(config, "patch_size"):
        height, width = np.broadcast_to(config.image_size, 2)
        images = rng.normal(size=(2, config.num_channels, height, width)).astype("float32")
        theirs = {"pixel_values": images}
        if case.family == "vit_mae":  # it sorts the patches by their noise
            rows, columns = np.array((height, width)) // config.patch_size
            theirs["noise"] = np.stack([np.arange(rows * columns, dtype="float32")] * 2)
        return theirs, images.transpose(0, 2, 3, 1), None
    if hasattr(config, "conv_stride"):
        return waveforms(config, rng)
    if hasattr(config, "num_mel_bins"):
        frames, targets = spectrograms(config, rng, 2), rng.integers(6, 50, (2, 7))
        targets[:, 0] = config.decoder_start_token_id
        theirs = {"input_features": frames.transpose(0, 2, 1), "decoder_input_ids": targets}
        return theirs, {"source_features": frames, "target_ids": targets}, np.ones(targets.shape, bool)
    pad = config.pad_token_id
    ids = rng.integers(6, 50, (2, 11))
    real = np.ones(ids.shape, bool)
    if pad is not None:
        real[1, 8:] = False
        ids[~real] = pad
    theirs = {"input_ids": ids, "attention_mask": real.astype("int64")}
    if case.architecture.endswith(("ForSequenceClassification", "ForQuestionAnswering")) and config.is_encoder_decoder:
        ids[0, [4, 9]] = ids[1, [5, 6]] = config.eos_token_id  # the second one is classified
    if not config.is_encoder_decoder or case.architecture.endswith(("Classification", "ForQuestionAnswering")):
        return theirs, ids, real
    targets = rng.integers(6, 50, (2, 7))
    targets[:, 0] = config.decoder_start_token_id
    theirs["decoder_input_ids"] = targets
    return theirs, {"source_ids": ids, "target_ids": targets}, np.ones(targets.shape, bool)


def waveforms(config, rng):
    """Two sounds, the second one padded, and the frames that are real."""
    sounds, lengths = rng.normal(size=(2, 97)).astype("float16").astype("float32"), np.array([97, 71])
    mask = np.arange(97) < lengths[:, None]
    sounds[~mask] = 0.0
    number = 97
    for size, stride in zip(config.conv_kernel, config.conv_stride):
        number, lengths = ((x - size) // stride + 1 for x in (number, lengths))
    theirs = {"input_values": sounds, "attention_mask": mask.astype("int64")}
    return theirs, {"features": sounds, "features_mask": mask}, np.arange(number) < lengths[:, None]


def answer_of(outputs):
    """The output of a model of transformers that stands for the others: logits, or states without a head."""
    return next(outputs[name] for name in ("logits", "logits_per_image", "last_hidden_state") if name in outputs)


def spectrograms(config, rng, number):
    frames = rng.normal(size=(number, 2 * config.max_source_positions, config.num_mel_bins))
    return frames.astype("float16").astype("float32")  # so that few digits say them


NEW = 9  # tokens that `greedy` has generated


def greedy(model):
    """What a generative model of transformers answers.

    Returns:
        list of prompts (of Whisper spectrograms), list of token ids that it may not choose, and integer array (prompts,
        NEW).
    """
    import torch
    import transformers

    config, pad = model.config, model.config.get_text_config().pad_token_id
    rng = np.random.default_rng(5)
    prompts = [rng.integers(6, 50, length).tolist() for length in ((7, 3, 5) if pad is not None else (6, 6))]
    width = max(map(len, prompts))
    # Decoders go on from the right end, encoders take padding there.
    padded = np.full((len(prompts), width), 0 if pad is None else pad)
    mask = np.zeros(padded.shape, "int64")
    for row, prompt in enumerate(prompts):
        place = slice(0, len(prompt)) if config.is_encoder_decoder else slice(width - len(prompt), width)
        padded[row, place], mask[row, place] = prompt, 1
    forbidden = [] if pad is None else [pad]  # we see padding wherever it stands
    forbidden += [config.image_token_id] if hasattr(config, "image_token_id") else []
    how = transformers.GenerationConfig(
        max_new_tokens=NEW, do_sample=False, pad_token_id=0 if pad is None else pad, suppress_tokens=forbidden or None,
        use_cache="t5" not in config.model_type,  # which fails there where the decoder is deeper than the encoder
        decoder_start_token_id=getattr(config, "decoder_start_token_id", None),
    )  # fmt: skip
    model.generation_config = how  # the model's own would fill in what is not said
    if hasattr(config, "num_mel_bins"):
        frames = spectrograms(config, rng, 3)
        inputs = torch.tensor(frames.transpose(0, 2, 1))
        with torch.no_grad():  # Whisper's own `generate` adds tokens of languages
            answers = transformers.GenerationMixin.generate(model, inputs).numpy()
        return frames.tolist(), forbidden, answers[:, 1:]
    with torch.no_grad():
        answers = model.generate(torch.tensor(padded), attention_mask=torch.tensor(mask)).numpy()
    return prompts, forbidden, answers[:, 1 if config.is_encoder_decoder else width :]


def answers(model, prompts, forbidden):
    """What ours answers: integer array (prompts, NEW)."""
    processors = [txf.generation.ForbiddenTokens(forbidden)] if forbidden else ()
    if "source_features" in [tensor.name for tensor in model.inputs]:
        inputs = {"source_features": np.array(prompts, "float32")}
        return model.generate(inputs=inputs, max_new_tokens=NEW, processors=processors, stop_ids=())
    has_images = "images" in [tensor.name for tensor in model.inputs]
    others = {"inputs": image_text_cases.without_images(model, len(prompts))} if has_images else {}
    got = model.generate(prompts, max_new_tokens=NEW, processors=processors, stop_ids=(), **others)
    is_pair = len(model.inputs) == 2 and not has_images
    starts = [0 if is_pair else len(prompt) for prompt in prompts]  # answers, or prompts and answers
    return np.stack([row[start : start + NEW] for row, start in zip(got, starts)])
