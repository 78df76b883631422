"""Every public callable with a working call, and that call again with one argument made bad.

`python tests/bad_calls.py` prints a line for each outcome that is neither a refusal by name nor plainly right; with
`--accepted` also each bad value that was accepted, for a person to judge.
"""

import base64
import collections
import functools
import inspect
import json
import os
import pathlib
import re
import shutil
import sys
import tempfile

import keras
import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).parent))
sys.path.insert(0, str(pathlib.Path(__file__).parent.parent))

import page_files
import text_cases
from refusals import BUILDERS, CONTEXT, IDS, IMAGE_BUILDERS, IMAGES, X, built

from keras_txf import checkpoints, generation, layers, models, tasks, text, training, visualize
from keras_txf.tasks.option_tables import FitOptions


class Wrong:
    """A value that is right for no argument."""

    def __repr__(self):
        return "Wrong()"


WRONG = Wrong()
BAD = {
    "Wrong()": WRONG, "None": None, "-1": -1, "0": 0, "3": 3, "1.5": 1.5, "nan": float("nan"), "inf": float("inf"),
    "10**30": 10**30, "True": True, "'nonsense'": "nonsense", "b'bytes'": b"bytes", "[]": [], "{}": {},
    "[None]": [None], "['a', 1]": ["a", 1], "[[1], [2, 3]]": [[1], [2, 3]], "{'a': 1}": {"a": 1},
    "lambda": lambda *_: None, "array": np.full((2, 2, 2), 0.5, "float32"),
}  # fmt: skip
LONGEST_MESSAGE = 900  # characters
GOLDEN = pathlib.Path(__file__).parent / "checkpoints" / "golden"
OPTIONS = sorted(set(inspect.signature(layers.EncoderBlock).parameters) - {"num_heads", "kwargs"})
EMBEDDING = ["position_encoding", "max_length", "combine", "position_dim", "token_dim", "pad_id", "scale_embedding"]
CASES = {}  # name -> (function, working arguments, further names of arguments)


def case(name, function, more=(), /, **working):
    CASES[name] = (function, working, more)


def layer_case(name, cls, inputs, /, **working):
    """A layer that is made, and called on inputs."""

    @functools.wraps(cls.__init__)
    def make(**options):
        return cls(**options)(**inputs)

    make.__signature__ = inspect.signature(cls)
    case(f"layers.{name}", make, ["name", "dtype", "trainable"], **working)
    layer = cls(**working)
    layer(**inputs)

    def call(**arguments):
        return layer(**arguments)

    call.__signature__ = inspect.signature(layer.call)
    case(f"layers.{name}.call", call, **inputs)


