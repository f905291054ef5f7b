"""A tiny vision-language model (Idefics3: SigLIP tower, Llama) made on the spot, and what transformers says of it."""

import base64
import io
import json
from pathlib import Path
from typing import Any

import torch
from model import tokenizer
from PIL import Image
from tokenizers import AddedToken, Tokenizer

CONTEXT = 512
TEMPLATE = """\
{%- for message in messages %}{{ '<|im_start|>' + message.role + '\\n' }}
{%- if message.content is string %}{{ message.content }}
{%- else %}{% for part in message.content %}
{{- '<image>' if part.type == 'image' else part.text }}{% endfor %}
{%- endif %}{{ '<|im_end|>\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}
"""
SIDE = 56
"""Of a picture, in pixels: 4 x 4 patches of 14 x 14, of which 2 x 2 share a token."""
SPECIAL = ("<image>", "<fake_token_around_image>", "<global-img>", "<end_of_utterance>")


def words() -> Tokenizer:
    """The test tokenizer with the control tokens of images."""
    built = Tokenizer.from_str(tokenizer().to_str())
    built.add_special_tokens([AddedToken(word, special=True) for word in SPECIAL])
    return built


def shown() -> list[int]:
    """Ids that the engine puts in the place of `<image>`."""
    image, around, whole, _ = (words().token_to_id(word) for word in SPECIAL)
    return [around, whole, *[image] * 4, around]


def build_vision(folder: Path, seed: int = 0) -> Any:
    """Write the folder (weights, tokenizer, processor); the model, float32."""
    from transformers import Idefics3Config, Idefics3ForConditionalGeneration, LlamaConfig

    folder.mkdir(parents=True, exist_ok=True)
    tokens = words()
    tokens.save(str(folder / "tokenizer.json"))
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = Idefics3Config(
        vision_config={**sizes, "intermediate_size": 64, "image_size": SIDE, "patch_size": 14},
        text_config=LlamaConfig(
            **sizes, vocab_size=tokens.get_vocab_size(), intermediate_size=96, num_key_value_heads=2,
            max_position_embeddings=CONTEXT, initializer_range=0.2, bos_token_id=None, pad_token_id=0,
            eos_token_id=tokens.token_to_id("<|im_end|>"),
        ),
        image_token_id=tokens.token_to_id("<image>"),
        scale_factor=2,
        pad_token_id=0,
        dtype="float32",
    )  # fmt: skip
    torch.manual_seed(seed)
    model = Idefics3ForConditionalGeneration(config).eval()
    with torch.no_grad():
        for name, weights in model.named_parameters():
            if "connector" in name or "patch_embedding" in name:  # so that the picture matters
                weights.add_(0.2 * torch.randn_like(weights))
    model.save_pretrained(folder)
    preprocessor = {
        "image_processor_type": "Idefics3ImageProcessor", "processor_class": "Idefics3Processor",
        "do_image_splitting": False, "size": {"longest_edge": SIDE}, "max_image_size": {"longest_edge": SIDE},
        "image_mean": [0.5, 0.5, 0.5], "image_std": [0.25, 0.25, 0.25],
    }  # fmt: skip
    special = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    for name, content in {
        "preprocessor_config": preprocessor,
        "processor_config": {"processor_class": "Idefics3Processor", "image_seq_len": 4},
        "tokenizer_config": {"tokenizer_class": "PreTrainedTokenizerFast", **special, "chat_template": TEMPLATE},
    }.items():
        (folder / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    return model


def picture(color: str, size: tuple[int, int] = (SIDE, SIDE), kind: str = "PNG") -> bytes:
    """A file of one colour with a black corner."""
    image = Image.new("RGB", size, color)
    image.paste("black", (0, 0, size[0] // 3, size[1] // 2))
    file = io.BytesIO()
    image.save(file, kind)
    return file.getvalue()


def data_url(content: bytes, media_type: str = "image/png") -> str:
    return f"data:{media_type};base64,{base64.b64encode(content).decode()}"


def pixels(contents: list[bytes]) -> torch.Tensor:
    """What the processor makes of pictures of the model's size: `[N, 3, H, W]`, (value / 255 - 0.5) / 0.25."""
    import numpy as np

    arrays = [np.asarray(Image.open(io.BytesIO(one)).convert("RGB"), dtype=np.float32) for one in contents]
    return (torch.from_numpy(np.stack(arrays)).permute(0, 3, 1, 2) / 255 - 0.5) / 0.25


def logprobs(model: Any, prompt: list[int], answer: list[int], contents: list[bytes]) -> torch.Tensor:
    """log p(answer[i] | pictures, prompt, answer[:i]) by one forward pass of transformers, `[len(answer)]`."""
    given = {"pixel_values": pixels(contents)[None]} if contents else {}
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([prompt + answer]), **given).logits[0, len(prompt) - 1 : -1].float()
    return torch.log_softmax(logits, -1)[torch.arange(len(answer)), torch.tensor(answer)]
