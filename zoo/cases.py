"""Real inputs for every model of the zoo, at several bindings of its symbolic dims.

`cases(name)` answers with a list of inputs, each `{input name: array}`, in the preprocessing that
the model was trained with as far as it is known. `noise_like` makes a random twin of any of them.
What a model must answer is told in `zoo.golden`.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from zoo import encoder, fetch, light, pictures, sound

Inputs = dict[str, npt.NDArray[np.generic]]

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_DEVIATION = (0.229, 0.224, 0.225)
OCR_LINES = ("Hello World 2026", "Inference engine", "one file of machine code, mapped and served")
PIPER_SENTENCE = "həlˈoʊ wˈɜːld, ðɪs ɪz ɐ tˈɛst."  # noqa: RUF001  phonetic letters


def names() -> list[str]:
    """Every model that `cases` knows, fetched ones and made ones."""
    return list(_CASES)


def cases(name: str) -> list[Inputs]:
    """Real inputs of one model; a model with symbolic dims gets three bindings or more."""
    return _CASES[name]()


def noise_like(inputs: Inputs, seed: int) -> Inputs:
    """Inputs of the same names, shapes and dtypes: noise for numbers, a shuffle for the rest.

    Integers and truth values are only permuted, so that they stay what the model can index with.
    """
    random = np.random.default_rng(seed)
    return {name: _noise(array, random) for name, array in inputs.items()}


def _noise(array: npt.NDArray[np.generic], random: np.random.Generator) -> npt.NDArray[np.generic]:
    if array.size <= 3:
        return array  # a rate, a length, a scale: not data
    if not np.issubdtype(array.dtype, np.floating):
        return random.permutation(array.reshape(-1)).reshape(array.shape)
    values = array.astype(np.float64)
    deviation = values.std() or 1.0
    return random.normal(values.mean(), deviation, array.shape).astype(array.dtype)


def ocr_lines(lines: tuple[str, ...] = OCR_LINES, height: int = 48) -> Inputs:
    """Lines of text as the recogniser reads them, white at the right of the shorter ones."""
    drawn = pictures.padded([pictures.text_line(line, height) for line in lines])
    return {"x": pictures.planes(drawn, 0.5, 0.5, bgr=True)}


def _ocr_rec() -> list[Inputs]:
    return [ocr_lines((line,)) for line in OCR_LINES] + [ocr_lines()]


def _ocr_det() -> list[Inputs]:
    def page(name: str, width: int, height: int) -> pictures.Picture:
        return pictures.resized(pictures.photo(name), width, height)

    sets = (
        [page("page.png", 384, 192)],
        [page("page.png", 512, 256)],
        [page("coffee.png", 320, 320), page("rocket.jpg", 320, 320)],
    )
    deviations = {"mean": IMAGENET_MEAN, "deviation": IMAGENET_DEVIATION}
    return [{"x": pictures.planes(each, **deviations, bgr=True)} for each in sets]


def _ocr_cls() -> list[Inputs]:
    lines = [pictures.resized(pictures.text_line(line), 192, 48) for line in OCR_LINES]
    turned = [np.rot90(line, 2) for line in lines]
    sets = (lines[:1], turned[:2], [*lines, *turned])
    return [{"x": pictures.planes(each, 0.5, 0.5, bgr=True)} for each in sets]


def page_turned(quarters: int) -> pictures.Picture:
    """The page, turned by quarters of a circle, as the orientation net reads it."""
    turned = np.ascontiguousarray(np.rot90(pictures.photo("page.png"), quarters))
    return pictures.centre(turned, 256, 224)


def _orientation() -> list[Inputs]:
    sets = ([0], [1, 2], [0, 1, 2, 3])
    return [
        {
            "x": pictures.planes(
                [page_turned(quarters) for quarters in each],
                IMAGENET_MEAN,
                IMAGENET_DEVIATION,
                bgr=True,
            )
        }
        for each in sets
    ]


def _nsfw() -> list[Inputs]:
    def read(*files: str) -> Inputs:
        squares = [pictures.centre(pictures.photo(file), 256, 224) for file in files]
        bgr = np.stack(squares).astype(np.float32)[..., ::-1]
        return {"input:0": bgr - np.asarray([104, 117, 123], np.float32)}

    return [
        read("astronaut.png"),
        read("astronaut.png", "chelsea.png"),
        read("chelsea.png", "coffee.png", "rocket.jpg"),
    ]


def _detector(sides: tuple[tuple[int, int], ...]) -> list[Inputs]:
    """Sides are (width, height); the last binding is a batch of two."""
    photos = [pictures.photo(name) for name in ("astronaut.png", "chelsea.png")]
    sets = [[pictures.resized(photos[0], *side)] for side in sides[:-1]]
    sets.append([pictures.resized(photo, *sides[-1]) for photo in photos])
    return [{"images": pictures.planes(each)} for each in sets]


def _ddddocr(lines: tuple[str, ...] = ("aB7kq", "x4", "Zm93Tr")) -> list[Inputs]:
    # Smaller letters than on a page: captchas leave room around them.
    drawn = [pictures.text_line(line, 64, letter_share=0.5) for line in lines]
    return [{"input1": pictures.planes([line])[:, :1]} for line in drawn]


def _ddddocr_det() -> list[Inputs]:
    square = pictures.resized(pictures.photo("text.png"), 416, 416).astype(np.float32)
    return [{"images": np.ascontiguousarray(square.transpose(2, 0, 1))[None]}]


def _layout() -> list[Inputs]:
    page = pictures.resized(pictures.photo("page.png"), 608, 800)
    return [{"image": pictures.planes([page], IMAGENET_MEAN, IMAGENET_DEVIATION)}]


def _table() -> list[Inputs]:
    drawn = pictures.table()
    small = pictures.resized(drawn, 320, 256)
    sets = ([drawn], [small], [small, small[::-1]])
    norm = {"mean": IMAGENET_MEAN, "deviation": IMAGENET_DEVIATION}
    return [{"x": pictures.planes(each, **norm, bgr=True)} for each in sets]


def _classes(input_name: str) -> list[Inputs]:
    squares = [pictures.centre(pictures.photo("chelsea.png"), 256, 224)]
    return [{input_name: pictures.planes(squares, IMAGENET_MEAN, IMAGENET_DEVIATION)}]


def _mobilenet() -> list[Inputs]:
    files = ("chelsea.png", "coffee.png", "rocket.jpg", "astronaut.png")
    squares = [pictures.centre(pictures.photo(file), 256, 224) for file in files]
    norm = (IMAGENET_MEAN, IMAGENET_DEVIATION)
    return [{"image": pictures.planes(squares[:count], *norm)} for count in (1, 2, 4)]


def _minilm() -> list[Inputs]:
    def read(batch: int, length: int) -> Inputs:
        ids = np.random.default_rng(length).integers(0, encoder.VOCABULARY, (batch, length))
        mask = np.ones((batch, length), np.int64)
        mask[-1, length - length // 4 :] = 0
        return {"input_ids": ids, "attention_mask": mask}

    return [read(1, 128), read(2, 17), read(3, 64)]


def speech_windows(recording: str) -> Inputs:
    """A whole recording for the sequence form of the voice detector, from a state of zeros."""
    state = np.zeros((1, 1, 128), np.float32)
    return {"input": sound.windows(sound.recording(recording)), "h": state, "c": state.copy()}


def _silero_sequence() -> list[Inputs]:
    whole = speech_windows("beckett.wav")
    return [{**whole, "input": whole["input"][start:end]} for start, end in _SPANS]


_SPANS = ((40, 140), (60, 61), (100, 137))


def _silero(batched: bool) -> list[Inputs]:
    windows = sound.windows(sound.recording("beckett.wav"))
    sizes = (1, 2, 3) if batched else (1,)
    return [
        {"input": windows[60 : 60 + size], "state": np.zeros((2, size, 128), np.float32)}
        for size in sizes
    ]


def _silero_with_rate() -> list[Inputs]:
    wide = [{**each, "sr": np.asarray(16_000, np.int64)} for each in _silero(batched=True)]
    half = sound.recording("beckett.wav")[::2]
    window = sound.windows(half, 256, 32)[60:61]
    narrow: Inputs = {"input": window, "state": np.zeros((2, 1, 128), np.float32)}
    return [*wide, {**narrow, "sr": np.asarray(8_000, np.int64)}]


def notes(*frequencies_hz: float) -> Inputs:
    """Two seconds of each note at 22,050 samples a second, as the transcription net reads them."""
    tones = [sound.tone(hz, 43_844, rate=22_050) for hz in frequencies_hz]
    return {"serving_default_input_2:0": np.stack(tones)[..., None]}


def _basic_pitch() -> list[Inputs]:
    return [notes(440.0), notes(220.0, 261.6), notes(110.0, 329.6, 880.0)]


def _melspectrogram() -> list[Inputs]:
    # The net was trained on 16-bit samples as they are, so loud numbers are right here.
    speech = sound.recording("beckett.wav")[16_000:] * 32767
    result: list[Inputs] = [{"input": speech[None, :count]} for count in (32_000, 12_345, 16_000)]
    result.append({"input": speech[:24_000].reshape(2, 12_000)})
    return result


def _bands(input_name: str, shape: tuple[int, int], batches: tuple[int, ...]) -> list[Inputs]:
    """Spectrograms [batch, *shape] of consecutive seconds of speech."""
    speech = sound.recording("beckett.wav")
    result: list[Inputs] = []
    for batch in batches:
        parts = [sound.bands(speech[i * 16_000 :], *shape) for i in range(batch)]
        result.append({input_name: np.stack(parts)})
    return result


def _speech_embedding() -> list[Inputs]:
    return [
        {"input_1": each["x"].transpose(0, 2, 1)[..., None].copy() * 4}
        for each in _bands("x", (32, 76), (1, 2, 3))
    ]


def _deepfilter_encoder() -> list[Inputs]:
    speech = sound.recording("beckett.wav")
    result: list[Inputs] = []
    for frames in (100, 7, 33):
        erb = sound.bands(speech, 32, frames).T[None, None]
        spectrum = [sound.bands(speech[start:], 96, frames).T for start in (0, 8_000)]
        result.append({"feat_erb": erb.copy(), "feat_spec": np.stack(spectrum)[None]})
    return result


def _deepfilter_decoder(maps: Mapping[str, tuple[int, ...]]) -> list[Inputs]:
    """What the encoder hands on is rectified, so are these: `maps` gives (channels, width)."""
    result: list[Inputs] = []
    for frames in (100, 7, 33):
        random = np.random.default_rng(frames)
        inputs: Inputs = {"emb": random.normal(size=(1, frames, 512)).astype(np.float32)}
        for name, (channels, width) in maps.items():
            values = random.normal(size=(1, channels, frames, width)).astype(np.float32)
            inputs[name] = np.maximum(values, 0)
        result.append(inputs)
    return result


def file_tokens(content: bytes) -> npt.NDArray[np.int32]:
    """The first and last 1,024 bytes of a file, white space stripped, 256 where there is none."""
    head = content[:4096].lstrip()[:1024]
    tail = content[-4096:].rstrip()[-1024:]
    tokens = np.full(2048, 256, np.int32)
    tokens[: len(head)] = list(head)
    tokens[2048 - len(tail) :] = list(tail)
    return tokens


def _magika() -> list[Inputs]:
    files = [fetch.path("page.png"), fetch.path("ddddocr_charsets"), fetch.path("magika_config")]
    rows = [file_tokens(file.read_bytes()) for file in files]
    return [{"bytes": np.stack(rows[:count])} for count in (1, 2, 3)]


def _tokens(high: int, *inputs: str) -> list[Inputs]:
    """Ids below `high`, of several lengths; the second input is a little longer."""
    result: list[Inputs] = []
    for batch, length in ((1, 60), (2, 17), (3, 33)):
        random = np.random.default_rng(length)
        shapes = {name: (batch, length + 3 * i) for i, name in enumerate(inputs)}
        result.append({name: random.integers(1, high, shape) for name, shape in shapes.items()})
    return result


def _romanizer_encoder() -> list[Inputs]:
    result = _tokens(30, "src")
    for inputs in result:
        padding = np.zeros(inputs["src"].shape, np.bool_)
        padding[-1, -3:] = True
        inputs["src_mask"] = padding
    return result


def _romanizer_decoder() -> list[Inputs]:
    result = _tokens(30, "prefix")
    for inputs in result:
        batch, length = inputs["prefix"].shape
        random = np.random.default_rng(length)
        padding = np.zeros((batch, 10), np.bool_)
        padding[-1, -2:] = True
        inputs["memory"] = random.normal(size=(batch, 10, 256)).astype(np.float32)
        inputs["src_mask"] = padding
        inputs["hidden"] = random.normal(size=(batch, 2, 256)).astype(np.float32)
    return result


def _eeg() -> list[Inputs]:
    return [
        {"x": _bands("x", (100, time), (batch,))[0]["x"]}
        for batch, time in ((1, 300), (2, 57), (3, 128))
    ]


def _molecules() -> list[Inputs]:
    """Rings of atoms: the features are noise, the graph is a graph."""
    result: list[Inputs] = []
    for num_graphs, atoms in ((1, 12), (2, 6), (3, 9)):
        random = np.random.default_rng(atoms)
        num_nodes, starts = num_graphs * atoms, np.repeat(np.arange(num_graphs) * atoms, atoms)
        here = np.arange(num_nodes)
        after = starts + (here - starts + 1) % atoms
        edges = np.stack([np.concatenate([here, after]), np.concatenate([after, here])])
        widths = {"feat": 85, "laplacian_eigvec": 8, "laplacian_eigval": 8, "rw_return_probs": 16}
        inputs: Inputs = {
            name: random.normal(size=(num_nodes, width)).astype(np.float32)
            for name, width in widths.items()
        }
        inputs["edge_feat"] = random.normal(size=(2 * num_nodes, 13)).astype(np.float32)
        inputs["edge_index"] = edges
        inputs["batch"] = np.repeat(np.arange(num_graphs), atoms)
        inputs["graph_slots"] = np.zeros(num_graphs, np.float32)
        result.append(inputs)
    return result


def sentence_ids(phonemes: str) -> Inputs:
    """A sentence in phonetic letters as the voice reads it; its noise is switched off."""
    table = json.loads(fetch.path("piper_config").read_text())["phoneme_id_map"]
    ids = [*table["^"], *table["_"]]
    for letter in phonemes:
        ids += [*table[letter], *table["_"]]
    ids += table["$"]
    return {
        "input": np.asarray([ids], np.int64),
        "input_lengths": np.asarray([len(ids)], np.int64),
        "scales": np.asarray([0.0, 1.0, 0.0], np.float32),
    }


def _piper() -> list[Inputs]:
    return [sentence_ids(PIPER_SENTENCE[:count]) for count in (30, 12, 21)]


_LIGHT_INPUTS = dict.fromkeys(light.NAMES, "data_0") | {
    "resnet50": "gpu_0/data_0",
    "shufflenet": "gpu_0/data_0",
    "zfnet512": "gpu_0/data_0",
}

_CASES: Mapping[str, Callable[[], list[Inputs]]] = {
    "ocr_det": _ocr_det,
    "ocr_rec": _ocr_rec,
    "ocr_cls": _ocr_cls,
    "orientation": _orientation,
    "nsfw": _nsfw,
    "nudenet": lambda: _detector(((320, 320), (256, 320), (192, 256))),
    "nudenet_nms": lambda: _detector(((320, 320), (256, 320)))[:1],
    "isbnx": lambda: _detector(((640, 640), (320, 320), (384, 256))),
    "silero_sequence": _silero_sequence,
    "silero": _silero_with_rate,
    "silero_16k": lambda: _silero(batched=False),
    "silero_half": lambda: _silero(batched=True),
    "ddddocr": _ddddocr,
    "ddddocr_int8": _ddddocr,
    "ddddocr_det": _ddddocr_det,
    "basic_pitch": _basic_pitch,
    "melspectrogram": _melspectrogram,
    "speech_embedding": _speech_embedding,
    "alexa": lambda: _bands("onnx::Flatten_0", (16, 96), (1,)),
    "hey_jarvis": lambda: _bands("x.1", (16, 96), (1,)),
    "hey_mycroft": lambda: _bands("input_1", (16, 96), (1, 2, 3)),
    "magika": _magika,
    "table": _table,
    "layout": _layout,
    "smart_turn": lambda: _bands("input_features", (80, 800), (1, 2, 3)),
    "tashkeel_bilstm": lambda: _tokens(30, "input_ids"),
    "tashkeel_rawi": lambda: _tokens(30, "input"),
    "tashkeel_rawi_v2": lambda: _tokens(30, "input"),
    "tashkeel_rawi_v3": lambda: _tokens(30, "input"),
    "frspell": lambda: _tokens(30, "src", "tgt_in"),
    "romanizer_encoder": _romanizer_encoder,
    "romanizer_decoder": _romanizer_decoder,
    "deepfilter_encoder": _deepfilter_encoder,
    "deepfilter_erb": lambda: _deepfilter_decoder(
        {"e3": (64, 8), "e2": (64, 8), "e1": (64, 16), "e0": (64, 32)}
    ),
    "deepfilter_df": lambda: _deepfilter_decoder({"c0": (64, 96)}),
    "voicefilter": lambda: _bands("mel_window", (80, 40), (1, 2, 3)),
    "eeg_seizure": _eeg,
    "minimol": _molecules,
    "piper": _piper,
    "minilm": _minilm,
    "mobilenet_v2": _mobilenet,
    **{name: functools.partial(_classes, field) for name, field in _LIGHT_INPUTS.items()},
}
