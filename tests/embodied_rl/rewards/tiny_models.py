"""Small random models of transformers, written where a test wants them: no network is needed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, processors

SIZE = 16
WORDS = ["go", "open", "the", "drawer", "a", "robot", "arm", "at", "table", "lifts", "mug"]
IMAGE = "<image>"
_TEMPLATE = (
    "{% for message in messages %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<image>{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endfor %}"
)
_VISION = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": SIZE,
    "initializer_range": 0.5,
    "patch_size": 8,
}


def save_clip(folder: Path, seed: int = 0) -> Path:
    """A CLIP that tells pictures and the words of WORDS apart, without meaning."""
    from transformers import CLIPConfig, CLIPModel

    text = {
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "vocab_size": 64,
        "max_position_embeddings": 12,
        "bos_token_id": 2,
        "eos_token_id": 3,
        "pad_token_id": 0,
    }
    torch.manual_seed(seed)
    CLIPModel(CLIPConfig(text_config=text, vision_config=_VISION, projection_dim=8)).save_pretrained(folder)
    _tokenizer(WORDS, ends=True).save_pretrained(folder)
    _pictures().save_pretrained(folder)
    return folder


def save_vlm(folder: Path, says: list[str], seed: int = 0) -> Path:
    """A LLaVA that answers each question with one of the words `says`."""
    from transformers import (
        CLIPVisionConfig,
        GenerationConfig,
        LlamaConfig,
        LlavaConfig,
        LlavaForConditionalGeneration,
        LlavaProcessor,
    )

    tokenizer = _tokenizer(says, ends=False)
    tokenizer.add_special_tokens({"additional_special_tokens": [AddedToken(IMAGE, special=True)]})
    answers = tokenizer.convert_tokens_to_ids(says)
    language = {
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "vocab_size": len(tokenizer),
        "initializer_range": 0.5,
        "bos_token_id": 2,
        "eos_token_id": 3,
        "pad_token_id": 0,
    }
    torch.manual_seed(seed)
    shape: dict[str, Any] = {
        "vision_config": CLIPVisionConfig(**_VISION),
        "text_config": LlamaConfig(**language),
        "initializer_range": 0.5,
        "image_token_index": tokenizer.convert_tokens_to_ids(IMAGE),
        "vision_feature_layer": -1,
    }
    model = LlavaForConditionalGeneration(LlavaConfig(**shape))
    with torch.no_grad():  # the mean of the answers is never likelier than the likeliest of them
        head: Any = model.lm_head.weight
        others = sorted(set(range(len(tokenizer))) - set(answers))
        head[others] = head[answers].mean(0)
    model.generation_config = GenerationConfig(eos_token_id=answers, pad_token_id=0)  # one word is an answer
    model.save_pretrained(folder)
    LlavaProcessor(
        image_processor=_pictures(),
        tokenizer=tokenizer,
        patch_size=8,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=_TEMPLATE,
    ).save_pretrained(folder)
    return folder


def save_bert(folder: Path) -> Path:
    """Says that it is a model of text alone."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"model_type": "bert"}))
    return folder


def _tokenizer(words: list[str], *, ends: bool) -> Any:
    from transformers import PreTrainedTokenizerFast

    known = ["[PAD]", "[UNK]", "<s>", "</s>", *words]
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(known)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if ends:
        marks = [("<s>", 2), ("</s>", 3)]
        tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=marks)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", bos_token="<s>", eos_token="</s>"
    )


def _pictures() -> Any:
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

    return CLIPImageProcessorPil(size={"shortest_edge": SIZE}, crop_size={"height": SIZE, "width": SIZE})
