"""Every public name once, as a user types it: pyright checks this file, see test_types.py. It also runs."""

import json
import pathlib

import keras
import numpy as np

import keras_txf as txf

IDS = np.array([[5, 6, 7, 0], [8, 9, 0, 0]])
HIDDEN = np.random.default_rng(0).normal(size=(2, 5, 8)).astype("float32")
CONTEXT = np.random.default_rng(1).normal(size=(2, 3, 6)).astype("float32")
IMAGES = np.random.default_rng(2).random((2, 4, 6, 3)).astype("float32")
SOUNDS = np.random.default_rng(3).normal(size=(2, 700)).astype("float32")
TEXTS = ["a dog sees a dog", "a cat"]


def use_layers() -> None:
    layers = txf.layers
    attention = layers.MultiHeadSelfAttention(
        2, causal=True, num_key_value_heads=1, qk_norm="full", sinks=True, output_gate=True, window=3,
        position=layers.Rotary(base=500.0), name="attention", dtype="float32",
    )  # fmt: skip
    cache = layers.Cache.of_prompt(np.ones((2, 5), bool), length=5)
    attention(HIDDEN, cache=cache)
    latent = layers.LatentAttention(2, 6, 4, 2, v_head_dim=3, q_lora_rank=5, position=layers.Rotary(interleaved=True))
    layers.EncoderBlock(attention=latent)(HIDDEN)
    layers.EncoderBlock(attention=layers.GatedDeltaNet(2, 3, num_value_heads=4, value_head_dim=5))(HIDDEN)
    layers.EncoderBlock(attention=layers.Mamba2(4, head_dim=3, state_dim=5, num_groups=2))(HIDDEN)
    layers.EncoderBlock(attention=layers.ShortConvolution(4, use_bias=True))(HIDDEN)
    layers.CrossAttention(2, dropout=0.1, use_bias=False)(HIDDEN, CONTEXT)
    layers.FeedForward(10, activation="silu", gated=True)(HIDDEN)
    experts = layers.MixtureOfExperts(3, top_k=2, intermediate_dim=6, num_shared_experts=1, load_balancing=None)
    layers.EncoderBlock(2, norm="rms", norm_placement="pre", residual="parallel", feed_forward=experts)(HIDDEN)
    stream = layers.Residual("sequential", scale=0.5, layer_scale=0.1, stochastic_depth=0.1)
    layers.DecoderBlock(2, residual=stream, cross_attention=True, position=layers.ALiBi(2))(HIDDEN, CONTEXT)
    layers.EncoderBlock(2, position=layers.RelativeBias(2, num_buckets=8), trainable=False)(HIDDEN)
    positions = layers.DisentangledPositions(8, max_distance=9, num_buckets=8, share_projections=True, norm=True)
    layers.EncoderBlock(2, position=positions)(HIDDEN)
    layers.PositionalEmbedding(11, 8, position_encoding="learned", max_length=9)(IDS)
    layers.PatchEmbedding((2, 3), 8, image_size=(4, 6), register_tokens=2)(IMAGES)
    layers.EncoderBlock(2, position=layers.AxialRotary((2, 2), base=50.0))(HIDDEN)
    layers.FeatureEmbedding(8, position_encoding="learned", max_length=9)(CONTEXT)
    layers.AudioEmbedding(8, strides=(1, 2), activation="relu")(layers.LogMelSpectrogram(6, num_samples=800)(SOUNDS))
    waves = layers.WaveformEmbedding(8, [4, 6], [5, 3], strides=(3, 2), norm="group", position_groups=2)
    waves(layers.WaveformNormalization()(SOUNDS)[..., None])
    layers.Pooling("attention")(HIDDEN)
    layers.LogitAdjustment(0.5, use_bias=True, soft_cap=30.0)(HIDDEN)
    layers.SoftPrompt(3, initializer="zeros")(HIDDEN)
    layers.InsertVectors(9, group_size=3)(HIDDEN, np.array([[9, 9, 9, 1, 2], [1, 2, 3, 4, 5]]), HIDDEN[:, :3])
    layers.AttentionPooling(2, intermediate_dim=6)(HIDDEN)
    layers.RecurrentDecoder(4, cell="gru", attention="additive")(HIDDEN, HIDDEN[:, 0, :4], CONTEXT[:, :, :4])