def add_layers():
    tokens, decoded = {"inputs": X}, {"inputs": X, "context": CONTEXT}
    layer_case("MultiHeadSelfAttention", layers.MultiHeadSelfAttention, tokens, num_heads=2, position="rotary")
    sizes = dict(num_heads=2, kv_lora_rank=6, qk_nope_head_dim=4, qk_rope_head_dim=2)
    layer_case("LatentAttention", layers.LatentAttention, tokens, **sizes)
    layer_case("GatedDeltaNet", layers.GatedDeltaNet, tokens, num_key_heads=2, key_head_dim=3)
    layer_case("Mamba2", layers.Mamba2, tokens, num_heads=2, head_dim=3)
    layer_case("ShortConvolution", layers.ShortConvolution, tokens)
    layer_case("CrossAttention", layers.CrossAttention, decoded, num_heads=2)
    layer_case("EncoderBlock", layers.EncoderBlock, tokens, num_heads=2, position="alibi")
    layer_case("DecoderBlock", layers.DecoderBlock, decoded, num_heads=2, cross_attention=True)
    layer_case("FeedForward", layers.FeedForward, tokens)
    case("layers.Residual", layers.Residual)
    layer_case("LogitAdjustment", layers.LogitAdjustment, tokens)
    layer_case("MixtureOfExperts", layers.MixtureOfExperts, tokens, num_experts=3)
    case("layers.Cache.of_prompt", layers.Cache.of_prompt, attention_mask=np.ones((2, 5), bool), length=5)
    layer_case("Pooling", layers.Pooling, tokens)
    layer_case("SoftPrompt", layers.SoftPrompt, tokens, length=3)
    placed = {"inputs": X, "ids": np.array([[3, 3, 1, 2, 4], [1, 2, 4, 5, 0]]), "vectors": X[:, :2]}
    layer_case("InsertVectors", layers.InsertVectors, placed, placeholder_id=3)
    layer_case("AttentionPooling", layers.AttentionPooling, tokens, num_heads=2)
    layer_case("FeatureEmbedding", layers.FeatureEmbedding, tokens, dim=8)
    layer_case("AudioEmbedding", layers.AudioEmbedding, tokens, dim=8)
    sizes = dict(filters=[4], kernel_sizes=[2], strides=[2], position_groups=2)
    layer_case("WaveformEmbedding", layers.WaveformEmbedding, tokens, dim=8, **sizes)
    layer_case("WaveformNormalization", layers.WaveformNormalization, {"inputs": X[..., 0]})
    sizes = dict(num_mel_bins=3, frame_length=4, hop_length=2)
    layer_case("LogMelSpectrogram", layers.LogMelSpectrogram, {"inputs": X[..., 0]}, **sizes)
    layer_case("PositionalEmbedding", layers.PositionalEmbedding, {"inputs": IDS}, vocab_size=11, dim=8)
    layer_case("PatchEmbedding", layers.PatchEmbedding, {"inputs": IMAGES}, patch_size=2, dim=8, image_size=(6, 8))
    states = {"inputs": X, "states": np.zeros((2, 16), "float32"), "context": CONTEXT}
    layer_case("RecurrentDecoder", layers.RecurrentDecoder, states, dim=8, attention="additive")
    places, heads = np.arange(5), np.zeros((2, 5, 2, 4), "float32")
    rotated, biased = dict(x=heads, positions=places), dict(query_positions=places, key_positions=places)
    heads = {"num_heads": 2}
    for cls, working, called in (
        ("Rotary", {}, rotated), ("AxialRotary", {"grid": 2}, rotated), ("ALiBi", heads, biased),
        ("RelativeBias", heads, biased), ("DisentangledPositions", {"dim": 2}, biased),
    ):  # fmt: skip
        make = getattr(layers, cls)
        case(f"layers.{cls}", make, ["name", "dtype"], **working)
        case(f"layers.{cls}.call", make(**working).__call__, [*called], **called)


def add_models():
    """Tries what builders pass on to blocks and embedding on one builder of each kind: all of them take minutes."""
    sizes = dict(vocab_size=11, num_layers=2, dim=8, num_heads=2)
    passed_on = {"decoder_generator": [*OPTIONS, *EMBEDDING], "image_classifier": OPTIONS}
    for name, build in {**BUILDERS, **IMAGE_BUILDERS}.items():
        own = ["class_token", "position_encoding", "interpolate_positions"] if name in IMAGE_BUILDERS else []
        own += [*passed_on.get(name, ["position", "position_encoding", "dropout"]), "dtype"]
        case(f"models.{name}", build.func, own, **build.keywords)
    for name in ("masked_language_model", "span_classifier"):
        case(f"models.{name}", getattr(models, name), ["position"], **sizes)
    for name in ("token_classifier", "encoder_decoder_classifier"):
        case(f"models.{name}", getattr(models, name), ["position"], num_classes=3, **sizes)
    towers = dict(image_size=(6, 8), patch_size=2, **sizes)
    case("models.dual_encoder", models.dual_encoder, ["position", "norm", "dropout", "dtype"], **towers)
    recurrent = dict(source_vocab_size=11, target_vocab_size=11, num_layers=1, dim=8, attention="additive")
    case("models.recurrent_encoder_decoder", models.recurrent_encoder_decoder, **recurrent)
    joined = dict(image_encoder=built("image_encoder"), decoder=built("decoder_generator"))
    case("models.image_text_generator", models.image_text_generator, **joined)
    for name in ("prefill_model", "step_model", "generative"):
        case(f"models.{name}", getattr(models, name), model=built("decoder_generator"))
    series = keras.Input((None, 2), name="series")
    wired = keras.Model(series, keras.layers.GRU(2, return_sequences=True)(series))
    case("models.forecaster", models.forecaster, model=wired)
    forecast = models.forecaster(wired).forecast
    case("models.forecaster.forecast", forecast, series=[np.ones((3, 2), "float32")], steps=2)
    for name, inputs in (("decoder_generator", "prompt_ids"), ("encoder_decoder", "source_ids")):
        case(f"models.{name}.generate", built(name).generate, **{inputs: [[1, 2]]}, max_new_tokens=2)


