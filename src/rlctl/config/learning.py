"""Sections of the training side ([algo] is in `algorithm`): [model] [train.*] [sync] [ckpt] [sft.*]."""

from typing import Literal

from pydantic import Field

from rlctl.config.base import Fraction, NonNegative, Positive, Seconds, Section


class Tiny(Section):
    """Shape of the model that `model.init = "tiny"` builds (Qwen2 architecture)."""

    hidden_size: Positive = 64
    layers: Positive = 3
    heads: Positive = 2
    """hidden_size / heads is the head width; vLLM on CPU needs 32 or more."""
    mlp: Positive = 192
    init_std: float = Field(default=0.02, gt=0)
    """Standard deviation of the first weights. 0.02 is small for a narrow model: attention begins almost uniform, and
    the warm start stays long on a plateau; 1 / sqrt(hidden_size) leaves it sooner."""


class Model(Section):
    """The policy."""

    path: str = ""
    """Hugging Face id or folder. Exactly one of `path` and `init`."""
    init: Literal["", "tiny"] = ""
    """tiny: build a small model and its tokenizer on the spot, deterministic by run.seed."""
    tiny: Tiny = Tiny()
    revision: str = ""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """What trainer and engines compute in. The trainer's weights and moments are float32; under float16 it scales its
    loss, as much as can be without overflow."""
    max_context: Positive = 1024
    """Prompt and response together, in tokens."""
    trust_remote_code: bool = False
    attention: Literal["sdpa", "eager", "flash_attention_2"] = "sdpa"


class Optim(Section):
    """AdamW and its schedule."""

    lr: float = Field(default=1e-6, gt=0)
    schedule: str = "constant"
    """A transformers schedule: constant, linear, cosine, constant_with_warmup, ..."""
    warmup_steps: NonNegative = 0
    """Optimizer steps."""
    warmup_fraction: Fraction = 0.0
    """Of all optimizer steps, where `warmup_steps` is 0."""
    min_lr_fraction: Fraction = 0.0
    """Floor of the schedule, as a fraction of lr."""
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = Field(default=1e-8, gt=0)
    weight_decay: float = Field(default=0.0, ge=0)
    grad_clip: float = Field(default=1.0, gt=0)


class Fsdp(Section):
    """Sharding (torch FSDP2)."""

    strategy: Literal["full", "hybrid", "none"] = "full"
    """full: weights, gradients and moments cut over all ranks; none: whole on each; hybrid: cut within groups of
    `shard_size` neighbours (the GPUs of a host), whole in each group."""
    shard_size: NonNegative = 0
    """Ranks of a group under "hybrid"; it must divide the number of ranks."""
    reshard_after_forward: bool = True
    cpu_offload: bool = False
    """Keep weights, gradients and optimizer moments in the host's memory and take the optimizer's step there; a block's
    weights are on the GPU while it computes. Without a GPU everything is there anyway."""
    offload_pin_memory: bool = True
    """Page-locked host memory: faster transfers, but it cannot be swapped out. Off where that much is not to be had."""


class Parallel(Section):
    """Processes that work together on the same micro-batches; what they leave of all processes is data parallel."""

    tensor: Positive = 1
    """Processes that each hold a slice of every large weight, cut by the model's own plan (transformers'
    `base_model_tp_plan`); heads and widths must be multiples of it."""
    sequence: Positive = 1
    """Processes that each compute some columns of a micro-batch: for samples too long for one. Needs model.attention =
    "sdpa" and full attention in every layer."""
    sequence_kind: Literal["ulysses", "ring"] = "ulysses"
    """What goes between them in attention. ulysses: each computes some heads for all columns, so key-value heads must
    be a multiple of tensor x sequence. ring: keys and values come past, a part at a time; any number of heads, and no
    process holds all keys, but later columns have more to compute than earlier ones."""
    pipeline: Positive = 1
    """Processes that each hold some layers and hand states on (torch.distributed.pipelining, 1F1B): for models whose
    weights one cannot hold. Needs a model of embedding, layers and one norm with nothing in between, and no more stages
    than layers. They work at the same time where a minibatch has many micro-batches (`train.micro_tokens`)."""


class Lora(Section):
    """Low-rank adapters through peft; the base weights stay frozen. Publications and checkpoints hold the adapters
    (`sync.lora`, `ckpt.merged`)."""

    rank: NonNegative = 0
    """0: full weights."""
    alpha: Positive = 32
    target_modules: str | list[str] = "all-linear"
    """Linear layers that share their weight with no other, by the ends of their names; all-linear: all but the output
    layer."""
    quantize: Literal["", "nf4", "fp4"] = ""
    """QLoRA: keep the policy's frozen linear layers in 4 bits through bitsandbytes (extra `qlora`), whole on every
    process. Engines get the weights that the codes stand for, written once to RUN_DIR/weights/base. Without
    `train.parallel.tensor`, `.pipeline`, `train.compile` and `train.fsdp.cpu_offload`. Run on the CPU only so far."""


class Memory(Section):
    """What is computed twice so that it need not be kept."""

    activation_checkpointing: bool | Literal["full", "selective"] = False
    """full (or true): keep only the inputs of the transformer blocks. selective: keep the outputs of their matrix
    products and attention too, so that only what is cheap is computed twice."""
    checkpoint_layers: NonNegative = 0
    """How many blocks, from the first on: their activations are those that are kept longest. 0: all."""
    logit_chunk: NonNegative = 0
    """Trainable tokens whose logits are in memory at once, also in the backward pass; 0: those of a micro-batch."""