def use_models() -> None:
    models = txf.models
    encoder: keras.Model = models.encoder(11, 2, 8, 2, share_blocks=1, activation="gelu", return_hidden_states=True)
    encoder.predict(IDS)
    models.encoder_classifier(11, 3, 2, 8, 2, pooling="first", head="tanh", head_dropout=0.1)
    models.token_classifier(11, 3, 2, 8, 2, packed=True)
    speech = models.encoder_decoder(
        None, 9, 1, 8, 2, input_dim=6, encoder_options={"embedding": txf.layers.AudioEmbedding(8)}
    )
    speech.generate(inputs={"source_features": CONTEXT}, max_new_tokens=2, start_id=[1, 3])
    models.span_classifier(11, 2, 8, 2, head="gelu", token_types=2, token_type_ids=True)
    models.encoder_decoder_classifier(11, None, 2, 8, 2, spans=True, start_id=2, head_dropout=0.1)
    models.masked_language_model(11, 2, 8, 2, next_sentence=True, embedding=txf.layers.PositionalEmbedding(11, 4))
    models.image_encoder((4, 6), (2, 3), 2, 8, 2, class_token=False)
    models.image_classifier(4, 2, 3, 2, 8, 2, channels=1)
    pair: keras.Model = models.dual_encoder(
        (4, 6), 2, 11, 2, 8, 2, projection_dim=6, end_id=9, image_pooling=txf.layers.AttentionPooling(2),
        image_options={"num_layers": 1}, text_options={"pad_id": None},
    )  # fmt: skip
    for loss in (txf.training.SoftmaxContrastiveLoss(), txf.training.SigmoidContrastiveLoss(name="pairs")):
        pair.compile("adam", loss={"logits": loss})
    images = models.image_encoder((4, 6), (2, 3), 2, 8, 2)
    reader = models.image_text_generator(images, models.decoder_generator(11, 2, 8, 2), bidirectional="images")
    reader.generate([[5, 6], [7]], max_new_tokens=2, inputs={"images": IMAGES})
    models.decoder(11, 2, 8, [2, 4], context_dim=6, residual=txf.layers.Residual(stochastic_depth=0.1))
    generator = models.decoder_generator(11, 2, 8, 2, window=[None, 3], norm_placement="pre")  # a value a block
    generator.generate([[5, 6], [7]], max_new_tokens=2, stop_ids=[2], seed=3)
    preferred: keras.Model = txf.training.preference_model(models.decoder_generator(11, 1, 8, 2))
    preferred.compile("sgd", txf.training.PreferenceLoss("ipo"), metrics=[txf.training.PreferenceAccuracy()])
    models.prefill_model(generator)
    models.step_model(generator, width=2)
    models.encoder_decoder(11, 9, 2, 8, 2, num_decoder_layers=1, encoder_options={"dropout": 0.0}).generate([[5, 6]], 2)
    models.recurrent_encoder_decoder(11, 9, 1, 8, cell="gru", attention="multiplicative").generate([[5]], 2)
    models.generative(generator, name="wired").generate([[5, 6]], 2)
    series = keras.Input((None, 8))
    recurrent = keras.Model(series, keras.layers.GRU(7, return_sequences=True)(series))
    models.forecaster(recurrent, future_features=1).forecast(HIDDEN, 2, future=HIDDEN[:, :2, :1])