def add_generation():
    def use(cls, keyword):
        """What is made is used, for some arguments are judged where the vocabulary is known."""

        @functools.wraps(cls.__init__)
        def make_and_use(**options):
            thing = cls(**options) if keyword == "sampler" else [cls(**options)]
            return built("decoder_generator").generate([[1, 2]], 2, **{keyword: thing})

        make_and_use.__signature__ = inspect.signature(cls)
        return make_and_use

    for name in ("Beam", "Contrastive", "Greedy", "Sampling"):
        case(f"generation.{name}", use(getattr(generation, name), "sampler"))
    processors = {
        "ForbiddenTokens": {"ids": [3]}, "ForcedTokens": {"tokens": {0: 5}}, "FrequencyPenalty": {"penalty": 0.5},
        "MinimumLength": {"min_new_tokens": 1}, "NoRepeatNgrams": {"size": 2}, "PresencePenalty": {"penalty": 0.5},
        "RepetitionPenalty": {"penalty": 1.2},
    }  # fmt: skip
    for name, working in processors.items():
        case(f"generation.{name}", use(getattr(generation, name), "processors"), **working)


def add_training():
    def plain():
        return BUILDERS["encoder_classifier"](num_layers=1)

    def adapted():
        made = plain()
        training.add_adapter(made, "known", rank=2)
        return made

    folder, model = pathlib.Path(tempfile.mkdtemp()), adapted()
    training.save_adapter(model, folder / "known.safetensors", "known")
    for name in ("freeze", "unfreeze", "add_adapter"):
        case(f"training.{name}", lambda_of(getattr(training, name), model=plain), model=...)
    case("training.cost", lambda_of(training.cost, model=plain), model=..., batch_size=2, length=3)
    for name in ("use_adapter", "remove_adapter", "merge_adapter"):
        case(f"training.{name}", lambda_of(getattr(training, name), model=adapted), model=..., name="known")
    case("training.save_adapter", training.save_adapter, model=model, file=folder / "again.safetensors", name="known")
    load_adapter = lambda_of(training.load_adapter, model=plain)
    case("training.load_adapter", load_adapter, model=..., file=folder / "known.safetensors")
    keep = training.KeepCheckpoints(folder / "kept")
    keep.set_model(model)
    keep.on_train_begin()
    keep.on_epoch_begin(0)
    keep.on_epoch_end(0)
    case("training.average_checkpoints", training.average_checkpoints, model=model, checkpoints=folder / "kept")
    case("training.KeepCheckpoints", training.KeepCheckpoints, folder=folder / "others")
    case("training.Resume", training.Resume, file=folder / "resume.npz")
    decay = lambda_of(training.layerwise_decay, optimizer=keras.optimizers.Adam)
    case("training.layerwise_decay", decay, optimizer=...)
    mesh = keras.distribution.DeviceMesh((2, 1), ["batch", "model"], ["cpu:0", "cpu:1"])
    case("training.layout_map", training.layout_map, model=model, device_mesh=mesh)
    case("training.InverseSquareRoot", training.InverseSquareRoot, ["total_steps", "cooldown_steps"], dim=8)
    case("training.answer_scores", training.answer_scores, true_answers=[["a fox"], "b"], predicted_answers=["a", "b"])
    case("training.entities", training.entities, tags=["B-PER", "O"])
    case("training.entity_scores", training.entity_scores, true_tags=[["B-PER"]], predicted_tags=[["O"]])
    case("training.warmup_cosine", training.warmup_cosine, peak=1.0, warmup_steps=3, total_steps=9)
    for name in ("TokenCrossEntropy", "RDrop"):
        case(f"training.{name}", getattr(training, name))
    logits = np.zeros((2, 5, 11), "float32")
    names, tokens = ["y_true", "y_pred", "sample_weight"], dict(y_true=IDS, y_pred=logits)
    case("training.TokenCrossEntropy.call", training.TokenCrossEntropy().__call__, names, **tokens)
    for name in ("SoftmaxContrastiveLoss", "SigmoidContrastiveLoss"):
        case(f"training.{name}", getattr(training, name))
        pairs = dict(y_true=np.arange(2), y_pred=np.zeros((2, 2), "float32"))
        case(f"training.{name}.call", getattr(training, name)().__call__, names, **pairs)
    case("training.preference_model", training.preference_model, policy=built("decoder_generator"))
    case("training.PreferenceLoss", training.PreferenceLoss)
    case("training.PreferenceAccuracy", training.PreferenceAccuracy, ["dtype"])
    for name, call in (("Loss", "__call__"), ("Accuracy", "update_state")):
        pairs = dict(y_true=np.zeros((2, 2), "float32"), y_pred=np.ones((2, 2, 2), "float32"))
        case(f"training.Preference{name}.call", getattr(getattr(training, f"Preference{name}")(), call), names, **pairs)
    for name in ("TokenAccuracy", "Perplexity"):
        case(f"training.{name}", getattr(training, name), ["dtype"])
        case(f"training.{name}.call", getattr(training, name)().update_state, names, **tokens)
    case("training.shift_labels", training.shift_labels, ids=IDS)
    case("training.next_token_windows", training.next_token_windows, ids=np.arange(9), length=3)
    case("training.teacher_forcing", training.teacher_forcing, source_ids=IDS, target_ids=IDS)

    @functools.wraps(training.GenerationScores.__init__)
    def score(**options):
        """Options of `generate` are judged where the model is known."""
        return training.GenerationScores(**options).score(built("decoder_generator"))

    score.__signature__ = inspect.signature(training.GenerationScores)
    case(
        "training.GenerationScores", score,
        ["sampler", "stop_ids", "seed", "max_length", "stop_sequences", "processors", "start_id"],
        inputs=[[1, 2], [3]], references=["a", "b"], detokenize=text.ByteTokenizer(), max_new_tokens=2,
    )  # fmt: skip


