"""09.split_range: which keys a split works on."""

import math

from flashlab.course.spec import Case, Exercise, Mistake, SubCheck


def spec(seqlen_k, block_n, split, num_splits):
    tiles = -(-seqlen_k // block_n)
    owner = [((key // block_n + 1) * num_splits - 1) // tiles for key in range(seqlen_k)]  # the split of every key
    start, end = sum(o < split for o in owner), sum(o <= split for o in owner)
    return start, end


def stub(seqlen_k, block_n, split, num_splits):
    """Split number ``split`` of ``num_splits`` works on the keys start to end - 1; start = end if it has none.

    Its tiles are first_tile to last_tile - 1. Returns (start, end).
    """
    tiles = -(-seqlen_k // block_n)  # rounded up: the last one may be short
    first_tile, last_tile = ...
    return min(first_tile * block_n, seqlen_k), min(last_tile * block_n, seqlen_k)


def solution(seqlen_k, block_n, split, num_splits):
    """Split number ``split`` of ``num_splits`` works on the keys start to end - 1; start = end if it has none.

    Its tiles are first_tile to last_tile - 1. Returns (start, end).
    """
    tiles = -(-seqlen_k // block_n)  # rounded up: the last one may be short
    first_tile, last_tile = split * tiles // num_splits, (split + 1) * tiles // num_splits
    return min(first_tile * block_n, seqlen_k), min(last_tile * block_n, seqlen_k)


def _of_tiles(seqlen_k, block_n, first_tile, last_tile):
    return min(first_tile * block_n, seqlen_k), min(last_tile * block_n, seqlen_k)


def tiles_left_over(seqlen_k, block_n, split, num_splits):
    each = -(-seqlen_k // block_n) // num_splits
    return _of_tiles(seqlen_k, block_n, split * each, (split + 1) * each)


def last_splits_starve(seqlen_k, block_n, split, num_splits):
    each = math.ceil(math.ceil(seqlen_k / block_n) / num_splits)
    return _of_tiles(seqlen_k, block_n, split * each, (split + 1) * each)


def overlap_by_one(seqlen_k, block_n, split, num_splits):
    tiles = -(-seqlen_k // block_n)
    return _of_tiles(seqlen_k, block_n, split * tiles // num_splits, (split + 1) * tiles // num_splits + 1)


def one_tile_short(seqlen_k, block_n, split, num_splits):
    tiles = -(-seqlen_k // block_n)
    return _of_tiles(seqlen_k, block_n, split * tiles // num_splits, (split + 1) * tiles // num_splits - 1)


def keys_not_tiles(seqlen_k, block_n, split, num_splits):
    return split * seqlen_k // num_splits, (split + 1) * seqlen_k // num_splits


def short_tile_dropped(seqlen_k, block_n, split, num_splits):
    tiles = seqlen_k // block_n
    return split * tiles // num_splits * block_n, (split + 1) * tiles // num_splits * block_n


def past_the_end(seqlen_k, block_n, split, num_splits):
    tiles = -(-seqlen_k // block_n)
    return split * tiles // num_splits * block_n, (split + 1) * tiles // num_splits * block_n


def rounded_up(seqlen_k, block_n, split, num_splits):
    tiles = -(-seqlen_k // block_n)
    return _of_tiles(seqlen_k, block_n, -(-split * tiles // num_splits), -(-(split + 1) * tiles // num_splits))


def left_over_to_the_first(seqlen_k, block_n, split, num_splits):
    each, extra = divmod(-(-seqlen_k // block_n), num_splits)
    first = split * each + min(split, extra)
    return _of_tiles(seqlen_k, block_n, first, first + each + (split < extra))


def left_over_to_the_last(seqlen_k, block_n, split, num_splits):
    tiles = -(-seqlen_k // block_n)
    each = tiles // num_splits
    return _of_tiles(seqlen_k, block_n, split * each, tiles if split == num_splits - 1 else (split + 1) * each)


def rounded_to_nearest(seqlen_k, block_n, split, num_splits):
    tiles = -(-seqlen_k // block_n)
    return _of_tiles(seqlen_k, block_n, round(split * tiles / num_splits), round((split + 1) * tiles / num_splits))


def true_division(seqlen_k, block_n, split, num_splits):
    tiles = -(-seqlen_k // block_n)
    return _of_tiles(seqlen_k, block_n, split * tiles / num_splits, (split + 1) * tiles / num_splits)


def _all(seqlen_k, block_n, num_splits):
    for split in range(num_splits):
        label = f"{seqlen_k} keys, tiles of {block_n}, split {split} of {num_splits}"
        yield Case(label, (seqlen_k, block_n, split, num_splits))


def _even():
    return [*_all(1024, 64, 4), *_all(512, 64, 1)]


def _uneven():
    return [*_all(9 * 64, 64, 4), *_all(17 * 32, 32, 5)]


def _short():
    return [*_all(1000, 64, 4), *_all(33, 32, 2)]


def _too_many():
    return [*_all(3 * 64, 64, 5), *_all(1, 64, 4), *_all(0, 64, 2)]


def _each_key_once(split_range):
    for seqlen_k, block_n, num_splits in ((4096, 64, 33), (1000, 32, 7), (100, 64, 8)):
        times = [0] * seqlen_k
        for split in range(num_splits):
            start, end = split_range(seqlen_k, block_n, split, num_splits)
            if not (isinstance(start, int) and isinstance(end, int)):
                return f"{seqlen_k} keys, tiles of {block_n}, split {split} of {num_splits}: {start} and {end} are no integers"
            for key in range(start, min(end, seqlen_k)):
                times[key] += 1
        wrong = next((key for key, seen in enumerate(times) if seen != 1), None)
        if wrong is not None:
            how = "in no split" if times[wrong] == 0 else f"in {times[wrong]} splits"
            return f"{seqlen_k} keys, tiles of {block_n}, {num_splits} splits: key {wrong} is {how}"


EXERCISE = Exercise(
    id="09.split_range",
    title="Which keys a split works on",
    spec=spec,
    stub=stub,
    solution=solution,
    hints=(
        "Where does split 0 begin, and where must the last split end? Write both edges as a fraction of tiles: "
        "split / num_splits of them lie before split number split.",
        "Round that fraction down, in integers: a * b // c, multiplied before it is divided.",
        "The end of one split is the start of the next: the same formula with split + 1.",
    ),
    sub_checks=(
        SubCheck("tiles that divide evenly", cases=_even),
        SubCheck("tiles that do not", cases=_uneven),
        SubCheck("the last tile is short", cases=_short),
        SubCheck("more splits than tiles", cases=_too_many),
        SubCheck("every key is in exactly one split", test=_each_key_once),
    ),
    mistakes=(
        Mistake(
            tiles_left_over,
            "This is what comes out when every split gets tiles // num_splits tiles: what is left over at the end "
            "belongs to nobody.",
            "9 tiles in 4 splits: which tile does the last split end with?",
        ),
        Mistake(
            last_splits_starve,
            "Every key is there once, but the tiles are not shared evenly: each split takes ceil(tiles / num_splits), "
            "and the last ones find less, or nothing. (Some kernels do it this way. The longest split is as long "
            "either way; the even cut wastes fewer programs.)",
            "9 tiles in 4 splits: how many does each of yours get? Which formula has both edges rounded alike?",
        ),
        Mistake(
            overlap_by_one,
            "Neighbouring splits share a tile: its keys are counted twice, and weigh twice in the answer.",
            "last_tile is the first tile that is not yours. What does range(first_tile, last_tile) visit?",
        ),
        Mistake(
            one_tile_short,
            "Every split stops one tile early: between two splits there is a tile of nobody's.",
            "last_tile is the first tile that is not yours. What does range(first_tile, last_tile) visit?",
        ),
        Mistake(
            keys_not_tiles,
            "Here the keys were cut, not the tiles: a split may now begin in the middle of a tile. The answer would be "
            "right, but every split would end in a tile of its own that is partly masked.",
            "In which unit do you count, keys or tiles?",
        ),
        Mistake(
            short_tile_dropped,
            "The short tile at the end belongs to nobody: tiles was rounded down.",
            "How many tiles of 64 does it take to hold 1000 keys?",
        ),
        Mistake(
            past_the_end,
            "The last split ends past the last key: its last tile is short, and the range says it is full.",
            "What is the largest end there can be?",
        ),
        Mistake(
            rounded_up,
            "An even cut too, but with the edges rounded up. Round down, as the text says: everybody who works on the "
            "same keys has to agree on the edges.",
            "Which way does // round, and which way does -(-a // b)?",
        ),
        Mistake(
            left_over_to_the_first,
            "An even cut too: what is left over goes to the first splits, one tile each. But the text's edges are others, and "
            "everybody who works on the same keys has to agree on them.",
            "9 tiles in 4 splits: the text's first edge is floor(9 / 4). Which is yours?",
        ),
        Mistake(
            left_over_to_the_last,
            "Every key is there once, but all that is left over goes to the last split: it may have nearly twice as many "
            "tiles as the others, and everybody waits for it.",
            "17 tiles in 5 splits: how many has your last one, and how many would be fair?",
        ),
        Mistake(
            rounded_to_nearest,
            "An even cut too, but with the edges rounded to the nearest tile. Round down, as the text says: everybody who "
            "works on the same keys has to agree on the edges.",
            "Which operator divides and rounds down?",
        ),
        Mistake(
            true_division,
            "A float came out, or a tile was cut: / divides exactly, and half a tile is not a tile.",
            "Which operator divides and rounds down?",
        ),
    ),
    keep="Edges at floor(i * tiles / n): whole tiles, each in exactly one split, none longer than another by more than one.",
)