def use_generation() -> None:
    generation = txf.generation
    processors = [
        generation.RepetitionPenalty(1.2), generation.PresencePenalty(0.5), generation.FrequencyPenalty(0.5),
        generation.NoRepeatNgrams(3), generation.MinimumLength(1), generation.ForcedTokens({0: 4, 1: [2, 5]}),
        generation.ForbiddenTokens([3, [5, 6]]), generation.ForbiddenTokens([7], positions=[0]),
    ]  # fmt: skip

    def forbid_zero(logits, history: txf.generation.History):
        return keras.ops.where(keras.ops.arange(11) == 0, -1e9 * history.prompt_length, logits)

    model = txf.models.decoder_generator(11, 1, 8, 2)
    sampling = generation.Sampling(temperature=0.8, top_k=5, top_p=0.9)
    for sampler in (generation.Greedy(), sampling, generation.Beam(2), generation.Contrastive(num_candidates=3)):
        model.generate([[5, 6]], 2, sampler=sampler)
    processors = [*processors, forbid_zero]
    scored: txf.generation.Scored = model.generate([[5, 6]], 2, "sampling", processors=processors, return_scores=True)
    top: txf.generation.ScoredWithTop = model.generate([[5, 6]], 2, return_scores=True, top_logprobs=3)
    print(scored.ids, scored.log_probs, scored.scores, top.top_ids, top.top_log_probs)
    first: txf.generation.WithState = model.generate([[5, 6]], 2, return_state=True, cache=txf.layers.Int8Cache)
    state: txf.generation.State = first.state
    model.generate([[7]], 2, state=state, cache="int8")
    model.generate([[5, 6]], 2, assistant=model, draft_tokens=2)
    model.generate([[5, 6]], 2, cache=txf.layers.SinkCache.of_size(sinks=1, window=4))
    decoder = generation.Decoder(model, tokens=2, cache=None)
    logits, known = decoder.prefill(np.array([[5, 6]]), length=5)
    print(logits.shape, decoder.step(np.array([[7, 8]]), known)[0].shape)


def use_training(folder: pathlib.Path) -> None:
    training = txf.training  # Keras' optimizers take schedules, though their hints say float
    inputs, targets = training.shift_labels(IDS)
    training.next_token_windows(np.arange(7), length=3)
    training.teacher_forcing(IDS, IDS)
    model = txf.models.decoder_generator(11, 2, 8, 2)
    counted: txf.training.Cost = training.cost(lambda: model, 2, {"token_ids": 3}, rematerialize=True)
    print(counted, counted.memory_bytes, counted.moved_bytes)
    training.freeze(model, "embedding")
    training.unfreeze(model)
    optimizer = keras.optimizers.AdamW(training.warmup_cosine(1e-3, 10, 100))  # pyright: ignore[reportArgumentType]
    optimizer = training.layerwise_decay(optimizer, decay=0.9)
    scores = training.GenerationScores([[5], [6]], ["a", "b"], detokenize=str, max_new_tokens=2)
    metrics = [training.TokenAccuracy(), training.Perplexity()]
    model.compile(optimizer, training.TokenCrossEntropy(label_smoothing=0.1), metrics=metrics)
    keep = training.KeepCheckpoints(folder / "checkpoints", keep=2)
    model.fit(inputs, targets, epochs=2, callbacks=[keep, training.Resume(folder / "resume.npz"), scores])
    training.average_checkpoints(model, folder / "checkpoints")
    optimizer = keras.optimizers.Adam(training.InverseSquareRoot(8))  # pyright: ignore[reportArgumentType]
    model.compile(optimizer, training.RDrop(strength=1.0))
    training.add_adapter(model, "verse", rank=2, targets="*/attention/*")
    training.use_adapter(model, "verse")
    training.save_adapter(model, folder / "verse.safetensors", "verse")
    training.remove_adapter(model, "verse")
    training.load_adapter(model, folder / "verse.safetensors")
    training.merge_adapter(model)
    mesh = keras.distribution.DeviceMesh((2, 2), ["batch", "model"], [f"cpu:{i}" for i in range(4)])
    layouts: keras.distribution.LayoutMap = training.layout_map(lambda: txf.models.encoder(12, 1, 8, 2), mesh)
    print(layouts)