def lambda_of(function, **makers):
    """The function with arguments made anew for each call where `...` stands for them."""

    @functools.wraps(function)
    def call(**arguments):
        return function(**{name: makers[name]() if value is ... else value for name, value in arguments.items()})

    return call


def add_text():
    import tensorflow as tf

    def read(function):
        """The first element of a data set, for a pipeline is lazy."""

        @functools.wraps(function)
        def call(**arguments):
            return next(iter(function(**arguments)), None)

        return call

    corpus, tokenizer = text_cases.CORPUS, text_cases.learnt("WordPiece")
    folder = pathlib.Path(tempfile.mkdtemp())
    vocabulary = list(tokenizer.get_config()["vocabulary"])
    words, piece = folder / "vocab.txt", folder / "spiece.model"
    words.write_text("\n".join(vocabulary), encoding="utf-8")
    sentence_piece, pairs = text_cases.learnt("unigram"), text_cases.learnt("byte pairs")
    shared = [
        "length", "start", "end", "special_tokens_in_text", "padding_side", "truncation_side", "name", "added_tokens",
    ]  # fmt: skip
    unigram, definition = sentence_piece.get_config()["model"], pairs.get_config()["definition"]
    case("text.ByteTokenizer", text.ByteTokenizer, shared)
    case("text.CharacterTokenizer", text.CharacterTokenizer, shared, vocabulary=["[PAD]", "[UNK]", "a", "b"])
    case("text.WordPieceTokenizer", text.WordPieceTokenizer, shared, vocabulary=vocabulary)
    case("text.SentencePieceTokenizer", text.SentencePieceTokenizer, shared, model=unigram)
    case("text.BytePairTokenizer", text.BytePairTokenizer, shared, definition=definition)
    case("text.WordPieceTokenizer.from_file", text.WordPieceTokenizer.from_file, path=words)
    case("text.SentencePieceTokenizer.from_file", text.SentencePieceTokenizer.from_file, path=piece)
    case("text.BytePairTokenizer.from_file", text.BytePairTokenizer.from_file, path=folder / "tokenizer.json")
    piece.write_bytes(base64.b64decode(unigram))
    (folder / "tokenizer.json").write_text(definition, encoding="utf-8")
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer"}', encoding="utf-8")
    case("text.from_checkpoint", text.from_checkpoint, ["length"], folder=folder)
    sizes = {
        "WordPieceTokenizer": 300, "BytePairTokenizer": 320, "SentencePieceTokenizer": 200, "CharacterTokenizer": None,
    }  # fmt: skip
    for name, size in sizes.items():
        case(f"text.{name}.train", getattr(text, name).train, shared, source=corpus, vocab_size=size)
    case("text.Tokenizer.call", tokenizer.__call__, ["inputs"], inputs=["a fox", "dogs"])
    case("text.Tokenizer.detokenize", tokenizer.detokenize, ids=[[5, 6]])
    case("text.Tokenizer.tokenize_with_offsets", tokenizer.tokenize_with_offsets, texts=["a fox", "dogs"])
    case("text.Tokenizer.token_to_id", tokenizer.token_to_id, token="[PAD]")
    case("text.Tokenizer.id_to_token", tokenizer.id_to_token, id=3)

    texts, two = ["a fox", "the dogs"], (["a fox", "the dogs"], ["no", "yes"])
    three = (*two, ["it", "is"])
    labelled, paired = (texts, [0, 1]), (*two, [0, 1])
    whole = text_cases.learnt("WordPiece", start="[CLS]", end="[SEP]")
    tagged = dict(dataset=([["a", "b"]], [["O", "B-x"]]), labels=["O", "B-x"])
    case("text.token_classification", read(text.token_classification), tokenizer=tokenizer, **tagged)
    case("text.classification", read(text.classification), dataset=labelled, tokenizer=tokenizer, num_classes=2)
    case("text.sentence_pairs", read(text.sentence_pairs), dataset=paired, tokenizer=whole, num_classes=2)
    case("text.contrastive_pairs", read(text.contrastive_pairs), dataset=two, tokenizer=tokenizer)
    case("text.token_ids", read(text.token_ids), dataset=texts, tokenizer=tokenizer)
    case("text.next_token", read(text.next_token), dataset=texts, tokenizer=tokenizer, max_length=4)
    messages = [{"role": "user", "content": "a fox"}, {"role": "assistant", "content": "the dogs"}]
    lines = "{% for m in messages %}{{ m.content }} {% endfor %}"
    (folder / "chat_template.jinja").write_text(lines, encoding="utf-8")
    template = text.ChatTemplate(lines)
    case("text.ChatTemplate", text.ChatTemplate, template=lines)
    case("text.ChatTemplate.render", template.render, messages=messages)
    case("text.ChatTemplate.render_answers", template.render_answers, messages=messages)
    case("text.ChatTemplate.save", template.save, folder=folder / "saved")
    case("text.chat_template", text.chat_template, folder=folder)
    case("text.instruction", read(text.instruction), dataset=two, tokenizer=tokenizer, template=template, max_length=9)
    case(
        "text.preferences", read(text.preferences), dataset=three, tokenizer=tokenizer, template=template, max_length=9
    )
    case("text.conversations", read(text.conversations), dataset=[messages], tokenizer=tokenizer, template=template)
    case("text.translation", read(text.translation), dataset=two, source_tokenizer=whole)
    case("text.question_answering", read(text.question_answering), dataset=three, tokenizer=whole)
    masked = dict(dataset=texts, tokenizer=tokenizer, max_length=4)
    case("text.masked_language_modelling", read(text.masked_language_modelling), **masked)
    ids = tf.data.Dataset.from_tensor_slices(IDS)
    case("text.mask_tokens", read(text.mask_tokens), dataset=ids, tokenizer=tokenizer)
    examples = text.translation(two, whole)
    case("text.pack", read(text.pack), dataset=examples, length=64)
    case("text.batch_by_length", read(text.batch_by_length), dataset=examples, tokens=64, lengths=[16, 32])
    case("text.bucket_lengths", text.bucket_lengths, dataset=examples)
    case("text.counted", text.counted, dataset=examples)
    case("text.contrastive_targets", text.contrastive_targets, batch={"anchor_ids": IDS, "positive_ids": IDS})
    classifier = models.encoder_classifier(tokenizer.vocab_size, 2, 1, 8, 2)
    case(
        "text.export", text.export, ["max_new_tokens", "sampler", "stop_ids", "processors", "jit_compile"],
        model=classifier, tokenizer=text_cases.learnt("WordPiece", length=8), folder=folder / "exported",
        overwrite=True,
    )  # fmt: skip