class Train(Section):
    """The trainer."""

    processes: Positive = 1
    """torchrun processes on this host; one GPU each where there are GPUs."""
    threads: Positive = 1
    """CPU threads of one process."""
    groups_per_step: Positive = 16
    """Prompts whose groups make one training step."""
    minibatches: Positive = 1
    """Optimizer steps per training step."""
    epochs: Positive = 1
    """Passes over the batch of one training step."""
    micro_tokens: Positive = 8192
    """Tokens of one forward pass and rank, padding counted; a longer sample has a pass to itself."""
    packing: bool = False
    """Several samples per row with block-diagonal attention (no padding with flash_attention_2); else one per row,
    sorted by length."""
    prefix_tree: bool | Literal["auto"] = "auto"
    """Compute a prefix that samples share (the prompt of a group, the history before a fork) once, exactly as if each
    had been computed alone; also leaves no padding. auto: on the CPU where it saves tokens; true: always (on a GPU
    through FlexAttention, which has not been run yet). Needs model.attention = "sdpa" and full attention in every
    layer."""
    compile: bool = False
    """torch.compile the transformer blocks: worth minutes at the start for long runs. Needs a C++ compiler on the CPU,
    Triton on a GPU; does without `prefix_tree`."""
    liger: bool | Literal["auto"] = "auto"
    """Liger's fused kernels (pip install liger-kernel) in the place of the model's own. auto: on a GPU, where they are
    installed and know the model; true: an error where not. They have not been run yet."""
    record: bool = False
    """Keep every batch in RUN_DIR/batches.msgpack, to train on it again with `replay`."""
    replay: str = ""
    """File of recorded batches to train on instead of the pool's."""
    optim: Optim = Optim()
    fsdp: Fsdp = Fsdp()
    parallel: Parallel = Parallel()
    lora: Lora = Lora()
    memory: Memory = Memory()


class Reference(Section):
    """The frozen model of algo.kl, or the teacher of algo.advantage = "distill"."""

    path: str = ""
    """Hugging Face id or folder; empty: the policy as training began (with LoRA: the base weights, no second copy)."""
    update_every: NonNegative = 0
    """Training steps after which it becomes the policy as it then is; 0: never."""


class Critic(Section):
    """The value model of gae and bi_level_gae: a network of its own, with its own optimizer."""

    path: str = ""
    """Hugging Face id or folder its body starts from (the head starts at 0); empty: where the policy starts."""
    value_clip: float = Field(default=0.2, ge=0)
    """The new value may help only within this distance of the old one; 0: off."""
    huber: float = Field(default=0.0, ge=0)
    """Errors beyond this count linearly; 0: plain squares."""
    warmup_steps: NonNegative = 0
    """First training steps in which only the critic learns."""
    optim: Optim = Optim(lr=1e-5)


class Sync(Section):
    """How new weights reach the engines."""

    every: Positive = 1
    """Training steps between publications."""
    method: Literal["file"] = "file"
    lora: Literal["adapter", "merged"] = "adapter"
    """With train.lora: publish the adapters, which the engines merge into the weights that RL started from (they must
    see that folder); or whole weights."""
    keep: Positive = 2
    """Published versions kept on disk."""
    timeout_s: Seconds = 300.0
    """For one engine to take over one version."""
    retries: NonNegative = 3
    """Of an engine that could not be reached or answered 5xx, one second apart."""


class Ckpt(Section):
    """Checkpoints, written beside the training (from a copy in memory); the last step is always saved, and a run
    directory that has one is resumed from its latest."""

    every: NonNegative = 0
    """Training steps between checkpoints; 0: only the last step. A resumed run does the steps since the last one again,
    with the same samples, which the pool keeps until then; with 0 it begins anew, with other samples."""
    keep: Positive = 2
    """Newest checkpoints kept on disk."""
    merged: Literal["last", "every", "never"] = "last"
    """With train.lora: which checkpoints hold the merged model (`hf/`) beside the adapters. `rlctl merge` makes it of
    any."""
    best_metric: str = ""
    """EVAL.success_rate or EVAL.mean_reward of an [[eval]], e.g. val.success_rate: the checkpoints that it was highest
    at are kept, too (only steps that were both measured and saved can be among them). Empty: none are."""
    keep_best: Positive = 1
    """How many of them."""


class SftData(Section):
    """Demonstrations for the warm start."""

    path: str = ""
    """JSONL of {"messages": [...]} or, from a run, {"token_ids", "loss_mask"} (`rlctl sft-gen --from-pool`); empty:
    generated for the first [[env]] as `rlctl sft-gen` does."""
    size: Positive = 3000
    """Training instances when generated."""
    episodes: Positive = 1
    """Demonstrations of each instance; they differ where several plans are optimal."""
    workers: Positive = 1
    shuffle: bool = True
    """Every epoch in an order of its own; false: in the order of the file (`rlctl sft-gen --curriculum`)."""


class Sft(Section):
    """Supervised warm start before RL, stopped at a measured success rate."""

    max_steps: NonNegative = 0
    """Upper bound in optimizer steps; 0: no warm start."""
    batch: Positive = 16
    """Demonstrations per optimizer step."""
    stop_success: Fraction | None = None
    """Stop once success on training instances (at rollout.temperature) reaches this."""
    check_every: Positive = 25
    check_episodes: Positive = 128
    optim: Optim = Optim(lr=2e-3, betas=(0.9, 0.98), warmup_steps=20)
    data: SftData = SftData()