def use_text(folder: pathlib.Path) -> None:
    text = txf.text
    tokenizer: txf.text.Tokenizer = text.ByteTokenizer(extra_tokens=["[MASK]"], start="<pad>", end="</s>")
    text.BytePairTokenizer.train(TEXTS, vocab_size=261)
    text.CharacterTokenizer.train(TEXTS)
    text.SentencePieceTokenizer.train(TEXTS, vocab_size=18)
    text.WordPieceTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a"], start="[CLS]", end="[SEP]", length=8)
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "ByT5Tokenizer"}')
    text.from_checkpoint(folder, target=True)
    examples = text.next_token(TEXTS, tokenizer, max_length=8)
    text.batch_by_length(examples, tokens=32, lengths=text.bucket_lengths(text.token_ids(TEXTS, tokenizer)))
    text.counted(text.pack(examples, length=16).batch(2))
    text.classification((TEXTS, [0, 1]), tokenizer, num_classes=2)
    text.sentence_pairs((TEXTS, TEXTS, [0.5, 1.0]), tokenizer, num_classes=None)
    text.translation((TEXTS, TEXTS), tokenizer)
    text.question_answering((TEXTS, TEXTS, TEXTS), tokenizer)
    text.masked_language_modelling(TEXTS, tokenizer, rate=0.5)
    text.mask_tokens(text.token_ids(TEXTS, tokenizer), tokenizer)
    text.contrastive_pairs((TEXTS, TEXTS), tokenizer).padded_batch(2).map(text.contrastive_targets)
    (folder / "chat_template.jinja").write_text("{% for m in messages %}{{ m.role[0] }}{{ m.content }};{% endfor %}")
    template: txf.text.ChatTemplate = text.chat_template(folder)
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    print(template.render(messages, add_generation_prompt=True), template.render_answers(messages))
    text.conversations([messages], tokenizer, template, max_length=8)
    text.instruction((TEXTS, TEXTS), tokenizer, max_length=8)
    text.preferences((TEXTS, TEXTS, TEXTS), tokenizer).padded_batch(2)
    classifier = txf.models.encoder_classifier(tokenizer.vocab_size, 2, 1, 8, 2)
    text.export(classifier, tokenizer, folder / "exported", labels=["no", "yes"])