def add_checkpoints():
    folder, golden = pathlib.Path(tempfile.mkdtemp()), GOLDEN / "gpt2"
    config = json.loads((golden / "config.json").read_text())
    case("checkpoints.save", checkpoints.save, model=checkpoints.load(golden), folder=folder / "again", config=config)
    own = ["dtype", "progress", "revision", "ignore", "dropout", "max_length"]
    case("checkpoints.load", checkpoints.load, own, path=golden)
    case("checkpoints.find", checkpoints.find, path=golden)
    case("checkpoints.describe", checkpoints.describe, path=golden)
    (folder / "images").mkdir()
    values = {"image_processor_type": "SiglipImageProcessor", "size": {"height": 4, "width": 4}}
    (folder / "images" / "preprocessor_config.json").write_text(json.dumps(values))
    case("checkpoints.image_processor", checkpoints.image_processor, path=folder / "images")
    case("checkpoints.ImageProcessor", checkpoints.ImageProcessor)
    loaded, adapter = checkpoints.load(golden), folder / "adapter"
    checkpoints.save(loaded, folder / "with_words")
    (folder / "with_words" / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\nhello\n")
    (folder / "with_words" / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer"}')
    with_words, words = checkpoints.load(folder / "with_words"), text.from_checkpoint(folder / "with_words")
    resize = checkpoints.resize_vocabulary
    case("checkpoints.resize_vocabulary", resize, model=with_words, tokenizer=words, tokens=["<drug>"])
    training.add_adapter(loaded, "known", rank=2)
    checkpoints.save_adapter(loaded, adapter, "known")
    case("checkpoints.save_adapter", checkpoints.save_adapter, model=loaded, folder=adapter, name="known")
    on_a_fresh_model = lambda_of(checkpoints.load_adapter, model=lambda: checkpoints.load(golden))
    case("checkpoints.load_adapter", on_a_fresh_model, model=..., path=adapter)


def add_visualize():
    model = built("decoder_generator")
    scores = visualize.attention_scores(model, IDS)
    tokens, images = [str(place) for place in range(IDS.shape[1])], built("image_classifier")
    seen = visualize.attention_scores(images, IMAGES)
    case("visualize.attention_scores", visualize.attention_scores, model=model, inputs=IDS)
    case("visualize.view_attention", visualize.view_attention, scores=scores, tokens=tokens)
    case("visualize.AttentionPage", visualize.AttentionPage, html="<html></html>")
    case("visualize.plot_attention", visualize.plot_attention, scores=scores, tokens=tokens)
    on_image = dict(image=IMAGES[0], scores=seen, patch_size=2)
    case("visualize.plot_attention_on_image", visualize.plot_attention_on_image, **on_image)
    case("visualize.attention_rollout", visualize.attention_rollout, scores=seen)
    case("visualize.plot_positions", visualize.plot_positions, layer="rotary")
    case("visualize.plot_history", visualize.plot_history, history={"loss": [2.0, 1.0], "val_loss": [2.5, 1.5]})


def add_tasks(names=tasks.__all__):
    """Of the tasks of these names. Columns have two rows, as the bad values that are lists.

    Models run step by step: compiling takes seconds.
    """
    folder = pathlib.Path(tempfile.mkdtemp())
    texts, others, tags = ["a fox", "the dogs"], ["ein Fuchs", "die Hunde"], [["O", "B-x"]] * 2
    words, scores = [text.split() for text in texts], [0.0, 1.0]
    labels, small = ["no", "yes"], dict(vocab_size=60, num_layers=1, dim=8, num_heads=2)
    messages = [{"role": "user", "content": "a fox"}, {"role": "assistant", "content": "the dogs"}]
    template = "{% for m in messages %}{{ m.content }} {% endfor %}"
    data = {  # the columns of `fit`, by the names of its arguments
        "TextClassifier": dict(texts=texts, labels=labels), "TokenClassifier": dict(words=words, tags=tags),
        "PairClassifier": dict(first=texts, second=others, labels=scores),
        "QuestionAnswerer": dict(questions=others, contexts=texts, answers=["fox", "dogs"]),
        "TextEmbedder": dict(anchors=texts, positives=others), "TextGenerator": dict(texts=texts, responses=others),
        "TextToText": dict(sources=texts, targets=others), "MaskedLanguageModel": dict(texts=texts),
    }  # fmt: skip
    asked = {
        "TextClassifier": {"predict": dict(texts=texts)},
        "TokenClassifier": {"predict": dict(words=words), "entities": dict(texts=texts)},
        "PairClassifier": {"predict": dict(first=texts, second=others), "rank": dict(query="a fox", texts=others),
                           "inputs": dict(first=texts, second=others)},
        "QuestionAnswerer": {"predict": dict(questions=others, contexts=texts)},
        "TextEmbedder": {"encode": dict(texts=texts), "index": dict(texts=texts), "search": dict(queries=texts)},
        "TextGenerator": {"generate": dict(texts=texts, max_new_tokens=2),
                          "chat": dict(messages=messages[:1], max_new_tokens=2)},
        "TextToText": {"generate": dict(texts=texts, max_new_tokens=2)},
        "MaskedLanguageModel": {"fill": dict(texts=["the [MASK]"])},
    }  # fmt: skip
    options = list(FitOptions.__annotations__)
    for name in names:
        cls, columns = getattr(tasks, name), data[name]
        made = {**columns, **small}
        if name in ("PairClassifier", "QuestionAnswerer"):
            del made["labels" if name == "PairClassifier" else "answers"]
        if name in ("TextGenerator", "TextToText"):
            made["vocab_size"] = 30
        if name == "TextGenerator":
            made["chat_template"] = template
        # The second one is fitted: a huge learning rate is no error, and leaves weights that are no numbers.
        task, fitted = tasks_of = [cls.from_scratch(**made) for _ in range(2)]
        for one in tasks_of:
            one._compile = functools.partial(one._compile, run_eagerly=True)
            one.model.run_eagerly = True
        more = {key: value for key, value in task.get_config().items() if key in ("labels", "max_length")}
        case(f"tasks.{name}", cls, model=task.model, tokenizer=task.tokenizer, **more)
        case(f"tasks.{name}.from_scratch", cls.from_scratch, ["dropout", "max_length", "tokenizer"], **made)
        named = {"labels": labels} if name in ("TextClassifier", "TokenClassifier") else {}
        path = task_checkpoint(name, folder / "checkpoints")
        case(f"tasks.{name}.from_checkpoint", cls.from_checkpoint, ["dropout", "dtype"], path=path, **named)
        case(f"tasks.{name}.fit", fitted.fit, options, **columns, epochs=1, verbose=0)
        case(f"tasks.{name}.evaluate", task.evaluate, **columns, **{"scores": scores} if name == "TextEmbedder" else {})
        case(f"tasks.{name}.compile", cls.from_scratch(**made).compile)
        case(f"tasks.{name}.save", task.save, folder=folder / name)
        task.save(folder / name)
        case(f"tasks.{name}.load", cls.load, folder=folder / name)
        if name not in ("MaskedLanguageModel", "QuestionAnswerer"):
            case(f"tasks.{name}.export", task.export, folder=folder / f"{name} exported", overwrite=True)
        if name == "TextEmbedder":
            task.index(texts)  # which `search` needs
        for method, working in asked[name].items():
            case(f"tasks.{name}.{method}", getattr(task, method), **working)


def task_checkpoint(name, folder):
    """A folder that `from_checkpoint` of a task reads."""
    folder.mkdir(exist_ok=True)
    if name == "TextGenerator":
        page_files.chat_model(folder / "llama")
        return folder / "llama"
    if name != "TextToText":
        page_files.encoder(folder / "bert")
        return folder / "bert"
    shutil.copytree(GOLDEN / "t5", folder / "t5")
    trained = text.SentencePieceTokenizer.train(["a fox saw the dogs"] * 8, 20)
    (folder / "t5" / "spiece.model").write_bytes(base64.b64decode(trained.get_config()["model"]))
    (folder / "t5" / "tokenizer_config.json").write_text('{"tokenizer_class": "T5Tokenizer", "extra_ids": 0}')
    return folder / "t5"


AREAS = {
    "layers": add_layers, "models": add_models, "generation": add_generation, "training": add_training,
    "text": add_text, "checkpoints": add_checkpoints, "visualize": add_visualize, "tasks": add_tasks,
}  # fmt: skip


# Public callables without a case, and why.
WITHOUT = {
    "layers.Cache": "made by `of_prompt`, or by `generate`", "layers.Int8Cache": "made by `generate`",
    "layers.SinkCache": "made by `generate`", "generation.History": "made by `generate`",
    "generation.Scored": "made by `generate`", "generation.ScoredWithTop": "made by `generate`",
    "generation.Decoder": "tests/generation/test_decoder.py",
    "checkpoints.Description": "made by `describe`", "checkpoints.families": "takes nothing",
    "generation.State": "made by `generate`", "generation.WithState": "made by `generate`",
    "training.Cost": "made by `cost`", "text.Tokenizer": "the base of the tokenizers",
}  # fmt: skip
# Their options are those of builders, which try them.
PASS_ON = (".from_scratch", ".from_checkpoint", "checkpoints.load")
# Bad values whose error is the caller's own function's.
OWN_ERRORS = {("activation", "lambda"), ("head_activation", "lambda")}


def arguments_of(name):
    """The names of all arguments of a case, in order."""
    function, working, more = CASES[name]
    kinds = [inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD]
    if name.endswith(PASS_ON):
        kinds.append(inspect.Parameter.KEYWORD_ONLY)
    try:
        own = [p.name for p in inspect.signature(function).parameters.values() if p.kind not in kinds]
    except ValueError:
        own = []
    return list(dict.fromkeys([*own, *working, *more]))


def outcome(name, argument, bad):
    """ "accepted", "refused" by the name of the argument, or what went wrong."""
    function, working, _ = CASES[name]
    try:
        result = function(**{**working, argument: BAD[bad]})
        if inspect.isgenerator(result):
            list(result)
    except ValueError as error:
        message = str(error)
        if len(message) > LONGEST_MESSAGE:
            return f"a message of {len(message)} characters"
        also = any(word in message for word in ALSO.get(argument, ()))
        named = also or re.search(rf"\b{re.escape(argument)}\b", message)
        return "refused" if named else f"not named: ValueError: {message[:160]!r}"
    except Exception as error:
        # What a pipeline finds while it is read, long after the call.
        if type(error).__name__ == "InvalidArgumentError" and f"`{argument}` must" in str(error):
            return "refused"
        return f"{type(error).__name__}: {str(error)[:160]!r}"
    return "accepted"


# What a message may call an argument instead.
ALSO = {
    "dtype": ("DTypePolicy", "policy"), "vocab_size": ("token ids from 0 to",),
    "inputs": ("Input 0 ",),  # Keras, of a block that is built for another width
    **dict.fromkeys(["encoder_options", "decoder_options"], ("'a' is not an option of",)),
}  # fmt: skip


def outcomes(names, values, step=1):
    """(case, argument, bad value, outcome) for each; with `step` an argument has one value in so many, each others."""
    arguments = [(name, argument) for name in names for argument in arguments_of(name)]
    for place, own in enumerate(arguments):
        for bad in list(values)[place % step :: step]:
            yield *own, bad, outcome(*own, bad)


def is_wrong(name, argument, bad, found):
    """Neither refused by name nor right."""
    if (argument, bad) in OWN_ERRORS:
        return False
    return found != "refused" and (found != "accepted" or bad == "Wrong()")


def main():
    wanted = [word for word in sys.argv[1:] if not word.startswith("--")]
    for area, add in AREAS.items():
        if not wanted or any(word.startswith(area) or area.startswith(word.rstrip(".")) for word in wanted):
            add()
    names = [name for name in CASES if not wanted or any(word in name for word in wanted)]
    for name in names:
        CASES[name][0](**CASES[name][1])  # the working call
    os.chdir(tempfile.mkdtemp())  # some bad values are names of files to write
    counts = collections.Counter()
    for row in outcomes(names, BAD):
        kind = row[-1] if row[-1] in ("refused", "accepted") else "an error of the caller's function"
        kind = "wrong" if is_wrong(*row) else kind
        counts[kind] += 1
        if kind == "wrong" or (kind == "accepted" and "--accepted" in sys.argv):
            print("{}({}={}): {}".format(*row), flush=True)
    print(dict(counts))


if __name__ == "__main__":
    main()
