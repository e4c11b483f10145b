"""08.largest_batch: how many sequences of a length the memory of a GPU holds."""

import torch

from flashlab.course.spec import Case, Exercise, Mistake, SubCheck
from flashlab.hardware import gpu


def spec(memory_mib, share, weights, layers, heads_q, heads_kv, head_dim, element_bytes, tokens):
    cache = torch.empty(layers, 2, heads_kv, tokens, head_dim, element_bytes, dtype=torch.uint8, device="meta")
    left, batch = int(memory_mib * 2**20 * share) - weights, 0  # MiB, as nvidia-smi says it; 2: K and V
    while left >= cache.nbytes:
        left, batch = left - cache.nbytes, batch + 1
    return batch


def stub(memory_mib, share, weights, layers, heads_q, heads_kv, head_dim, element_bytes, tokens):
    """The largest batch whose caches, of `tokens` tokens each, fit beside the weights (bytes). An integer; 0 if none.

    Only `share` of the memory may be used. No loop.
    """
    raise NotImplementedError


def solution(memory_mib, share, weights, layers, heads_q, heads_kv, head_dim, element_bytes, tokens):
    """The largest batch whose caches, of `tokens` tokens each, fit beside the weights (bytes). An integer; 0 if none.

    Only `share` of the memory may be used. No loop.
    """
    room = int(memory_mib * 2**20 * share) - weights
    sequence = 2 * layers * heads_kv * head_dim * element_bytes * tokens
    return max(0, room // sequence)


def k_without_v(memory_mib, share, weights, layers, heads_q, heads_kv, head_dim, element_bytes, tokens):
    room = int(memory_mib * 2**20 * share) - weights
    return max(0, room // (layers * heads_kv * head_dim * element_bytes * tokens))


def one_layer(memory_mib, share, weights, layers, heads_q, heads_kv, head_dim, element_bytes, tokens):
    room = int(memory_mib * 2**20 * share) - weights
    return max(0, room // (2 * heads_kv * head_dim * element_bytes * tokens))


def query_heads_kept(memory_mib, share, weights, layers, heads_q, heads_kv, head_dim, element_bytes, tokens):
    return solution(memory_mib, share, weights, layers, heads_q, heads_q, head_dim, element_bytes, tokens)


def weights_forgotten(memory_mib, share, weights, layers, heads_q, heads_kv, head_dim, element_bytes, tokens):
    return solution(memory_mib, share, 0, layers, heads_q, heads_kv, head_dim, element_bytes, tokens)


def weights_in_every_sequence(memory_mib, share, weights, layers, heads_q, heads_kv, head_dim, element_bytes, tokens):
    sequence = 2 * layers * heads_kv * head_dim * element_bytes * tokens
    return int(memory_mib * 2**20 * share) // (weights + sequence)


def megabytes(memory_mib, share, weights, layers, heads_q, heads_kv, head_dim, element_bytes, tokens):
    room = int(memory_mib * 10**6 * share) - weights
    return max(0, room // (2 * layers * heads_kv * head_dim * element_bytes * tokens))


def kilobytes(memory_mib, share, weights, layers, heads_q, heads_kv, head_dim, element_bytes, tokens):
    room = int(memory_mib * 2**10 * share) - weights
    return max(0, room // (2 * layers * heads_kv * head_dim * element_bytes * tokens))


def not_whole(memory_mib, share, weights, layers, heads_q, heads_kv, head_dim, element_bytes, tokens):
    room = int(memory_mib * 2**20 * share) - weights
    return max(0, room / (2 * layers * heads_kv * head_dim * element_bytes * tokens))


def share_of_the_rest(memory_mib, share, weights, layers, heads_q, heads_kv, head_dim, element_bytes, tokens):
    room = int((memory_mib * 2**20 - weights) * share)
    return max(0, room // (2 * layers * heads_kv * head_dim * element_bytes * tokens))


def all_of_it(memory_mib, share, weights, layers, heads_q, heads_kv, head_dim, element_bytes, tokens):
    return solution(memory_mib, 1, weights, layers, heads_q, heads_kv, head_dim, element_bytes, tokens)


def elements_for_bytes(memory_mib, share, weights, layers, heads_q, heads_kv, head_dim, element_bytes, tokens):
    return solution(memory_mib, share, weights, layers, heads_q, heads_kv, head_dim, 1, tokens)


def rounded_up(memory_mib, share, weights, layers, heads_q, heads_kv, head_dim, element_bytes, tokens):
    room = int(memory_mib * 2**20 * share) - weights
    return max(0, -(-room // (2 * layers * heads_kv * head_dim * element_bytes * tokens)))


def below_zero(memory_mib, share, weights, layers, heads_q, heads_kv, head_dim, element_bytes, tokens):
    room = int(memory_mib * 2**20 * share) - weights
    return room // (2 * layers * heads_kv * head_dim * element_bytes * tokens)


def lengths_multiplied(memory_mib, share, weights, layers, heads_q, heads_kv, head_dim, element_bytes, tokens):
    room = int(memory_mib * 2**20 * share) - weights
    return max(0, room // (4 * (tokens // 2) * (tokens // 2) * heads_q * head_dim))


LLAMA_3_8B = dict(weights=16_060_522_496, layers=32, heads_q=32, heads_kv=8, head_dim=128, element_bytes=2)
LLAMA_3_70B = dict(weights=141_107_412_992, layers=80, heads_q=64, heads_kv=8, head_dim=128, element_bytes=2)
LLAMA_2_7B = dict(weights=13_476_831_232, layers=32, heads_q=32, heads_kv=32, head_dim=128, element_bytes=2)


def _case(model, part, tokens, share=0.9, **other):
    fields = {**dict(llama_3_8b=LLAMA_3_8B, llama_3_70b=LLAMA_3_70B, llama_2_7b=LLAMA_2_7B)[model], **other}
    label = f"{model.replace('_', '-')} on an {gpu(part).name}, {tokens} tokens, {fields['element_bytes']} B an element"
    return Case(label, (gpu(part).memory_mib, share, *fields.values(), tokens))


def _long():
    return [_case("llama_3_8b", "h200", 131072), _case("llama_3_8b", "a100", 32768)]


def _short():
    return [_case("llama_3_8b", "h200", 2048), _case("llama_3_8b", "l4", 1000, 0.95)]


def _multi_head():
    return [_case("llama_2_7b", "a100", 4096)]


def _eight_bits():
    return [_case("llama_3_8b", "h100", 16384, element_bytes=1)]


def _nothing():
    return [_case("llama_3_70b", "h100", 8192)]


EXERCISE = Exercise(
    id="08.largest_batch",
    title="The batch that memory allows",
    spec=spec,
    stub=stub,
    solution=solution,
    hints=(
        "Two steps: the bytes that are left for caches, and the bytes of one sequence's cache. The batch is how "
        "often the second goes into the first.",
        "Left: memory_mib * 2**20 bytes, of which `share` may be used, less the weights, once for the whole batch.",
        "One token keeps K and V in every layer: 2 * layers * heads_kv * head_dim elements. Times element_bytes, "
        "times tokens.",
        "A part of a sequence is of no use: //. And less than nothing left is a batch of 0.",
    ),
    sub_checks=(
        SubCheck("long sequences", cases=_long),
        SubCheck("short sequences", cases=_short),
        SubCheck("as many kv heads as query heads", cases=_multi_head),
        SubCheck("a cache of 8 bits", cases=_eight_bits),
        SubCheck("weights that do not fit", cases=_nothing),
    ),
    mistakes=(
        Mistake(
            k_without_v,
            "Only K is kept here. V takes as much again.",
            "What does the 2 in the spec's shape stand for?",
        ),
        Mistake(
            one_layer,
            "This is the cache of a single layer. Every layer keeps K and V of its own, for every token.",
            "Which argument did you not use?",
        ),
        Mistake(
            query_heads_kept,
            "K and V are kept for every query head. The heads of a group share one, and that is what is kept.",
            "How many heads does the spec's cache have?",
        ),
        Mistake(
            weights_forgotten,
            "The weights are not subtracted. They are in the same memory, and come first.",
            "What else lies in the memory of the GPU?",
        ),
        Mistake(
            weights_in_every_sequence,
            "Each sequence brings the weights along here. All sequences of a batch share them.",
            "Do the weights grow with the batch?",
        ),
        Mistake(
            megabytes,
            "A MiB is taken for a million bytes: 5% of the memory is gone. nvidia-smi counts in MiB, 2**20 bytes.",
            "How many bytes are 143,771 MiB?",
        ),
        Mistake(
            kilobytes,
            "Nothing fits: a MiB is taken for 1024 bytes, and the weights alone are then more than the memory.",
            "How many bytes has a MiB?",
        ),
        Mistake(
            not_whole,
            "A fraction of a sequence is counted: / where // is wanted.",
            "If 6.96 sequences fit, how many can run?",
        ),
        Mistake(
            share_of_the_rest,
            "The share is taken of what the weights leave. It is a share of the whole memory; the weights come out "
            "of it.",
            "In which order does the spec multiply and subtract?",
        ),
        Mistake(
            all_of_it,
            "All of the memory is used: activations, the CUDA context and the rest have no room.",
            "Where does `share` appear in your function?",
        ),
        Mistake(
            elements_for_bytes,
            "Elements are counted as bytes.",
            "How many bytes has an element?",
        ),
        Mistake(
            rounded_up,
            "The last sequence does not fit whole: the division is rounded up.",
            "If 6.9 sequences fit, how many can run?",
        ),
        Mistake(
            below_zero,
            "A negative batch: the weights alone are more than the memory. Then nothing fits.",
            "What is the least that a batch can be?",
        ),
        Mistake(
            lengths_multiplied,
            "This is 4 x n x m x h, with n tokens of input and m of output: a formula that is going around. The two "
            "lengths are multiplied there, and layers are missing. A cache grows in step with its tokens, n + m of "
            "them, not with their square.",
            "What happens to the spec's cache when tokens doubles, and to yours?",
        ),
    ),
    keep="Batch = (memory x share - weights) // (2 x layers x heads_kv x head_dim x bytes x tokens).",
)