def use_checkpoints(folder: pathlib.Path) -> None:
    golden = pathlib.Path(__file__).parent / "checkpoints" / "golden" / "gpt2"
    description: txf.checkpoints.Description = txf.checkpoints.describe(golden)
    print(description.parameters, txf.checkpoints.families()["llama"])
    processor = txf.checkpoints.ImageProcessor({"height": 4, "width": 6}, mean=[0.5] * 3, std=[0.5] * 3)
    print(processor([np.zeros((8, 9, 3), "uint8")]).shape, processor.grid(np.zeros((8, 9), "uint8")))
    (folder / "preprocessor_config.json").write_text('{"image_processor_type": "ViTImageProcessor"}')
    txf.checkpoints.image_processor(folder)
    loaded = txf.checkpoints.load(txf.checkpoints.find(golden), task="causal_lm", dtype="float32")
    txf.checkpoints.save(loaded, folder / "gpt2", config=json.loads((golden / "config.json").read_text()))
    loaded.generate([[5, 6]], 2)
    (folder / "gpt2" / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\nhello\n")
    (folder / "gpt2" / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer"}')
    resized, _ = txf.checkpoints.resize_vocabulary(
        txf.checkpoints.load(folder / "gpt2"), txf.text.from_checkpoint(folder / "gpt2"), ["<drug>"]
    )
    resized.generate([[5, 6]], 2)
    txf.training.add_adapter(loaded, "verse", rank=2)
    txf.checkpoints.save_adapter(loaded, folder / "adapter", "verse", base="gpt2", dtype="float16")
    txf.checkpoints.load_adapter(loaded, folder / "adapter", name="prose")


def use_visualize(folder: pathlib.Path) -> None:
    visualize = txf.visualize
    model = txf.models.image_encoder(4, 2, 2, 8, 2)
    images = IMAGES[:, :4, :4]
    scores = visualize.attention_scores(model, images)
    visualize.attention_rollout(scores)
    visualize.plot_attention(scores, heads="mean").savefig(folder / "attention.png")
    visualize.plot_attention_on_image(images[0], scores, patch_size=2)
    visualize.plot_positions("rotary", length=8, dim=4)
    visualize.plot_history({"loss": [2.0, 1.0], "val_loss": [2.1, 1.3]})
    page: txf.visualize.AttentionPage = visualize.view_attention(scores, list("abcde"), path=folder / "page.html")
    page.save(folder / "again.html")


def use_tasks(folder: pathlib.Path) -> None:
    tasks, small = txf.tasks, {"vocab_size": 40, "num_layers": 1, "dim": 8, "num_heads": 2}
    lines, labels, answers = ["a dog runs", "a cat sits"] * 4, ["dog", "cat"] * 4, ["ein Hund", "eine Katze"] * 4
    classifier = tasks.TextClassifier.from_scratch(lines, labels, **small)
    classifier.fit(lines, labels, class_weight="balanced", epochs=1, validation_split=0.25)
    classifier.save(folder / "classifier")
    print(tasks.TextClassifier.load(folder / "classifier").predict("a dog"))
    ranker = tasks.PairClassifier.from_scratch(lines, answers, **small)
    print(ranker.rank("a dog", answers[:2]))
    embedder = tasks.TextEmbedder.from_scratch(lines, answers, **small)
    print(embedder.index({"answer": answers[:2]}, columns="answer").search("a dog", k=1))
    print(tasks.TextGenerator.from_scratch(lines, **{**small, "vocab_size": 20}).generate("a", max_new_tokens=2))
    messages = [{"role": "user", "content": "a dog"}, {"role": "assistant", "content": "runs"}]
    generator = tasks.TextGenerator.from_scratch([messages] * 4, **{**small, "vocab_size": 24})
    generator.fit([messages] * 4, epochs=1)
    print(generator.evaluate(["a dog"], ["runs"]), generator.chat(messages[:1], max_new_tokens=2))
    print(tasks.TextToText.from_scratch(lines, answers, **{**small, "vocab_size": 20}).generate("a", max_new_tokens=2))
    print(tasks.MaskedLanguageModel.from_scratch(lines, **small).fill("a [MASK] runs", k=2))
    words, tags = [["Ada", "runs"], ["a", "dog"]], [["B-PER", "O"], ["O", "O"]]
    print(list(txf.text.token_classification((words, tags), classifier.tokenizer, ["O", "B-PER"])))
    tagger = tasks.TokenClassifier.from_scratch(words, tags, **small)
    print(tagger.entities("Ada runs"), txf.training.entity_scores(tags, tagger.predict(words)))
    print(txf.training.entities(["B-PER", "I-PER"]))
    answerer = tasks.QuestionAnswerer.from_scratch(["who runs"] * 8, lines, null_threshold=0.0, **small)
    answerer.fit(["who runs"] * 8, lines, ["a dog", ""] * 4, epochs=1)
    print(answerer.predict("who runs", lines[0], k=2), answerer.tokenizer.tokenize_with_offsets(lines))
    print(txf.training.answer_scores([["a dog"], ""], ["dog", ""]))


def main(folder: pathlib.Path) -> None:
    print(txf.__version__)
    use_layers()
    use_models()
    use_generation()
    use_training(folder)
    use_text(folder)
    use_checkpoints(folder)
    use_visualize(folder)
    use_tasks(folder)
